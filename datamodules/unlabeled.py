"""Shards as an endless, exactly resumable stream for pretraining.

To Lightning a run is one epoch: the loader's length is the number of micro-batches of the whole
run, also after a resume, when only the rest is read.  All state is how much was consumed, counted
where a batch is handed over, so a checkpoint never runs ahead of the model.

Source of the hook order: Lightning 2.6, ``_TrainingEpochLoop.advance``.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from typing import Any, Literal

import torch
from lightning.pytorch import LightningDataModule
from torch import Tensor
from torch.utils.data import Dataset, Sampler

from datamodules.augment import Augment, Crop, Flips
from datamodules.guard import MAX_PIXELS
from datamodules.loading import (
    Batch,
    BatchLoader,
    EvalBatches,
    EvalSampler,
    EvalViews,
    StreamSampler,
    TrainStream,
)
from datamodules.manifest import Manifest
from datamodules.plan import Plan
from datamodules.records import SplitRecords
from mae.errors import ConfigError, DataError
from mae.spec import ImageSpec

_BAD_ALLOWANCE = 8  # so that the first bad image of a young run does not end it


class UnlabeledShards(LightningDataModule):
    """Read shards written by ``mae pack`` for pretraining.

    Exactly one of `steps`, `samples`, `epochs` says how long the run is.  A batch holds ``image``
    (float32, normalised, after transfer), ``sample`` (position in the stream), ``key``,
    ``is_padding`` and, where labelled, ``label``.

    Args:
        data_dir: Shard directory.
        img_size: Height and width of the views in px; one number for squares.
        batch_size: Images per device and micro-batch.
        seed: Order, crops and flips depend on it and the position alone.
        num_workers: Processes that read and decode; 0 reads in the main process.
        steps: Length of the run in optimizer steps.
        samples: Length in images, over all devices.
        epochs: Length in passes over the data; fractions are allowed.
        crop: ``random_resized``, ``random`` (stored scale) or ``center``.
        scale: Smallest and largest share of the area for ``random_resized``.
        flips: ``none``, ``horizontal``, or ``dihedral`` for all eight rotations and flips.
        window: Shards whose samples are shuffled together.
        val_batch_size: Images per device and validation batch; `batch_size` without a value.
        max_bad_fraction: Share of undecodable images, which are replaced, before the run stops.
        max_pixels: Largest height x width of a stored image.
        cache_mib: Memory per process for training images that stay decoded, for small sets.
        multiprocessing_context: How workers start; the platform's way without a value.

    Raises:
        ConfigError: If a setting is outside its range, or the budgets are none or several.
        DataError: If the directory is no shard directory or has no train split.
    """

    def __init__(
        self,
        *,
        data_dir: str,
        img_size: int | tuple[int, int],
        batch_size: int = 64,
        seed: int = 0,
        num_workers: int = 0,
        steps: int | None = None,
        samples: int | None = None,
        epochs: float | None = None,
        crop: Crop = "random_resized",
        scale: tuple[float, float] = (0.2, 1.0),
        flips: Flips = "horizontal",
        window: int = 16,
        val_batch_size: int | None = None,
        max_bad_fraction: float = 0.001,
        max_pixels: int = MAX_PIXELS,
        cache_mib: int = 0,
        multiprocessing_context: Literal["fork", "spawn", "forkserver"] | None = None,
    ):
        super().__init__()
        height, width = (img_size, img_size) if isinstance(img_size, int) else img_size
        self.img_size = (height, width)
        self.batch_size, self.val_batch_size = batch_size, val_batch_size or batch_size
        self.steps, self.samples, self.epochs = steps, samples, epochs
        self.seed, self.num_workers = seed, num_workers
        self.max_bad_fraction, self.max_pixels = max_bad_fraction, max_pixels
        self.cache_mib = cache_mib
        self.multiprocessing_context = multiprocessing_context
        self._check_settings()
        self.augment = Augment(self.img_size, crop=crop, scale=scale, flips=flips)
        self.manifest = Manifest.load(data_dir)
        self._normalization = self.manifest.spec
        self._statistics: dict[tuple[ImageSpec, torch.device], Tensor] = {}
        self._train = SplitRecords(
            self.manifest, "train", max_pixels=max_pixels, cache_bytes=cache_mib * 2**20
        )
        self.plan = Plan(self._train.shard_sizes, seed=seed, window=window)
        self._check_crop_fits(crop)
        self.samples_consumed = 0
        self.batches_consumed = 0
        self.bad: Counter[str] = Counter()  # undecodable images of this process, by reason

    @property
    def spec(self) -> ImageSpec:
        """What the pixels mean."""
        return self.manifest.spec

    @property
    def normalization(self) -> ImageSpec:
        """The spec whose mean and std are used; the manifest's own unless `use_statistics` ran."""
        return self._normalization

    def use_statistics(self, spec: ImageSpec, *, there: str = "the model") -> None:
        """Normalise with the mean and std that a model was trained with.

        Args:
            spec: The model's spec.
            there: Name of the model for the message.

        Raises:
            DataError: If its pixels mean something else than these.
        """
        self.spec.require_match(spec, here=str(self.manifest.root), there=there)
        self._normalization = spec

    def setup(self, stage: str) -> None:
        """Check all shard files by size before the first step."""
        del stage
        self.manifest.verify_sizes(self.manifest.shard_list)

    def train_dataloader(self) -> BatchLoader:
        """Return the loader over what is left of the run; its length is the whole run."""
        total = self.num_batches
        sampler = StreamSampler(
            start=self.samples_consumed,
            num_batches=total - self.batches_consumed,
            num_total=total,
            batch_size=self.batch_size,
            rank=self._rank,
            world_size=self._world_size,
        )
        return self._loader(TrainStream(self._train, self.plan, self.augment), sampler)

    def val_dataloader(self) -> BatchLoader | list[Any]:
        """Return the loader over the fixed views of the val split; nothing if there is none."""
        if "val" in self.manifest.splits:
            return self._eval_loader("val")
        # Lightning asks whether an empty list was meant; it was.
        warnings.filterwarnings("ignore", message="Total length of `list` across ranks is zero")
        return []

    def dataset(self, split: str) -> EvalViews:
        """Return the fixed views of one split as a map-style dataset.

        Raises:
            DataError: If the split has no samples.
        """
        return EvalViews(
            SplitRecords(self.manifest, split, max_pixels=self.max_pixels), self.img_size
        )

    def normalize(self, images: Tensor) -> Tensor:
        """Return float32 images with the statistics' mean 0 and std 1, on the images' device.

        Args:
            images: ``(batch, chans, height, width)`` in the stored depth.
        """
        spec, device = self._normalization, images.device
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
        if self.trainer is not None and self.trainer.training:
            self.samples_consumed += self.batch_size * self._world_size
            self.batches_consumed += 1
        self._count_bad(batch.pop("bad", []))
        batch["image"] = self.normalize(batch["image"])
        return batch

    def state_dict(self) -> dict[str, Any]:
        """Return how much was consumed, and what the order depends on; equal on all ranks."""
        return {
            "samples_consumed": self.samples_consumed,
            "batches_consumed": self.batches_consumed,
            "bad": dict(self.bad),
            "accumulate_grad_batches": self._accumulate,
            "fingerprint": self.fingerprint(),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue where a checkpoint stands.

        Raises:
            DataError: If data, seed or window differ from the checkpoint's; it names them.
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
        theirs, ours = state_dict["fingerprint"], self.fingerprint()
        differing = [name for name in ours if theirs.get(name) != ours[name]]
        if differing:
            sides = "; ".join(
                f"{name}: {theirs.get(name)} in the checkpoint, {ours[name]} now"
                for name in differing
            )
            raise DataError(
                f"the run cannot continue on other data or in another order ({sides}); restore "
                f"what the run began with, or start a new run from its weights"
            )
        self.samples_consumed = int(state_dict["samples_consumed"])
        self.batches_consumed = int(state_dict["batches_consumed"])
        self.bad = Counter(state_dict["bad"])

    def fingerprint(self) -> dict[str, Any]:
        """Return everything that the order of samples depends on."""
        return {"data": self.manifest.digest, "split": "train", **self.plan.fingerprint()}

    @property
    def num_batches(self) -> int:
        """Micro-batches of the whole run per device, a multiple of ``accumulate_grad_batches``."""
        if self.steps is not None:
            return self.steps * self._accumulate
        wanted = self.samples or math.ceil((self.epochs or 0) * self.plan.num_samples)
        left = max(wanted - self.samples_consumed, 0)
        # What was consumed may have come in batches of another size.
        batches = self.batches_consumed + math.ceil(left / (self.batch_size * self._world_size))
        return math.ceil(batches / self._accumulate) * self._accumulate

    @property
    def _accumulate(self) -> int:
        return self.trainer.accumulate_grad_batches if self.trainer is not None else 1

    @property
    def _rank(self) -> int:
        return self.trainer.global_rank if self.trainer is not None else 0

    @property
    def _world_size(self) -> int:
        return self.trainer.world_size if self.trainer is not None else 1

    def _eval_loader(self, split: str) -> BatchLoader:
        views = self.dataset(split)
        sampler = EvalSampler(
            num_samples=len(views),
            batch_size=self.val_batch_size,
            rank=self._rank,
            world_size=self._world_size,
        )
        return self._loader(EvalBatches(views), sampler)

    def _loader(self, dataset: Dataset[Batch], sampler: Sampler[Any]) -> BatchLoader:
        return BatchLoader(
            dataset,
            sampler,
            num_workers=self.num_workers,
            multiprocessing_context=self.multiprocessing_context,
        )

    def _count_bad(self, found: list[tuple[str, str]]) -> None:
        if not found:
            return
        self.bad.update(reason for reason, _ in found)
        seen = self.batches_consumed * self.batch_size  # by this process
        allowed = max(_BAD_ALLOWANCE, int(self.max_bad_fraction * seen))
        if self.bad.total() > allowed:
            reasons = ", ".join(f"{count} x {reason}" for reason, count in self.bad.most_common(3))
            raise DataError(
                f"{self.bad.total()} of {seen:,} images could not be decoded ({reasons}); allowed: "
                f"{allowed} (max_bad_fraction {self.max_bad_fraction}). The last: {found[-1][1]}"
            )

    def _check_settings(self) -> None:
        _check_positive(self, "batch_size", "val_batch_size")
        if min(self.img_size) < 1:
            raise ConfigError(f"img_size is {self.img_size}; allowed: 1 px or more")
        if self.cache_mib < 0:
            raise ConfigError(f"cache_mib is {self.cache_mib}; allowed: 0 or more")
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
        _check_positive(self, *given)

    def _check_crop_fits(self, crop: Crop) -> None:
        smallest = self.manifest.min_size
        if crop == "random" and (smallest[0] < self.img_size[0] or smallest[1] < self.img_size[1]):
            raise ConfigError(
                f"crop 'random' cuts {self.img_size[0]} x {self.img_size[1]} px at the stored "
                f"scale, but the smallest images have {smallest[0]} x {smallest[1]} px; use a "
                f"smaller img_size, or crop: random_resized"
            )


def _check_positive(module: object, *names: str) -> None:
    for name in names:
        value = getattr(module, name)
        if value <= 0:
            raise ConfigError(f"{name} is {value}; allowed: above 0")
