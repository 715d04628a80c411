"""Which channels and depth the images of a set have, asked of the first few."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from datamodules.decode import decode
from datamodules.guard import BadImageError
from datamodules.packing.items import Item
from datamodules.packing.results import Kind, LeftOut

_NUM_VOTES = 9


def most_common_kind(
    items: Sequence[Item], *, max_pixels: int, max_bad: int
) -> tuple[Kind | None, list[LeftOut]]:
    """Return the kind that most of the first readable images have, and the unreadable among them.

    # Choice: nine votes, so that one odd file at the beginning does not make all others odd.

    Args:
        items: Images in order.
        max_pixels: Largest height x width.
        max_bad: Unreadable images after which there is no kind but None.
    """
    votes: list[Kind] = []
    left_out: list[LeftOut] = []
    for item in items:
        try:
            data = item.place.read(what=item.name)
            votes.append(Kind.of(decode(data, what=item.name, max_pixels=max_pixels), item.name))
        except BadImageError as error:
            left_out.append(LeftOut(item.name, error.reason, str(error)))
        if len(left_out) > max_bad:
            return None, left_out
        if len(votes) == _NUM_VOTES:
            break
    return (Counter(votes).most_common(1)[0][0] if votes else None), left_out
