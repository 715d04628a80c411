"""Write one shard: check, measure and store its images.

A shard depends on its own list of images and nothing else, so shards can be written anywhere and in
any order with the same bytes.  Members are laid out as webdataset's `TarWriter` lays them out, but
by `tarfile` alone: importing webdataset imports torch, which every packing process would wait for.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import tarfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from datamodules.decode import Pixels, decode
from datamodules.guard import SUFFIX_OF, BadImageError, sniff
from datamodules.manifest import ShardInfo
from datamodules.packing.items import Item
from datamodules.packing.reencode import Reencoding
from datamodules.packing.results import Kind, LeftOut, ShardResult
from datamodules.statistics import ChannelStats
from datamodules.tarindex import TarIndex, index_path
from mae.errors import DataError

_MODE = 0o444  # that of webdataset's TarWriter
OnImage = Callable[[LeftOut | None], None]


@dataclass(frozen=True, kw_only=True)
class ShardRules:
    """What holds for every image of a set.

    Attributes:
        kind: Channels and depth that every image must have.
        classes: Class names; the place is the index.
        multilabel: Whether a sample may have several labels, or none.
        max_pixels: Largest height x width.
        reencoding: What is done to images.
    """

    kind: Kind
    classes: tuple[str, ...] | None = None
    multilabel: bool = False
    max_pixels: int
    reencoding: Reencoding = field(default_factory=Reencoding)

    @property
    def class_index(self) -> dict[str, int]:
        """Index of each class name."""
        return {name: index for index, name in enumerate(self.classes or ())}


@dataclass
class _Measured:
    stats: ChannelStats | None = None
    left_out: list[LeftOut] = field(default_factory=list)
    class_counts: Counter[str] = field(default_factory=Counter)
    num_unlabelled: int = 0
    num_bytes: int = 0
    num_reencoded: int = 0
    sizes: list[tuple[int, int]] = field(default_factory=list)


def write_shard(
    path: Path,
    items: Sequence[Item],
    rules: ShardRules,
    *,
    split: str,
    scratch: Path | None = None,
    on_image: OnImage = lambda _: None,
) -> ShardResult:
    """Write a shard with its index.

    Both are synced and appear under their names when they are complete; a shard without samples
    does not appear.

    Args:
        path: The tar to write.
        items: Its images, in order; those that cannot be used are left out and listed.
        rules: What holds for every image.
        split: Name of the split.
        scratch: Directory on the same disk for the unfinished tar; that of `path` without a value.
        on_image: Called after each image, with the reason if it was left out.

    Raises:
        OSError: If the disk refuses.
        DataError: If what was written cannot be read back, or existing shards that are packed
            again differ from their manifest.
    """
    measured, class_index = _Measured(), rules.class_index
    unfinished = (scratch or path.parent) / f".{path.name}.{os.getpid()}.tmp"
    try:
        with unfinished.open("wb") as file:
            with tarfile.open(fileobj=file, mode="w|") as tar:
                for item in items:
                    left_out = _add(tar, item, rules, class_index, measured)
                    on_image(left_out)
            file.flush()
            os.fsync(file.fileno())
        return _finish(unfinished, path, split, measured)
    finally:
        unfinished.unlink(missing_ok=True)


def sample_key(name: str) -> str:
    """Return the key of an image in its shard.

    WebDataset ends a key at its first dot, and two folders can hold the same name: the readable
    part loses everything but letters, digits, ``_`` and ``-``, and a digest of the whole name makes
    it unique.
    """
    stem = re.sub(r"[^A-Za-z0-9_-]+", "_", name.rsplit("/", 1)[-1].rsplit(".", 1)[0])
    digest = hashlib.blake2b(name.encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()
    return f"{stem[:40].strip('_') or 'image'}-{digest}"


def _add(
    tar: tarfile.TarFile,
    item: Item,
    rules: ShardRules,
    class_index: dict[str, int],
    measured: _Measured,
) -> LeftOut | None:
    """Add one sample, or return why there is none."""
    try:
        data, pixels, sidecar = _stored(item, rules)
    except BadImageError as error:
        left_out = LeftOut(item.name, error.reason, str(error))
        measured.left_out.append(left_out)
        return left_out
    stats = ChannelStats.of(pixels)
    measured.stats = stats if measured.stats is None else measured.stats.merge(stats)
    measured.num_bytes += len(data)
    measured.num_reencoded += "original" in sidecar
    measured.sizes.append((pixels.shape[1], pixels.shape[2]))
    members = {SUFFIX_OF[sniff(data, what=item.name)]: data}
    sidecar |= {"source": item.name}
    if item.group is not None:
        sidecar["group"] = item.group
    if item.labels is not None:
        measured.class_counts.update(item.labels)
        measured.num_unlabelled += not item.labels
        names = sorted(item.labels, key=class_index.__getitem__)
        if rules.multilabel:
            sidecar |= {"labels": names, "classes": [class_index[name] for name in names]}
        else:
            sidecar["label"] = names[0]
            members["cls"] = str(class_index[names[0]]).encode()
    members["json"] = json.dumps(sidecar, sort_keys=True).encode()
    key = sample_key(item.name)
    for suffix in sorted(members):
        header = tarfile.TarInfo(
            f"{key}.{suffix}"
        )  # no times, no owners: equal images, equal bytes
        header.size, header.mode = len(members[suffix]), _MODE
        tar.addfile(header, io.BytesIO(members[suffix]))
    return None


def _stored(item: Item, rules: ShardRules) -> tuple[bytes, Pixels, dict[str, Any]]:
    """Return the bytes to be stored, their pixels, and what the sidecar says of the change."""
    data = item.place.read(what=item.name)
    pixels = decode(data, what=item.name, max_pixels=rules.max_pixels)
    _check_kind(pixels, item.name, rules.kind)
    changed = rules.reencoding(pixels, what=item.name) if rules.reencoding.is_asked else None
    if changed is None:
        return data, pixels, {}
    original = {
        "format": sniff(data, what=item.name),
        "height": pixels.shape[1],
        "width": pixels.shape[2],
        "num_bytes": len(data),
    }
    # Decoded again: what is stored is what is measured, and it is known to be readable.
    pixels = decode(changed, what=item.name, max_pixels=rules.max_pixels)
    return changed, pixels, {"original": original}


def _check_kind(pixels: Pixels, name: str, kind: Kind) -> None:
    found = Kind.of(pixels, name)
    if found != kind:
        raise BadImageError(
            f"{name} has {found} (channels x depth), {kind.example} and most others have {kind}; "
            f"convert it, or pack the two kinds apart",
            reason="other channels or depth",
        )


def _finish(unfinished: Path, path: Path, split: str, measured: _Measured) -> ShardResult:
    """Read the shard back, give it its name and return what is to be known of it."""
    index = TarIndex.build(unfinished)
    if index.num_samples != len(measured.sizes):
        raise DataError(
            f"{path} was written with {len(measured.sizes)} samples, but {index.num_samples} can "
            f"be read back; the disk is faulty: give another directory"
        )
    with unfinished.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if measured.sizes:
        index.save(index_path(path))
        unfinished.replace(path)
        _sync(path.parent)
    heights, widths = _axes(measured.sizes)
    return ShardResult(
        info=ShardInfo(
            path=path.name,
            split=split,
            num_samples=index.num_samples,
            num_bytes=index.num_bytes,
            sha256=digest,
            index_sha256=index.digest,
        ),
        stats=measured.stats,
        left_out=tuple(measured.left_out),
        class_counts=measured.class_counts,
        num_unlabelled=measured.num_unlabelled,
        num_bytes_images=measured.num_bytes,
        num_reencoded=measured.num_reencoded,
        min_size=(min(heights), min(widths)),
        max_size=(max(heights), max(widths)),
    )


def _axes(sizes: Iterable[tuple[int, int]]) -> tuple[list[int], list[int]]:
    pairs = list(sizes) or [(0, 0)]
    return [height for height, _ in pairs], [width for _, width in pairs]


def _sync(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
