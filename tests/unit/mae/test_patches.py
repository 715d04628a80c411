from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mae.errors import ConfigError
from mae.patches import as_pair, grid_size, patchify, unpatchify


def test_patchify_small_image_lists_row_column_channel():
    # Value = 100 * channel + 10 * row + column, so every entry says where it comes from.
    image = torch.tensor(
        [[[100 * c + 10 * y + x for x in range(6)] for y in range(2)] for c in range(2)]
    ).float()
    patches = patchify(image[None], (2, 3))
    assert patches.shape == (1, 2, 12)
    assert patches[0, 0].tolist() == [0, 100, 1, 101, 2, 102, 10, 110, 11, 111, 12, 112]
    assert patches[0, 1].tolist() == [3, 103, 4, 104, 5, 105, 13, 113, 14, 114, 15, 115]


def test_patchify_grid_goes_through_rows_first():
    image = torch.arange(6.0).repeat_interleave(2).reshape(1, 1, 3, 4)
    assert patchify(image, (1, 2))[0, :, 0].tolist() == [0, 1, 2, 3, 4, 5]


@settings(deadline=None)  # a busy machine is no defect
@given(
    grid=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    patch=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    chans=st.integers(1, 5),
    batch=st.integers(1, 3),
)
def test_unpatchify_any_size_returns_the_images_exactly(grid, patch, chans, batch):
    img_size = (grid[0] * patch[0], grid[1] * patch[1])
    images = torch.randn(batch, chans, *img_size)
    patches = patchify(images, patch)
    assert patches.shape == (batch, grid[0] * grid[1], patch[0] * patch[1] * chans)
    assert torch.equal(unpatchify(patches, patch, img_size), images)


def test_unpatchify_wrong_number_of_patches_names_both_sides():
    with pytest.raises(ConfigError, match=r"3 patches .* 8x8 px, which has 2x2 patches"):
        unpatchify(torch.zeros(1, 3, 16), (4, 4), (8, 8))


def test_grid_size_rectangle_is_rows_and_columns():
    assert grid_size((48, 160), (16, 8)) == (3, 20)


def test_grid_size_indivisible_says_sizes_and_the_nearest_right_one():
    with pytest.raises(ConfigError, match=r"64x70 .* 16x16.*nearest img_size is 64x64"):
        grid_size((64, 70), (16, 16))


def test_grid_size_smaller_than_a_patch_proposes_one_patch():
    with pytest.raises(ConfigError, match="nearest img_size is 16x16"):
        grid_size((5, 5), (16, 16))


@pytest.mark.parametrize("value", [7, (7, 7), [7, 7]])
def test_as_pair_number_or_pair_gives_height_and_width(value):
    assert as_pair(value, name="img_size") == (7, 7)


@pytest.mark.parametrize("value", [0, -3, 6.5, None, "64", (1, 2, 3), (4,), (4, 0), (4, 2.0)])
def test_as_pair_impossible_value_names_setting_and_what_is_allowed(value):
    with pytest.raises(ConfigError, match=r"patch_size is .*allowed: one positive whole number"):
        as_pair(value, name="patch_size")
