"""From a stream of samples to batches, and to what their pixels mean.

Nobody measured these images before the run, so the first ones are measured at its start; all others
must be of their kind.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any, cast, get_args

from torch.utils.data import Dataset

from datamodules.augment import Augment
from datamodules.decode import Picture, Pixels, open_picture
from datamodules.decode import decode as decode_image
from datamodules.guard import BadImageError
from datamodules.ledger import BadImage
from datamodules.loading import Batch, collate
from datamodules.records import Decode, Record
from datamodules.statistics import ChannelStats
from datamodules.stream.samples import Reader, ShardStream, StreamSample
from datamodules.tally import spec_of
from mae.errors import DataError, unknown_name
from mae.spec import ImageSpec, PixelType

_MAX_BAD_IN_A_ROW = 8
_NUM_MEASURED_SHARDS = 8


class StreamBatches(Dataset[Batch]):
    """Answers each range of positions with the next samples of this process's share of the stream.

    The positions key the views and say whether a loader has begun anew; which samples come is the
    stream's affair.

    Args:
        stream: The samples.
        augment: View of each position.
        spec: Kind of pixels that every image must have.
        max_pixels: Largest height x width of an image.
        decode: ``scaled`` decodes JPEGs smaller where a view allows it; see `SplitRecords`.
        first_epoch: Number of the first pass.
        rank: Number of this rank.
        world_size: Number of ranks.

    Raises:
        ConfigError: If `decode` is unknown.
    """

    def __init__(
        self,
        stream: ShardStream,
        augment: Augment,
        *,
        spec: ImageSpec,
        max_pixels: int,
        decode: Decode = "exact",
        first_epoch: int = 0,
        rank: int = 0,
        world_size: int = 1,
    ):
        if decode not in get_args(Decode):
            raise unknown_name("decode", decode, get_args(Decode))
        self.stream, self.augment, self.spec = stream, augment, spec
        self.max_pixels, self.decode = max_pixels, decode
        self.first_epoch = first_epoch
        self.rank, self.world_size = rank, world_size
        self._samples: Iterator[StreamSample] | None = None
        self._last = -1

    def __getstate__(self) -> dict[str, Any]:
        """Leave the open stream behind: each process reads its own."""
        return self.__dict__ | {"_samples": None}

    def __getitem__(self, positions: range) -> Batch:
        if self._samples is None or positions.start <= self._last:
            self._samples = self._endless()
        self._last = positions.start
        bad: list[BadImage] = []
        views = [self._view(self._samples, position, bad) for position in positions]
        batch = collate(views, positions, [False] * len(positions))
        batch["bad"] = bad
        return batch

    def _endless(self) -> Iterator[StreamSample]:
        reader = Reader.here(rank=self.rank, world_size=self.world_size)
        for number in count(self.first_epoch):
            yield from self.stream.epoch(number, reader)

    def _view(self, samples: Iterator[StreamSample], position: int, bad: list[BadImage]) -> Record:
        """Return the view of the next sample; broken ones before it are noted."""
        for _ in range(_MAX_BAD_IN_A_ROW):
            sample = next(samples)
            try:
                return Record(sample.key, self._pixels(sample, position), None, b"")
            except BadImageError as error:
                bad.append(BadImage(error.reason, sample.shard, sample.key, str(error)))
        raise DataError(
            f"{_MAX_BAD_IN_A_ROW} images in a row cannot be used; the shards are damaged or of "
            f"another kind than their first images. The last: {bad[-1].message}"
        )

    def _pixels(self, sample: StreamSample, position: int) -> Pixels:
        picture = open_picture(sample.image, what=sample.name, max_pixels=self.max_pixels)
        self._check(picture, sample.name)
        view = self.augment.draw(
            picture.size, seed=self.stream.seed, position=position, what=sample.name
        )
        at_least = view.img_size if self.decode == "scaled" else None
        return view.finish(picture.read(view.box, at_least=at_least))

    def _check(self, picture: Picture, what: str) -> None:
        spec = self.spec
        if (picture.num_channels, picture.dtype) != (spec.num_channels, spec.dtype):
            raise BadImageError(
                f"{what} has {picture.num_channels} x {picture.dtype}, the first images of the "
                f"stream have {spec.num_channels} x {spec.dtype}; stream the two kinds apart",
                reason="other channels or depth",
            )
        wanted = self.augment.img_size
        if self.augment.crop == "random" and not covers(picture.size, wanted):
            raise BadImageError(
                f"{what} has {picture.size[0]} x {picture.size[1]} px, smaller than the crop of "
                f"{wanted[0]} x {wanted[1]}; use a smaller img_size, or crop: random_resized",
                reason="smaller than the crop",
            )


def covers(size: tuple[int, int], wanted: tuple[int, int]) -> bool:
    """Return whether an image of `size` holds a piece of the wanted ``(height, width)``."""
    return size[0] >= wanted[0] and size[1] >= wanted[1]


@dataclass(frozen=True)
class Measured:
    """What the first images of a stream are.

    Args:
        spec: Their kind, mean and std.
        num_images: How many were measured.
        num_left_out: How many were undecodable or of a rarer kind.
        min_size: Smallest ``(height, width)``, each axis by itself.
        image_bytes: Mean bytes of an image, undecoded.
    """

    spec: ImageSpec
    num_images: int
    num_left_out: int
    min_size: tuple[int, int]
    image_bytes: float


def measure(
    stream: ShardStream,
    *,
    num_images: int,
    max_pixels: int,
    on_image: Callable[[], None] = lambda: None,
) -> Measured:
    """Measure the first images; equal on every process.

    They are taken from the beginning of several shards, for shards are often sorted.

    Args:
        stream: The samples.
        num_images: How many decodable images are wanted.
        max_pixels: Largest height x width of an image.
        on_image: Is called after each of them.

    Raises:
        DataError: If none can be decoded, or a shard cannot be read.
    """
    per_shard = -(-num_images // min(_NUM_MEASURED_SHARDS, len(stream.locations)))
    kinds: dict[tuple[int, str], _Kind] = {}
    undecodable: list[BadImageError] = []
    for sample in stream.heads(per_shard):
        try:
            pixels = decode_image(sample.image, what=sample.name, max_pixels=max_pixels)
        except BadImageError as error:
            undecodable.append(error)
            if len(undecodable) >= max(num_images, _MAX_BAD_IN_A_ROW):
                break
            continue
        kinds.setdefault((len(pixels), pixels.dtype.name), _Kind()).add(pixels, len(sample.image))
        on_image()
        if sum(kind.num_images for kind in kinds.values()) >= num_images:
            break
    if not kinds:
        reasons = Counter(error.reason for error in undecodable).most_common(3)
        raise DataError(
            f"none of the first {len(undecodable)} images of the stream can be decoded "
            f"({', '.join(f'{n} x {reason}' for reason, n in reasons)}). The first: "
            f"{undecodable[0]}"
        )
    (chans, dtype), kind = max(kinds.items(), key=lambda item: item[1].num_images)
    others = sum(other.num_images for other in kinds.values()) - kind.num_images
    return Measured(
        spec=spec_of(kind.stats, chans, cast("PixelType", dtype)),
        num_images=kind.num_images,
        num_left_out=len(undecodable) + others,
        min_size=kind.min_size,
        image_bytes=kind.num_bytes / kind.num_images,
    )


class _Kind:
    """Images with the same channels and depth, together."""

    def __init__(self) -> None:
        self.num_images = self.num_bytes = 0
        self.stats: ChannelStats
        self.min_size: tuple[int, int]

    def add(self, pixels: Pixels, num_bytes: int) -> None:
        stats, (height, width) = ChannelStats.of(pixels), pixels.shape[1:]
        if self.num_images:
            stats = self.stats.merge(stats)
            height, width = min(height, self.min_size[0]), min(width, self.min_size[1])
        self.stats, self.min_size = stats, (height, width)
        self.num_images += 1
        self.num_bytes += num_bytes
