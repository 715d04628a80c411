"""Write one shard: check, measure and copy its images.

A shard depends on its own list of images and nothing else, so shards can be written anywhere and in
any order with the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from datamodules.decode import Pixels, decode
from datamodules.guard import SUFFIX_OF, BadImageError, sniff
from datamodules.manifest import ShardInfo
from datamodules.sources import Item
from datamodules.statistics import ChannelStats
from datamodules.tarindex import TarIndex, index_path
from mae.errors import DataError
from mae.spec import PixelType

_NUM_KIND_VOTES = 9


@dataclass(frozen=True)
class Kind:
    """Number of channels and depth that all images of a set share; `example` is one of them."""

    num_channels: int
    dtype: PixelType
    example: str = field(compare=False)

    @classmethod
    def of(cls, pixels: Pixels, name: str) -> Kind:
        """Return the kind of one decoded image."""
        return cls(len(pixels), cast("PixelType", pixels.dtype.name), name)

    def __str__(self) -> str:
        return f"{self.num_channels} x {self.dtype}"


@dataclass(frozen=True)
class LeftOut:
    """An image that was not packed: its name, the reason in a few words, the full message."""

    name: str
    reason: str
    message: str


@dataclass(frozen=True, kw_only=True)
class ShardResult:
    """One written shard and what was measured on the way."""

    info: ShardInfo
    kind: Kind
    stats: ChannelStats | None
    left_out: tuple[LeftOut, ...]
    class_counts: Mapping[str, int]
    num_bytes_images: int
    min_size: tuple[int, int]
    max_size: tuple[int, int]


@dataclass
class _Measured:
    stats: ChannelStats | None = None
    left_out: list[LeftOut] = field(default_factory=list)
    class_counts: Counter[str] = field(default_factory=Counter)
    num_bytes: int = 0
    sizes: list[tuple[int, int]] = field(default_factory=list)


def most_common_kind(items: Sequence[Item], *, max_pixels: int) -> Kind | None:
    """Return the kind that most of the first readable images have; None if none is readable.

    # Choice: nine votes, so that one odd file at the beginning does not make all others odd.
    """
    votes: list[Kind] = []
    for item in items:
        try:
            votes.append(
                Kind.of(decode(_load(item), what=item.name, max_pixels=max_pixels), item.name)
            )
        except BadImageError:
            continue
        if len(votes) == _NUM_KIND_VOTES:
            break
    return Counter(votes).most_common(1)[0][0] if votes else None


def write_shard(
    path: Path,
    items: Sequence[Item],
    *,
    split: str,
    class_index: Mapping[str, int] | None,
    kind: Kind | None,
    max_pixels: int,
    on_image: Callable[[], None] = lambda: None,
) -> ShardResult:
    """Write a shard with its index.

    Args:
        path: The tar to write.
        items: Its images, in order; those that cannot be used are left out and listed.
        split: Name of the split.
        class_index: Index of each class name; None if unlabelled.
        kind: Channels and depth that every image must have.
        max_pixels: Largest height x width.
        on_image: Called after each image.

    Raises:
        OSError: If the disk refuses.
    """
    from webdataset.writer import TarWriter  # takes a second: webdataset imports torch

    measured = _Measured()
    with path.open("wb") as file:
        # Fixed times and owners: equal images give equal bytes.
        with TarWriter(file, user="", group="", mtime=0, encoder=False) as tar:
            for item in items:
                sample = _sample(item, class_index, kind, max_pixels, measured)
                if sample is not None:
                    tar.write(sample)
                on_image()
        file.flush()
        os.fsync(file.fileno())
    index = TarIndex.build(path)
    index.save(index_path(path))
    return _result(path, split, kind, index, measured)


def sample_key(name: str) -> str:
    """Return the key of an image in its shard.

    WebDataset ends a key at its first dot, and two folders can hold the same name: the readable
    part loses everything but letters, digits, ``_`` and ``-``, and a digest of the whole name makes
    it unique.
    """
    stem = re.sub(r"[^A-Za-z0-9_-]+", "_", name.rsplit("/", 1)[-1].rsplit(".", 1)[0])
    digest = hashlib.blake2b(name.encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()
    return f"{stem[:40].strip('_') or 'image'}-{digest}"


def _load(item: Item) -> bytes:
    try:
        return item.path.read_bytes()
    except OSError as error:
        raise BadImageError(
            f"{item.name} cannot be read ({error.strerror}); check the file and its permissions",
            reason="unreadable file",
        ) from error


def _sample(
    item: Item,
    class_index: Mapping[str, int] | None,
    kind: Kind | None,
    max_pixels: int,
    measured: _Measured,
) -> dict[str, str | bytes] | None:
    """Return the members of one sample, or note why there is none."""
    try:
        data = _load(item)
        pixels = decode(data, what=item.name, max_pixels=max_pixels)
        _check_kind(pixels, item.name, kind)
    except BadImageError as error:
        measured.left_out.append(LeftOut(item.name, error.reason, str(error)))
        return None
    stats = ChannelStats.of(pixels)
    measured.stats = stats if measured.stats is None else measured.stats.merge(stats)
    measured.num_bytes += len(data)
    measured.sizes.append((pixels.shape[1], pixels.shape[2]))
    sidecar = {"source": item.name, "label": item.label, "group": item.group}
    sidecar = {name: value for name, value in sidecar.items() if value is not None}
    sample: dict[str, str | bytes] = {
        "__key__": sample_key(item.name),
        SUFFIX_OF[sniff(data, what=item.name)]: data,
        "json": json.dumps(sidecar, sort_keys=True).encode(),
    }
    if item.label is not None and class_index is not None:
        sample["cls"] = str(class_index[item.label]).encode()
        measured.class_counts[item.label] += 1
    return sample


def _check_kind(pixels: Pixels, name: str, kind: Kind | None) -> None:
    found = Kind.of(pixels, name)
    if kind is not None and found != kind:
        raise BadImageError(
            f"{name} has {found} (channels x depth), {kind.example} and most others have {kind}; "
            f"convert it, or pack the two kinds apart",
            reason="other channels or depth",
        )


def _result(
    path: Path, split: str, kind: Kind | None, index: TarIndex, measured: _Measured
) -> ShardResult:
    if index.num_samples != len(measured.sizes):
        raise DataError(
            f"{path} was written with {len(measured.sizes)} samples, but {index.num_samples} can "
            f"be read back; two images may have the same key, or the disk is faulty"
        )
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    heights, widths = _axes(measured.sizes)
    if not measured.sizes:
        path.unlink()
        index_path(path).unlink()
    return ShardResult(
        info=ShardInfo(
            path=path.name,
            split=split,
            num_samples=index.num_samples,
            num_bytes=index.num_bytes,
            sha256=digest,
        ),
        kind=kind or Kind(0, "uint8", ""),
        stats=measured.stats,
        left_out=tuple(measured.left_out),
        class_counts=measured.class_counts,
        num_bytes_images=measured.num_bytes,
        min_size=(min(heights), min(widths)),
        max_size=(max(heights), max(widths)),
    )


def _axes(sizes: Iterable[tuple[int, int]]) -> tuple[list[int], list[int]]:
    pairs = list(sizes) or [(0, 0)]
    return [height for height, _ in pairs], [width for _, width in pairs]
