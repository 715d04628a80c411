"""Existing shards as a source: what their manifest and index say is verified while reading."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from datamodules.guard import IMAGE_SUFFIXES, TEXT_SUFFIXES
from datamodules.locations import is_url
from datamodules.manifest import Manifest, ShardInfo
from datamodules.packing.places import Place, StoredPlace, absolute
from datamodules.shardfiles import index_location, matching_index
from mae.errors import ConfigError, DataError


class ShardSample(NamedTuple):
    """One sample of a shard: its image, the name ``KEY.suffix``, its sidecars and its split."""

    place: Place
    name: str
    sidecars: dict[str, Place]
    split: str


def read_samples(manifest: Manifest) -> Iterator[ShardSample]:
    """Yield all samples of a shard directory, in order.

    Raises:
        DataError: If a shard is not what the manifest says, or a sample has not one image.
        ConfigError: If a shard lies elsewhere than on a disk.
    """
    manifest.verify_sizes(manifest.shard_list)
    for info in manifest.shard_list:
        yield from _samples(manifest, info)


def _samples(manifest: Manifest, info: ShardInfo) -> Iterator[ShardSample]:
    path = manifest.location(info)
    if is_url(path):
        raise ConfigError(f"{path} is a URL; `mae pack` reads files on disks: fetch it first")
    at = index_location(manifest.root, info)
    index = matching_index(Path(path), info, at=at, ignore=manifest.ignored_suffixes)
    modified_ns = os.stat(path).st_mtime_ns  # noqa: PTH116
    for number, key in enumerate(index.keys):
        members: dict[str, Place] = {
            index.suffixes[m]: StoredPlace(
                absolute(path),
                int(index.sizes[m]),
                modified_ns,
                offset=int(index.offsets[m]),
                crc=int(index.crcs[m]),
            )
            for m in range(index.first[number], index.first[number + 1])
        }
        images = [suffix for suffix in members if suffix in IMAGE_SUFFIXES]
        if len(images) != 1:
            raise DataError(
                f"{path}: sample {key!r} has {len(images)} images ({', '.join(sorted(members))}); "
                f"allowed: exactly one of .{', .'.join(IMAGE_SUFFIXES)} per sample"
            )
        yield ShardSample(
            members[images[0]],
            f"{key}.{images[0]}",
            {suffix: members[suffix] for suffix in TEXT_SUFFIXES if suffix in members},
            info.split,
        )
