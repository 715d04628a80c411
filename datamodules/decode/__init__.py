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

Whether an image is refused does not depend on the piece that is read: all of it is looked at.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from datamodules.decode.geometry import Box, Pixels, orient
from datamodules.decode.picture import ArrayPicture, Picture, damage_named
from datamodules.guard import MAX_PIXELS, sniff

if TYPE_CHECKING:
    from datamodules.decode.jpeg import Backend

__all__ = ["Box", "Picture", "Pixels", "decode", "open_picture", "orient"]


def open_picture(
    data: bytes, *, what: str, max_pixels: int = MAX_PIXELS, backend: Backend = "auto"
) -> Picture:
    """Open one JPEG, PNG or TIFF image: its size is known, any box of it can be read.

    Args:
        data: The file's bytes.
        what: Name of the image (shard and key, or path) for messages.
        max_pixels: Largest allowed height x width, compared with the header before decoding.
        backend: What decodes JPEG: ``pillow``, ``simplejpeg``, or ``auto`` for the faster one that
            is installed; the pixels are the same.

    Raises:
        BadImageError: If the image is damaged, too large, or would lose its meaning; damage to the
            pixels of a JPEG shows when they are read.
        ConfigError: If the backend is not installed.
    """
    with damage_named(what):
        kind = sniff(data, what=what)
        if kind == "tiff":
            from datamodules.decode.tiff import decode_tiff  # imports slowly, often not needed

            return ArrayPicture(decode_tiff(data, what=what, max_pixels=max_pixels))
        if kind == "png":
            from datamodules.decode.png import open_png

            return open_png(data, what=what, max_pixels=max_pixels)
        from datamodules.decode.jpeg import JpegPicture

        return JpegPicture(data, what=what, max_pixels=max_pixels, backend=backend)


def decode(
    data: bytes, *, what: str, max_pixels: int = MAX_PIXELS, backend: Backend = "auto"
) -> Pixels:
    """Decode one JPEG, PNG or TIFF image; see `open_picture`.

    Returns:
        C-contiguous array ``(chans, height, width)`` of uint8, uint16, int16 or float32: decoders
        interleave channels, but what is measured per channel is measured faster in planes.
    """
    picture = open_picture(data, what=what, max_pixels=max_pixels, backend=backend)
    return np.ascontiguousarray(picture.read())
