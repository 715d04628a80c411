"""Images to patch vectors and back.

A patch vector lists its pixels row by row, the channel running fastest, so a vector has
``patch_height * patch_width * chans`` entries.  Patches themselves are in row-major order.

Source: He et al. 2022 (arXiv:2111.06377), section 3 and the released models' weight layout.
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from mae.errors import ConfigError

Size = tuple[int, int]


def as_pair(value: int | Size | list[int], *, name: str) -> Size:
    """Return `value` as (height, width), both in pixels and > 0.

    Args:
        value: One number for a square, or a pair.
        name: Name of the setting, for the message.

    Raises:
        ConfigError: If it is neither, or not positive.
    """
    sides = tuple(value) if isinstance(value, list | tuple) else (value, value)
    if len(sides) != 2 or any(not isinstance(side, int) or side <= 0 for side in sides):
        raise ConfigError(
            f"{name} is {value!r}; allowed: one positive whole number, or a pair [height, width]"
        )
    return sides[0], sides[1]


def grid_size(img_size: Size, patch_size: Size) -> Size:
    """Return how many patches fit, as (rows, columns).

    Raises:
        ConfigError: If a side of the image is not a multiple of the patch's side.
    """
    if any(side % patch for side, patch in zip(img_size, patch_size, strict=True)):
        nearest = tuple(
            max(round(side / patch), 1) * patch
            for side, patch in zip(img_size, patch_size, strict=True)
        )
        raise ConfigError(
            f"img_size {img_size[0]}x{img_size[1]} is not divisible by patch_size "
            f"{patch_size[0]}x{patch_size[1]}; both sides must be multiples of the patch's sides; "
            f"the nearest img_size is {nearest[0]}x{nearest[1]}"
        )
    return img_size[0] // patch_size[0], img_size[1] // patch_size[1]


def patchify(
    images: Float[Tensor, "batch chans height width"], patch_size: Size
) -> Float[Tensor, "batch patches patch_dim"]:
    """Cut images into patch vectors.

    Args:
        images: Any number of channels; sides are multiples of the patch's sides.
        patch_size: (height, width) of a patch in pixels.

    Returns:
        Patches in row-major order, each a (row, column, channel) vector.

    Raises:
        ConfigError: If a side is not divisible.
    """
    batch, chans, height, width = images.shape
    rows, columns = grid_size((height, width), patch_size)
    cells = images.reshape(batch, chans, rows, patch_size[0], columns, patch_size[1])
    return cells.permute(0, 2, 4, 3, 5, 1).reshape(batch, rows * columns, -1)


def unpatchify(
    patches: Float[Tensor, "batch patches patch_dim"], patch_size: Size, img_size: Size
) -> Float[Tensor, "batch chans height width"]:
    """Put patch vectors back into images; the exact inverse of `patchify`.

    Args:
        patches: Patches in row-major order, each a (row, column, channel) vector.
        patch_size: (height, width) of a patch in pixels.
        img_size: (height, width) of the image in pixels.

    Raises:
        ConfigError: If the number of patches is not that of `img_size`.
    """
    rows, columns = grid_size(img_size, patch_size)
    batch, num_patches, _ = patches.shape
    if num_patches != rows * columns:
        raise ConfigError(
            f"{num_patches} patches cannot fill an image of {img_size[0]}x{img_size[1]} px, which "
            f"has {rows}x{columns} patches of {patch_size[0]}x{patch_size[1]} px"
        )
    cells = patches.reshape(batch, rows, columns, patch_size[0], patch_size[1], -1)
    return cells.permute(0, 5, 1, 3, 2, 4).reshape(batch, -1, *img_size)
