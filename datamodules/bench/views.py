"""Training views: decoding, augmenting, and both together beside webdataset + Pillow.

The other side is what a training script on webdataset commonly has: Pillow decodes, torchvision
crops, resizes and flips the Pillow image.  Both end with uint8 batches; turning them into floats is
left to the device on both sides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count, islice
from typing import Any

from PIL import Image

from datamodules.augment import Augment, stack
from datamodules.bench.images import ImageSet
from datamodules.bench.reading import SHUFFLE, image_bytes
from datamodules.bench.timing import Run
from datamodules.decode import Pixels, open_picture
from datamodules.decode.jpeg import Backend
from datamodules.loading import TrainStream
from datamodules.plan import Plan
from datamodules.records import Decode, SplitRecords

IMG_SIZE = (224, 224)
SCALE = (0.2, 1.0)
BATCH = 64

_MAX_DECODED = 32  # images that lie decoded in memory
DECODE_PILLOW = "decode, Pillow"
DECODE_FAST = "decode, simplejpeg"
AUGMENT = "augment"
AUGMENT_PILLOW = "augment, torchvision on Pillow"
PIPELINE = "read + decode + augment, default"
PIPELINE_FAST = "the same, [fast]"
PIPELINE_SCALED = "the same, [fast], decode: scaled"
PIPELINE_WEBDATASET = "webdataset + Pillow"


@dataclass
class StackedViews:
    """Batches of our training stream, one pass at a time.

    Args:
        images: Where they come from.
        backend: What decodes.
        decode: Exact or scaled.
    """

    images: ImageSet
    backend: Backend = "auto"
    decode: Decode = "exact"
    _passes: Iterator[int] = field(default_factory=count)  # each pass has its own views

    def stream(self) -> TrainStream:
        """Return the dataset that a training run has."""
        records = SplitRecords(
            self.images.manifest, "train", backend=self.backend, decode=self.decode
        )
        return TrainStream(records, Plan(records.shard_sizes, seed=0), augment())

    def __call__(self) -> int:
        """Make all batches of one pass; return the number of images."""
        stream = self.stream()
        total = self.images.num_samples
        start = next(self._passes) * total
        for begin in range(start, start + total, BATCH):
            stream[range(begin, min(begin + BATCH, start + total))]
        return total


def augment() -> Augment:
    """Return the augmentation of the paper."""
    return Augment(IMG_SIZE, crop="random_resized", scale=SCALE, flips="horizontal")


def view_cases(images: ImageSet, *, with_fast: bool) -> dict[str, Run]:
    """Return what makes one training view of each image, by name.

    Args:
        images: What to measure with.
        with_fast: Whether simplejpeg is there.
    """
    files = image_bytes(images)
    decoded = [open_picture(data, what="").read() for data in files[:_MAX_DECODED]]
    cases: dict[str, Run] = {
        DECODE_PILLOW: _each(files, _decoder("pillow")),
        AUGMENT: _augmenting(decoded),
        AUGMENT_PILLOW: _augmenting_pillow(decoded),
        PIPELINE: StackedViews(images, backend="pillow"),
        PIPELINE_WEBDATASET: lambda: _webdataset_pass(images),
    }
    if with_fast:
        cases[DECODE_FAST] = _each(files, _decoder("simplejpeg"))
        cases[PIPELINE_FAST] = StackedViews(images, backend="simplejpeg")
        cases[PIPELINE_SCALED] = StackedViews(images, backend="simplejpeg", decode="scaled")
    return cases


def webdataset_stream(images: ImageSet) -> Any:
    """Return webdataset's pipeline from shards to uint8 tensors of single views."""
    import webdataset

    paths = images.paths
    return (
        webdataset.WebDataset(paths, shardshuffle=len(paths), seed=0)
        .shuffle(SHUFFLE)
        .decode("pil")
        .to_tuple("jpg;jpeg;png")
        .map_tuple(torchvision_transform())
    )


def torchvision_transform() -> Callable[[Image.Image], Any]:
    """Return `augment` in torchvision's words, for Pillow images."""
    from torchvision.transforms import v2  # type: ignore[import-untyped]

    transform: Callable[[Image.Image], Any] = v2.Compose(
        [
            v2.RandomResizedCrop(IMG_SIZE, scale=SCALE, interpolation=v2.InterpolationMode.BICUBIC),
            v2.RandomHorizontalFlip(),
            v2.PILToTensor(),
        ]
    )
    return transform


def _webdataset_pass(images: ImageSet) -> int:
    import torch

    stream, total = iter(webdataset_stream(images)), 0
    while batch := [view for (view,) in islice(stream, BATCH)]:
        total += len(torch.stack(batch))
    return total


def _each(files: list[bytes], decode: Callable[[bytes], object]) -> Run:
    def run() -> int:
        for data in files:
            decode(data)
        return len(files)

    return run


def _decoder(backend: Backend) -> Callable[[bytes], object]:
    return lambda data: open_picture(data, what="", backend=backend).read()


def _augmenting(decoded: list[Pixels]) -> Run:
    positions = count()

    def run() -> int:
        for begin in range(0, len(decoded), BATCH):
            images = decoded[begin : begin + BATCH]
            stack([augment()(image, seed=0, position=next(positions)) for image in images])
        return len(decoded)

    return run


def _augmenting_pillow(decoded: list[Pixels]) -> Run:
    import torch

    images = [Image.fromarray(_interleaved(image)) for image in decoded]
    transform = torchvision_transform()

    def run() -> int:
        for begin in range(0, len(images), BATCH):
            torch.stack([transform(image) for image in images[begin : begin + BATCH]])
        return len(images)

    return run


def _interleaved(image: Pixels) -> Pixels:
    return image[0] if len(image) == 1 else image.transpose(1, 2, 0)
