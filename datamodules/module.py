"""What all data modules of images share: length of the run, normalisation, bad images, state.

To Lightning a run is one epoch: the loader's length is the number of micro-batches of the whole
run, also after a resume, when only the rest is read.  All state is how much was consumed, counted
where a batch is handed over, so a checkpoint never runs ahead of the model.

Source of the hook order: Lightning 2.6, ``_TrainingEpochLoop.advance``.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Literal

import torch
from lightning.pytorch import LightningDataModule
from torch import Tensor
from torch.utils.data import Dataset

from datamodules.ledger import BadImage, BadImages
from datamodules.loading import Batch, BatchLoader
from mae.errors import ConfigError, DataError
from mae.spec import ImageSpec

StartMethod = Literal["fork", "spawn", "forkserver"]


class ImageDataModule(LightningDataModule):
    """Base of the data modules; see `UnlabeledShards` for the arguments.

    Subclasses give `spec`, `fingerprint` and the loaders, and set `num_samples` if they know how
    many images a pass has.

    Raises:
        ConfigError: If a setting is outside its range, or the budgets are none or several.
    """

    spec: ImageSpec
    source: str  # what the user named, for messages
    digest: str  # of the data, or of what is known of them
    splits: tuple[str, ...] = ("train",)
    num_samples: int | None = None
    num_evaluated: int = 0  # images of all splits but train

    def __init__(
        self,
        *,
        img_size: int | tuple[int, int],
        batch_size: int,
        seed: int,
        num_workers: int,
        steps: int | None,
        samples: int | None,
        epochs: float | None,
        val_batch_size: int | None,
        max_bad_fraction: float,
        multiprocessing_context: StartMethod | None,
    ):
        super().__init__()
        height, width = (img_size, img_size) if isinstance(img_size, int) else img_size
        self.img_size = (height, width)
        self.batch_size, self.val_batch_size = batch_size, val_batch_size or batch_size
        self.steps, self.samples, self.epochs = steps, samples, epochs
        self.seed, self.num_workers = seed, num_workers
        self.max_bad_fraction = max_bad_fraction
        self.multiprocessing_context = multiprocessing_context
        self._check_settings()
        self.data_reset = False  # whether a resumed run may go on with other data
        self.samples_consumed = 0
        self.batches_consumed = 0
        # In training, by this process; the first one also has what was before a resume.
        self._bad = BadImages()
        # Of other processes, as of the last checkpoint: training and evaluation.
        self._bad_elsewhere = (BadImages(), BadImages())
        self._bad_in_evaluation: dict[str, BadImage] = {}  # every validation meets the same ones
        self._normalization: ImageSpec | None = None
        self._statistics: dict[tuple[ImageSpec, torch.device], Tensor] = {}

    @property
    def normalization(self) -> ImageSpec:
        """The spec whose mean and std are used; the data's own unless `use_statistics` ran."""
        return self._normalization or self.spec

    def use_statistics(self, spec: ImageSpec, *, there: str = "the model") -> None:
        """Normalise with the mean and std that a model was trained with.

        Args:
            spec: The model's spec.
            there: Name of the model for the message.

        Raises:
            DataError: If its pixels mean something else than these.
        """
        self.spec.require_match(spec, here=self.source, there=there)
        self._normalization = spec

    def normalize(self, images: Tensor) -> Tensor:
        """Return float32 images with the statistics' mean 0 and std 1, on the images' device.

        Args:
            images: ``(batch, chans, height, width)`` in the stored depth.
        """
        spec, device = self.normalization, images.device
        if (spec, device) not in self._statistics:  # else every batch would wait for the copy
            self._statistics = {
                (spec, device): torch.tensor([spec.mean, spec.std], device=device)[..., None, None]
            }
        mean, std = self._statistics[spec, device]
        normalized: Tensor = (images.to(torch.float32) - mean) / std
        return normalized

    def on_after_batch_transfer(self, batch: Batch, dataloader_idx: int) -> Batch:
        """Count a training batch as consumed, and normalise on the device."""
        del dataloader_idx
        found: list[BadImage] = batch.pop("bad", [])
        if self.trainer is not None and self.trainer.training:
            self.samples_consumed += self.batch_size * self._world_size
            self.batches_consumed += 1
            self._bad.add(found)
        else:
            self._bad_in_evaluation |= {image.message: image for image in found}
        if found:
            self._judge_bad()
        batch["image"] = self.normalize(batch["image"])
        return batch

    def fingerprint(self) -> dict[str, Any]:
        """Return everything that the order of samples depends on."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """Return how much was consumed, and what the order depends on; equal on all ranks.

        All ranks must call it, as Lightning does.

        Raises:
            DataError: If too many images, over all ranks, could not be decoded.
        """
        self._gather_bad()
        return {
            "samples_consumed": self.samples_consumed,
            "batches_consumed": self.batches_consumed,
            "bad": _together(self._bad, self._bad_elsewhere[0]).state(),
            "accumulate_grad_batches": self._accumulate,
            "fingerprint": self.fingerprint(),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue where a checkpoint stands.

        Raises:
            DataError: If data, seed, lanes or window differ from the checkpoint's; it names them.
            ConfigError: If the accumulation differs: Lightning counts micro-batches, so the steps
                that are left would be counted wrongly.
        """
        before = state_dict["accumulate_grad_batches"]
        if before != self._accumulate:
            raise ConfigError(
                f"accumulate_grad_batches was {before} in the checkpoint and is "
                f"{self._accumulate} now; continue with {before} (the number of devices and "
                f"data.batch_size may change), or start a new run from its weights"
            )
        self._compare(state_dict["fingerprint"])
        self.samples_consumed = int(state_dict["samples_consumed"])
        self.batches_consumed = int(state_dict["batches_consumed"])
        self._bad = BadImages()
        if self._rank == 0:
            self._bad.merge(state_dict["bad"])

    @property
    def num_batches(self) -> int:
        """Micro-batches of the whole run per device, a multiple of ``accumulate_grad_batches``."""
        if self.steps is not None:
            return self.steps * self._accumulate
        left = max(self._wanted_samples - self.samples_consumed, 0)
        # What was consumed may have come in batches of another size.
        batches = self.batches_consumed + math.ceil(left / (self.batch_size * self._world_size))
        return math.ceil(batches / self._accumulate) * self._accumulate

    def is_complete(self, steps: int, samples_consumed: int) -> bool:
        """Return whether a run has reached its budget.

        Args:
            steps: Optimizer steps done.
            samples_consumed: Images consumed, over all ranks.
        """
        if self.steps is not None:
            return steps >= self.steps
        return samples_consumed >= self._wanted_samples

    @property
    def _wanted_samples(self) -> int:
        # Rounded first: 0.07 x 100 is a little more than 7.
        passes = round((self.epochs or 0) * (self.num_samples or 0), 6)
        return self.samples or math.ceil(passes)

    def _compare(self, theirs: dict[str, Any]) -> None:
        """Refuse to go on in another order, unless that is wanted."""
        ours = self.fingerprint()
        sides = "; ".join(
            f"{name}: {theirs.get(name)} in the checkpoint, {ours.get(name)} now"
            for name in sorted(ours.keys() | theirs.keys())
            if theirs.get(name) != ours.get(name)
        )
        if sides and not self.data_reset:
            raise DataError(
                f"the run cannot continue on other data or in another order ({sides}); restore "
                f"what the run began with, add --data-reset to go on with the new data, or start a "
                f"new run from its weights"
            )
        if sides and self._rank == 0:
            print(f"the stream goes on with other data or in another order ({sides})")

    @property
    def _accumulate(self) -> int:
        return self.trainer.accumulate_grad_batches if self.trainer is not None else 1

    @property
    def _rank(self) -> int:
        return self.trainer.global_rank if self.trainer is not None else 0

    @property
    def _world_size(self) -> int:
        return self.trainer.world_size if self.trainer is not None else 1

    def _loader(self, dataset: Dataset[Batch], sampler: Any) -> BatchLoader:
        return BatchLoader(
            dataset,
            sampler,
            num_workers=self.num_workers,
            multiprocessing_context=self.multiprocessing_context,
        )

    @property
    def bad(self) -> BadImages:
        """Images that could not be used, in training and in evaluation.

        On several ranks: those of this one, and of the others up to the last checkpoint.
        """
        return _together(self._bad, self._bad_of_evaluation, *self._bad_elsewhere)

    @property
    def _bad_of_evaluation(self) -> BadImages:
        found = BadImages()
        found.add(self._bad_in_evaluation.values())
        return found

    def _judge_bad(self) -> None:
        """Write the ledger, and stop the run if too many images are bad.

        One rank alone does not stop: the others would wait for it.  They stop together when a
        checkpoint is taken.
        """
        if self._rank == 0 and self.trainer is not None:
            self.bad.save(Path(self.trainer.default_root_dir))
        if self._world_size == 1:
            self._require_few_bad()

    def _require_few_bad(self) -> None:
        in_training, in_evaluation = self._bad_elsewhere
        for bad, seen in (
            (_together(self._bad, in_training), self.samples_consumed),
            (_together(self._bad_of_evaluation, in_evaluation), self.num_evaluated),
        ):
            bad.require_few(seen, max_fraction=self.max_bad_fraction)

    def _gather_bad(self) -> None:
        """Let all ranks know what the others have counted."""
        if self._world_size == 1 or not torch.distributed.is_initialized():
            return
        states: list[Any] = [None] * self._world_size
        own = (self._bad.state(), self._bad_of_evaluation.state())
        torch.distributed.all_gather_object(states, own)
        self._bad_elsewhere = (BadImages(), BadImages())
        for rank, state in enumerate(states):
            if rank != self._rank:
                for elsewhere, rows in zip(self._bad_elsewhere, state, strict=True):
                    elsewhere.merge(rows)
        if self._rank == 0 and self.trainer is not None and self.bad.total():
            self.bad.save(Path(self.trainer.default_root_dir))
        self._require_few_bad()

    def _check_settings(self) -> None:
        check_positive(self, "batch_size", "val_batch_size")
        if min(self.img_size) < 1:
            raise ConfigError(f"img_size is {self.img_size}; allowed: 1 px or more")
        if self.num_workers < 0:
            raise ConfigError(f"num_workers is {self.num_workers}; allowed: 0 or more")
        if not 0 <= self.max_bad_fraction < 1:
            raise ConfigError(f"max_bad_fraction is {self.max_bad_fraction}; allowed: 0 … below 1")
        budgets = {"steps": self.steps, "samples": self.samples, "epochs": self.epochs}
        given = {name: value for name, value in budgets.items() if value is not None}
        if len(given) != 1:
            raise ConfigError(
                f"the length of the run is given {len(given)} times "
                f"({', '.join(f'{k}={v}' for k, v in given.items()) or 'no budget'}); give exactly "
                f"one of steps, samples, epochs. steps = samples / (batch_size x accumulation x "
                f"devices), samples = epochs x images"
            )
        check_positive(self, *given)


def _together(*parts: BadImages) -> BadImages:
    together = BadImages()
    for part in parts:
        together.merge(part.state())
    return together


def check_positive(module: object, *names: str) -> None:
    """Refuse attributes that are not above 0.

    Args:
        module: Has the attributes.
        names: Their names.

    Raises:
        ConfigError: Names the attribute and its value.
    """
    for name in names:
        value = getattr(module, name)
        if value <= 0:
            raise ConfigError(f"{name} is {value}; allowed: above 0")
