"""Samplers share work without a gap."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from datamodules.plan import Plan
from datamodules.samplers import EvalSampler, Seat, StreamSampler


@given(st.integers(0, 10**10), st.integers(0, 5), st.integers(1, 5), st.integers(1, 4))
def test_stream_sampler_ranks_cover_the_stream_in_order(
    start: int, num_batches: int, batch_size: int, world_size: int
) -> None:
    ranks = [
        StreamSampler(
            start=start,
            num_batches=num_batches,
            num_total=num_batches + 3,
            batch_size=batch_size,
            seat=Seat(rank=rank, world_size=world_size),
        )
        for rank in range(world_size)
    ]
    assert all(len(sampler) == num_batches + 3 for sampler in ranks)
    steps = [[set(part) for part in step] for step in zip(*ranks, strict=True)]
    assert all(len(part) == batch_size for step in steps for part in step)
    covered = [p for step in steps for p in sorted(set().union(*step))]
    assert covered == list(range(start, start + num_batches * batch_size * world_size))


@given(st.integers(0, 10**10), st.integers(1, 4), st.integers(1, 4), st.integers(1, 3))
def test_stream_sampler_nodes_read_their_own_lanes(
    start: int, num_nodes: int, per_node: int, lanes_per_node: int
) -> None:
    plan = Plan([7, 5, 9, 3], seed=0, lanes=num_nodes * lanes_per_node, window=2)
    for rank in range(num_nodes * per_node):
        seat = Seat(
            rank=rank,
            world_size=num_nodes * per_node,
            node=rank // per_node,
            num_nodes=num_nodes,
        )
        sampler = StreamSampler(start=start, num_batches=3, num_total=3, batch_size=5, seat=seat)
        lanes = {position % plan.lanes for part in sampler for position in part}
        assert lanes <= set(seat.lanes(plan) or range(plan.lanes))


def test_seat_lanes_that_nodes_do_not_divide_belong_to_all() -> None:
    plan = Plan([5, 5], seed=0, lanes=3)
    assert Seat(rank=1, world_size=2, node=1, num_nodes=2).lanes(plan) is None
    assert Seat().lanes(plan) is None
    seats = [Seat(rank=r, world_size=4, node=r // 2, num_nodes=2) for r in range(4)]
    assert sorted(seat.turn for seat in seats) == [0, 1, 2, 3]
    assert list(seats[3].lanes(Plan([5, 5], seed=0, lanes=4)) or []) == [1, 3]


@given(st.integers(1, 40), st.integers(1, 9), st.integers(1, 5))
def test_eval_sampler_every_sample_once_in_equal_steps(
    num_samples: int, batch_size: int, world_size: int
) -> None:
    ranks = [
        EvalSampler(num_samples=num_samples, batch_size=batch_size, rank=r, world_size=world_size)
        for r in range(world_size)
    ]
    requests = [list(sampler) for sampler in ranks]
    assert {len(r) for r in requests} == {len(ranks[0])}
    assert len({tuple(len(q.numbers) for q in r) for r in requests}) == 1
    pairs = [p for r in requests for q in r for p in zip(q.numbers, q.is_padding, strict=True)]
    real = [number for number, padding in pairs if not padding]
    assert sorted(real) == list(range(num_samples))
    assert all(0 <= number < num_samples for number, _ in pairs)
    assert len(pairs) - len(real) < world_size
