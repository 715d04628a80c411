"""In which order samples are read: a pure function from position to sample.

Epoch after epoch, shards are shuffled and dealt to lanes; within a lane the samples of `window`
consecutive shards are shuffled together, so that reading stays local.  Lanes take turns.  Nothing
is stored but the position: the order at sample 10^9 is computed, not replayed.

Permutations sort raw words of Philox (counter-based), whose stream NumPy guarantees to stay as it
is; `Generator.permutation` carries no such promise.

Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3" (Philox);
NumPy NEP 19 (stability of bit generators).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mae.errors import ConfigError, DataError

PLAN_VERSION = 1  # raise it whenever the order changes: it is part of every fingerprint

# Words that keep the uses of one key apart.
_SHARD_ORDER, _SAMPLE_ORDER = 1, 2
_MASK64 = 2**64 - 1


class Places(NamedTuple):
    """Where consecutive positions of the stream lie; three int64 arrays of equal length.

    Attributes:
        epoch: Pass over the data.
        shard: Place of the shard in the list that the Plan was made from.
        index_in_shard: Place of the sample in its shard.
    """

    epoch: NDArray[np.int64]
    shard: NDArray[np.int64]
    index_in_shard: NDArray[np.int64]


def keyed_words(seed: int, stream: int, purpose: int, a: int, b: int, count: int) -> NDArray[Any]:
    """Return `count` random 64-bit words that depend on the five numbers alone.

    Args:
        seed: The run's seed.
        stream: Epoch or position.
        purpose: What the words are for.
        a: Further coordinate, e.g. lane.
        b: Further coordinate, e.g. window.
        count: Number of words.
    """
    key = np.array([seed & _MASK64, stream & _MASK64], dtype=np.uint64)
    counter = np.array([0, a, b, purpose], dtype=np.uint64)
    words: NDArray[Any] = np.random.Philox(key=key, counter=counter).random_raw(count)
    return words


@dataclass(frozen=True)
class _Lane:
    """One lane of one epoch: its shards in order, grouped in windows."""

    shards: NDArray[np.int64]
    window_ends: NDArray[np.int64]  # cumulative samples at the end of each window

    @property
    def num_samples(self) -> int:
        return int(self.window_ends[-1]) if len(self.window_ends) else 0


class Plan:
    """The infinite, shuffled stream over a set of shards.

    Args:
        shard_sizes: Number of samples of each shard, > 0.
        seed: Another seed gives another order.
        lanes: Independent sequences of shards that take turns, sample by sample.
        window: Shards whose samples are shuffled together; larger mixes better and reads less
            locally.

    Raises:
        ConfigError: If lanes or window are below 1.
        DataError: If there are no samples, or a shard is empty.
    """

    def __init__(self, shard_sizes: Sequence[int], *, seed: int, lanes: int = 1, window: int = 16):
        self.sizes = np.asarray(shard_sizes, dtype=np.int64)
        if self.sizes.ndim != 1 or not len(self.sizes) or self.sizes.min() <= 0:
            raise DataError(
                f"a Plan needs shards with at least one sample each; got sizes {shard_sizes!r:.80}"
            )
        for name, value in (("lanes", lanes), ("window", window)):
            if value < 1:
                raise ConfigError(f"{name} is {value}; allowed: 1 or more")
        self.seed, self.lanes, self.window = seed, lanes, window
        self.num_samples = int(self.sizes.sum())  # per epoch

    def fingerprint(self) -> dict[str, int]:
        """Return the numbers, beside the data, that the order depends on."""
        return {
            "plan_version": PLAN_VERSION,
            "seed": self.seed,
            "lanes": self.lanes,
            "window": self.window,
        }

    def __getstate__(self) -> dict[str, Any]:
        """Leave cached permutations behind: they are computed again where they are needed."""
        state = self.__dict__.copy()
        state.pop("_epoch_cached", None)
        state.pop("_window_cached", None)
        return state

    def at(self, start: int, count: int) -> Places:
        """Return the places of positions ``start … start + count - 1``.

        Args:
            start: First position, >= 0.
            count: Number of positions, >= 0.
        """
        positions = np.arange(start, start + count, dtype=np.int64)
        epoch, offset = np.divmod(positions, self.num_samples)
        shard = np.empty(count, dtype=np.int64)
        index = np.empty(count, dtype=np.int64)
        for e in np.unique(epoch).tolist():
            of_epoch = epoch == e
            shard[of_epoch], index[of_epoch] = self._in_epoch(e, offset[of_epoch])
        return Places(epoch, shard, index)

    def _in_epoch(
        self, epoch: int, offset: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return shard and index of offsets within one epoch."""
        lanes = self._epoch(epoch)
        lane, within = _take_turns(offset, [lane.num_samples for lane in lanes])
        shard, index = np.empty_like(offset), np.empty_like(offset)
        for number in np.unique(lane).tolist():
            ends = lanes[number].window_ends
            window = np.searchsorted(ends, within, side="right")
            of_lane = lane == number
            for w in np.unique(window[of_lane]).tolist():
                here = of_lane & (window == w)
                first = int(ends[w - 1]) if w else 0
                ids, starts, order = self._window(epoch, number, w)
                flat = order[within[here] - first]
                place = np.searchsorted(starts, flat, side="right") - 1
                shard[here], index[here] = ids[place], flat - starts[place]
        return shard, index

    def _epoch(self, epoch: int) -> list[_Lane]:
        if "_epoch_cached" not in self.__dict__:
            self._epoch_cached = lru_cache(maxsize=2)(self._compute_epoch)
        return self._epoch_cached(epoch)

    def _window(
        self, epoch: int, lane: int, window: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        if "_window_cached" not in self.__dict__:
            self._window_cached = lru_cache(maxsize=2 * self.lanes)(self._compute_window)
        return self._window_cached(epoch, lane, window)

    def _compute_epoch(self, epoch: int) -> list[_Lane]:
        words = keyed_words(self.seed, epoch, _SHARD_ORDER, 0, 0, len(self.sizes))
        order = np.argsort(words, kind="stable").astype(np.int64)
        lanes = []
        for number in range(self.lanes):
            shards = order[number :: self.lanes]
            ends = np.cumsum(self.sizes[shards])
            last = np.arange(self.window, len(shards) + self.window, self.window) - 1
            lanes.append(_Lane(shards, ends[np.minimum(last, len(shards) - 1)]))
        return lanes

    def _compute_window(
        self, epoch: int, lane: int, window: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return the window's shards, where each begins, and the order of its samples."""
        all_shards = self._epoch(epoch)[lane].shards
        shards = all_shards[window * self.window : (window + 1) * self.window]
        starts = np.concatenate([[0], np.cumsum(self.sizes[shards])[:-1]])
        total = int(self.sizes[shards].sum())
        words = keyed_words(self.seed, epoch, _SAMPLE_ORDER, lane, window, total)
        return shards, starts, np.argsort(words, kind="stable")


def _take_turns(
    offset: NDArray[np.int64], counts: Sequence[int]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Split offsets of an epoch over lanes that take turns until each is used up.

    Args:
        offset: Offsets within the epoch, ``(n,)``.
        counts: Samples of each lane.

    Returns:
        Lane of each offset, and its place within the lane.
    """
    if len(counts) == 1:
        return np.zeros_like(offset), offset
    lane, within = np.empty_like(offset), np.empty_like(offset)
    rounds_done, samples_done = 0, 0
    for level in sorted(set(counts)):  # between two levels the same lanes are alive
        alive = np.array([i for i, n in enumerate(counts) if n > rounds_done], dtype=np.int64)
        samples = len(alive) * (level - rounds_done)
        here = (offset >= samples_done) & (offset < samples_done + samples)
        turn, turn_of = np.divmod(offset[here] - samples_done, max(len(alive), 1))
        within[here], lane[here] = rounds_done + turn, alive[turn_of]
        rounds_done, samples_done = level, samples_done + samples
    return lane, within
