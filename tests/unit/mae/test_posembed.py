from __future__ import annotations

import math

import pytest
import torch

from mae.errors import ConfigError
from mae.posembed import sincos_2d


def position_by_hand(dim: int, row: int, column: int) -> list[float]:
    """Sin-cos code of one patch, one number at a time: x first, sines before cosines."""
    quarter = dim // 4
    return [
        function(place / math.pow(10000, i / quarter))
        for place in (column, row)
        for function in (math.sin, math.cos)
        for i in range(quarter)
    ]


@pytest.mark.parametrize(("dim", "grid"), [(8, (2, 3)), (16, (4, 4)), (12, (1, 7)), (64, (5, 2))])
def test_sincos_2d_every_entry_follows_the_formula(dim, grid):
    table = sincos_2d(dim, grid)
    assert table.shape == (1, 1 + grid[0] * grid[1], dim)
    assert table.dtype == torch.float32
    assert torch.count_nonzero(table[0, 0]) == 0
    for row in range(grid[0]):
        for column in range(grid[1]):
            expected = torch.tensor(position_by_hand(dim, row, column), dtype=torch.float64)
            found = table[0, 1 + row * grid[1] + column].double()
            assert torch.allclose(found, expected, rtol=0, atol=6e-8), (row, column)


def test_sincos_2d_first_half_is_the_column():
    table = sincos_2d(8, (2, 2))[0]
    # Patches 1 and 3 share the column 0, patches 1 and 2 the row 0.
    assert torch.equal(table[1, :4], table[3, :4])
    assert torch.equal(table[1, 4:], table[2, 4:])
    assert not torch.equal(table[1, :4], table[2, :4])


def test_sincos_2d_same_number_of_patches_in_another_grid_differs():
    assert not torch.equal(sincos_2d(16, (2, 8)), sincos_2d(16, (4, 4)))


def test_sincos_2d_width_not_divisible_by_four_names_the_nearest():
    with pytest.raises(ConfigError, match=r"embed_dim is 126; .*nearest is 128"):
        sincos_2d(126, (2, 2))
