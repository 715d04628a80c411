"""Datasets between the Plan and a stock torch ``DataLoader``.

A sampler yields one request per batch and the dataset answers with the finished batch, so a batch
crosses the process border once, as one tensor in the stored depth.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from datamodules.augment import Augment, stack
from datamodules.guard import BadImageError
from datamodules.labels import stack_labels
from datamodules.ledger import BadImage
from datamodules.plan import Plan, keyed_words
from datamodules.records import Record, SplitRecords
from datamodules.samplers import EvalRequest, EvalSampler
from mae.errors import DataError

Batch = dict[str, Any]

_SUBSTITUTE = 4  # keeps these words apart from the Plan's and the augmentation's
_NUM_SUBSTITUTES = 8


class TrainStream(Dataset[Batch]):
    """Answers a range of stream positions with a batch of augmented samples.

    Args:
        records: The train split.
        plan: Order of the samples.
        augment: View of each position.
    """

    def __init__(self, records: SplitRecords, plan: Plan, augment: Augment):
        self.records, self.plan, self.augment = records, plan, augment

    def __getitem__(self, positions: range) -> Batch:
        self.records.reader.seek(positions.start)
        places = self.plan.at(positions.start, len(positions), positions.step)
        found: list[Record] = []
        bad: list[BadImage] = []
        for position, shard, index in zip(
            positions, places.shard.tolist(), places.index_in_shard.tolist(), strict=True
        ):
            found.append(self._view(position, shard, index, bad))
        batch = collate(
            found, positions, [False] * len(positions), num_classes=self.records.num_classes
        )
        batch["bad"] = bad
        return batch

    def _view(self, position: int, shard: int, index: int, bad: list[BadImage]) -> Record:
        """Load a sample; a broken one is noted and replaced by another, drawn by position."""
        home = shard
        for attempt in range(_NUM_SUBSTITUTES):
            try:
                return self.records.view(
                    shard, index, self.augment, seed=self.plan.seed, position=position
                )
            except BadImageError as error:
                bad.append(self.records.bad_image(shard, index, error))
            word = keyed_words(self.plan.seed, position, _SUBSTITUTE, attempt, 0, 1)[0]
            if attempt < _NUM_SUBSTITUTES // 2:  # from the same shard, which this node has
                shard, index = home, int(word) % self.records.shard_sizes[home]
            else:
                shard, index = self.records.locate(int(word) % len(self.records))
        raise DataError(
            f"position {position} and {_NUM_SUBSTITUTES - 1} substitutes cannot be decoded; the "
            f"shards are damaged: pack or copy them again. The last: {bad[-1].message}"
        )


class EvalViews(Dataset[Batch]):
    """The fixed views of one split, sample by sample, in the order of the shards.

    Each item is a dictionary ``image`` (array, stored depth), ``sample`` (its number), ``key``,
    ``group``, ``is_padding`` and, where labelled, ``label``.

    Args:
        records: The split.
        img_size: ``(height, width)`` of the views.
    """

    def __init__(self, records: SplitRecords, img_size: tuple[int, int]):
        self.records, self.img_size = records, img_size

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, number: int) -> Batch:
        if not 0 <= number < len(self):
            raise IndexError(f"sample {number} of {len(self)}")  # ends Python's own iteration
        record = self.records.eval_view(*self.records.locate(number), self.img_size)
        item: Batch = {
            "image": np.ascontiguousarray(record.pixels),
            "sample": number,
            "key": record.key,
            "is_padding": False,
            "group": record.group,
        }
        if record.label is not None:
            several = isinstance(record.label, tuple)
            label = stack_labels(
                [record.label], num_classes=self.records.num_classes, multilabel=several
            )[0]
            item["label"] = label.numpy() if several else record.label
        return item

    def batch(self, numbers: Sequence[int], is_padding: Sequence[bool] | None = None) -> Batch:
        """Return several samples as one batch of tensors.

        An image that cannot be used counts as padding and is listed under ``bad``.

        Args:
            numbers: Numbers of the samples.
            is_padding: Which of them stand there only to fill up; none without a value.
        """
        fills_up = list(is_padding or [False] * len(numbers))
        records: list[Record] = []
        bad: list[BadImage] = []
        for place, number in enumerate(numbers):
            shard, index = self.records.locate(number)
            try:
                records.append(self.records.eval_view(shard, index, self.img_size))
            except BadImageError as error:
                if not fills_up[place]:
                    bad.append(self.records.bad_image(shard, index, error))
                records.append(self.records.blank(shard, index, self.img_size))
                fills_up[place] = True
        batch = collate(records, numbers, fills_up, num_classes=self.records.num_classes)
        batch["group"] = [record.group for record in records]
        batch["bad"] = bad
        return batch

    def loader(self, *, batch_size: int, num_workers: int = 0) -> BatchLoader:
        """Return a loader that reads all samples once and in order, in batches as of `batch`.

        Args:
            batch_size: Images at a time.
            num_workers: Processes that read and decode.
        """
        sampler = EvalSampler(num_samples=len(self), batch_size=batch_size, rank=0, world_size=1)
        return BatchLoader(
            EvalBatches(self), sampler, num_workers=num_workers, multiprocessing_context=None
        )


class EvalBatches(Dataset[Batch]):
    """Answers an `EvalRequest` with a batch of fixed views."""

    def __init__(self, views: EvalViews):
        self.views = views

    def __getitem__(self, request: EvalRequest) -> Batch:
        self.views.records.reader.seek(request.position)
        return self.views.batch(request.numbers, request.is_padding)


def collate(
    records: Sequence[Record],
    numbers: Sequence[int],
    is_padding: Sequence[bool],
    *,
    num_classes: int = 0,
) -> Batch:
    """Stack samples; the pixels keep their depth until they are on the device.

    Args:
        records: Samples whose pixels are views of one size.
        numbers: Their positions or numbers.
        is_padding: Which of them stand there only to fill up.
        num_classes: Number of classes, for several labels per sample.
    """
    batch: Batch = {
        "image": stack([record.pixels for record in records]),
        "sample": torch.tensor(numbers, dtype=torch.int64),
        "key": [record.key for record in records],
        "is_padding": torch.tensor(is_padding, dtype=torch.bool),
    }
    if records[0].label is not None:
        batch["label"] = stack_labels(
            [record.label for record in records if record.label is not None],
            num_classes=num_classes,
            multilabel=isinstance(records[0].label, tuple),
        )
    return batch


class BatchLoader(DataLoader[Batch]):
    """A stock loader for datasets that answer with whole batches.

    Lightning calls a run resumable if its loader has a state.  This one has none of its own: the
    position lives in the data module, which makes the loader start there.

    Args:
        dataset: Answers the sampler's requests.
        sampler: Yields one request per batch.
        num_workers: Processes that read and decode.
        multiprocessing_context: How they start.
    """

    def __init__(
        self,
        dataset: Dataset[Batch],
        sampler: Sampler[Any],
        *,
        num_workers: int,
        multiprocessing_context: str | None,
    ):
        super().__init__(
            dataset,
            batch_size=None,
            sampler=sampler,
            num_workers=num_workers,
            collate_fn=unchanged,
            pin_memory=torch.cuda.is_available(),
            persistent_workers=num_workers > 0,
            multiprocessing_context=multiprocessing_context if num_workers else None,
        )

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: see the class."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Do nothing: see the class."""


def unchanged(batch: Any) -> Any:
    """Return the batch; stands here so that workers import no Lightning to find it."""
    return batch
