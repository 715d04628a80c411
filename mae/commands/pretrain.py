"""``mae pretrain``: from a recipe and shards to encoder weights."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from lightning.pytorch import Trainer

from datamodules import UnlabeledShards
from mae.commands.run_directory import (
    CONFIG_FILE,
    RunStart,
    choose_run,
    update_environment,
    write_environment,
)
from mae.commands.training import (
    TrainingCLI,
    own_options,
    quiet_lightning,
    report_changes,
    split_arguments,
)
from mae.errors import ConfigError
from mae.recipe import find_recipe
from mae.tasks.metrics_log import MetricsLog
from mae.tasks.pretrain import PretrainTask
from mae.weights import init_from, read_checkpoint, save_encoder

EPILOG = """\
Every key of the recipe is a flag: --model.mask_ratio 0.6 --model.optim.blr 3e-4
--data.batch_size 32 --trainer.precision bf16-mixed --trainer.accumulate_grad_batches 4
--checkpoint.every_n_steps 1000
"""


def pretrain(arguments: Sequence[str]) -> Path:
    """Run ``mae pretrain`` and return the run directory.

    Args:
        arguments: Command line after the verb.

    Raises:
        MAEError: If settings, data or weights are impossible, before the first step.
    """
    parser = _parser()
    mine, flags = split_arguments(arguments, own_options(parser))
    options = parser.parse_args(mine)
    name = Path(options.recipe).stem if options.recipe else "run"
    start = choose_run(out=options.out, resume=options.resume, name=name)
    cli = _configure(options, flags, start)
    task, data, trainer = cli.model, cli.datamodule, cli.trainer
    task.recipe = options.recipe or ""

    if start.checkpoint:
        step = int(read_checkpoint(start.checkpoint, verify=False)["global_step"])
        print(f"going on from {start.checkpoint} (step {step:,})")
        MetricsLog(start.directory).drop_after(step)
    elif options.init_weights:
        print(init_from(options.init_weights, task.model, spec=data.spec))

    config = start.directory / CONFIG_FILE
    if start.checkpoint:
        report_changes(config.read_text(encoding="utf-8"), cli.resolved_config())
    config.write_text(cli.resolved_config(), encoding="utf-8")
    write_environment(start.directory, ["pretrain", *arguments])
    _fit(task, data, trainer, start)
    return start.directory


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mae pretrain",
        description="Pretrain a masked autoencoder on unlabelled images.",
        epilog=EPILOG,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("recipe", nargs="?", help="shipped recipe (mae recipes list) or YAML file")
    parser.add_argument("--data", help="directory of shards from mae pack")
    parser.add_argument("--images", help="directory of images, packed into a cache first")
    parser.add_argument("--config", action="append", default=[], help="YAML over the recipe")
    parser.add_argument("--out", help="run directory (default: runs/RECIPE)")
    parser.add_argument("--resume", help="auto, a run directory, or a checkpoint")
    parser.add_argument("--init-weights", help="start a new run from these weights")
    return parser


def _configure(options: argparse.Namespace, flags: list[str], start: RunStart) -> TrainingCLI:
    """Resolve all sources of settings: recipe or the run's own file, then files, then flags."""
    if options.data and options.images:
        raise ConfigError("--data and --images exclude each other; give shards or images")
    if options.init_weights and options.resume:
        raise ConfigError(
            "--init-weights starts a new run and --resume goes on with one; give one of them"
        )
    own = start.directory / CONFIG_FILE
    if own.is_file():
        base = own
    elif options.recipe:
        base = find_recipe(options.recipe)
    else:
        raise ConfigError("name a recipe (mae recipes list), or a run with --resume")
    args = ["--config", str(base)]
    for path in options.config:
        args += ["--config", path]
    shards = options.data or (options.images and str(_pack_images(Path(options.images))))
    if shards:
        args += ["--data.data_dir", shards]
    quiet_lightning()
    return TrainingCLI(PretrainTask, UnlabeledShards, args=args + flags, run_dir=start.directory)


def _pack_images(images: Path) -> Path:
    from datamodules.pack import pack_into_cache

    shards = pack_into_cache(images)
    print(f"images of {images} are packed in {shards}")
    return shards


def _fit(task: PretrainTask, data: UnlabeledShards, trainer: Trainer, start: RunStart) -> None:
    """Measure, train, and leave final checkpoint and encoder."""
    began = time.monotonic()
    if start.checkpoint is None:
        _say_trivial_losses(task, data, trainer)
    try:
        trainer.fit(task, datamodule=data, ckpt_path=start.checkpoint, weights_only=True)
    except SystemExit as error:  # Lightning's answer to Ctrl-C
        raise KeyboardInterrupt(_how_to_go_on(start.directory)) from error
    if trainer.interrupted:
        raise KeyboardInterrupt(_how_to_go_on(start.directory))
    if not trainer.is_global_zero:
        return
    info = {
        "step": trainer.global_step,
        "samples_seen": task.samples_seen,
        "recipe": task.recipe,
        "data_digest": data.manifest.digest,
    }
    encoder = save_encoder(
        start.directory / "encoder" / "encoder.safetensors",
        task.model.encoder,
        task.image_spec,
        info=info,
    )
    seconds = time.monotonic() - began
    update_environment(
        start.directory, seconds=round(seconds, 1), peak_memory_mib=round(_peak_memory_mib())
    )
    print(
        f"{trainer.global_step:,} steps, {task.samples_seen:,} images, {seconds:,.0f} s\n"
        f"encoder: {encoder}\n"
        f"next: mae probe {start.directory} --data LABELLED_SHARDS"
    )


def _say_trivial_losses(task: PretrainTask, data: UnlabeledShards, trainer: Trainer) -> None:
    """Validate once before the first step, so that later losses mean something."""
    if "val" not in data.manifest.splits:
        print("no val split in the shards: no loss on fixed masks (mae pack --val-fraction 0.02)")
        return
    trainer.validate(task, datamodule=data, verbose=False)
    values = {name: float(value) for name, value in trainer.callback_metrics.items()}
    print(
        f"validation loss before training {values['val/loss']:.4f}; "
        f"predicting 0: {values['val/predict_zero']:.4f}; "
        f"predicting each patch's mean: {values['val/predict_patch_mean']:.4f}"
    )


def _how_to_go_on(run: Path) -> str:
    return f"interrupted; go on from the last checkpoint with: mae pretrain --resume {run}"


def _peak_memory_mib() -> float:
    if torch.cuda.is_available():
        return float(torch.cuda.max_memory_allocated()) / 2**20
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
