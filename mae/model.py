"""The masked autoencoder, in the order of the paper: patchify, mask, encode, decode, compare.

Source: He et al. 2022 (arXiv:2111.06377), section 3.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mae.decoder import Decoder
from mae.encoder import Encoder
from mae.errors import ConfigError
from mae.loss import reconstruction_loss, reconstruction_target
from mae.masking import Masking, num_visible, random_masking
from mae.patches import Size


class MAEOutput(NamedTuple):
    """What one forward pass gives.

    Attributes:
        loss: Mean squared error over the removed patches of the batch.
        pred: Predictions of the removed patches, in the order of ``masking.ids_removed``;
            normalised per patch where `norm_pix_loss` is on.
        masking: Which patches were visible.
    """

    loss: Float[Tensor, ""]
    pred: Float[Tensor, "batch removed patch_dim"]
    masking: Masking


class MaskedAutoencoder(nn.Module):
    """ViT encoder over the visible patches, light decoder for the removed ones.

    Args:
        img_size: Image side in pixels, or (height, width).
        patch_size: Patch side in pixels, or (height, width); divides `img_size`.
        in_chans: Channels of the image.
        embed_dim: Encoder width.
        depth: Encoder blocks.
        num_heads: Encoder attention heads.
        mlp_ratio: Hidden width of every MLP over its block's width.
        decoder_embed_dim: Decoder width.
        decoder_depth: Decoder blocks.
        decoder_num_heads: Decoder attention heads.
        mask_ratio: Share of removed patches, inside (0, 1).
        norm_pix_loss: Predict each patch normalised by its own mean and standard deviation.

    Raises:
        ConfigError: If sizes or widths do not divide, or the mask ratio leaves nothing to do.

    Example:
        >>> model = MaskedAutoencoder(
        ...     img_size=64, patch_size=16, in_chans=3, embed_dim=128, depth=4, num_heads=4,
        ...     decoder_embed_dim=64, decoder_depth=2, decoder_num_heads=4)
        >>> model(torch.randn(2, 3, 64, 64)).pred.shape
        torch.Size([2, 12, 768])
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
        decoder_embed_dim: int,
        decoder_depth: int,
        decoder_num_heads: int,
        mask_ratio: float = 0.75,
        norm_pix_loss: bool = True,
    ) -> None:
        super().__init__()
        self.encoder = Encoder(
            img_size=img_size,
            patch_size=patch_size,
            in_chans=in_chans,
            embed_dim=embed_dim,
            depth=depth,
            num_heads=num_heads,
            mlp_ratio=mlp_ratio,
        )
        patch_dim = self.encoder.patch_size[0] * self.encoder.patch_size[1] * in_chans
        if norm_pix_loss and patch_dim < 2:
            raise ConfigError(
                "norm_pix_loss needs patches of at least 2 values; this one has 1: use a larger "
                "patch_size or norm_pix_loss false"
            )
        self.decoder = Decoder(
            encoder_dim=embed_dim,
            grid_size=self.encoder.grid_size,
            patch_dim=patch_dim,
            decoder_embed_dim=decoder_embed_dim,
            decoder_depth=decoder_depth,
            decoder_num_heads=decoder_num_heads,
            mlp_ratio=mlp_ratio,
        )
        num_visible(self.encoder.num_patches, mask_ratio)  # refuses impossible ratios now
        self.mask_ratio = mask_ratio
        self.norm_pix_loss = norm_pix_loss

    def forward(
        self,
        images: Float[Tensor, "batch chans height width"],
        *,
        noise: Float[Tensor, "batch patches"] | None = None,
        mask_ratio: float | None = None,
    ) -> MAEOutput:
        """Reconstruct the removed patches of `images`.

        Args:
            images: Normalised by the data set's mean and std.
            noise: One value per patch, the smallest are kept; None draws it from torch's
                global generator.
            mask_ratio: Overrides the model's own.

        Raises:
            ConfigError: If images or noise have another shape, or the ratio is impossible.
        """
        patches = self.encoder.patchify(images)  # batch patches patch_dim
        if noise is None:
            noise = torch.rand(patches.shape[:2], device=images.device)
        elif noise.shape != patches.shape[:2]:
            raise ConfigError(
                f"noise has shape {tuple(noise.shape)}; allowed: one value per image and patch, "
                f"{tuple(patches.shape[:2])}"
            )
        masking = random_masking(noise, self.mask_ratio if mask_ratio is None else mask_ratio)

        visible = gather_patches(patches, masking.ids_keep)  # batch visible patch_dim
        latent = self.encoder.forward_patches(visible, masking.ids_keep)
        pred = self.decoder(latent, masking)  # batch removed patch_dim

        removed = gather_patches(patches, masking.ids_removed)
        target = reconstruction_target(removed, norm_pix_loss=self.norm_pix_loss)
        return MAEOutput(reconstruction_loss(pred, target), pred, masking)

    def encode(
        self, images: Float[Tensor, "batch chans height width"]
    ) -> Float[Tensor, "batch tokens embed_dim"]:
        """Return the final-norm tokens of whole images, the CLS token first.  Never masks."""
        tokens: Tensor = self.encoder(images)
        return tokens


def gather_patches(
    patches: Float[Tensor, "batch patches patch_dim"], ids: Tensor
) -> Float[Tensor, "batch chosen patch_dim"]:
    """Take the patches at `ids` (batch chosen) of each image, in that order."""
    return patches.gather(1, ids[:, :, None].expand(-1, -1, patches.shape[2]))
