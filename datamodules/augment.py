"""Random crops and flips that depend on (seed, position) alone.

No generator is carried along: the same position gives the same picture on any rank, in any worker,
before and after a resume.  The bits come from Philox, whose stream NumPy guarantees to keep.

Source: Szegedy et al. 2015 (arXiv:1409.4842), section 6, for the random resized crop, with the
fallback of torchvision; He et al. 2022 (arXiv:2111.06377), appendix A.1: crop and flip are enough.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torchvision.transforms.v2 import InterpolationMode  # type: ignore[import-untyped]
from torchvision.transforms.v2 import functional as tv

from datamodules.plan import keyed_words
from mae.errors import ConfigError, DataError, unknown_name

Crop = Literal["random_resized", "random", "center"]
Flips = Literal["none", "horizontal", "dihedral"]
Pixels = NDArray[Any]

_AUGMENT = 3  # keeps these words apart from the Plan's
_TRIES = 10
_WORDS = 2 * _TRIES + 3  # area and ratio of each try, top, left, flip
_LOG_RATIO = math.log(4 / 3)


class Box(NamedTuple):
    """A crop in pixels."""

    top: int
    left: int
    height: int
    width: int


@dataclass(frozen=True)
class Augment:
    """One crop and one flip per position.

    Args:
        img_size: ``(height, width)`` of the result.
        crop: ``random_resized``: a random share of the area at a random aspect ratio, resized;
            ``random``: a random window at the stored scale; ``center``: see `eval_view`.
        scale: Smallest and largest share of the area, for ``random_resized``.
        flips: ``horizontal``: left and right with equal chance; ``dihedral``: the eight rotations
            and flips, for imagery without an up.

    Raises:
        ConfigError: If a name is unknown, the scale is no range inside (0, 1], or rotations would
            exchange unequal sides.
    """

    img_size: tuple[int, int]
    crop: Crop = "random_resized"
    scale: tuple[float, float] = (0.2, 1.0)
    flips: Flips = "horizontal"

    def __post_init__(self) -> None:
        if self.crop not in get_args(Crop):
            raise unknown_name("crop", self.crop, get_args(Crop))
        if self.flips not in get_args(Flips):
            raise unknown_name("flips", self.flips, get_args(Flips))
        if not 0 < self.scale[0] <= self.scale[1] <= 1:
            raise ConfigError(
                f"scale is {self.scale}; allowed: two shares of the image's area, "
                f"0 < smallest <= largest <= 1"
            )
        if self.flips == "dihedral" and self.img_size[0] != self.img_size[1]:
            raise ConfigError(
                f"flips 'dihedral' turns images by 90 degrees, which needs a square img_size; got "
                f"{self.img_size}. Use flips: horizontal, or none"
            )

    def __call__(self, image: Pixels, *, seed: int, position: int, what: str = "image") -> Pixels:
        """Return the view of one position.

        Args:
            image: ``(chans, height, width)``.
            seed: The run's seed.
            position: Position in the stream.
            what: Name of the image for messages.

        Returns:
            ``(chans, *img_size)`` in the dtype of `image`, C-contiguous.

        Raises:
            DataError: If a ``random`` crop is larger than the image.
        """
        words = keyed_words(seed, position, _AUGMENT, 0, 0, _WORDS)
        draws = ((words >> np.uint64(11)) * 2.0**-53).tolist()  # 53 bits each, in [0, 1)
        if self.crop == "random_resized":
            view = crop_resize(image, self._resized_box(image, draws), self.img_size)
        elif self.crop == "random":
            view = _cut(image, self._window(image, draws, what=what))
        else:
            view = eval_view(image, self.img_size)
        return np.ascontiguousarray(_flip(view, self.flips, draws[-1]))

    def _resized_box(self, image: Pixels, draws: list[float]) -> Box:
        height, width = image.shape[1:]
        low, high = self.scale
        for i in range(_TRIES):
            area = height * width * (low + (high - low) * draws[2 * i])
            ratio = math.exp(_LOG_RATIO * (2 * draws[2 * i + 1] - 1))  # log-uniform in 3/4 … 4/3
            w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < w <= width and 0 < h <= height:
                return _placed(h, w, height, width, draws)
        # The image is too narrow for the ratios: the largest allowed crop in its middle.
        w, h = min(width, round(height * 4 / 3)), min(height, round(width * 4 / 3))
        return Box((height - h) // 2, (width - w) // 2, max(h, 1), max(w, 1))

    def _window(self, image: Pixels, draws: list[float], *, what: str) -> Box:
        (height, width), (h, w) = image.shape[1:], self.img_size
        if height < h or width < w:
            # Choice: enlarging would give this image another scale than all others.
            raise DataError(
                f"{what} has {height} x {width} px, smaller than the crop of {h} x {w}; use a "
                f"smaller img_size, or crop: random_resized, which changes the scale"
            )
        return _placed(h, w, height, width, draws)


def eval_view(image: Pixels, img_size: tuple[int, int]) -> Pixels:
    """Return the one fixed view: resized until it covers `img_size`, then cut in the middle.

    An image of exactly this size comes back untouched.

    Args:
        image: ``(chans, height, width)``.
        img_size: ``(height, width)`` of the result.
    """
    (height, width), (h, w) = image.shape[1:], img_size
    if (height, width) == (h, w):
        return np.ascontiguousarray(image)
    # The largest centred box of the target's shape, cut before resizing.
    if height * w >= width * h:
        box_h, box_w = max(round(width * h / w), 1), width
    else:
        box_h, box_w = height, max(round(height * w / h), 1)
    box = Box((height - box_h) // 2, (width - box_w) // 2, box_h, box_w)
    return crop_resize(image, box, img_size)


def crop_resize(image: Pixels, box: Box, img_size: tuple[int, int]) -> Pixels:
    """Cut `box` and resize it: bicubic with antialias, in the dtype of `image`.

    Integers other than uint8 are resized as float32, which holds all their levels, then rounded.
    """
    cut = _cut(image, box)
    if cut.shape[1:] == img_size:
        return cut
    dtype = cut.dtype
    exact = dtype in (np.uint8, np.float32)
    # A copy in any case: torch warns about arrays that must not be changed, as cached ones.
    values = torch.from_numpy(np.array(cut, dtype=dtype if exact else np.float32, order="C"))
    resized: Pixels = tv.resize_image(
        values, list(img_size), interpolation=InterpolationMode.BICUBIC, antialias=True
    ).numpy()
    if exact:
        return resized
    limits = np.iinfo(dtype)
    rounded: Pixels = np.rint(resized).clip(limits.min, limits.max).astype(dtype)
    return rounded


def _placed(h: int, w: int, height: int, width: int, draws: list[float]) -> Box:
    top, left = draws[2 * _TRIES], draws[2 * _TRIES + 1]
    return Box(int(top * (height - h + 1)), int(left * (width - w + 1)), h, w)


def _cut(image: Pixels, box: Box) -> Pixels:
    return image[:, box.top : box.top + box.height, box.left : box.left + box.width]


def _flip(view: Pixels, flips: Flips, draw: float) -> Pixels:
    if flips == "horizontal":
        return view[:, :, ::-1] if draw < 0.5 else view
    if flips == "dihedral":
        which = int(draw * 8)
        turned = np.rot90(view, which % 4, axes=(1, 2))
        return turned[:, :, ::-1] if which >= 4 else turned
    return view
