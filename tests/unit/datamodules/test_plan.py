"""The order: permutations, laws of concatenation, laziness."""

from __future__ import annotations

import pickle
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datamodules.plan import Places, Plan, keyed_words
from mae.errors import ConfigError, DataError

SIZES = st.lists(st.integers(1, 9), min_size=1, max_size=12)
PLANS = st.builds(
    Plan,
    SIZES,
    seed=st.integers(-(2**40), 2**70),
    lanes=st.integers(1, 5),
    window=st.integers(1, 6),
)


def as_rows(places: Places) -> list[tuple[int, int, int]]:
    return list(zip(*(column.tolist() for column in places), strict=True))


@given(PLANS, st.integers(0, 3))
def test_at_one_epoch_holds_each_id_once(plan: Plan, epoch: int) -> None:
    places = plan.at(epoch * plan.num_samples, plan.num_samples)
    every = [(shard, i) for shard, size in enumerate(plan.sizes) for i in range(size)]
    found = zip(places.shard.tolist(), places.index_in_shard.tolist(), strict=True)
    assert sorted(found) == every
    assert set(places.epoch.tolist()) == {epoch}


@given(PLANS, st.integers(0, 300), st.integers(0, 40), st.integers(0, 40))
def test_at_split_anywhere_concatenates(plan: Plan, start: int, first: int, second: int) -> None:
    parts = as_rows(plan.at(start, first)) + as_rows(plan.at(start + first, second))
    assert parts == as_rows(plan.at(start, first + second))


@given(SIZES, st.integers(0, 2**32), st.integers(1, 3))
def test_at_equal_plans_agree_whatever_was_asked_before(
    sizes: list[int], seed: int, lanes: int
) -> None:
    plan, other = (Plan(sizes, seed=seed, lanes=lanes, window=2) for _ in range(2))
    other.at(5 * other.num_samples, 3)
    copy = pickle.loads(pickle.dumps(other))  # noqa: S301
    assert as_rows(plan.at(3, 50)) == as_rows(other.at(3, 50)) == as_rows(copy.at(3, 50))


@pytest.mark.parametrize("lanes", [1, 3])
def test_at_epochs_and_seeds_differ(lanes: int) -> None:
    plan = Plan([10, 13, 7, 20], seed=1, lanes=lanes, window=2)
    n = plan.num_samples
    orders = [as_rows(plan.at(epoch * n, n)) for epoch in range(3)]
    orders.append(as_rows(Plan([10, 13, 7, 20], seed=2, lanes=lanes, window=2).at(0, n)))
    assert len({tuple(row[1:] for row in order) for order in orders}) == 4


def test_at_window_keeps_reading_local() -> None:
    plan = Plan([10] * 12, seed=0, window=3)
    shards = plan.at(0, 120).shard.reshape(4, 30)
    for window in shards:
        assert len(set(window.tolist())) == 3
        assert len(set(window[:10].tolist())) > 1, "the samples of a window must be mixed"


def test_at_lanes_read_disjoint_shards_in_turn() -> None:
    plan = Plan([4] * 6, seed=3, lanes=2, window=2)
    shards = plan.at(0, 24).shard
    assert not set(shards[0::2].tolist()) & set(shards[1::2].tolist())


def test_at_first_place_is_uniform() -> None:
    # Chi-square with 19 degrees of freedom stays below 43.8 in 999 of 1000 cases.
    counts = np.zeros(20)
    for seed in range(2000):
        _, shard, index = (column[0] for column in Plan([5] * 4, seed=seed).at(0, 1))
        counts[shard * 5 + index] += 1
    assert ((counts - 100) ** 2 / 100).sum() < 43.8


def test_at_order_is_the_one_of_plan_version_2() -> None:
    # Written down once: whoever changes the order must raise PLAN_VERSION and this list.
    rows = as_rows(Plan([2, 3], seed=7, window=1).at(4, 4))
    assert rows == [(0, 0, 1), (1, 0, 1), (1, 0, 0), (1, 1, 1)]


def test_at_position_1e9_of_1e8_samples_takes_memory_of_shards_and_one_window() -> None:
    tracemalloc.start()
    places = Plan([10_000] * 10_000, seed=0).at(10**9, 64)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert places.epoch.tolist() == [10] * 64
    assert peak_bytes < 20e6  # a permutation of all samples would take 800e6


def test_keyed_words_every_number_of_the_key_counts() -> None:
    base = (1, 2, 3, 4, 5)
    first = keyed_words(*base, 8).tolist()
    assert first == keyed_words(*base, 16)[:8].tolist()
    for place in range(5):
        changed = list(base)
        changed[place] += 1
        assert not set(first) & set(keyed_words(*changed, 8).tolist())


@pytest.mark.parametrize("sizes", [[], [3, 0], [-1]])
def test_plan_without_samples_is_refused(sizes: list[int]) -> None:
    with pytest.raises(DataError, match="at least one sample"):
        Plan(sizes, seed=0)


@pytest.mark.parametrize("name", ["lanes", "window"])
def test_plan_impossible_setting_is_named(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} is 0"):
        Plan([3], seed=0, **{name: 0})
