"""Initial weights.

Source: released models of He et al. 2022 (arXiv:2111.06377): Xavier-uniform for every Linear and
for the patch projection seen as one, zero biases, tokens N(0, 0.02).
"""

from __future__ import annotations

from torch import nn

TOKEN_STD = 0.02


def init_linear_and_norm(module: nn.Module) -> None:
    """Initialise one Linear or LayerNorm; for `nn.Module.apply`.  Others are left alone."""
    if isinstance(module, nn.Linear):
        nn.init.xavier_uniform_(module.weight)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    elif isinstance(module, nn.LayerNorm):
        nn.init.ones_(module.weight)
        nn.init.zeros_(module.bias)


def init_patch_projection(projection: nn.Conv2d) -> None:
    """Initialise the patch projection as a Linear over patch vectors; its bias is left alone."""
    nn.init.xavier_uniform_(projection.weight.data.flatten(1))


def init_token(token: nn.Parameter) -> None:
    """Initialise a CLS or mask token."""
    nn.init.normal_(token, std=TOKEN_STD)
