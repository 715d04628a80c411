"""Mergeable statistics against NumPy over all pixels at once."""

from __future__ import annotations

from functools import reduce

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datamodules.statistics import ChannelStats


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6)), min_size=1, max_size=6))
def test_merge_equals_all_pixels_at_once(sizes: list[tuple[int, int]]) -> None:
    rng = np.random.default_rng(0)
    images = [rng.integers(0, 65536, (2, *size), dtype=np.uint16) for size in sizes]
    stats = reduce(ChannelStats.merge, map(ChannelStats.of, images))
    pixels = np.concatenate([image.reshape(2, -1) for image in images], axis=1).astype(np.float64)
    np.testing.assert_allclose(stats.mean, pixels.mean(axis=1), rtol=1e-12)
    np.testing.assert_allclose(stats.std, pixels.std(axis=1), rtol=1e-12, atol=1e-9)
    assert stats.low.tolist() == pixels.min(axis=1).tolist()
    assert stats.high.tolist() == pixels.max(axis=1).tolist()
    assert stats.count == pixels.shape[1]


def test_std_small_spread_on_large_offset_is_kept() -> None:
    # The sum of squares would lose this spread: 1e8**2 has no room for 0.25 in float32's place.
    image = (1e8 + np.array([[[0.0, 1.0]]])).astype(np.float64)
    stats = ChannelStats.of(image).merge(ChannelStats.of(image))
    assert stats.std[0] == pytest.approx(0.5, rel=1e-9)
