"""What happens beside the steps of a run: progress, speed, and the end of a diverged one."""

from __future__ import annotations

import sys
import time
from collections import deque
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor

from mae.errors import DivergedError
from mae.tasks.checkpoints import Checkpoints

SPEED_WINDOW = 50  # batches
REFRESH_S = 0.5
LINE_EVERY_S = 15.0  # without a terminal a progress bar becomes a line now and then


class RunProgress(Callback):
    """Show loss, images/s and time left; log ``train/images_per_s``.

    Images are counted once, however many masks each gets.  The loss is fetched from the device
    when the display is refreshed, not at every step.
    """

    def __init__(self) -> None:
        self._marks: deque[tuple[float, int]] = deque(maxlen=SPEED_WINDOW + 1)
        self._images = 0
        self._shown_at = 0.0
        self._bar: Progress | None = None
        self._task: Any = None

    @property
    def images_per_s(self) -> float:
        """Images per second over the last batches; 0 before there are two."""
        if len(self._marks) < 2:
            return 0.0
        (start, first), (end, last) = self._marks[0], self._marks[-1]
        return (last - first) / max(end - start, 1e-9)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Open the bar."""
        del pl_module
        self._shown_at = time.monotonic()
        if trainer.is_global_zero and sys.stderr.isatty():
            self._bar = _progress_bar()
            self._bar.start()
            total = trainer.num_training_batches
            self._task = self._bar.add_task("training", total=total, speed="")

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count, log the speed, refresh."""
        self._images += len(batch["image"]) * trainer.world_size
        now = time.monotonic()
        self._marks.append((now, self._images))
        pl_module.log("train/images_per_s", torch.tensor(self.images_per_s))
        interval = REFRESH_S if self._bar else LINE_EVERY_S
        is_last = batch_idx + 1 == trainer.num_training_batches
        if trainer.is_global_zero and (now - self._shown_at >= interval or is_last):
            self._shown_at = now
            # Lightning hands over the loss divided by the accumulation.
            loss = float(outputs["loss"]) * trainer.accumulate_grad_batches
            self._show(trainer, loss, batch_idx + 1)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Leave validation out of the speed."""
        del trainer, pl_module
        self._marks.clear()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Close the bar."""
        del trainer, pl_module
        self._close()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Close the bar, so that the message stands below it."""
        del trainer, pl_module, exception
        self._close()

    def _close(self) -> None:
        if self._bar:
            self._bar.stop()
            self._bar = None

    def _show(self, trainer: Trainer, loss: float, batches: int) -> None:
        speed = f"loss {loss:.4f}  {self.images_per_s:,.0f} images/s"
        if self._bar:
            self._bar.update(self._task, completed=batches, speed=speed)
            return
        total = int(trainer.num_training_batches)
        left = (total - batches) * _seconds_per_batch(self._marks)
        print(
            f"batch {batches:,}/{total:,}  {speed}  {left:,.0f} s left", file=sys.stderr, flush=True
        )


def _seconds_per_batch(marks: deque[tuple[float, int]]) -> float:
    """Return the seconds between two marks, 0 before there are two."""
    return (marks[-1][0] - marks[0][0]) / (len(marks) - 1) if len(marks) > 1 else 0.0


def _progress_bar() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[speed]}"),
        TimeRemainingColumn(),
    )


class StopWhenDiverged(Callback):
    """End the run when loss or weights are no longer finite, before such weights are saved.

    One broken micro-batch breaks the weights for good, so it is enough to look on steps that log or
    save and at the end; other steps don't wait for the device.

    Args:
        checkpoints: Stands after this callback in the trainer's list.
        log_every_n_steps: Steps between two lines of the log.
    """

    def __init__(self, checkpoints: Checkpoints, *, log_every_n_steps: int) -> None:
        self.checkpoints = checkpoints
        self.log_every_n_steps = log_every_n_steps

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Look at the loss now and then, and at the weights before they are saved.

        Raises:
            DivergedError: With step, lr, and where the last checkpoint is.
        """
        del batch, batch_idx
        finite = torch.isfinite(outputs["loss"])
        if trainer.global_step % self.checkpoints.every_n_steps == 0:
            finite = finite & _finite_weights(pl_module)
        elif trainer.global_step % self.log_every_n_steps:
            return
        self._check(trainer, finite)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Look at what the last checkpoint would hold.

        Raises:
            DivergedError: See `on_train_batch_end`.
        """
        self._check(trainer, _finite_weights(pl_module))

    def _check(self, trainer: Trainer, finite: Tensor) -> None:
        if finite:
            return
        newest = self.checkpoints.newest or "none yet"
        lr = max(group["lr"] for group in trainer.optimizers[0].param_groups)
        raise DivergedError(
            f"loss or weights are no longer finite at step {trainer.global_step} (lr {lr:.3g}); "
            f"training only goes on from finite numbers: lower optim.blr, set "
            f"trainer.gradient_clip_val 1.0, or look for broken pixels in the data; last good "
            f"checkpoint: {newest}"
        )


def _finite_weights(module: LightningModule) -> Tensor:
    """Return on the device whether every parameter is finite."""
    return torch.stack([parameter.isfinite().all() for parameter in module.parameters()]).all()
