"""Labelled shards for fine-tuning and for reading features.

The training stream is that of `UnlabeledShards`, with a label beside each image; validation and
test splits give every sample exactly once in one fixed view.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from lightning.pytorch.utilities import rank_zero_info

from datamodules.augment import Crop, Flips
from datamodules.guard import MAX_PIXELS
from datamodules.loading import BatchLoader
from datamodules.locations import is_url
from datamodules.module import StartMethod
from datamodules.pack import PackSummary, pack_into_cache
from datamodules.reader import Verify
from datamodules.records import Decode
from datamodules.shardfiles import CACHE_GIB
from datamodules.tally import class_notes
from datamodules.unlabeled import UnlabeledShards
from mae.errors import DataError


class LabeledShards(UnlabeledShards):
    """Read labelled shards or their URL, class folders, or a CSV ``path,label[,group][,split]``.

    Folders and CSVs are packed into a cache first, and a line says where.  Batches have ``label``
    (int64) beside the fields of `UnlabeledShards`; those of validation and test also ``group``.

    Args:
        data_dir: Shard directory, folder of class folders, or CSV.
        img_size: Height and width of the views in px; one number for squares.
        batch_size: Images per device and micro-batch.
        seed: Order, crops, flips, and the split of folders depend on it.
        num_workers: Processes that read and decode; 0 reads in the main process.
        steps: Length of the run in optimizer steps.
        samples: Length in images, over all devices.
        epochs: Length in passes over the train split; 1 if nothing says how long.
        crop: ``random_resized``, ``random`` (stored scale) or ``center``.
        scale: Smallest and largest share of the area for ``random_resized``.
        flips: ``none``, ``horizontal``, or ``dihedral`` for all eight rotations and flips.
        window: Shards whose samples are shuffled together.
        lanes: Sequences of shards that take turns.
        verify: When contents are compared with their checksums: ``open``, ``first``, ``always``.
        decode: ``scaled`` decodes training JPEGs no larger than the crop needs: faster, softer.
        val_batch_size: Images per device and evaluation batch; `batch_size` without a value.
        max_bad_fraction: Share of undecodable images, which are replaced, before the run stops.
        max_pixels: Largest height x width of a stored image.
        shard_cache: Folder for remote shards; one in the user's cache without a value.
        shard_cache_gib: Disk that remote shards may take there.
        cache_mib: Memory per process for training images that stay decoded, for small sets.
        multiprocessing_context: How workers start; the platform's way without a value.
        split: For a folder: whether the topmost folders name the splits.
        group_regex: For a folder: expression on the path whose first bracket is the group.
        val_fraction: For a folder or CSV without splits: share of validation.
        test_fraction: For a folder or CSV without splits: share of test.

    Raises:
        ConfigError: If a setting is outside its range, or the budgets are several.
        DataError: If there are no labels, or no train split.
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
        lanes: int = 1,
        verify: Verify = "first",
        decode: Decode = "exact",
        val_batch_size: int | None = None,
        max_bad_fraction: float = 0.001,
        max_pixels: int = MAX_PIXELS,
        shard_cache: str | None = None,
        shard_cache_gib: float = CACHE_GIB,
        cache_mib: int = 0,
        multiprocessing_context: StartMethod | None = None,
        split: Literal["hash", "folders"] = "hash",
        group_regex: str | None = None,
        val_fraction: float | None = None,
        test_fraction: float | None = None,
    ):
        shards = (
            data_dir
            if is_url(data_dir)
            else pack_into_cache(
                data_dir,
                labels="none" if str(data_dir).endswith(".csv") else "folders",
                split=split,
                group_regex=group_regex,
                val_fraction=val_fraction,
                test_fraction=test_fraction,
                seed=seed,
                on_packed=_say_where,
            )
        )
        unlimited = steps is None and samples is None and epochs is None
        super().__init__(
            data_dir=str(shards),
            img_size=img_size,
            batch_size=batch_size,
            seed=seed,
            num_workers=num_workers,
            steps=steps,
            samples=samples,
            epochs=1 if unlimited else epochs,  # reading features needs no budget
            crop=crop,
            scale=scale,
            flips=flips,
            window=window,
            lanes=lanes,
            verify=verify,
            decode=decode,
            val_batch_size=val_batch_size,
            max_bad_fraction=max_bad_fraction,
            max_pixels=max_pixels,
            shard_cache=shard_cache,
            shard_cache_gib=shard_cache_gib,
            cache_mib=cache_mib,
            multiprocessing_context=multiprocessing_context,
        )
        if not self.manifest.classes:
            raise DataError(
                f"{data_dir} has no labels; pack it with `--labels folders`, or from a CSV with a "
                f"column 'label'"
            )

    @property
    def multilabel(self) -> bool:
        """Whether an image may have several labels, or none; ``label`` is then a row of 0 and 1."""
        return self.manifest.multilabel

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names; the place is the label."""
        return self.manifest.classes or ()

    @property
    def class_counts(self) -> Mapping[str, Mapping[str, int]]:
        """Samples by split and class name."""
        return self.manifest.class_counts

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about classes that are missing from a split, or are alone."""
        return tuple(class_notes(self.classes, self.class_counts))

    def state_dict(self) -> dict[str, Any]:
        """Return the state of `UnlabeledShards`, and what the labels mean."""
        return super().state_dict() | {"classes": list(self.classes)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue where a checkpoint stands.

        Raises:
            DataError: If the classes are others, also where other data are allowed.
            ConfigError: See `ImageDataModule.load_state_dict`.
        """
        before = state_dict.get("classes")
        if before != list(self.classes):
            raise DataError(
                f"the run began with the classes {before} in this order, {self.source} has "
                f"{list(self.classes)}; pack the images with the same classes, or start a new run"
            )
        super().load_state_dict(state_dict)

    def test_dataloader(self) -> BatchLoader | list[Any]:
        """Return the loader over the fixed views of the test split; nothing if there is none."""
        return self._eval_loader("test") if "test" in self.manifest.splits else []


def _say_where(summary: PackSummary) -> None:
    for line in (f"packed {summary.manifest.source} into {summary.out}", *summary.notes):
        rank_zero_info(line)
