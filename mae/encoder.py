"""The encoder: a Vision Transformer that can read a subset of the patches.

Blocks are timm's; parameter names are timm's too, so the state dict is a timm ViT's.  What is ours
is that patches are cut first and only the visible ones are embedded, which is what makes MAE
pretraining cheap.

Source: Dosovitskiy et al. 2021 (arXiv:2010.11929); He et al. 2022 (arXiv:2111.06377), section 3.
"""

from __future__ import annotations

from functools import partial

import torch
from jaxtyping import Float, Int64
from timm.models.vision_transformer import Block
from torch import Tensor, nn

from mae.errors import ConfigError
from mae.init import init_linear_and_norm, init_patch_projection, init_token
from mae.patches import Size, as_pair, grid_size, patchify
from mae.posembed import sincos_2d

LAYER_NORM_EPS = 1e-6


def transformer_block(
    embed_dim: int, num_heads: int, mlp_ratio: float, *, drop_path: float = 0.0
) -> Block:
    """Build one pre-norm block with biases on q, k and v, GELU and LayerNorm epsilon 1e-6.

    Raises:
        ConfigError: If the heads do not divide the width.
    """
    if embed_dim % num_heads:
        raise ConfigError(
            f"num_heads {num_heads} does not divide the width {embed_dim}; "
            f"choose num_heads so that width / num_heads is whole, 64 in the papers"
        )
    return Block(
        embed_dim,
        num_heads,
        mlp_ratio,
        qkv_bias=True,
        drop_path=drop_path,
        norm_layer=partial(nn.LayerNorm, eps=LAYER_NORM_EPS),  # type: ignore[arg-type]
    )


class PatchEmbed(nn.Module):
    """Linear embedding of patch vectors, stored as timm stores it: a convolution's weight."""

    def __init__(self, patch_size: Size, in_chans: int, embed_dim: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(in_chans, embed_dim, kernel_size=patch_size, stride=patch_size)

    def forward(
        self, patches: Float[Tensor, "batch visible patch_dim"]
    ) -> Float[Tensor, "batch visible embed_dim"]:
        """Embed (row, column, channel) vectors."""
        weight = self.proj.weight.permute(0, 2, 3, 1).flatten(1)
        return nn.functional.linear(patches, weight, self.proj.bias)


class Encoder(nn.Module):
    """ViT over all patches of an image, or over some of them.

    Args:
        img_size: Image side in pixels, or (height, width).
        patch_size: Patch side in pixels, or (height, width); divides `img_size`.
        in_chans: Channels of the image.
        embed_dim: Width, divisible by 4 and by `num_heads`.
        depth: Number of blocks.
        num_heads: Attention heads.
        mlp_ratio: Hidden width of the MLP over `embed_dim`.
        drop_path_rate: Stochastic depth of the last block, rising linearly from 0; training only.

    Raises:
        ConfigError: If sizes or widths do not divide.
    """

    def __init__(
        self,
        *,
        img_size: int | Size,
        patch_size: int | Size,
        in_chans: int,
        embed_dim: int,
        depth: int,
        num_heads: int,
        mlp_ratio: float = 4.0,
        drop_path_rate: float = 0.0,
    ) -> None:
        super().__init__()
        self.img_size = as_pair(img_size, name="img_size")
        self.patch_size = as_pair(patch_size, name="patch_size")
        self.grid_size = grid_size(self.img_size, self.patch_size)
        self.in_chans = in_chans
        self.embed_dim = embed_dim
        self.depth = depth
        self.num_heads = num_heads
        self.mlp_ratio = mlp_ratio

        self.patch_embed = PatchEmbed(self.patch_size, in_chans, embed_dim)
        self.cls_token = nn.Parameter(torch.empty(1, 1, embed_dim))
        self.pos_embed = nn.Parameter(sincos_2d(embed_dim, self.grid_size), requires_grad=False)
        self.blocks = nn.ModuleList(
            transformer_block(
                embed_dim, num_heads, mlp_ratio, drop_path=drop_path_rate * i / max(depth - 1, 1)
            )
            for i in range(depth)
        )
        self.norm = nn.LayerNorm(embed_dim, eps=LAYER_NORM_EPS)

        self.apply(init_linear_and_norm)
        init_patch_projection(self.patch_embed.proj)
        init_token(self.cls_token)

    @property
    def num_patches(self) -> int:
        """Patches of an image."""
        return self.grid_size[0] * self.grid_size[1]

    def check_images(self, images: Float[Tensor, "batch chans height width"]) -> None:
        """Refuse images of another size or number of channels than this encoder's.

        Raises:
            ConfigError: Names both shapes.
        """
        expected = (self.in_chans, *self.img_size)
        if images.ndim != 4 or tuple(images.shape[1:]) != expected:
            raise ConfigError(
                f"images have shape {tuple(images.shape)}; this encoder reads "
                f"(batch, {', '.join(map(str, expected))}): (batch, channels, height, width)"
            )

    def patchify(
        self, images: Float[Tensor, "batch chans height width"]
    ) -> Float[Tensor, "batch patches patch_dim"]:
        """Cut images of exactly this encoder's size and channels into patch vectors.

        Raises:
            ConfigError: If the images have another size or number of channels.
        """
        self.check_images(images)
        return patchify(images, self.patch_size)

    def forward(
        self, images: Float[Tensor, "batch chans height width"]
    ) -> Float[Tensor, "batch tokens embed_dim"]:
        """Return the final-norm tokens of whole images, the CLS token first.  Never masks.

        Whole images go through the convolution, as in timm, so that both round alike.
        """
        self.check_images(images)
        tokens = self.patch_embed.proj(images).flatten(2).transpose(1, 2)
        return self._encode(tokens + self.pos_embed[:, 1:])

    def forward_patches(
        self,
        patches: Float[Tensor, "batch visible patch_dim"],
        ids_keep: Int64[Tensor, "batch visible"],
    ) -> Float[Tensor, "batch tokens embed_dim"]:
        """Encode the visible patches alone.

        Args:
            patches: Visible patch vectors, in the order of `ids_keep`.
            ids_keep: Their positions.

        Returns:
            ``1 + visible`` tokens after the final norm, the CLS token first.
        """
        return self._encode(self.patch_embed(patches) + self.pos_embed[0, 1:][ids_keep])

    def _encode(
        self, tokens: Float[Tensor, "batch visible embed_dim"]
    ) -> Float[Tensor, "batch tokens embed_dim"]:
        """Prepend the CLS token and run the blocks."""
        cls = (self.cls_token + self.pos_embed[:, :1]).expand(len(tokens), -1, -1)
        tokens = torch.cat([cls, tokens], dim=1)
        for block in self.blocks:
            tokens = block(tokens)
        normed: Tensor = self.norm(tokens)
        return normed
