"""Images made smaller on request: fewer pixels (`max_side`), or JPEG (`quality`).

The depth is never touched: 16 bit stays 16 bit, floats stay floats.  Without `quality` nothing is
lost beyond the resizing: 8-bit images become PNG, 16-bit grey too, everything else deflated TIFF.
Orientation is applied before, and metadata stays behind.
"""

from __future__ import annotations

import io
from dataclasses import dataclass

import numpy as np
import tifffile
from PIL import Image

from datamodules.decode import Pixels
from datamodules.guard import BadImageError
from mae.errors import ConfigError

_BICUBIC = Image.Resampling.BICUBIC
_MAX_JPEG_PX = 65_500  # libjpeg's JPEG_MAX_DIMENSION


@dataclass(frozen=True)
class Reencoding:
    """What is done to images.

    Args:
        max_side: Longest side in px that is stored; larger images are resized.  None for any.
        quality: JPEG quality, 1 … 100, in which all images are stored; None keeps their bytes, or
            stores resized ones without loss.

    Raises:
        ConfigError: If a value is outside its range.
    """

    max_side: int | None = None
    quality: int | None = None

    def __post_init__(self) -> None:
        if self.max_side is not None and self.max_side < 1:
            raise ConfigError(f"max_side is {self.max_side}; allowed: 1 px or more")
        if self.quality is not None and not 1 <= self.quality <= 100:
            raise ConfigError(f"quality is {self.quality}; allowed: 1 … 100, usual are 80 … 95")

    @property
    def is_asked(self) -> bool:
        """Whether anything is to be done to any image."""
        return self.max_side is not None or self.quality is not None

    def __call__(self, pixels: Pixels, *, what: str) -> bytes | None:
        """Return the bytes of the image as it is to be stored; None to keep those of the file.

        Args:
            pixels: ``(chans, height, width)``.
            what: Name of the image for messages.

        Raises:
            BadImageError: If a JPEG cannot be as large.
        """
        longest = max(pixels.shape[1:])
        if self.max_side is not None and longest > self.max_side:
            pixels = resize(pixels, self.max_side / longest)
        elif self.quality is None:
            return None
        return _encode(pixels, self.quality, what=what)


def resize(pixels: Pixels, scale: float) -> Pixels:
    """Return a smaller image in the same dtype: bicubic with antialias.

    # Choice: bicubic overshoots at edges; values are cut to the range that the image had, so that
    # a CT never gets darker than air or a reflectance negative.

    Args:
        pixels: ``(chans, height, width)``.
        scale: New side / old side, below 1.
    """
    height, width = (max(1, round(side * scale)) for side in pixels.shape[1:])
    if pixels.dtype == np.uint8 and len(pixels) in (1, 3):
        small = np.asarray(_picture(pixels).resize((width, height), _BICUBIC))
        resized = small[None] if small.ndim == 2 else small.transpose(2, 0, 1)
    else:
        resized = np.stack([_resize_plane(plane, (width, height)) for plane in pixels])
    low, high = pixels.min(axis=(1, 2)), pixels.max(axis=(1, 2))
    if pixels.dtype.kind in "iu":
        resized = np.rint(resized)
    return resized.clip(low[:, None, None], high[:, None, None]).astype(pixels.dtype)


def _resize_plane(plane: Pixels, size: tuple[int, int]) -> Pixels:
    exact = plane.astype(np.float32, copy=False)  # holds all levels of 16 bit
    return np.asarray(Image.fromarray(exact).resize(size, _BICUBIC))


def _encode(pixels: Pixels, quality: int | None, *, what: str) -> bytes:
    stream = io.BytesIO()
    kind = (pixels.dtype.name, len(pixels))
    if quality is not None:
        if max(pixels.shape[1:]) > _MAX_JPEG_PX:
            raise BadImageError(
                f"{what} has {pixels.shape[1]} x {pixels.shape[2]} px; a JPEG has at most "
                f"{_MAX_JPEG_PX:,} a side. Give max_side as well",
                reason="too large for JPEG",
            )
        _picture(pixels).save(stream, "JPEG", quality=quality)
    elif kind in (("uint8", 1), ("uint8", 3), ("uint16", 1)):
        _picture(pixels).save(stream, "PNG")
    else:
        tifffile.imwrite(
            stream,
            pixels[0] if len(pixels) == 1 else pixels,
            photometric="rgb" if len(pixels) == 3 else "minisblack",
            planarconfig=None if len(pixels) == 1 else "separate",
            compression="zlib",
            predictor=pixels.dtype.kind in "iu",
            metadata=None,
            software=False,
        )
    return stream.getvalue()


def _picture(pixels: Pixels) -> Image.Image:
    planes = [Image.fromarray(plane) for plane in pixels]
    return planes[0] if len(planes) == 1 else Image.merge("RGB", planes)
