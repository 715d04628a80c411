"""Balanced accuracy and its bootstrap intervals.

A resample draws groups (patients, scenes, blocks) with replacement, since images of one group
resemble each other.  All rows of a table share the resamples, which makes differences paired.  A
group enters only through its counts per class, so thousands of resamples are one matrix product.

Source: Efron and Tibshirani 1993, chapters 8 and 13 (percentile interval).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.floating]

_CHUNK_VALUES = 4_000_000  # of the resample-by-group matrix held at a time: 16 MB


@dataclass(frozen=True)
class Interval:
    """The middle 95 % of a bootstrap distribution."""

    low: float
    high: float


def balanced_accuracy(labels: Ints, predictions: Ints) -> float:
    """Return the mean recall over the classes that occur in `labels`, in [0, 1]."""
    return float(np.mean(list(recalls(labels, predictions).values())))


def recalls(labels: Ints, predictions: Ints) -> dict[int, float]:
    """Return the share found of each class that occurs in `labels`."""
    hits = labels == predictions
    return {int(c): float(hits[labels == c].mean()) for c in np.unique(labels)}


def bootstrap_balanced_accuracy(
    labels: Ints,
    predictions: Ints,
    units: Ints,
    *,
    num_resamples: int = 2000,
    seed: int = 0,
) -> Floats:
    """Resample `units` with replacement and read every row on the same resamples.

    A class that a resample misses does not count in that resample.

    Args:
        labels: True classes, ``(samples,)``.
        predictions: One row per reading, ``(rows, samples)``.
        units: Which unit each sample belongs to, 0 ... units - 1, ``(samples,)``.
        num_resamples: Number of resamples.
        seed: Seeds the draw; the same seed and number of units give the same resamples.

    Returns:
        Balanced accuracies, ``(num_resamples, rows)``.
    """
    num_units = int(units.max()) + 1
    classes = int(labels.max()) + 1
    cell = units * classes + labels

    def count(weights: NDArray[np.bool_] | None) -> Floats:
        cells = np.bincount(cell, weights, minlength=num_units * classes)
        return cells.reshape(num_units, classes).astype(np.float32)  # exact below 2**24

    counts = np.concatenate([count(None), *(count(row == labels) for row in predictions)], axis=1)
    rng = np.random.default_rng(seed)
    chunk = max(1, _CHUNK_VALUES // num_units)
    parts = [
        _resample(counts, classes, rng, min(chunk, num_resamples - start))
        for start in range(0, num_resamples, chunk)
    ]
    return np.concatenate(parts)


def _resample(counts: Floats, classes: int, rng: np.random.Generator, size: int) -> Floats:
    """Draw `size` resamples of the rows of `counts` (totals, then hits of each reading)."""
    num_units = len(counts)
    drawn = rng.integers(num_units, size=(size, num_units))
    drawn += np.arange(size)[:, None] * num_units
    times = np.bincount(drawn.ravel(), minlength=size * num_units).reshape(size, num_units)
    sums = (times.astype(np.float32) @ counts).astype(np.float64).reshape(size, -1, classes)
    totals, hits = sums[:, :1], sums[:, 1:]
    present = totals > 0
    recall = np.divide(hits, totals, out=np.zeros_like(hits), where=present)
    return np.asarray(recall.sum(axis=2) / present.sum(axis=2))


def interval(values: Floats) -> Interval:
    """Return the 2.5th and 97.5th percentile of a bootstrap distribution."""
    low, high = np.quantile(values, [0.025, 0.975])
    return Interval(float(low), float(high))
