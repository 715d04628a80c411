"""Counts, percentiles and bins against numpy's."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from datamodules.inspection.histogram import bin_values, count_values, equal_bins, percentiles

SHARES = [1.0, 25.0, 50.0, 99.0, 100.0]


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int16"])
def test_count_values_of_whole_numbers_is_exact(dtype: str) -> None:
    info = np.iinfo(dtype)
    random = np.random.default_rng(0)
    pixels = random.integers(info.min, info.max, (2, 30, 40), dtype=dtype, endpoint=True)
    pixels[0, 0, :2] = info.min, info.max
    counts = count_values(pixels)
    assert counts.shape == (2, len(bin_values(dtype)))
    for channel, of_channel in zip(pixels, counts, strict=True):
        values, expected = np.unique(channel, return_counts=True)
        used = np.flatnonzero(of_channel)
        np.testing.assert_array_equal(bin_values(dtype)[used], values)
        np.testing.assert_array_equal(of_channel[used], expected)
        expected = np.percentile(channel, SHARES, method="inverted_cdf")
        assert percentiles(of_channel, dtype, SHARES) == expected.tolist()


FLOATS = hnp.arrays(
    np.float32,
    (1, 3, 7),
    elements=st.floats(-(2.0**100), 2.0**100, width=32, allow_subnormal=False),
)


@given(FLOATS)
def test_percentiles_of_floats_are_within_a_bin(pixels: NDArray[np.float32]) -> None:
    counts = count_values(pixels)
    assert counts.sum() == pixels.size
    expected = np.percentile(pixels, SHARES, method="inverted_cdf")
    found = percentiles(counts[0], "float32", SHARES)
    np.testing.assert_allclose(found, expected, rtol=1 / 128, atol=1e-37)


def test_bin_values_of_floats_ascend_and_keep_round_numbers() -> None:
    values = bin_values("float32")
    finite = values[np.isfinite(values)]
    assert (np.diff(finite) >= 0).all()
    assert {-2.0, -1.0, 0.0, 0.5, 1.0, 100.0} <= set(finite.tolist())


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int16", "float32"])
def test_equal_bins_are_numpys(dtype: str) -> None:
    # Multiples of 1/4 below 64 are values of float bins, too.
    values = np.random.default_rng(1).integers(-128, 128, 500) / 4
    pixels = (values if dtype == "float32" else np.abs(values) * 4).astype(dtype)[None, None]
    low, high = float(pixels.min()), float(pixels.max())
    found = equal_bins(count_values(pixels)[0], dtype, low, high, 10)
    end = high if dtype == "float32" else high + 1
    np.testing.assert_array_equal(found, np.histogram(pixels, np.linspace(low, end, 11))[0])


def test_equal_bins_of_one_value_or_few_are_as_many() -> None:
    constant = count_values(np.full((1, 2, 2), 7, np.uint8))
    assert equal_bins(constant[0], "uint8", 7, 7, 64).tolist() == [4]
    three = count_values(np.array([[[1, 2, 3, 3]]], np.uint16))
    assert equal_bins(three[0], "uint16", 1, 3, 64).tolist() == [1, 1, 2]
    flat = count_values(np.full((1, 2, 2), 0.3, np.float32))
    assert equal_bins(flat[0], "float32", 0.3, 0.3, 64).sum() == 4
