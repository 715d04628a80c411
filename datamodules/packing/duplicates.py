"""Images whose bytes are equal: one of them is packed, and none may stand in two splits.

Files of different size differ, so only those of equal size are looked into: first at both their
ends, then, where these are equal too, as a whole.  Files that are no images are left to the packing
itself, which says why: a thousand copies of one error page are a thousand bad files.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

from datamodules.guard import BadImageError, sniff
from datamodules.packing.items import Item
from datamodules.packing.places import Place
from datamodules.packing.results import LeftOut
from mae.errors import DataError

REASON = "duplicate"
_NUM_SHOWN = 5
Depth = Literal["ends", "whole"]
Digest = bytes | None


def digests(places: Sequence[tuple[Place, str]], depth: Depth) -> list[Digest]:
    """Return a digest of each file; None for one that is no image or cannot be read.

    Args:
        places: Where the files lie, and their names.
        depth: Whether both ends or all bytes are read.
    """
    return [_digest(place, name, depth) for place, name in places]


def find_equal(
    items: Sequence[Item], look: Callable[[Sequence[Item], Depth], Iterable[Digest]]
) -> list[list[Item]]:
    """Return the sets of images with equal bytes, each in the order of `items`.

    Args:
        items: Listed images.
        look: Returns the digests of some of them, in order; see `digests`.
    """
    sets = [s for s in _grouped(items, [item.place.num_bytes for item in items]) if _size(s[0])]
    for depth in ("ends", "whole"):
        members = [item for of_set in sets for item in of_set]
        found = iter(look(members, depth))
        sets = [
            smaller
            for of_set in sets
            for smaller in _grouped(of_set, [next(found) for _ in of_set])
        ]
    return sets


def drop_duplicates(
    sets: Iterable[Sequence[Item]], *, is_drawn: Callable[[Item], bool]
) -> list[LeftOut]:
    """Return which images are not packed because their bytes are packed already.

    The first by name stays.  # Choice: an image whose split was drawn by its own name has no split
    of its own, so it gives way to one that has.

    Args:
        sets: Images of equal bytes, each with its split.
        is_drawn: Whether the split of an image was drawn by its own name, neither given by the
            source nor by its group.

    Raises:
        DataError: If equal bytes stand in two splits or have different labels.
    """
    dropped: list[LeftOut] = []
    crossing: list[str] = []
    contradicting: list[str] = []
    for of_set in sets:
        first, *others = sorted(of_set, key=lambda item: (is_drawn(item), item.name))
        for item in others:
            if item.split != first.split and not is_drawn(item):
                crossing.append(
                    f"{first.name!r} in {first.split} and {item.name!r} in {item.split}"
                )
            elif item.labels != first.labels:
                pair = f"{first.name!r} as {_words(first)} and {item.name!r} as {_words(item)}"
                contradicting.append(pair)
            message = f"{item.name} has the same bytes as {first.name}"
            dropped.append(LeftOut(item.name, REASON, message))
    if crossing:
        raise DataError(
            f"{_pairs(crossing)} the same bytes in two splits; an image must not train and test: "
            f"remove one of each, or give both one group or split, or say --duplicates keep"
            f"{_lines(crossing)}"
        )
    if contradicting:
        raise DataError(
            f"{_pairs(contradicting)} the same bytes but not the same labels; correct them, or "
            f"remove the images, or say --duplicates keep{_lines(contradicting)}"
        )
    return dropped


def _pairs(found: Sequence[str]) -> str:
    return "a pair of images has" if len(found) == 1 else f"{len(found):,} pairs of images have"


def _lines(found: Sequence[str]) -> str:
    rest = f"\n  and {len(found) - _NUM_SHOWN:,} more" if len(found) > _NUM_SHOWN else ""
    return "".join(f"\n  {pair}" for pair in found[:_NUM_SHOWN]) + rest


def _words(item: Item) -> str:
    return " + ".join(map(repr, item.labels or ())) or "none"


def _grouped(items: Sequence[Item], keys: Iterable[object]) -> list[list[Item]]:
    """Return the sets of items whose keys are equal and not None, without those alone."""
    found: defaultdict[object, list[Item]] = defaultdict(list)
    for item, key in zip(items, keys, strict=True):
        if key is not None:
            found[key].append(item)
    return [of_set for of_set in found.values() if len(of_set) > 1]


def _size(item: Item) -> int:
    return item.place.num_bytes


def _digest(place: Place, name: str, depth: Depth) -> Digest:
    try:
        data = place.peek(what=name) if depth == "ends" else place.read(what=name)
        sniff(data, what=name)
    except BadImageError:
        return None
    return hashlib.blake2b(data, digest_size=16).digest()
