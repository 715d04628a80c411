"""Random crops and flips that depend on (seed, position) alone.

No generator is carried along: the same position gives the same picture on any rank, in any worker,
before and after a resume.  The bits come from Philox, whose stream NumPy guarantees to keep.  Only
the size of the image is needed to draw a view, so it is known before there are pixels.

Source: Szegedy et al. 2015 (arXiv:1409.4842), section 6, for the random resized crop, with the
fallback of torchvision; He et al. 2022 (arXiv:2111.06377), appendix A.1: crop and flip are enough.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
from jaxtyping import Shaped
from torch import Tensor
from torchvision.transforms.v2 import InterpolationMode  # type: ignore[import-untyped]
from torchvision.transforms.v2 import functional as tv

from datamodules.decode.geometry import Box, Pixels, Size, cut
from datamodules.plan import keyed_words
from mae.errors import ConfigError, DataError, unknown_name

Crop = Literal["random_resized", "random", "center"]
Flips = Literal["none", "horizontal", "dihedral"]

_AUGMENT = 3  # keeps these words apart from the Plan's
_TRIES = 10
_WORDS = 2 * _TRIES + 3  # area and ratio of each try, top, left, flip
_LOG_RATIO = math.log(4 / 3)


@dataclass(frozen=True)
class View:
    """What is seen of one image.

    Args:
        box: Piece of the upright picture.
        img_size: ``(height, width)`` that it is resized to.
        quarter_turns: By how many times 90 degrees it is then turned, against the clock.
        mirrored: Whether left and right are exchanged after that.
    """

    box: Box
    img_size: Size
    quarter_turns: int = 0
    mirrored: bool = False

    def finish(self, piece: Pixels) -> Pixels:
        """Resize and turn the pixels of `box`.

        Args:
            piece: ``(chans, height, width)``, in any resolution.

        Returns:
            ``(chans, *img_size)`` in the same dtype, memory of its own, with any strides.
        """
        view = resize(piece, self.img_size)
        if self.quarter_turns:
            view = np.rot90(view, self.quarter_turns, axes=(1, 2))
        return view[:, :, ::-1] if self.mirrored else view


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
            ``(chans, *img_size)`` in the dtype of `image`, memory of its own, with any strides.

        Raises:
            DataError: If a ``random`` crop is larger than the image.
        """
        size = (image.shape[1], image.shape[2])
        view = self.draw(size, seed=seed, position=position, what=what)
        return view.finish(cut(image, view.box))

    def draw(self, size: Size, *, seed: int, position: int, what: str = "image") -> View:
        """Return where the view of one position lies.

        Args:
            size: ``(height, width)`` of the upright picture.
            seed: The run's seed.
            position: Position in the stream.
            what: Name of the image for messages.

        Raises:
            DataError: If a ``random`` crop is larger than the image.
        """
        words = keyed_words(seed, position, _AUGMENT, 0, 0, _WORDS)
        draws = ((words >> np.uint64(11)) * 2.0**-53).tolist()  # 53 bits each, in [0, 1)
        if self.crop == "random_resized":
            box = self._resized_box(size, draws)
        elif self.crop == "random":
            box = self._window(size, draws, what=what)
        else:
            box = central_box(size, self.img_size)
        if self.flips == "dihedral":
            turns, mirrored = int(draws[-1] * 8) % 4, draws[-1] >= 0.5
        else:
            turns, mirrored = 0, self.flips == "horizontal" and draws[-1] < 0.5
        return View(box, self.img_size, turns, mirrored)

    def _resized_box(self, size: Size, draws: list[float]) -> Box:
        height, width = size
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

    def _window(self, size: Size, draws: list[float], *, what: str) -> Box:
        (height, width), (h, w) = size, self.img_size
        if height < h or width < w:
            # Choice: enlarging would give this image another scale than all others.
            raise DataError(
                f"{what} has {height} x {width} px, smaller than the crop of {h} x {w}; use a "
                f"smaller img_size, or crop: random_resized, which changes the scale"
            )
        return _placed(h, w, height, width, draws)


def eval_view(image: Pixels, img_size: Size) -> Pixels:
    """Return the one fixed view: resized until it covers `img_size`, then cut in the middle.

    An image of exactly this size comes back as it is, copied.

    Args:
        image: ``(chans, height, width)``.
        img_size: ``(height, width)`` of the result.
    """
    size = (image.shape[1], image.shape[2])
    return crop_resize(image, central_box(size, img_size), img_size)


def central_box(size: Size, img_size: Size) -> Box:
    """Return the largest centred box that has the shape of `img_size`.

    Args:
        size: ``(height, width)`` of the picture.
        img_size: ``(height, width)`` of the view.
    """
    (height, width), (h, w) = size, img_size
    if height * w >= width * h:
        box_h, box_w = max(round(width * h / w), 1), width
    else:
        box_h, box_w = height, max(round(height * w / h), 1)
    return Box((height - box_h) // 2, (width - box_w) // 2, box_h, box_w)


def crop_resize(image: Pixels, box: Box, img_size: Size) -> Pixels:
    """Cut `box` and resize it; see `resize`."""
    return resize(cut(image, box), img_size)


def resize(image: Pixels, img_size: Size) -> Pixels:
    """Return a resized copy: bicubic with antialias, in the dtype of `image`.

    Integers other than uint8 are resized as float32, which holds all their levels, then rounded.
    An image that has the size already is copied, so that a view never keeps its whole image alive.

    Args:
        image: ``(chans, height, width)``, with any strides; is not changed.
        img_size: ``(height, width)`` of the result.
    """
    if image.shape[1:] == img_size:
        return np.array(image)
    dtype = image.dtype
    exact = dtype in (np.uint8, np.float32)
    resized: Pixels = tv.resize_image(
        _to_tensor(image, dtype if exact else np.dtype(np.float32)),
        list(img_size),
        interpolation=InterpolationMode.BICUBIC,
        antialias=True,
    ).numpy()
    if exact:
        return resized
    limits = np.iinfo(dtype)
    rounded: Pixels = np.rint(resized).clip(limits.min, limits.max).astype(dtype)
    return rounded


def stack(views: Sequence[Pixels]) -> Shaped[Tensor, "batch chans height width"]:
    """Return views as one contiguous ``(batch, chans, height, width)``, copying each once.

    Args:
        views: Equal shapes and dtypes, any strides.
    """
    batch = np.empty((len(views), *views[0].shape), dtype=views[0].dtype)
    return torch.from_numpy(np.stack(views, out=batch))


def _to_tensor(image: Pixels, dtype: np.dtype[Any]) -> Tensor:
    """Return the image, copied only if its memory does not suit torch.

    Decoders interleave channels, and torch resizes 8-bit pixels faster in that order.
    """
    chans, height, width = (abs(stride) for stride in image.strides)
    if dtype == np.uint8 and chans < min(height, width):
        return torch.from_numpy(_compact(image.transpose(1, 2, 0), dtype)).permute(2, 0, 1)
    return torch.from_numpy(_compact(image, dtype))


def _compact(image: Pixels, dtype: np.dtype[Any]) -> Pixels:
    """Return the array without gaps, with steps forward, and writable.

    Torch warns about memory that must not be changed, as that of cached images, and NumPy calls an
    axis of length 1 contiguous whatever its step.
    """
    suits = image.flags.c_contiguous and image.flags.writeable and min(image.strides) >= 0
    return image if suits and image.dtype == dtype else np.array(image, dtype=dtype, order="C")


def _placed(h: int, w: int, height: int, width: int, draws: list[float]) -> Box:
    top, left = draws[2 * _TRIES], draws[2 * _TRIES + 1]
    return Box(int(top * (height - h + 1)), int(left * (width - w + 1)), h, w)
