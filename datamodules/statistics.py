"""Mean and standard deviation per channel over images that never lie in memory together.

Each image gives a record; records merge pairwise, so shards can be measured apart.  Two-pass within
an image and Chan's update between them: summing squares would lose digits at 16 bit.

Source: Chan, Golub, LeVeque 1983, "Algorithms for computing the sample variance", section 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]


@dataclass(frozen=True)
class ChannelStats:
    """Statistics of each channel; arrays are ``(chans,)`` float64.

    Attributes:
        count: Pixels per channel.
        mean: Mean.
        squares: Sum of squared deviations from the mean.
        low: Smallest value.
        high: Largest value.
    """

    count: int
    mean: Values
    squares: Values
    low: Values
    high: Values

    @classmethod
    def of(cls, pixels: NDArray[Any]) -> ChannelStats:
        """Measure one image ``(chans, height, width)``."""
        flat = pixels.reshape(len(pixels), -1).astype(np.float64)
        mean = flat.mean(axis=1)
        flat -= mean[:, None]
        squares = np.einsum("cn,cn->c", flat, flat)
        low, high = pixels.min(axis=(1, 2)), pixels.max(axis=(1, 2))
        return cls(flat.shape[1], mean, squares, low.astype(np.float64), high.astype(np.float64))

    def merge(self, other: ChannelStats) -> ChannelStats:
        """Return the statistics of both together."""
        count = self.count + other.count
        delta = other.mean - self.mean
        return ChannelStats(
            count,
            self.mean + delta * (other.count / count),
            self.squares + other.squares + delta**2 * (self.count * other.count / count),
            np.minimum(self.low, other.low),
            np.maximum(self.high, other.high),
        )

    @property
    def std(self) -> Values:
        """Standard deviation over all pixels (population)."""
        return np.asarray(np.sqrt(self.squares / self.count), dtype=np.float64)
