"""An opened image: its size and depth are known, its pixels are made on request.

What every kind of file has in common: one interface, one way to name damage, one rule for alpha.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import numpy as np

from datamodules.decode.geometry import Box, Pixels, Size, cut
from datamodules.guard import BadImageError
from mae.errors import MAEError


class Picture(Protocol):
    """One image, upright.

    A JPEG is opened by its header.  PNG and TIFF are decoded when they are opened, because they may
    say only after their pixels how they are to be turned, or have to be searched for no-data.
    """

    @property
    def num_channels(self) -> int:
        """Channels that `read` gives."""

    @property
    def dtype(self) -> str:
        """Depth that `read` gives: uint8, uint16, int16 or float32."""

    @property
    def size(self) -> Size:
        """``(height, width)``."""

    def read(self, box: Box | None = None, *, at_least: Size | None = None) -> Pixels:
        """Return pixels ``(chans, height, width)``, which may be a view with any strides.

        Args:
            box: Piece of the picture; all of it without a value.
            at_least: Allow a JPEG to be decoded at 1/2, 1/4 or 1/8, as small as the box still has
                this ``(height, width)``; without a value every pixel is exact.

        Raises:
            BadImageError: If the image is damaged.
        """


class ArrayPicture:
    """Pixels that are there already.

    Args:
        pixels: ``(chans, height, width)``.
    """

    def __init__(self, pixels: Pixels):
        self._pixels = pixels
        self.num_channels = len(pixels)
        self.dtype: str = pixels.dtype.name
        self.size: Size = (pixels.shape[1], pixels.shape[2])

    def read(self, box: Box | None = None, *, at_least: Size | None = None) -> Pixels:
        """Return pixels; see `Picture.read`."""
        del at_least
        return self._pixels if box is None else cut(self._pixels, box)


@contextmanager
def damage_named(what: str) -> Iterator[None]:
    """Turn whatever a decoder raises into one error that names the image.

    Raises:
        BadImageError: For damage.  Errors that say what is wrong pass, and so does lack of memory.
    """
    try:
        yield
    except (MAEError, MemoryError):
        raise
    except Exception as error:
        # Decoders raise anything on damaged bytes: struct.error, SyntaxError, ValueError …
        raise BadImageError(
            f"{what} cannot be decoded ({type(error).__name__}: {error}); it is damaged or cut "
            f"off: copy it again or leave it out",
            reason="damaged",
        ) from error


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
