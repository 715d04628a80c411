"""Which samples are equal to others, within a split and across splits."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Digests = NDArray[np.uint64]  # (samples, 2)
_NUM_EXAMPLES = 3


@dataclass(frozen=True)
class Repeats:
    """Equal samples; a sample's number counts through all that were compared.

    Attributes:
        within: By split, how many samples are equal to an earlier one of that split.
        within_examples: Some of them: (an earlier one, the sample).
        across: How many different contents stand in more than one split.
        across_examples: Some of them: one sample of each of two splits.
    """

    within: dict[str, int]
    within_examples: tuple[tuple[int, int], ...]
    across: int
    across_examples: tuple[tuple[int, int], ...]


def digest(data: bytes) -> tuple[int, int]:
    """Return two numbers that stand for some content."""
    found = hashlib.blake2b(data, digest_size=16).digest()
    return int.from_bytes(found[:8]), int.from_bytes(found[8:])


def find_repeats(digests: Digests, split_of: NDArray[np.int64], names: Sequence[str]) -> Repeats:
    """Return which samples have equal digests.

    Args:
        digests: ``(samples, 2)``.
        split_of: ``(samples,)`` place of each sample's split in `names`.
        names: Names of the splits.
    """
    number = np.arange(len(digests))
    order = np.lexsort((number, split_of, digests[:, 0], digests[:, 1]))
    content, split = digests[order], split_of[order]
    is_same = np.zeros(len(order), dtype=bool)
    is_same[1:] = (content[1:] == content[:-1]).all(axis=1)
    is_new_split = np.ones(len(order), dtype=bool)
    is_new_split[1:] = split[1:] != split[:-1]
    within, across = np.flatnonzero(is_same & ~is_new_split), np.flatnonzero(is_same & is_new_split)
    start = np.maximum.accumulate(np.where(is_same, 0, number))  # of each content
    counts = np.bincount(split[within], minlength=len(names))
    return Repeats(
        within={name: int(count) for name, count in zip(names, counts, strict=True) if count},
        within_examples=_examples(order[within - 1], order[within]),
        across=len(np.unique(start[across])),
        across_examples=_examples(order[start[across]], order[across]),
    )


def _examples(earlier: NDArray[np.int64], later: NDArray[np.int64]) -> tuple[tuple[int, int], ...]:
    chosen = np.argsort(later, kind="stable")[:_NUM_EXAMPLES]
    return tuple((int(earlier[i]), int(later[i])) for i in chosen)
