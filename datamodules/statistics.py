"""Mean and standard deviation per channel over images that never lie in memory together.

Each image gives a record; records merge pairwise, so shards can be measured apart.  Two passes
within a block of an image and Chan's update between blocks and images: summing squares would lose
digits at 16 bit.  Blocks keep the float64 copy small, whatever the size of the image.

Source: Chan, Golub, LeVeque 1983, "Algorithms for computing the sample variance", section 2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]

_BLOCK_PX = 2**15


@dataclass(frozen=True, eq=False)
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
        flat = pixels.reshape(len(pixels), -1)
        starts = range(0, flat.shape[1], _BLOCK_PX)
        return reduce(cls.merge, (cls._of_block(flat[:, at : at + _BLOCK_PX]) for at in starts))

    @classmethod
    def _of_block(cls, block: NDArray[Any]) -> ChannelStats:
        values = block.astype(np.float64)
        mean = values.mean(axis=1)
        values -= mean[:, None]
        squares = np.einsum("cn,cn->c", values, values)
        low, high = block.min(axis=1), block.max(axis=1)
        return cls(block.shape[1], mean, squares, low.astype(np.float64), high.astype(np.float64))

    def merge(self, other: ChannelStats) -> ChannelStats:
        """Return the statistics of both together.

        Floating point is not associative: whoever merges in a fixed order gets equal bits.
        """
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

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-able dictionary; JSON keeps every bit of a float64."""
        arrays = ("mean", "squares", "low", "high")
        return {"count": self.count} | {name: getattr(self, name).tolist() for name in arrays}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> ChannelStats:
        """Build from `to_dict`'s output."""
        arrays = {name: np.asarray(fields[name], np.float64) for name in fields.keys() - {"count"}}
        return cls(count=int(fields["count"]), **arrays)
