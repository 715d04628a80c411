"""What a run really did, written down as it happens; and a place where it kills itself."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

Moment = Literal["data", "forward", "backward", "step", "validation", "saving"]
MOMENTS: tuple[Moment, ...] = ("data", "forward", "backward", "step", "validation", "saving")
# Environment, so that the configuration of a run and of its resumes is the same.
DIRECTORY, KILL_AT = "MAE_TEST_LOG", "MAE_TEST_KILL_AT"  # KILL_AT: "MOMENT BATCH"


class Row(NamedTuple):
    """One image of one micro-batch.

    Attributes:
        batch: Number of the micro-batch in the run.
        position: Position in the stream.
        key: Key of the sample.
        view: Digest of the augmented, normalised pixels.
        mask: Digest of the removed patches.
        lr: Learning rate of the step.
    """

    batch: int
    position: int
    key: str
    view: str
    mask: str
    lr: float


class Recorder(Callback):
    """Append what each micro-batch held to ``RANK.jsonl``, in the directory that `DIRECTORY` names.

    Masks are taken from the model's own output.  With `KILL_AT` the process group is killed, with
    SIGKILL, at that moment of the first micro-batch that is not before the given one.
    """

    def __init__(self) -> None:
        moment, _, batch = os.environ.get(KILL_AT, "never 0").partition(" ")
        self.moment, self.kill_batch, self.batch = moment, int(batch), -1
        self.masks: list[str] = []

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage == "fit":
            directory = Path(os.environ[DIRECTORY])
            directory.mkdir(parents=True, exist_ok=True)
            self.log = directory / f"{trainer.global_rank}.jsonl"
            pl_module.model.register_forward_hook(self._note_masks)  # type: ignore[union-attr]
            if self.moment == "saving":
                sys.addaudithook(self._before_rename)

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        if self.batch < 0:
            workers = [child.pid for child in multiprocessing.active_children()]
            self.log.with_suffix(".workers").write_text(json.dumps(workers), encoding="utf-8")
        self.batch = batch_idx
        self._perhaps_die("data")

    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._perhaps_die("backward")

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        views = [digest(image) for image in batch["image"]]
        lr = trainer.optimizers[0].param_groups[0]["lr"]
        rows = [
            Row(batch_idx, position, key, view, mask, lr)
            for position, key, view, mask in zip(
                batch["sample"].tolist(), batch["key"], views, self.masks, strict=True
            )
        ]
        with self.log.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
        if (batch_idx + 1) % trainer.accumulate_grad_batches == 0:
            self._perhaps_die("step")  # the optimizer's step is done, nothing of it is saved

    def on_validation_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, *args: Any, **kwargs: Any
    ) -> None:
        self._perhaps_die("validation")

    def _note_masks(self, module: Any, inputs: Any, output: Any) -> None:
        if module.training:
            self.masks = [digest(row) for row in output.masking.ids_keep]
            self._perhaps_die("forward")

    def _before_rename(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Die when a checkpoint is written, but does not have its name yet."""
        if event == "os.rename" and str(arguments[1]).endswith(".ckpt"):
            self._perhaps_die("saving")

    def _perhaps_die(self, moment: Moment) -> None:
        if moment == self.moment and self.batch >= self.kill_batch:
            os.killpg(0, signal.SIGKILL)


def digest(tensor: torch.Tensor) -> str:
    """Return a digest of a tensor's values."""
    data = tensor.detach().cpu().contiguous().numpy().tobytes()
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def read_rows(directory: Path) -> Iterator[list[Row]]:
    """Yield what each rank wrote down; a last line that was torn is left out."""
    for path in sorted(directory.glob("*.jsonl")):
        text = path.read_text(encoding="utf-8")
        whole = text[: text.rfind("\n") + 1]
        yield [Row(*json.loads(line)) for line in whole.splitlines()]


def num_workers(directory: Path) -> int:
    """Return how many workers the first rank had when its training began."""
    return len(json.loads((directory / "0.workers").read_text(encoding="utf-8")))
