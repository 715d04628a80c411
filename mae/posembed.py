"""Fixed two-dimensional sine-cosine position tables, for any grid.

Source: He et al. 2022 (arXiv:2111.06377), appendix A.1; layout as in the released weights: the
first half of the vector encodes the column (x), the second the row (y), each half all sines, then
all cosines; the CLS token's row is zero.
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float32
from torch import Tensor

from mae.errors import ConfigError
from mae.patches import Size


def sincos_2d(embed_dim: int, grid: Size) -> Float32[Tensor, "1 tokens embed_dim"]:
    """Return the table of a grid with a zero row for the CLS token in front.

    Args:
        embed_dim: Length of a row, divisible by 4.
        grid: (rows, columns) of patches.

    Returns:
        ``1 + rows * columns`` rows; computed in float64.

    Raises:
        ConfigError: If `embed_dim` is not divisible by 4.
    """
    if embed_dim % 4:
        raise ConfigError(
            f"embed_dim is {embed_dim}; a 2-D sine-cosine table needs a multiple of 4; "
            f"the nearest is {max(round(embed_dim / 4), 1) * 4}"
        )
    rows, columns = np.divmod(np.arange(grid[0] * grid[1]), grid[1])
    table = np.concatenate(
        [_sincos_1d(embed_dim // 2, columns), _sincos_1d(embed_dim // 2, rows)], 1
    )
    with_cls = np.concatenate([np.zeros((1, embed_dim)), table])
    return torch.from_numpy(with_cls.astype(np.float32))[None]


def _sincos_1d(dim: int, places: np.ndarray) -> np.ndarray:
    frequencies = 10000.0 ** -(np.arange(dim // 2, dtype=np.float64) / (dim / 2))
    angles = places[:, None] * frequencies
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
