"""What one of several processes does in the tests of ranks: train and evaluate, over gloo."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from tests.soak.recorder import DIRECTORY, Recorder

MODEL: dict[str, Any] = {
    "img_size": 16,
    "patch_size": 4,
    "embed_dim": 16,
    "depth": 1,
    "num_heads": 2,
    "decoder_embed_dim": 16,
    "decoder_depth": 1,
    "decoder_num_heads": 2,
}


def train_and_evaluate(root: Path, out: Path, *, rank: int, world_size: int) -> None:
    """Run everything in one process group; called in a child whose environment says its rank.

    Args:
        root: Folder of the shard directories ``uneven``, ``single``, ``labelled`` and of
            ``encoder.safetensors``.
        out: Folder that gets ``CASE/RANK.jsonl`` of training, and ``RANK.json`` of the metrics.
        rank: Number of this process.
        world_size: Number of all.
    """
    from datamodules import LabeledShards, UnlabeledShards
    from mae.commands.training import quiet_lightning
    from mae.tasks.finetune import FinetuneTask

    quiet_lightning()
    options: dict[str, Any] = {"img_size": 16, "batch_size": 12 // world_size, "window": 2}
    for case, steps, lanes, workers in (
        ("uneven", 6, 1, 1),
        ("uneven", 4, 4, 0),
        ("single", 4, 3, 1),
    ):
        os.environ[DIRECTORY] = str(out / f"{case}-{lanes}")
        data = UnlabeledShards(
            data_dir=str(root / case), steps=steps, lanes=lanes, num_workers=workers, **options
        )
        trainer = make_trainer(world_size, out, accumulate_grad_batches=2)
        trainer.fit(pretrain_task(), datamodule=data)
    metrics: dict[str, dict[str, float]] = {}
    for case in ("uneven", "single"):  # 8 images, and fewer than processes
        data = UnlabeledShards(
            data_dir=str(root / case), steps=1, val_batch_size=2, num_workers=1, **options
        )
        metrics[f"pretrain {case}"] = validate(pretrain_task(), data, world_size, out)
    labelled = LabeledShards(data_dir=str(root / "labelled"), val_batch_size=3, **options)
    task = FinetuneTask(weights=str(root / "encoder.safetensors"), num_classes=2)
    metrics["finetune"] = validate(seeded(task), labelled, world_size, out)
    (out / f"{rank}.json").write_text(json.dumps(metrics), encoding="utf-8")


def pretrain_task() -> Any:
    """Return the task, with the same weights in all processes."""
    import torch

    from mae.tasks.pretrain import PretrainTask

    torch.manual_seed(0)
    return PretrainTask(batch_size=4, **MODEL)


def seeded(task: Any) -> Any:
    """Give a new head weights that do not depend on the process."""
    import torch

    torch.manual_seed(1)
    torch.nn.init.normal_(task.model.head.weight)
    return task


def validate(task: Any, data: Any, world_size: int, out: Path) -> dict[str, float]:
    """Return the metrics of the validation split."""
    trainer = make_trainer(world_size, out)
    trainer.validate(task, datamodule=data, verbose=False)
    return {name: float(value) for name, value in trainer.callback_metrics.items()}


def make_trainer(world_size: int, out: Path, **options: Any) -> Any:
    """Return a trainer on the CPU that keeps nothing."""
    from lightning.pytorch import Trainer

    return Trainer(
        accelerator="cpu",
        devices=world_size,
        strategy="ddp" if world_size > 1 else "auto",
        max_epochs=1,
        use_distributed_sampler=False,
        num_sanity_val_steps=0,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        callbacks=[Recorder()],
        default_root_dir=out,
        **options,
    )
