"""Boxes of the upright picture are found again among stored and reduced pixels."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from datamodules.decode.geometry import Box, cut, orient, orient_size, reduced_box, stored_box

sizes = st.tuples(st.integers(1, 40), st.integers(1, 40))


@st.composite
def pictures_and_boxes(draw: st.DrawFn) -> tuple[tuple[int, int], Box]:
    height, width = draw(sizes)
    top, left = draw(st.integers(0, height - 1)), draw(st.integers(0, width - 1))
    box = Box(top, left, draw(st.integers(1, height - top)), draw(st.integers(1, width - left)))
    return (height, width), box


@given(pictures_and_boxes(), st.integers(0, 9))
def test_stored_box_holds_the_pixels_of_the_upright_box(
    picture: tuple[tuple[int, int], Box], orientation: int
) -> None:
    size, box = picture
    height, width = orient_size(size, orientation)
    stored = np.arange(height * width).reshape(1, height, width)
    upright = orient(stored, orientation)
    assert upright.shape[1:] == size
    np.testing.assert_array_equal(
        orient(cut(stored, stored_box(box, size, orientation)), orientation), cut(upright, box)
    )


@given(pictures_and_boxes(), st.sampled_from([2, 4, 8]))
def test_reduced_box_stays_inside_and_moves_edges_by_half_a_pixel_at_most(
    picture: tuple[tuple[int, int], Box], factor: int
) -> None:
    size, box = picture
    reduced = reduced_box(box, size, factor)
    for first, length, found, found_length, limit in (
        (box.top, box.height, reduced.top, reduced.height, size[0]),
        (box.left, box.width, reduced.left, reduced.width, size[1]),
    ):
        assert found >= 0
        assert found_length >= 0
        assert (found + found_length) * factor <= limit  # no pixel from beyond the picture
        if length >= factor and limit >= 2 * factor:
            last_whole = limit // factor * factor
            end = (found + found_length) * factor
            assert abs(found * factor - min(first, last_whole)) <= factor / 2
            assert abs(end - min(first + length, last_whole)) <= factor / 2


def test_reduced_box_of_the_whole_picture_leaves_out_the_incomplete_rest() -> None:
    assert reduced_box(Box(0, 0, 19, 24), (19, 24), 8) == Box(0, 0, 2, 3)
    assert reduced_box(Box(3, 4, 9, 8), (19, 24), 4) == Box(1, 1, 2, 2)
