"""When checkpoints are taken, and how they reach the disk.

# Choice: not Lightning's `ModelCheckpoint`.  After a resume it saves again inside an accumulation
# window, where gradients are half summed and data already counted, and it numbers files anew when
# the run's directory was moved.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.plugins import TorchCheckpointIO

from mae.errors import ConfigError
from mae.files import atomic_write


class AtomicCheckpointIO(TorchCheckpointIO):
    """Write to a temporary file, sync it to disk, rename it."""

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any | None = None
    ) -> None:
        """Save `checkpoint` at `path`; a crash leaves the previous state of the file.

        Raises:
            OutputError: If the disk is full or not writable; no partial file stays.
        """
        del storage_options
        atomic_write(path, lambda temporary: torch.save(checkpoint, temporary))


class Checkpoints(Callback):
    """Save every n optimizer steps and at the end, always between two optimizer steps.

    Args:
        directory: Where the files go; made when the first one is saved.
        every_n_steps: Optimizer steps between two checkpoints.
        keep_last: How many of the newest stay; -1 keeps all.

    Raises:
        ConfigError: If a number makes no sense.
    """

    def __init__(self, directory: Path, *, every_n_steps: int, keep_last: int) -> None:
        if every_n_steps < 1:
            raise ConfigError(f"checkpoint.every_n_steps is {every_n_steps}; allowed: 1 or more")
        if keep_last < 1 and keep_last != -1:
            raise ConfigError(
                f"checkpoint.keep_last is {keep_last}; allowed: 1 or more, or -1 to keep all"
            )
        self.directory = directory
        self.every_n_steps = every_n_steps
        self.keep_last = keep_last
        self._step = self._saved = 0

    @property
    def newest(self) -> Path | None:
        """The newest file of the run, None before the first."""
        return max(self.directory.glob("step-*.ckpt"), default=None)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Remember where the run starts; drop what is of another future, or half written."""
        del pl_module
        self._step = self._saved = trainer.global_step
        if trainer.is_global_zero:
            for path in self.directory.glob("step-*.ckpt"):
                if path.name > self._path(self._step).name:
                    print(f"removing {path.name}: the run goes on from step {self._step:,}")
                    path.unlink()
            for path in self.directory.glob(".step-*.tmp"):
                path.unlink()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Save if this micro-batch ended an optimizer step whose turn it is."""
        del pl_module, outputs, batch, batch_idx
        if trainer.global_step == self._step:
            return  # inside an accumulation window
        self._step = trainer.global_step
        if self._step % self.every_n_steps == 0:
            self.save(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save the final state."""
        del pl_module
        self.save(trainer)

    def save(self, trainer: Trainer) -> None:
        """Write this step's file unless it is saved already, then drop what is too old."""
        if trainer.global_step != self._saved:  # every process takes part in saving
            trainer.save_checkpoint(self._path(trainer.global_step))
            self._saved = trainer.global_step
        if self.keep_last > 0 and trainer.is_global_zero:
            for old in sorted(self.directory.glob("step-*.ckpt"))[: -self.keep_last]:
                old.unlink()

    def _path(self, step: int) -> Path:
        return self.directory / f"step-{step:08d}.ckpt"
