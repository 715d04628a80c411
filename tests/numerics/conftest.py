"""Weights without a special structure: a missing bias, norm or scale must show."""

from __future__ import annotations

import pytest
import torch
from torch import nn


@pytest.fixture
def randomise():
    """Return a function that redraws every parameter but the position tables."""

    def redraw(module: nn.Module, seed: int = 0) -> nn.Module:
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                if name.endswith("pos_embed"):
                    continue
                noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
                around = 1.0 if "norm" in name and name.endswith("weight") else 0.0
                parameter.copy_(around + 0.2 * noise)
        return module

    return redraw
