"""The light decoder that predicts the removed patches.

It reads the tokens as ``CLS, visible, removed`` instead of putting them back into image order
first: a transformer is equivariant to the order of its tokens as long as each carries its own
position, so the predictions are the same and one gather of the full sequence is saved.

Source: He et al. 2022 (arXiv:2111.06377), section 3 "MAE decoder".
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mae.encoder import LAYER_NORM_EPS, transformer_block
from mae.init import init_linear_and_norm, init_token
from mae.masking import Masking
from mae.patches import Size
from mae.posembed import sincos_2d


class Decoder(nn.Module):
    """Narrow transformer from visible tokens to the pixels of the removed patches.

    Args:
        encoder_dim: Width of the tokens that come in.
        grid_size: (rows, columns) of patches.
        patch_dim: Values of a patch vector to predict.
        decoder_embed_dim: Own width, divisible by 4 and by `decoder_num_heads`.
        decoder_depth: Number of blocks.
        decoder_num_heads: Attention heads.
        mlp_ratio: Hidden width of the MLP over `decoder_embed_dim`.

    Raises:
        ConfigError: If the widths do not divide.
    """

    def __init__(
        self,
        *,
        encoder_dim: int,
        grid_size: Size,
        patch_dim: int,
        decoder_embed_dim: int,
        decoder_depth: int,
        decoder_num_heads: int,
        mlp_ratio: float = 4.0,
    ) -> None:
        super().__init__()
        self.decoder_embed = nn.Linear(encoder_dim, decoder_embed_dim)
        self.mask_token = nn.Parameter(torch.empty(1, 1, decoder_embed_dim))
        self.decoder_pos_embed = nn.Parameter(
            sincos_2d(decoder_embed_dim, grid_size), requires_grad=False
        )
        self.decoder_blocks = nn.ModuleList(
            transformer_block(decoder_embed_dim, decoder_num_heads, mlp_ratio)
            for _ in range(decoder_depth)
        )
        self.decoder_norm = nn.LayerNorm(decoder_embed_dim, eps=LAYER_NORM_EPS)
        self.decoder_pred = nn.Linear(decoder_embed_dim, patch_dim)

        self.apply(init_linear_and_norm)
        init_token(self.mask_token)

    def forward(
        self, latent: Float[Tensor, "batch tokens encoder_dim"], masking: Masking
    ) -> Float[Tensor, "batch removed patch_dim"]:
        """Predict the removed patches, in the order of ``masking.ids_removed``.

        Args:
            latent: CLS and visible tokens of the encoder, in the order of ``masking.ids_keep``.
            masking: Which patches those were.
        """
        num_removed = masking.ids_removed.shape[1]
        tokens = self.decoder_embed(latent)
        blanks = self.mask_token.expand(len(tokens), num_removed, -1)
        ids = torch.cat([masking.ids_keep, masking.ids_removed], dim=1)
        cls_position = self.decoder_pos_embed[:, :1].expand(len(tokens), -1, -1)
        positions = torch.cat([cls_position, self.decoder_pos_embed[0, 1:][ids]], dim=1)
        tokens = torch.cat([tokens, blanks], dim=1) + positions
        for block in self.decoder_blocks:
            tokens = block(tokens)
        # Visible places are read by attention but never scored, so they stop here.
        pred: Tensor = self.decoder_pred(self.decoder_norm(tokens[:, -num_removed:]))
        return pred
