"""JPEG and PNG.

Pillow's plugin classes are used directly: `Image.open` would compare with a global pixel limit and
try every format that it knows.  Pillow reads 16-bit grey exactly; for 16-bit colour see `png16`.
"""

from __future__ import annotations

import io

import numpy as np
from PIL.Image import Image
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile

from datamodules.decode import Pixels, drop_opaque_alpha, orient, refuse_hidden
from datamodules.decode.png16 import decode_deep_colour, is_deep_colour
from datamodules.guard import BadImageError, check_pixels, sniff

_ORIENTATION = 0x0112
_METADATA = ("exif", "xmp", "XML:com.adobe.xmp", "Raw profile type exif")


def decode_pillow(data: bytes, *, what: str, max_pixels: int) -> Pixels:
    """Decode a JPEG or PNG; see `datamodules.decode.decode`."""
    stream = io.BytesIO(data)
    is_png = sniff(data, what=what) == "png"
    image: PngImageFile | JpegImageFile = PngImageFile(stream) if is_png else JpegImageFile(stream)
    with image:
        num_channels = len(image.getbands())
        check_pixels(image.height, image.width, num_channels, max_pixels=max_pixels, what=what)
        if getattr(image, "is_animated", False):
            raise BadImageError(
                f"{what} is an animation; allowed: one image per file. Save its frames apart",
                reason="several pages",
            )
        image.load()
        deep = is_png and is_deep_colour(data)
        pixels = _deep_colour(data, image, what=what) if deep else _to_array(image, what=what)
        orientation = 1
        if any(name in image.info for name in _METADATA):
            orientation = int(image.getexif().get(_ORIENTATION, 1))
    return orient(pixels, orientation)


def _deep_colour(data: bytes, image: Image, *, what: str) -> Pixels:
    pixels = decode_deep_colour(data)
    hidden = image.info.get("transparency")
    if isinstance(hidden, tuple):
        level = np.array(hidden, dtype=np.uint16)[:, None, None]
        refuse_hidden(int((pixels == level).all(axis=0).sum()), what=what)
    return drop_opaque_alpha(pixels, what=what) if len(pixels) in (2, 4) else pixels


def _to_array(image: Image, *, what: str) -> Pixels:
    """Return the loaded image as ``(chans, height, width)``."""
    mode = image.mode
    if mode.startswith("I"):  # 16-bit grey PNG: "I;16", or "I" from older Pillow
        return _deep_grey(image, what=what)
    if image.has_transparency_data:
        grey = mode in ("L", "LA", "1")
        return drop_opaque_alpha(_planes(image.convert("LA" if grey else "RGBA")), what=what)
    if mode == "1":
        return _planes(image.convert("L"))
    if mode in ("P", "CMYK", "YCbCr"):
        return _planes(image.convert("RGB"))
    if mode in ("L", "RGB"):
        return _planes(image)
    raise BadImageError(
        f"{what} has the colour mode {mode}; allowed: grey, RGB, palette, CMYK. Convert it to RGB",
        reason=f"colour mode {mode}",
    )


def _planes(image: Image) -> Pixels:
    pixels = np.asarray(image)
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def _deep_grey(image: Image, *, what: str) -> Pixels:
    pixels = np.asarray(image)
    hidden = image.info.get("transparency")
    if hidden is not None:
        refuse_hidden(int((pixels == hidden).sum()), what=what)
    return pixels.astype(np.uint16, copy=False)[None]
