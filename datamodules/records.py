"""One split of a shard directory: (shard, index) → pixels, label, group."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datamodules.decode import decode
from datamodules.guard import IMAGE_SUFFIXES, MAX_PIXELS, BadImageError
from datamodules.manifest import Manifest
from datamodules.reader import ShardReader
from mae.errors import DataError


@dataclass(frozen=True)
class Record:
    """One sample: its key, pixels ``(chans, height, width)``, class index or None, and sidecar."""

    key: str
    pixels: NDArray[Any]
    label: int | None
    sidecar: bytes

    @property
    def group(self) -> str | None:
        """Group of the sample, or None where it has none."""
        found = json.loads(self.sidecar or b"{}").get("group")
        return None if found is None else str(found)


class SplitRecords:
    """Random access to the decoded samples of one split.

    Args:
        manifest: The shard directory's manifest.
        split: Name of the split.
        max_pixels: Largest height x width of an image.
        cache_bytes: Pixels that are kept decoded, for sets that fit into memory.

    Raises:
        DataError: If the split has no samples.
    """

    def __init__(
        self,
        manifest: Manifest,
        split: str,
        *,
        max_pixels: int = MAX_PIXELS,
        cache_bytes: int = 0,
    ):
        self.split = split
        self.spec = manifest.spec
        self.classes = manifest.classes
        self.max_pixels = max_pixels
        self.reader = ShardReader(manifest.root, manifest.shards(split))
        self.shard_sizes = [shard.num_samples for shard in self.reader.shards]
        self._ends = np.cumsum(self.shard_sizes)
        self._cache: dict[tuple[int, int], Record] = {}
        self._cache_bytes = self._cache_left = cache_bytes

    def __getstate__(self) -> dict[str, Any]:
        """Leave decoded images behind: each process keeps its own."""
        return self.__dict__ | {"_cache": {}, "_cache_left": self._cache_bytes}

    def __len__(self) -> int:
        return int(self._ends[-1])

    def locate(self, number: int) -> tuple[int, int]:
        """Return shard and index of the sample with this number, counted through all shards."""
        shard = int(np.searchsorted(self._ends, number, side="right"))
        return shard, number - (int(self._ends[shard - 1]) if shard else 0)

    def load(self, shard: int, index: int) -> Record:
        """Return one decoded sample, whose pixels are not to be changed.

        Raises:
            BadImageError: If the image cannot be used; the message names shard and key.
            DataError: If the shard differs from its manifest.
        """
        record = self._cache.get((shard, index))
        if record is None:
            record = self._read(shard, index)
            if record.pixels.nbytes <= self._cache_left:
                self._cache_left -= record.pixels.nbytes
                record.pixels.flags.writeable = False
                self._cache[shard, index] = record
        return record

    def _read(self, shard: int, index: int) -> Record:
        key, members = self.reader.read(shard, index)
        what = f"{self.reader.path(shard)}: {key}"
        images = [suffix for suffix in members if suffix in IMAGE_SUFFIXES]
        if len(images) != 1:
            raise DataError(
                f"{what} has {len(images)} images ({', '.join(sorted(members))}); allowed: exactly "
                f"one of .{', .'.join(IMAGE_SUFFIXES)} per sample"
            )
        pixels = decode(members[images[0]], what=what, max_pixels=self.max_pixels)
        if len(pixels) != self.spec.num_channels or pixels.dtype.name != self.spec.dtype:
            raise BadImageError(
                f"{what} has {len(pixels)} x {pixels.dtype}, the manifest says "
                f"{self.spec.num_channels} x {self.spec.dtype}; pack the images again",
                reason="other channels or depth",
            )
        return Record(key, pixels, self._label(members, what), members.get("json", b""))

    def _label(self, members: dict[str, bytes], what: str) -> int | None:
        if self.classes is None:
            return None
        try:
            label = int(members["cls"])
        except (KeyError, ValueError):
            label = -1
        if not 0 <= label < len(self.classes):
            raise DataError(
                f"{what} has the class {members.get('cls', b'none')!r}; allowed: 0 … "
                f"{len(self.classes) - 1}, the places in the manifest's classes"
            )
        return label
