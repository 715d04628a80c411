"""Repeats against brute force."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from datamodules.inspection.repeats import digest, find_repeats

SPLITS = ["train", "val", "test"]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2)), max_size=30))
def test_find_repeats_counts_what_brute_force_counts(samples: list[tuple[int, int]]) -> None:
    digests = np.array([digest(bytes([c])) for c, _ in samples], np.uint64).reshape(-1, 2)
    found = find_repeats(digests, np.array([s for _, s in samples], np.int64), SPLITS)
    within = Counter()
    for number, sample in enumerate(samples):
        within[SPLITS[sample[1]]] += sample in samples[:number]
    assert found.within == {split: n for split, n in within.items() if n}
    of_content = {c: {s for content, s in samples if content == c} for c, _ in samples}
    assert found.across == sum(len(splits) > 1 for splits in of_content.values())
    for one, other in found.within_examples:
        assert one < other
        assert samples[one] == samples[other]
    for one, other in found.across_examples:
        assert samples[one][0] == samples[other][0]
        assert samples[one][1] != samples[other][1]
    assert bool(found.across) == bool(found.across_examples)
    assert bool(found.within) == bool(found.within_examples)


def test_digest_differs_with_the_bytes() -> None:
    assert len({digest(bytes([a, b])) for a in range(9) for b in range(9)}) == 81
