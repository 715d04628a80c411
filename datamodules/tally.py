"""What was measured while packing, put together into a manifest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from datamodules.manifest import Manifest
from datamodules.packing.items import SPLITS
from datamodules.packing.results import Kind, LeftOut, ShardResult
from datamodules.statistics import ChannelStats
from mae.errors import DataError
from mae.spec import ImageSpec, PixelType


@dataclass
class Tally:
    """Results of the shards written so far, in their order; all of one kind."""

    kind: Kind
    results: list[ShardResult] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)

    def add(self, result: ShardResult) -> None:
        """Take in one shard; one without samples counts for what it left out."""
        self.left_out += result.left_out
        if result.info.num_samples:
            self.results.append(result)

    def stats(self, splits: Sequence[str]) -> ChannelStats | None:
        """Return the statistics over these splits; None if they are empty."""
        merged = None
        for result in self.results:
            if result.stats is not None and result.info.split in splits:
                merged = result.stats if merged is None else merged.merge(result.stats)
        return merged


def build_manifest(
    tally: Tally,
    *,
    classes: tuple[str, ...] | None,
    multilabel: bool,
    options: Mapping[str, Any],
    source: str,
) -> tuple[Manifest, list[str]]:
    """Return the manifest, and sentences that the user should read.

    Args:
        tally: The shards.
        classes: Class names, or None.
        multilabel: Whether an image may have several labels, or none.
        options: What shaped the shards.
        source: Where the images came from.

    Raises:
        DataError: If there is no image at all.
    """
    results = tally.results
    notes: list[str] = []
    stats = tally.stats(["train"])
    if stats is None:
        stats = tally.stats(SPLITS)
        notes.append("there is no train split: mean and std were measured over all images")
    if stats is None:
        raise DataError(f"none of the images of {source} could be packed")
    spec = spec_of(stats, tally.kind.num_channels, tally.kind.dtype)
    notes += _constant_channels(stats, spec)
    counts: dict[str, dict[str, int]] = {}
    for result in results:
        of_split = counts.setdefault(result.info.split, dict.fromkeys(classes or (), 0))
        for name, n in result.class_counts.items():
            of_split[name] += n
    if classes:
        notes += class_notes(classes, counts)
    num_unlabelled = sum(result.num_unlabelled for result in results)
    if num_unlabelled:
        num_samples = sum(result.info.num_samples for result in results)
        notes.append(f"{num_unlabelled:,} of {num_samples:,} images have an empty list of labels")
    manifest = Manifest(
        spec=spec,
        shard_list=tuple(result.info for result in results),
        classes=classes,
        multilabel=multilabel,
        class_counts=counts if classes else {},
        num_bytes_images=sum(result.num_bytes_images for result in results),
        min_size=(min(r.min_size[0] for r in results), min(r.min_size[1] for r in results)),
        max_size=(max(r.max_size[0] for r in results), max(r.max_size[1] for r in results)),
        left_out=dict(sorted(Counter(entry.reason for entry in tally.left_out).items())),
        options=options,
        source=source,
    )
    return manifest, notes


def channel_names(num_channels: int) -> tuple[str, ...]:
    """Return the names of the channels of images that do not name them."""
    numbered = tuple(f"band{i + 1}" for i in range(num_channels))
    return {1: ("gray",), 3: ("red", "green", "blue")}.get(num_channels, numbered)


def spec_of(stats: ChannelStats, num_channels: int, dtype: PixelType) -> ImageSpec:
    """Return what pixels with these statistics mean.

    Args:
        stats: Statistics of each channel; a std of 0 counts as 1.
        num_channels: Number of channels.
        dtype: Depth.
    """
    kind, std = np.dtype(dtype), stats.std
    if kind.kind == "f":
        value_range = (float(stats.low.min()), float(stats.high.max()))
    else:
        value_range = (float(np.iinfo(kind).min), float(np.iinfo(kind).max))
    return ImageSpec(
        channels=channel_names(num_channels),
        dtype=dtype,
        mean=tuple(stats.mean.tolist()),
        std=tuple(np.where(std > 0, std, 1.0).tolist()),
        value_range=value_range,
    )


def _constant_channels(stats: ChannelStats, spec: ImageSpec) -> Iterator[str]:
    for name, value, spread in zip(spec.channels, stats.mean, stats.std, strict=True):
        if not spread > 0:
            yield f"channel {name} is {value:g} everywhere; its std is taken as 1"


def class_notes(classes: Sequence[str], counts: Mapping[str, Mapping[str, int]]) -> Iterator[str]:
    """Yield a sentence for each class or split that is missing.

    Args:
        classes: Class names.
        counts: Samples by split and class name.
    """
    if len(classes) == 1:
        yield f"all images have the label {classes[0]!r}: with one class nothing can be learned"
    for split, of_split in counts.items():
        missing = [name for name in classes if not of_split[name]]
        if missing:
            yield f"split {split} has no image of: {', '.join(missing)}"
    for split in ("val", "test"):
        if split not in counts:
            yield f"split {split} is empty; give {split}_fraction, or a split column or folders"
