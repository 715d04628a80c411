"""Laws of the order: of any part of the stream, over ranks, nodes and lanes, and of what is ahead.

The oracles know positions and places only; windows and lanes are found again from the outside.
"""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Iterator
from itertools import chain, islice, pairwise
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from datamodules.plan import Places, Plan
from datamodules.samplers import Seat, StreamSampler
from tests.soak.settings import examples

NEVER = np.iinfo(np.int64).max
SEEDS = st.integers(-(2**40), 2**70)
# Ragged, one sample, one shard, fewer samples than lanes: all of it.
PLANS = st.builds(
    Plan,
    st.lists(st.integers(1, 9), min_size=1, max_size=12),
    seed=SEEDS,
    lanes=st.integers(1, 6),
    window=st.integers(1, 5),
)


def as_rows(places: Places) -> list[tuple[int, ...]]:
    return list(zip(*(column.tolist() for column in places), strict=True))


@examples(200)
@given(PLANS, st.integers(0, 10**6))
def test_at_any_epoch_is_a_permutation(plan: Plan, epoch: int) -> None:
    found = as_rows(plan.at(epoch * plan.num_samples, plan.num_samples))
    every = [(epoch, shard, i) for shard, size in enumerate(plan.sizes) for i in range(size)]
    assert sorted(found) == every


@examples(200)
@given(PLANS, st.integers(0, 300), st.integers(0, 20), st.integers(0, 20), st.integers(1, 9))
def test_at_with_a_step_concatenates_and_is_every_nth_place(
    plan: Plan, start: int, first: int, second: int, step: int
) -> None:
    whole = as_rows(plan.at(start, first + second, step))
    parts = plan.at(start, first, step), plan.at(start + first * step, second, step)
    assert as_rows(parts[0]) + as_rows(parts[1]) == whole
    dense = as_rows(plan.at(start, (first + second) * step))
    assert whole == dense[::step]


@examples(100)
@given(
    # 60 samples at least: that two orders are equal by chance is out of the question.
    st.lists(st.integers(1, 30), min_size=1, max_size=60).filter(lambda sizes: sum(sizes) >= 60),
    SEEDS,
    st.integers(1, 3),
    st.integers(1, 5),
)
def test_at_epochs_and_seeds_differ_for_any_sizes(
    sizes: list[int], seed: int, lanes: int, window: int
) -> None:
    plan = Plan(sizes, seed=seed, lanes=lanes, window=window)
    other = Plan(sizes, seed=seed + 1, lanes=lanes, window=window)
    n = plan.num_samples
    parts = [plan.at(epoch * n, n) for epoch in range(4)] + [other.at(0, n)]
    assert len({tuple(row[1:] for row in as_rows(part)) for part in parts}) == 5


@examples(50)
@given(st.lists(st.integers(1, 3), min_size=25, max_size=60), SEEDS, st.integers(1, 3))
def test_at_shards_come_in_another_order_each_epoch(
    sizes: list[int], seed: int, lanes: int
) -> None:
    plan = Plan(sizes, seed=seed, lanes=lanes, window=1)
    n = plan.num_samples
    orders = {tuple(dict.fromkeys(plan.at(epoch * n, n).shard.tolist())) for epoch in range(5)}
    assert len(orders) == 5


class Cluster(NamedTuple):
    """Nodes with equally many processes."""

    num_nodes: int
    per_node: int

    @property
    def seats(self) -> list[Seat]:
        """All processes, numbered node by node as torchrun does."""
        world = self.num_nodes * self.per_node
        return [
            Seat(rank=rank, world_size=world, node=rank // self.per_node, num_nodes=self.num_nodes)
            for rank in range(world)
        ]

    def positions(self, *, start: int, batch_size: int, steps: int) -> list[list[range]]:
        """Return for each process its range at each step."""
        return [
            list(
                StreamSampler(
                    start=start,
                    num_batches=steps,
                    num_total=steps,
                    batch_size=batch_size,
                    seat=seat,
                )
            )
            for seat in self.seats
        ]


CLUSTERS = st.builds(Cluster, st.integers(1, 4), st.integers(1, 4))


@examples(200)
@given(CLUSTERS, st.integers(0, 10**12), st.integers(1, 5), st.integers(0, 4))
def test_positions_of_ranks_are_disjoint_equal_in_number_and_all(
    cluster: Cluster, start: int, batch_size: int, steps: int
) -> None:
    ranks = cluster.positions(start=start, batch_size=batch_size, steps=steps)
    assert {len(rank) for rank in ranks} == {steps}
    length = batch_size * len(ranks)
    for step in range(steps):
        parts = [list(rank[step]) for rank in ranks]
        assert {len(part) for part in parts} == {batch_size}
        begin = start + step * length
        assert sorted(chain.from_iterable(parts)) == list(range(begin, begin + length))


@examples(50)
@given(PLANS, st.integers(0, 500), st.integers(1, 3))
def test_union_over_ranks_does_not_depend_on_their_number(
    plan: Plan, start: int, steps: int
) -> None:
    seen = []
    for cluster in (Cluster(1, 1), Cluster(1, 2), Cluster(1, 3), Cluster(1, 8), Cluster(4, 2)):
        batch_size = 24 // len(cluster.seats)
        ranks = cluster.positions(start=start, batch_size=batch_size, steps=steps)
        by_step = []
        for step in range(steps):
            parts = [plan.at(p.start, len(p), p.step) for p in (rank[step] for rank in ranks)]
            by_step.append(sorted(row for part in parts for row in as_rows(part)))
        seen.append(by_step)
    assert all(by_step == seen[0] for by_step in seen)


@examples(200)
@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=12),
    SEEDS,
    st.integers(1, 4),
    CLUSTERS,
    st.integers(1, 3),
    st.integers(0, 300),
    st.integers(1, 3),
)
def test_node_reads_its_own_lanes_only_wherever_the_run_starts(
    sizes: list[int],
    seed: int,
    window: int,
    cluster: Cluster,
    lanes_per_node: int,
    start: int,
    batch_size: int,
) -> None:
    lanes = cluster.num_nodes * lanes_per_node
    plan = Plan(sizes, seed=seed, lanes=lanes, window=window)
    of_lane = {
        row: position % lanes
        for epoch in range(start // plan.num_samples, (start + 96) // plan.num_samples + 1)
        for position, row in enumerate(
            as_rows(plan.at(epoch * plan.num_samples, plan.num_samples)),
            start=epoch * plan.num_samples,
        )
    }
    ranks = cluster.positions(start=start, batch_size=batch_size, steps=2)
    for seat, requests in zip(cluster.seats, ranks, strict=True):
        mine = seat.lanes(plan)
        allowed = range(lanes) if mine is None else mine
        assert (mine is None) == (cluster.num_nodes == 1)
        assert len(allowed) * cluster.num_nodes == lanes or mine is None
        for request in requests:
            for row in as_rows(plan.at(request.start, len(request), request.step)):
                assert of_lane[row] in allowed


@examples(200)
@given(PLANS, st.integers(0, 5))
def test_lanes_are_contiguous_pieces_of_one_row_of_shards(plan: Plan, epoch: int) -> None:
    base = epoch * plan.num_samples
    pieces: dict[int, dict[int, list[int]]] = {}  # shard → lane → places
    for position, (_, shard, index) in enumerate(as_rows(plan.at(base, plan.num_samples)), base):
        pieces.setdefault(shard, {}).setdefault(position % plan.lanes, []).append(index)
    shards_of = [{s for s, of in pieces.items() if lane in of} for lane in range(plan.lanes)]
    for shard, by_lane in pieces.items():
        holders = sorted(by_lane)
        filled = [lane for lane in range(holders[0], holders[-1] + 1) if shards_of[lane]]
        assert holders == filled, "a shard lies in neighbouring lanes"
        assert all(shards_of[lane] == {shard} for lane in holders[1:-1])
        joined = [sorted(by_lane[lane]) for lane in holders]
        assert list(chain.from_iterable(joined)) == list(range(plan.sizes[shard])), (
            "cut in order, without a gap"
        )
    for one, next_one in pairwise(shards_of):
        assert len(one & next_one) <= 1
    shares = [sum(len(of.get(lane, [])) for of in pieces.values()) for lane in range(plan.lanes)]
    assert max(shares) - min(shares) <= 1


class Window(NamedTuple):
    """Positions and shards of one window, found from the outside."""

    first: int
    last: int
    shards: frozenset[int]


def windows_by_brute_force(plan: Plan, epoch: int) -> Iterator[tuple[int, Window]]:
    """Yield (lane, window): the first `window` shards that a lane shows are those of its first."""
    base = epoch * plan.num_samples
    rows = as_rows(plan.at(base, plan.num_samples))
    for lane in range(plan.lanes):
        left = [(p, row[1]) for p, row in enumerate(rows, base) if p % plan.lanes == lane]
        while left:
            shown = list(dict.fromkeys(shard for _, shard in left))[: plan.window]
            inside = [position for position, shard in left if shard in shown]
            assert [p for p, _ in left[: len(inside)]] == inside, "windows do not overlap"
            yield lane, Window(inside[0], inside[-1], frozenset(shown))
            left = left[len(inside) :]


LANES = st.none() | st.sets(st.integers(0, 5), min_size=1)


@examples(200)
@given(PLANS, st.integers(0, 120), LANES)
def test_next_uses_are_those_of_the_windows(plan: Plan, position: int, lanes: set[int]) -> None:
    mine = set(range(plan.lanes)) if lanes is None else lanes & set(range(plan.lanes))
    assume(mine)
    epoch = position // plan.num_samples
    expected = [NEVER] * len(plan.sizes)
    for lane, window in (w for e in (0, 1) for w in windows_by_brute_force(plan, epoch + e)):
        if lane in mine and window.last >= position:
            for shard in window.shards:
                expected[shard] = min(expected[shard], max(window.first, position))
    found = plan.next_uses(position, None if lanes is None else sorted(mine)).tolist()
    assert found == expected
    # No sample is read before its shard is said to be needed.
    here = np.arange(position, (epoch + 2) * plan.num_samples)
    read = plan.at(position, len(here)).shard
    for p, shard in zip(here.tolist(), read.tolist(), strict=True):
        assert p % plan.lanes not in mine or found[shard] <= p


@examples(200)
@given(PLANS, st.integers(0, 120), LANES)
def test_upcoming_are_the_windows_in_the_order_of_their_first_need(
    plan: Plan, position: int, lanes: set[int]
) -> None:
    mine = set(range(plan.lanes)) if lanes is None else lanes & set(range(plan.lanes))
    assume(mine)
    epoch = position // plan.num_samples
    ahead = [
        window
        for e in range(3)
        for window in sorted(
            window for lane, window in windows_by_brute_force(plan, epoch + e) if lane in mine
        )
        if window.last >= position
    ]
    found = plan.upcoming(position, None if lanes is None else sorted(mine))
    for window in ahead:
        assert frozenset(islice(found, len(window.shards))) == window.shards


@pytest.mark.parametrize(
    ("num_shards", "per_shard", "lanes"), [(10_000, 10_000, 1), (100_000, 1_000, 8)]
)
def test_at_position_1e9_is_found_at_once_in_memory_of_the_shards(
    num_shards: int, per_shard: int, lanes: int
) -> None:
    sizes = [per_shard] * num_shards
    assert sum(sizes) == 10**8
    tracemalloc.start()
    began = time.process_time()
    plan = Plan(sizes, seed=5, lanes=lanes)
    places = plan.at(10**9, 256)
    seconds = time.process_time() - began
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert places.epoch.tolist() == [10] * 256
    assert len(set(as_rows(places))) == 256
    windows = lanes * plan.window * per_shard
    assert peak_bytes < 100 * num_shards + 40 * windows + 2**20  # of all samples: 800 MB
    assert seconds < 1
