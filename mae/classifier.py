"""An encoder with a classification head, as the paper fine-tunes it.

Source: He et al. 2022 (arXiv:2111.06377), appendix A.1 "End-to-end fine-tuning": mean of the patch
tokens, a new LayerNorm in place of the final one, a head that starts near zero.
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn

from mae.encoder import LAYER_NORM_EPS, Encoder
from mae.errors import ConfigError
from mae.pooling import Pooling, pool

HEAD_STD = 2e-5


class Classifier(nn.Module):
    """Encoder, pooling, norm, linear head.

    With mean pooling the encoder's final norm is dropped and a new one, `fc_norm`, follows the
    mean.  With CLS pooling the encoder's own final norm feeds the head.

    Args:
        encoder: Becomes part of this module; its position table becomes trainable.
        num_classes: At least 2.
        global_pool: What the head reads.

    Raises:
        ConfigError: If there are fewer than two classes.
    """

    def __init__(self, encoder: Encoder, *, num_classes: int, global_pool: Pooling) -> None:
        super().__init__()
        if num_classes < 2:
            raise ConfigError(
                f"num_classes is {num_classes}; a classifier needs at least 2: check the labels"
            )
        self.encoder = encoder
        self.encoder.pos_embed.requires_grad_(True)
        self.global_pool = global_pool
        self.fc_norm: nn.Module = nn.Identity()
        if global_pool == "mean":
            self.encoder.norm = nn.Identity()  # type: ignore[assignment]
            self.fc_norm = nn.LayerNorm(encoder.embed_dim, eps=LAYER_NORM_EPS)
        self.head = nn.Linear(encoder.embed_dim, num_classes)
        nn.init.trunc_normal_(self.head.weight, std=HEAD_STD)
        nn.init.zeros_(self.head.bias)

    def forward(
        self, images: Float[Tensor, "batch chans height width"]
    ) -> Float[Tensor, "batch classes"]:
        """Return class logits."""
        logits: Tensor = self.head(self.fc_norm(pool(self.encoder(images), self.global_pool)))
        return logits
