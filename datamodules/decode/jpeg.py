"""JPEG: header first, then as few pixels as the box and the target need.

Pillow is the reference.  simplejpeg (extra ``fast``) hands the same file to the same libjpeg-turbo
in one call, without the padding to four bytes per pixel; it decides nothing: headers and
orientation are Pillow's, and whatever simplejpeg complains about is decoded by Pillow again.  So
both give the same pixels and the same errors, and which of them ran is no part of a run's
fingerprint.
"""

from __future__ import annotations

import io
from functools import lru_cache
from typing import Any, Literal, get_args

import numpy as np
from PIL.Image import Image, fromarray
from PIL.JpegImagePlugin import JpegImageFile

from datamodules.decode.geometry import (
    Box,
    Pixels,
    Size,
    cut,
    orient,
    orient_size,
    reduced_box,
    stored_box,
)
from datamodules.decode.picture import damage_named
from datamodules.guard import check_pixels
from mae.errors import ConfigError, unknown_name

Backend = Literal["auto", "pillow", "simplejpeg"]

METADATA = ("exif", "xmp", "XML:com.adobe.xmp", "Raw profile type exif")
_ORIENTATION = 0x0112
# What libjpeg's scaled inverse DCT offers, and Pillow's `draft` hands on.
_REDUCTIONS = (8, 4, 2)
_SIMPLEJPEG_COLOURS = {"L": "GRAY", "RGB": "RGB"}  # Pillow converts inks in its own way


class JpegPicture:
    """A JPEG; see `datamodules.decode.picture.Picture`.

    Args:
        data: The file's bytes.
        what: Name of the image.
        max_pixels: Largest allowed height x width.
        backend: What decodes; ``auto`` takes simplejpeg where it is installed.
    """

    dtype = "uint8"

    def __init__(self, data: bytes, *, what: str, max_pixels: int, backend: Backend = "auto"):
        self._data, self._what = data, what
        image = JpegImageFile(io.BytesIO(data))
        self._opened: JpegImageFile | None = image
        self._stored: Size = (image.height, image.width)
        check_pixels(*self._stored, len(image.getbands()), max_pixels=max_pixels, what=what)
        self._orientation = orientation_of(image)
        self._colours = _SIMPLEJPEG_COLOURS.get(image.mode)
        self._fast = fast_decoder(backend) if self._colours else None
        self.num_channels = 1 if image.mode == "L" else 3
        self.size = orient_size(self._stored, self._orientation)

    def read(self, box: Box | None = None, *, at_least: Size | None = None) -> Pixels:
        """Return pixels; see `datamodules.decode.picture.Picture.read`."""
        stored = stored_box(box or Box(0, 0, *self.size), self.size, self._orientation)
        factor = 1
        if at_least is not None:
            factor = self._reduction(stored, orient_size(at_least, self._orientation))
        if factor > 1:
            stored = reduced_box(stored, self._stored, factor)
        with damage_named(self._what):
            return orient(self._decode(stored, factor), self._orientation)

    def _reduction(self, box: Box, at_least: Size) -> int:
        """Return the largest factor at which the box still has enough pixels along both axes."""
        for factor in _REDUCTIONS:
            reduced = reduced_box(box, self._stored, factor)
            if reduced.height >= at_least[0] and reduced.width >= at_least[1]:
                return factor
        return 1

    def _decode(self, box: Box, factor: int) -> Pixels:
        """Return the box of the picture at 1/`factor`, not yet turned upright."""
        size = (-(-self._stored[0] // factor), -(-self._stored[1] // factor))
        if self._fast is not None:
            try:
                pixels = self._fast(
                    self._data,
                    colorspace=self._colours,
                    min_height=size[0],
                    min_width=size[1],
                    min_factor=factor,
                )
            except (ValueError, OverflowError):
                pass  # Pillow says what is wrong, or passes over it
            else:
                if pixels.shape[:2] == size:
                    return cut(pixels.transpose(2, 0, 1), box)
        return planes(self._decode_with_pillow(box, size, factor))

    def _decode_with_pillow(self, box: Box, size: Size, factor: int) -> Image:
        # Pillow decodes once per opened file.
        opened, self._opened = self._opened, None
        with opened or JpegImageFile(io.BytesIO(self._data)) as image:
            if factor > 1:
                image.draft(None, (self._stored[1] // factor, self._stored[0] // factor))
                if (image.height, image.width) != size:
                    raise ValueError(f"decoded at 1/{factor} as {image.size}, not {size[::-1]}")
            image.load()
        # Cut before it becomes an array: converting takes longer than cutting.
        piece: Image = image
        if (box.height, box.width) != size:
            corner = (box.left + box.width, box.top + box.height)
            piece = image.crop((box.left, box.top, *corner))
        return piece.convert("RGB") if piece.mode == "CMYK" else piece


def orientation_of(image: Image) -> int:
    """Return the EXIF orientation of an opened image, 1 … 8; 1 where it says nothing."""
    if not any(name in image.info for name in METADATA):
        return 1
    return int(image.getexif().get(_ORIENTATION, 1))


def planes(image: Image) -> Pixels:
    """Return an image as ``(chans, height, width)``, a view over interleaved memory."""
    pixels = np.asarray(image)
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def fast_decoder(backend: Backend) -> Any:
    """Return simplejpeg's decoder, or None where Pillow is to decode.

    Raises:
        ConfigError: If the name is unknown, or simplejpeg is asked for and missing or different.
    """
    if backend not in get_args(Backend):
        raise unknown_name("decode backend", backend, get_args(Backend))
    if backend == "pillow":
        return None
    decoder = _simplejpeg()
    if decoder is None and backend == "simplejpeg":
        raise ConfigError(
            "the decode backend simplejpeg is not installed, or its libjpeg gives other pixels "
            "than Pillow's; run: pip install 'domain-mae[fast]', or use the backend pillow"
        )
    return decoder


@lru_cache(maxsize=1)
def _simplejpeg() -> Any:
    """Return simplejpeg's decoder if it is there and agrees with Pillow; looked at once."""
    try:
        from simplejpeg import decode_jpeg
    except ImportError:
        return None
    return decode_jpeg if _agrees_with_pillow(decode_jpeg) else None


def _agrees_with_pillow(decode_jpeg: Any) -> bool:
    """Compare both on small files of each kind, for each may be built with another libjpeg.

    # Choice: some milliseconds per process, so that an odd build costs speed and never changes
    # pixels between machines.
    """
    colours = np.random.default_rng(0).integers(0, 256, (9, 13, 3), dtype=np.uint8)
    smooth = fromarray(colours).resize((52, 37))
    for mode, subsampling, progressive in (
        ("L", 0, False),
        ("RGB", 0, False),
        ("RGB", 1, False),
        ("RGB", 2, False),
        ("RGB", 2, True),
    ):
        stream = io.BytesIO()
        image = smooth.convert(mode)
        image.save(stream, "JPEG", quality=90, subsampling=subsampling, progressive=progressive)
        data = stream.getvalue()
        for factor in (1, *_REDUCTIONS):
            pictures = [
                JpegPicture(data, what="self-check", max_pixels=10_000, backend="pillow")
                for _ in range(2)
            ]
            pictures[0]._fast = decode_jpeg
            size = (37 // factor, 52 // factor)
            first, second = (picture.read(at_least=size) for picture in pictures)
            if not np.array_equal(first, second):
                return False
    return True
