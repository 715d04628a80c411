"""How often each value occurs, exactly, in counts that add up over images and processes.

Whole numbers have a bin each.  A float's bin is the upper half of its bits, in the order of the
numbers: 128 bins per power of two, so a bin is at most 0.8 % wide wherever the values lie, and no
range has to be known beforehand.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int64]

_SIGN, _INFINITY = np.uint32(0x8000_0000), np.uint32(0x7F80_0000)


def count_values(pixels: NDArray[Any]) -> Counts:
    """Return ``(chans, bins)`` counts of one image ``(chans, height, width)``."""
    bins = num_bins(pixels.dtype.name)
    return np.stack([np.bincount(_places(channel), minlength=bins) for channel in pixels])


def num_bins(dtype: str) -> int:
    """Return the number of bins of a depth."""
    return 256 if dtype == "uint8" else 65536


def bin_values(dtype: str) -> NDArray[np.float64]:
    """Return the value of each bin, ascending: a float bin's nearest to 0, so 1.0 stays 1.0."""
    bins = np.arange(num_bins(dtype))
    if dtype != "float32":
        return (bins + (np.iinfo(dtype).min if dtype == "int16" else 0)).astype(np.float64)
    ordered = (bins << 16).astype(np.uint32)
    bits = np.where(ordered & _SIGN, ordered ^ _SIGN, ~ordered & np.uint32(0xFFFF0000))
    is_nan = (bits & _INFINITY) == _INFINITY
    bits[is_nan] &= _SIGN | _INFINITY
    return bits.view(np.float32).astype(np.float64)


def percentiles(counts: Counts, dtype: str, shares: list[float]) -> list[float]:
    """Return the smallest values below or at which these shares of one channel lie.

    Args:
        counts: ``(bins,)``, not all zero.
        dtype: Depth.
        shares: In (0, 100].
    """
    up_to = np.cumsum(counts)
    wanted = np.ceil(np.array(shares) / 100 * up_to[-1])
    found = bin_values(dtype)[np.searchsorted(up_to, wanted, side="left")]
    return [float(value) for value in found]


def equal_bins(counts: Counts, dtype: str, low: float, high: float, most: int) -> Counts:
    """Return the counts of one channel in bins of equal width between its extremes.

    Args:
        counts: ``(bins,)``.
        dtype: Depth.
        low: Smallest value that occurs.
        high: Largest value.
        most: Number of bins; fewer where there are fewer whole numbers.
    """
    if dtype != "float32":
        most = min(most, int(high - low) + 1)
        high += 1  # the last number, too, is one wide
    used = np.flatnonzero(counts)
    values = np.clip(bin_values(dtype)[used], low, high)
    share = (values - low) / (high - low) if high > low else np.zeros(len(used))
    return np.bincount(
        np.minimum((share * most).astype(np.int64), most - 1), weights=counts[used], minlength=most
    ).astype(np.int64)


def _places(channel: NDArray[Any]) -> NDArray[Any]:
    flat = np.ascontiguousarray(channel).reshape(-1)
    if flat.dtype == np.int16:
        return flat.view(np.uint16) ^ np.uint16(0x8000)
    if flat.dtype == np.float32:
        bits = (flat + np.float32(0)).view(np.uint32)  # -0 becomes 0
        return np.where(bits & _SIGN, ~bits, bits | _SIGN) >> 16
    return flat
