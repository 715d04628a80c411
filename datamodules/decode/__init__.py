"""Bytes → pixels: ``(chans, height, width)`` in the depth that the file stores.

One function for folders and shards, so the same file gives the same array from both.  Nothing is
rescaled: 16 bit stays 16 bit, and what cannot be kept is refused by name.  The rules:

==================  ==========================================================================
kind of file        decided by the first bytes, never by the suffix
orientation         EXIF/TIFF orientation is applied
palette             becomes RGB
1 bit               becomes uint8, 0 and 255; 2 and 4 bit are spread over 0 … 255
alpha               dropped where fully opaque, otherwise refused: hidden pixels have no colour
CMYK, YCbCr         become RGB (8 bit)
LAB and others      refused
white-is-zero TIFF  inverted, so that larger is brighter
several pages       refused (animated PNG, stacks); reduced copies of one image are skipped
no-data, NaN        refused where the image contains them
==================  ==========================================================================
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from datamodules.guard import MAX_PIXELS, BadImageError, sniff
from mae.errors import MAEError

Pixels = NDArray[np.generic]


def decode(data: bytes, *, what: str, max_pixels: int = MAX_PIXELS) -> Pixels:
    """Decode one JPEG, PNG or TIFF image.

    Args:
        data: The file's bytes.
        what: Name of the image (shard and key, or path) for messages.
        max_pixels: Largest allowed height x width, compared with the header before decoding.

    Returns:
        C-contiguous array ``(chans, height, width)`` of uint8, uint16, int16 or float32.

    Raises:
        BadImageError: If the image is damaged, too large, or would lose its meaning.
    """
    try:
        if sniff(data, what=what) == "tiff":
            from datamodules.decode.tiff import decode_tiff  # imports slowly, often not needed

            pixels = decode_tiff(data, what=what, max_pixels=max_pixels)
        else:
            from datamodules.decode.pillow import decode_pillow

            pixels = decode_pillow(data, what=what, max_pixels=max_pixels)
    except (MAEError, MemoryError):
        raise
    except Exception as error:
        # Decoders raise anything on damaged bytes: struct.error, SyntaxError, ValueError …
        raise BadImageError(
            f"{what} cannot be decoded ({type(error).__name__}: {error}); it is damaged or cut "
            f"off: copy it again or leave it out",
            reason="damaged",
        ) from error
    return np.ascontiguousarray(pixels)


def orient(pixels: Pixels, orientation: int) -> Pixels:
    """Turn ``(chans, height, width)`` pixels upright.

    Args:
        pixels: Pixels as stored.
        orientation: EXIF value 1 … 8; anything else means upright.

    Source: Exif 2.32, tag 0x0112.
    """
    if orientation in (5, 6, 7, 8):
        pixels = pixels.swapaxes(1, 2)
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, :, ::-1]
    if orientation in (3, 4, 7, 8):
        pixels = pixels[:, ::-1, :]
    return pixels


def drop_opaque_alpha(pixels: Pixels, *, what: str) -> Pixels:
    """Return all channels but the last, which is alpha, if it hides nothing.

    Raises:
        BadImageError: If any pixel is transparent.
    """
    alpha = pixels[-1]
    opaque = np.iinfo(alpha.dtype).max if alpha.dtype.kind in "iu" else 1
    refuse_hidden(int((alpha != opaque).sum()), what=what)
    return pixels[:-1]


def refuse_hidden(num_pixels: int, *, what: str) -> None:
    """Refuse an image with transparent pixels.

    Args:
        num_pixels: How many there are; 0 passes.
        what: Name of the image.

    Raises:
        BadImageError: If there are any.
    """
    if num_pixels:
        raise BadImageError(
            f"{what} has {num_pixels:,} transparent pixels; allowed: opaque images. Flatten it "
            f"onto the background that you mean",
            reason="transparent pixels",
        )
