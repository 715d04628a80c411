"""PNG: 8 bit and 16-bit grey by Pillow, which reads them exactly; for 16-bit colour see `png16`.

Pillow's plugin classes are used directly, here and for JPEG: `Image.open` would compare with a
global pixel limit and try every format that it knows.
"""

from __future__ import annotations

import io

import numpy as np
from PIL.Image import Image
from PIL.PngImagePlugin import PngImageFile

from datamodules.decode.geometry import Box, Pixels, Size, orient, orient_size, stored_box
from datamodules.decode.jpeg import orientation_of, planes
from datamodules.decode.picture import ArrayPicture, Picture, drop_opaque_alpha, refuse_hidden
from datamodules.decode.png16 import decode_deep_colour, is_deep_colour
from datamodules.guard import BadImageError, check_pixels


class PngPicture:
    """An 8-bit PNG; see `datamodules.decode.picture.Picture`.

    Args:
        image: Grey or RGB, decoded.
        orientation: EXIF value.
    """

    dtype = "uint8"

    def __init__(self, image: Image, orientation: int):
        self._image, self._orientation = image, orientation
        self.num_channels = len(image.getbands())
        self.size: Size = orient_size((image.height, image.width), orientation)

    def read(self, box: Box | None = None, *, at_least: Size | None = None) -> Pixels:
        """Return pixels; see `datamodules.decode.picture.Picture.read`."""
        del at_least
        image = self._image
        if box is not None:
            top, left, height, width = stored_box(box, self.size, self._orientation)
            image = image.crop((left, top, left + width, top + height))
        return orient(planes(image), self._orientation)


def open_png(data: bytes, *, what: str, max_pixels: int) -> Picture:
    """Decode a PNG; see `datamodules.decode.open_picture`."""
    with PngImageFile(io.BytesIO(data)) as image:
        num_channels = len(image.getbands())
        check_pixels(image.height, image.width, num_channels, max_pixels=max_pixels, what=what)
        if image.is_animated:
            raise BadImageError(
                f"{what} is an animation; allowed: one image per file. Save its frames apart",
                reason="several pages",
            )
        image.load()
        orientation = orientation_of(image)
        if is_deep_colour(data):
            return ArrayPicture(orient(_deep_colour(data, image, what=what), orientation))
        if image.mode.startswith("I"):  # 16-bit grey: "I;16", or "I" from older Pillow
            return ArrayPicture(orient(_deep_grey(image, what=what), orientation))
        return PngPicture(_opaque(image, what=what), orientation)


def _deep_colour(data: bytes, image: Image, *, what: str) -> Pixels:
    pixels = decode_deep_colour(data)
    hidden = image.info.get("transparency")
    if isinstance(hidden, tuple):
        level = np.array(hidden, dtype=np.uint16)[:, None, None]
        refuse_hidden(int((pixels == level).all(axis=0).sum()), what=what)
    return drop_opaque_alpha(pixels, what=what) if len(pixels) in (2, 4) else pixels


def _deep_grey(image: Image, *, what: str) -> Pixels:
    pixels = np.asarray(image)
    hidden = image.info.get("transparency")
    if hidden is not None:
        refuse_hidden(int((pixels == hidden).sum()), what=what)
    return pixels.astype(np.uint16, copy=False)[None]


def _opaque(image: Image, *, what: str) -> Image:
    """Return the decoded image as grey or RGB.

    Raises:
        BadImageError: If pixels are transparent, or the colours are of another kind.
    """
    mode = image.mode
    if mode not in ("1", "L", "LA", "P", "RGB", "RGBA"):
        raise BadImageError(
            f"{what} has the colour mode {mode}; allowed: grey, RGB, palette. Convert it to RGB",
            reason=f"colour mode {mode}",
        )
    target = "L" if mode in ("1", "L", "LA") else "RGB"
    if image.has_transparency_data:
        shown = image.convert("LA" if target == "L" else "RGBA")
        refuse_hidden(sum(shown.getchannel("A").histogram()[:255]), what=what)
        return shown.convert(target)
    return image if mode == target else image.convert(target)
