"""Shard directories of given sizes, written without `mae pack` so that every member is known."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from datamodules.manifest import FILE_NAME, Manifest, ShardInfo
from datamodules.tarindex import TarIndex, index_path
from mae.spec import ImageSpec

Members = Sequence[tuple[str, bytes]]
CLASSES = ("bright", "dark")


def png(number: int, *, size: tuple[int, int] = (14, 12)) -> bytes:
    """Return an RGB PNG whose pixels depend on `number` alone; odd ones are dark."""
    low = 0 if number % 2 else 120
    pixels = np.random.default_rng(number).integers(low, low + 120, (*size, 3), dtype=np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return stream.getvalue()


def sample(number: int, *, labelled: bool = False) -> Members:
    """Return the members of one sample."""
    key = f"{number:06d}"
    members = [
        (f"{key}.png", png(number)),
        (f"{key}.json", json.dumps({"group": f"g{number // 3}"}).encode()),
    ]
    return [*members, (f"{key}.cls", b"%d" % (number % 2))] if labelled else members


def tar(members: Iterable[tuple[str, bytes]]) -> bytes:
    """Return a plain ustar archive."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return stream.getvalue()


def shard_info(path: Path, *, split: str, index: TarIndex) -> ShardInfo:
    """Return what a manifest says of a shard."""
    return ShardInfo(
        path=path.name,
        split=split,
        num_samples=index.num_samples,
        num_bytes=index.num_bytes,
        sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        index_sha256=index.digest,
    )


def manifest_of(shards: Sequence[ShardInfo], *, root: Path, labelled: bool = False) -> Manifest:
    """Return a manifest of 8-bit RGB shards."""
    spec = ImageSpec(
        channels=("red", "green", "blue"),
        dtype="uint8",
        mean=(120.0,) * 3,
        std=(60.0,) * 3,
        value_range=(0, 255),
    )
    return Manifest(
        spec=spec,
        shard_list=tuple(shards),
        classes=CLASSES if labelled else None,
        class_counts={"train": {"bright": 1, "dark": 1}} if labelled else {},
        min_size=(14, 12),
        max_size=(14, 12),
        root=str(root),
    )


def write_shards(
    directory: Path, sizes: Mapping[str, Sequence[int]], *, labelled: bool = False
) -> Path:
    """Write a shard directory.

    Args:
        directory: Where; it is made.
        sizes: Samples of each shard, by split.
        labelled: Whether samples have a class.
    """
    directory.mkdir(parents=True)
    infos, number = [], 0
    for split, counts in sizes.items():
        for place, count in enumerate(counts):
            path = directory / f"{split}-{place:06d}.tar"
            of_shard = [sample(number + i, labelled=labelled) for i in range(count)]
            path.write_bytes(tar(member for members in of_shard for member in members))
            index = TarIndex.build(path)
            index.save(index_path(path))
            infos.append(shard_info(path, split=split, index=index))
            number += count
    manifest = manifest_of(infos, root=directory, labelled=labelled)
    (directory / FILE_NAME).write_text(manifest.to_json(), encoding="utf-8")
    return directory
