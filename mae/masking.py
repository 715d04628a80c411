"""Which patches the encoder sees.

Every image gets its own random permutation of its patches: noise is sorted, the smallest values
are kept.  The noise comes in as an argument.  `keyed_noise` computes it from the sample's position
in the stream alone, so masks do not depend on ranks, workers, batch size or resume.

Source: He et al. 2022 (arXiv:2111.06377), section 3 "Masking".
"""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from math import floor
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from mae.errors import ConfigError

# Multipliers and shifts of MurmurHash3's 32-bit finaliser: a bijection on 32-bit words whose
# output bits each depend on every input bit.
_MIX = ((16, 0x85EBCA6B), (13, 0xC2B2AE35))
_WORD = 0xFFFFFFFF
_GOLDEN = 0x9E3779B9  # 2**32 / golden ratio: spreads consecutive integers


class Masking(NamedTuple):
    """One mask per image.

    Attributes:
        ids_keep: Positions of the visible patches, in the order the encoder reads them.
        ids_removed: Positions of the removed patches, in the order of the predictions.
        ids_restore: For each patch, its place in ``cat(ids_keep, ids_removed)``.
        mask: True where a patch is removed.
    """

    ids_keep: Int64[Tensor, "batch visible"]
    ids_removed: Int64[Tensor, "batch removed"]
    ids_restore: Int64[Tensor, "batch patches"]
    mask: Bool[Tensor, "batch patches"]


def num_visible(num_patches: int, mask_ratio: float) -> int:
    """Return how many of `num_patches` stay visible.

    The ratio is read as the decimal number that was written, so 0.9 of 100 leaves 10.

    # Choice: exact floor.  The released code's ``int(n * (1 - r))`` in floating point leaves 9 of
    # 100 at 0.9 and 0 of 10.

    Args:
        num_patches: Patches of an image, >= 2.
        mask_ratio: Share of removed patches, inside (0, 1).

    Raises:
        ConfigError: If the ratio is outside (0, 1), or the image has fewer than two patches.
    """
    if not 0 < mask_ratio < 1:
        raise ConfigError(
            f"mask_ratio is {mask_ratio}; allowed: above 0 and below 1, the share of removed "
            f"patches (0.75 in the paper); to see whole images use encode(), which never masks"
        )
    if num_patches < 2:
        raise ConfigError(
            f"an image of {num_patches} patch cannot be masked; use a smaller patch_size or a "
            f"larger img_size, so that there are at least 2"
        )
    visible = floor(num_patches * (1 - Fraction(Decimal(str(mask_ratio)))))
    return min(max(visible, 1), num_patches - 1)


def random_masking(noise: Float[Tensor, "batch patches"], mask_ratio: float) -> Masking:
    """Keep the patches with the smallest noise.

    Args:
        noise: One value per patch; ties are broken by position.
        mask_ratio: Share of removed patches, inside (0, 1).

    Raises:
        ConfigError: See `num_visible`.
    """
    batch, num_patches = noise.shape
    keep = num_visible(num_patches, mask_ratio)
    ids_shuffle = torch.argsort(noise, dim=1, stable=True)
    places = torch.arange(num_patches, device=noise.device).expand(batch, -1)
    # The inverse permutation by scattering costs O(n); the textbook way is a second argsort.
    ids_restore = torch.empty_like(ids_shuffle).scatter_(1, ids_shuffle, places)
    return Masking(
        ids_keep=ids_shuffle[:, :keep],
        ids_removed=ids_shuffle[:, keep:],
        ids_restore=ids_restore,
        mask=ids_restore >= keep,
    )


def keyed_noise(
    seed: int, positions: Int64[Tensor, " batch"], num_patches: int, *, view: int = 0
) -> Float[Tensor, "batch patches"]:
    """Hash (seed, view, position, patch) to noise in [0, 1), on the device of `positions`.

    The same key gives the same noise on every device: only 32-bit integer operations are used.

    Args:
        seed: The run's seed.
        positions: Position of each sample in the stream, >= 0.
        num_patches: Patches per image.
        view: Number of the mask where one image gets several.

    Returns:
        float32 with 24 random bits; equal values are possible and harmless to a stable sort.
    """
    state = _mix32(torch.full_like(positions, (seed ^ (view * _GOLDEN)) & _WORD))
    state = _mix32(state ^ (positions & _WORD))
    state = _mix32(state ^ ((positions >> 32) & _WORD) ^ _GOLDEN)
    patch = torch.arange(num_patches, device=positions.device)
    words = _mix32(state[:, None] ^ _mix32((patch + 1) * _GOLDEN & _WORD))
    return (words >> 8).to(torch.float32) / 2**24


def _mix32(words: Tensor) -> Tensor:
    """Mix int64 tensors that hold 32-bit words."""
    for shift, factor in _MIX:
        words = words ^ (words >> shift)
        words = _multiply32(words, factor)
    return words ^ (words >> 16)


def _multiply32(words: Tensor, factor: int) -> Tensor:
    """Multiply modulo 2**32 without leaving int64: the factor is taken in two 16-bit halves."""
    low, high = factor & 0xFFFF, factor >> 16
    return (words * low + ((words * high & 0xFFFF) << 16)) & _WORD
