"""Architectures by name.

The paper's three, whose parameter counts are tests, and small ones for CPUs and first runs.

Source: He et al. 2022 (arXiv:2111.06377), section 4; Touvron et al. 2021 (arXiv:2012.12877) for
Tiny and Small.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from mae.errors import unknown_name
from mae.model import MaskedAutoencoder
from mae.patches import Size


def _preset(
    patch_size: int, embed: tuple[int, int, int], decoder: tuple[int, int, int]
) -> Mapping[str, Any]:
    names = ("embed_dim", "depth", "num_heads")
    return MappingProxyType(
        {"patch_size": patch_size}
        | dict(zip(names, embed, strict=True))
        | {f"decoder_{name}": value for name, value in zip(names, decoder, strict=True)}
    )


# name: patch side, (width, depth, heads) of the encoder and of the decoder
PRESETS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "vit_micro_patch16": _preset(16, (128, 4, 4), (64, 2, 4)),
        "vit_tiny_patch16": _preset(16, (192, 12, 3), (128, 4, 4)),
        "vit_small_patch16": _preset(16, (384, 12, 6), (256, 4, 8)),
        "vit_base_patch16": _preset(16, (768, 12, 12), (512, 8, 16)),
        "vit_large_patch16": _preset(16, (1024, 24, 16), (512, 8, 16)),
        "vit_huge_patch14": _preset(14, (1280, 32, 16), (512, 8, 16)),
    }
)


def build_preset(
    name: str,
    *,
    img_size: int | Size = 224,
    in_chans: int = 3,
    mask_ratio: float = 0.75,
    norm_pix_loss: bool = True,
) -> MaskedAutoencoder:
    """Build a masked autoencoder by name.

    Args:
        name: A key of `PRESETS`.
        img_size: Image side in pixels, or (height, width).
        in_chans: Channels of the image.
        mask_ratio: Share of removed patches.
        norm_pix_loss: Predict patches normalised by themselves.

    Raises:
        ConfigError: If the name is unknown, or the size does not fit the patch.
    """
    if name not in PRESETS:
        raise unknown_name("preset", name, PRESETS)
    return MaskedAutoencoder(
        img_size=img_size,
        in_chans=in_chans,
        mask_ratio=mask_ratio,
        norm_pix_loss=norm_pix_loss,
        **PRESETS[name],
    )
