"""From tokens to one feature vector per image."""

from __future__ import annotations

from typing import Literal

from jaxtyping import Float
from torch import Tensor

Pooling = Literal["cls", "mean"]
POOLINGS: tuple[Pooling, ...] = ("cls", "mean")


def pool(
    tokens: Float[Tensor, "batch tokens embed_dim"], pooling: Pooling
) -> Float[Tensor, "batch embed_dim"]:
    """Reduce an encoder's tokens.

    Args:
        tokens: CLS token first, then the patch tokens.
        pooling: ``"cls"`` takes the CLS token, ``"mean"`` the mean of the patch tokens without it.
    """
    return tokens[:, 0] if pooling == "cls" else tokens[:, 1:].mean(dim=1)
