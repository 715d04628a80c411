"""In which order samples are read: a pure function from position to sample.

Epoch after epoch, shards are shuffled and laid end to end, and the row is cut into lanes of equally
many samples.  Lanes take turns, position by position: position P belongs to lane P mod lanes, so a
node that reads every n-th position touches the shards of its lanes only.  Within a lane the samples
of `window` consecutive shards are shuffled together, so reading stays local.  Nothing is stored but
the position: the order at sample 10^9 is computed, not replayed.

Permutations sort raw words of Philox (counter-based), whose stream NumPy guarantees to stay as it
is; `Generator.permutation` carries no such promise.

Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3" (Philox);
NumPy NEP 19 (stability of bit generators).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mae.errors import ConfigError, DataError

PLAN_VERSION = 2  # raise it whenever the order changes: it is part of every fingerprint

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
class _Epoch:
    """Shards in the order of one epoch, laid end to end."""

    shards: NDArray[np.int64]
    ends: NDArray[np.int64]  # cumulative samples


@dataclass(frozen=True)
class _Lane:
    """One lane of one epoch: pieces of shards in order, grouped in windows."""

    first_position: int  # of the lane in this epoch; the others follow at the distance `lanes`
    shards: NDArray[np.int64]
    firsts: NDArray[np.int64]  # first sample of each piece; 0 but where a shard was cut
    counts: NDArray[np.int64]  # samples of each piece
    window_ends: NDArray[np.int64]  # cumulative samples at the end of each window


class Plan:
    """The infinite, shuffled stream over a set of shards.

    Args:
        shard_sizes: Number of samples of each shard, > 0.
        seed: Another seed gives another order.
        lanes: Sequences of shards that take turns, sample by sample; a multiple of the number of
            nodes lets each node read its own shards only.
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
        self._remember()

    def fingerprint(self) -> dict[str, int]:
        """Return the numbers, beside the data, that the order depends on."""
        return {
            "plan_version": PLAN_VERSION,
            "seed": self.seed,
            "lanes": self.lanes,
            "window": self.window,
        }

    def __getstate__(self) -> dict[str, Any]:
        """Leave what was computed behind: it is computed again where it is needed."""
        return {k: v for k, v in self.__dict__.items() if not k.startswith("_")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Start without anything computed."""
        self.__dict__.update(state)
        self._remember()

    def at(self, start: int, count: int, step: int = 1) -> Places:
        """Return the places of `count` positions from `start` on.

        Args:
            start: First position, >= 0.
            count: Number of positions, >= 0.
            step: Distance between positions, >= 1.
        """
        positions = start + step * np.arange(count, dtype=np.int64)
        epoch = positions // self.num_samples
        lane = positions % self.lanes
        shard, index = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64)
        for e, number in sorted(set(zip(epoch.tolist(), lane.tolist(), strict=True))):
            here = (epoch == e) & (lane == number)
            shard[here], index[here] = self._in_lane(e, number, positions[here])
        return Places(epoch, shard, index)

    def next_uses(self, position: int, lanes: Collection[int] | None = None) -> NDArray[np.int64]:
        """Return for each shard the first position, not before `position`, that may need it.

        Args:
            position: Position in the stream.
            lanes: Only these count; all without a value.

        Returns:
            ``(shards,)``; the largest int64 where none of these lanes needs it in this epoch or
            the next.
        """
        found = np.full(len(self.sizes), np.iinfo(np.int64).max)
        this = position // self.num_samples
        for first, last, shards in self._windows(this, lanes) + self._windows(this + 1, lanes):
            if last >= position:
                found[shards] = np.minimum(found[shards], max(first, position))
        return found

    def upcoming(self, position: int, lanes: Collection[int] | None = None) -> Iterator[int]:
        """Yield shards, without end, in the order in which the stream needs them.

        Args:
            position: Position in the stream; shards that may be read from here on come first.
            lanes: Only these count; all without a value.
        """
        epoch = position // self.num_samples
        while True:
            for _, last, shards in self._windows(epoch, lanes):
                if last >= position:
                    yield from shards.tolist()
            epoch += 1

    def _windows(
        self, epoch: int, lanes: Collection[int] | None
    ) -> list[tuple[int, int, NDArray[np.int64]]]:
        """Return first position, last position and shards of all windows of an epoch, in order."""
        found = []
        for number in range(self.lanes) if lanes is None else lanes:
            lane = self._lane(epoch, number)
            ends = lane.window_ends.tolist()
            for w, (start, end) in enumerate(pairwise([0, *ends])):
                shards = lane.shards[w * self.window : (w + 1) * self.window]
                first = lane.first_position + start * self.lanes
                found.append((first, lane.first_position + (end - 1) * self.lanes, shards))
        return sorted(found, key=lambda window: window[0])

    def _in_lane(
        self, epoch: int, number: int, positions: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return shard and index of positions in one lane of one epoch."""
        lane = self._lane(epoch, number)
        within = (positions - lane.first_position) // self.lanes
        window = np.searchsorted(lane.window_ends, within, side="right")
        shard, index = np.empty_like(within), np.empty_like(within)
        for w in np.unique(window).tolist():
            here = window == w
            before = int(lane.window_ends[w - 1]) if w else 0
            starts, order = self._order(epoch, number, w)
            flat = order[within[here] - before]
            piece = np.searchsorted(starts, flat, side="right") - 1
            of_lane = w * self.window + piece
            shard[here] = lane.shards[of_lane]
            index[here] = lane.firsts[of_lane] + flat - starts[piece]
        return shard, index

    def _remember(self) -> None:
        """Keep the last epochs, lanes and windows, each in its own small cache."""
        self._epoch = lru_cache(maxsize=2)(self._compute_epoch)
        self._lane = lru_cache(maxsize=2 * self.lanes)(self._compute_lane)
        self._order = lru_cache(maxsize=2 * self.lanes)(self._compute_order)

    def _compute_epoch(self, epoch: int) -> _Epoch:
        words = keyed_words(self.seed, epoch, _SHARD_ORDER, 0, 0, len(self.sizes))
        shards = np.argsort(words, kind="stable").astype(np.int64)
        return _Epoch(shards, np.cumsum(self.sizes[shards]))

    def _compute_lane(self, epoch: int, number: int) -> _Lane:
        # The lanes' shares of this epoch: positions P with P mod lanes = lane.
        base = epoch * self.num_samples
        offsets = (np.arange(self.lanes, dtype=np.int64) - base) % self.lanes
        shares = np.maximum(self.num_samples - offsets + self.lanes - 1, 0) // self.lanes
        begin = int(shares[:number].sum())
        end = begin + int(shares[number])
        row = self._epoch(epoch)
        first = int(np.searchsorted(row.ends, begin, side="right"))
        last = int(np.searchsorted(row.ends, end, side="left")) + 1 if end > begin else first
        shards, ends = row.shards[first:last], row.ends[first:last]
        starts = ends - self.sizes[shards]
        firsts = np.maximum(begin - starts, 0)
        counts = np.minimum(ends, end) - starts - firsts
        closing = np.arange(self.window, len(shards) + self.window, self.window) - 1
        totals = np.cumsum(counts)
        return _Lane(
            first_position=base + int(offsets[number]),
            shards=shards,
            firsts=firsts,
            counts=counts,
            window_ends=totals[np.minimum(closing, len(shards) - 1)] if len(shards) else totals,
        )

    def _compute_order(
        self, epoch: int, number: int, window: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return where each piece of a window begins, and the order of its samples."""
        counts = self._lane(epoch, number).counts[window * self.window : (window + 1) * self.window]
        starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
        words = keyed_words(self.seed, epoch, _SAMPLE_ORDER, number, window, int(counts.sum()))
        return starts, np.argsort(words, kind="stable")
