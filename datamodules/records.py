"""One split of a shard directory: (shard, index) → pixels, label, group.

A view is found before pixels are made: the header says how large the image is, the position which
box of it is wanted, and only that box is converted, resized and handed on.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from datamodules.augment import Augment, View, central_box
from datamodules.decode import Picture, open_picture
from datamodules.decode.geometry import Size, cut
from datamodules.decode.jpeg import Backend, fast_decoder
from datamodules.guard import IMAGE_SUFFIXES, MAX_PIXELS, BadImageError
from datamodules.labels import Label, read_label
from datamodules.ledger import BadImage
from datamodules.manifest import Manifest
from datamodules.reader import ShardReader, Verify
from datamodules.shardfiles import ShardFiles, open_files
from mae.errors import ConfigError, DataError, unknown_name

Decode = Literal["exact", "scaled"]


@dataclass(frozen=True)
class Record:
    """One sample: key, pixels ``(chans, height, width)``, label (`read_label`), and sidecar."""

    key: str
    pixels: NDArray[Any]
    label: Label | None
    sidecar: bytes
    where: str = ""  # shard and key, for messages

    @property
    def group(self) -> str | None:
        """Group of the sample, or None where it has none.

        Raises:
            DataError: If the sidecar is no JSON.
        """
        try:
            sidecar = json.loads(self.sidecar or b"{}")
        except (ValueError, RecursionError) as error:
            raise DataError(
                f"the JSON sidecar of {self.where} cannot be read ({error}); pack it again"
            ) from error
        found = sidecar.get("group") if isinstance(sidecar, dict) else None
        return None if found is None else str(found)


class _Opened(NamedTuple):
    """A sample whose image is open, but mostly not decoded."""

    picture: Picture
    key: str
    what: str
    label: Label | None
    sidecar: bytes

    def record(self, pixels: NDArray[Any]) -> Record:
        return Record(self.key, pixels, self.label, self.sidecar, self.what)


class SplitRecords:
    """Random access to the decoded samples of one split.

    Args:
        manifest: The shard directory's manifest.
        split: Name of the split.
        files: Where its shards lie; where the manifest says without a value.
        verify: When contents are compared with their checksums; see `ShardReader`.
        max_open: Shards that are kept open; see `ShardReader`.
        max_pixels: Largest height x width of an image.
        cache_bytes: Pixels that are kept decoded, for sets that fit into memory.
        decode: ``scaled`` decodes a JPEG of which a `view` needs fewer pixels at 1/2, 1/4 or 1/8,
            which is faster and slightly softer; fixed views are always exact.
        backend: What decodes JPEG; the pixels do not depend on it.

    Raises:
        ConfigError: If a name is unknown, a backend is missing, or images decoded for one view are
            to be kept for others.
        DataError: If the split has no samples.
    """

    def __init__(
        self,
        manifest: Manifest,
        split: str,
        *,
        files: ShardFiles | None = None,
        verify: Verify = "first",
        max_open: int = 0,
        max_pixels: int = MAX_PIXELS,
        cache_bytes: int = 0,
        decode: Decode = "exact",
        backend: Backend = "auto",
    ):
        if decode not in get_args(Decode):
            raise unknown_name("decode", decode, get_args(Decode))
        if decode == "scaled" and cache_bytes:
            raise ConfigError(
                f"decode: scaled makes the pixels of one view, and a cache of {cache_bytes:,} "
                f"bytes keeps whole images for all views; use decode: exact, or no cache"
            )
        fast_decoder(backend)  # a missing one is better found before the first batch
        self.split = split
        self.spec = manifest.spec
        self.classes, self.multilabel = manifest.classes, manifest.multilabel
        self.max_pixels = max_pixels
        self.decode, self.backend = decode, backend
        shards = manifest.shards(split)
        self.reader = ShardReader(
            files or open_files(manifest, shards), shards, verify=verify, max_open=max_open
        )
        self.shard_sizes = [shard.num_samples for shard in self.reader.shards]
        self._ends = np.cumsum(self.shard_sizes)
        self._cache: dict[tuple[int, int], Record] = {}
        self._cache_bytes = self._cache_left = cache_bytes

    def __getstate__(self) -> dict[str, Any]:
        """Leave decoded images behind: each process keeps its own."""
        return self.__dict__ | {"_cache": {}, "_cache_left": self._cache_bytes}

    @property
    def num_classes(self) -> int:
        """Number of classes; 0 if the set is unlabelled."""
        return len(self.classes or ())

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
            opened = self._open(shard, index)
            record = opened.record(opened.picture.read())
            if self._has_room(opened.picture):
                record = self._keep(shard, index, record)
        return record

    def view(self, shard: int, index: int, augment: Augment, *, seed: int, position: int) -> Record:
        """Return a record whose pixels are the augmented view of one position.

        Args:
            shard: Place of the shard.
            index: Place of the sample in the shard.
            augment: How views are drawn.
            seed: The run's seed.
            position: Position in the stream.

        Raises:
            BadImageError: If the image cannot be used; the message names shard and key.
            DataError: If the shard differs from its manifest, or the image is smaller than a crop
                at the stored scale.
        """

        def draw(size: Size, what: str) -> View:
            return augment.draw(size, seed=seed, position=position, what=what)

        return self._view(shard, index, draw, self.decode)

    def eval_view(self, shard: int, index: int, img_size: Size) -> Record:
        """Return a record whose pixels are the one fixed view, exact; see `view` for errors."""

        def draw(size: Size, what: str) -> View:
            del what
            return View(central_box(size, img_size), img_size)

        return self._view(shard, index, draw, "exact")

    def blank(self, shard: int, index: int, img_size: tuple[int, int]) -> Record:
        """Return a record of the right shape and label whose pixels are 0."""
        key, members = self.reader.read(shard, index)
        pixels = np.zeros((self.spec.num_channels, *img_size), dtype=self.spec.dtype)
        where = f"{self.reader.name(shard)}: {key}"
        label = self._label(members, where)
        return Record(key, pixels, label, members.get("json", b""), where)

    def bad_image(self, shard: int, index: int, error: BadImageError) -> BadImage:
        """Return the ledger's entry for an image that could not be used."""
        key, _ = self.reader.read(shard, index)
        return BadImage(error.reason, self.reader.name(shard), key, str(error))

    def _view(
        self, shard: int, index: int, draw: Callable[[Size, str], View], decode: Decode
    ) -> Record:
        record = self._cache.get((shard, index))
        if record is None:
            opened = self._open(shard, index)
            if not self._has_room(opened.picture):
                view = draw(opened.picture.size, opened.what)
                at_least = view.img_size if decode == "scaled" else None
                piece = opened.picture.read(view.box, at_least=at_least)
                return opened.record(view.finish(piece))
            record = self._keep(shard, index, opened.record(opened.picture.read()))
        view = draw((record.pixels.shape[1], record.pixels.shape[2]), record.key)
        return replace(record, pixels=view.finish(cut(record.pixels, view.box)))

    def _has_room(self, picture: Picture) -> bool:
        height, width = picture.size
        num_bytes = height * width * picture.num_channels * np.dtype(picture.dtype).itemsize
        return num_bytes <= self._cache_left

    def _keep(self, shard: int, index: int, record: Record) -> Record:
        pixels = np.array(record.pixels)  # no larger array behind it
        pixels.flags.writeable = False
        self._cache_left -= pixels.nbytes
        self._cache[shard, index] = replace(record, pixels=pixels)
        return self._cache[shard, index]

    def _open(self, shard: int, index: int) -> _Opened:
        key, members = self.reader.read(shard, index)
        what = f"{self.reader.name(shard)}: {key}"
        images = [suffix for suffix in members if suffix in IMAGE_SUFFIXES]
        if len(images) != 1:
            raise DataError(
                f"{what} has {len(images)} images ({', '.join(sorted(members))}); allowed: exactly "
                f"one of .{', .'.join(IMAGE_SUFFIXES)} per sample"
            )
        picture = open_picture(
            members[images[0]], what=what, max_pixels=self.max_pixels, backend=self.backend
        )
        if (picture.num_channels, picture.dtype) != (self.spec.num_channels, self.spec.dtype):
            raise BadImageError(
                f"{what} has {picture.num_channels} x {picture.dtype}, the manifest says "
                f"{self.spec.num_channels} x {self.spec.dtype}; pack the images again",
                reason="other channels or depth",
            )
        return _Opened(picture, key, what, self._label(members, what), members.get("json", b""))

    def _label(self, members: dict[str, bytes], what: str) -> Label | None:
        return read_label(members, self.classes, multilabel=self.multilabel, what=what)
