"""Boxes and orientations: where a piece of the upright picture lies among the stored pixels.

A view needs one box of its image, so the box is found first, from the header, and only then are
pixels made.  Boxes are given in the upright picture; EXIF and a smaller decoding move them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from numpy.typing import NDArray

Pixels = NDArray[Any]
Size = tuple[int, int]  # height, width

_SIDES_EXCHANGED = (5, 6, 7, 8)
_COLUMNS_REVERSED = (2, 3, 6, 7)
_ROWS_REVERSED = (3, 4, 7, 8)


class Box(NamedTuple):
    """A crop in pixels."""

    top: int
    left: int
    height: int
    width: int


def cut(pixels: Pixels, box: Box) -> Pixels:
    """Return the box of ``(chans, height, width)`` pixels, as a view."""
    return pixels[:, box.top : box.top + box.height, box.left : box.left + box.width]


def orient(pixels: Pixels, orientation: int) -> Pixels:
    """Turn ``(chans, height, width)`` pixels upright, as a view.

    Args:
        pixels: Pixels as stored.
        orientation: EXIF value 1 … 8; anything else means upright.

    Source: Exif 2.32, tag 0x0112.
    """
    if orientation in _SIDES_EXCHANGED:
        pixels = pixels.swapaxes(1, 2)
    if orientation in _COLUMNS_REVERSED:
        pixels = pixels[:, :, ::-1]
    if orientation in _ROWS_REVERSED:
        pixels = pixels[:, ::-1, :]
    return pixels


def orient_size(size: Size, orientation: int) -> Size:
    """Exchange height and width where the orientation does; undoes itself."""
    return (size[1], size[0]) if orientation in _SIDES_EXCHANGED else size


def stored_box(box: Box, size: Size, orientation: int) -> Box:
    """Return the stored pixels that become `box` of the upright picture.

    Args:
        box: Box of the upright picture.
        size: ``(height, width)`` of the upright picture.
        orientation: EXIF value, see `orient`.
    """
    top, left, height, width = box
    if orientation in _ROWS_REVERSED:
        top = size[0] - top - height
    if orientation in _COLUMNS_REVERSED:
        left = size[1] - left - width
    if orientation in _SIDES_EXCHANGED:
        return Box(left, top, width, height)
    return Box(top, left, height, width)


def reduced_box(box: Box, size: Size, factor: int) -> Box:
    """Map a box to the picture decoded at 1/`factor`.

    # Choice: each edge goes to the nearest edge between reduced pixels, half a reduced pixel away
    # at most; resizing cannot start between pixels.  The last reduced row and column are left out
    # where they lie partly beyond the picture, for that part was never seen.

    Args:
        box: Box in stored pixels.
        size: Stored ``(height, width)``.
        factor: How many stored pixels become one, along each axis.
    """
    top, bottom = _reduced_edges(box.top, box.height, size[0], factor)
    left, right = _reduced_edges(box.left, box.width, size[1], factor)
    return Box(top, left, bottom - top, right - left)


def _reduced_edges(start: int, length: int, limit: int, factor: int) -> tuple[int, int]:
    first = (start + factor // 2) // factor
    last = min((start + length + factor // 2) // factor, limit // factor)
    return min(first, last), last
