"""Samplers share work without a gap; the stream replaces broken samples by position."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datamodules.augment import Augment
from datamodules.guard import BadImageError
from datamodules.loading import EvalSampler, EvalViews, Seat, StreamSampler, TrainStream
from datamodules.manifest import Manifest
from datamodules.plan import Plan
from datamodules.records import Record, SplitRecords
from mae.errors import DataError


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


class Broken(SplitRecords):
    """Records of which some numbers cannot be decoded."""

    broken: frozenset[int] = frozenset()

    def view(self, shard: int, index: int, augment: Augment, **at: int) -> Record:
        if sum(self.shard_sizes[:shard]) + index in self.broken:
            raise BadImageError(f"shard {shard} sample {index}", reason="damaged")
        return super().view(shard, index, augment, **at)


def stream_with(directory: Path, broken: set[int]) -> TrainStream:
    records = Broken(Manifest.load(directory), "train")
    records.broken = frozenset(broken)
    plan = Plan(records.shard_sizes, seed=0, window=2)
    return TrainStream(records, plan, Augment((8, 8), crop="center", flips="none"))


def test_train_stream_broken_sample_is_replaced_by_position_and_noted(
    shards: Callable[..., Path],
) -> None:
    directory = shards(20)
    whole = stream_with(directory, set())[range(20)]
    hurt = stream_with(directory, {3, 11})[range(20)]
    changed = [i for i in range(20) if hurt["key"][i] != whole["key"][i]]
    assert len(changed) == 2
    assert [image.reason for image in hurt["bad"]] == ["damaged", "damaged"]
    assert {image.key for image in hurt["bad"]} == {whole["key"][i] for i in changed}
    assert whole["bad"] == []
    # In whatever batch the position comes, the substitute is the same.
    for position in changed:
        alone = stream_with(directory, {3, 11})[range(position, position + 1)]
        assert alone["key"][0] == hurt["key"][position]
        np.testing.assert_array_equal(alone["image"][0], hurt["image"][position])


def test_train_stream_all_broken_is_an_error(shards: Callable[..., Path]) -> None:
    with pytest.raises(DataError, match="7 substitutes"):
        stream_with(shards(5), set(range(5)))[range(2)]


def test_eval_views_items_and_batches_agree(shards: Callable[..., Path]) -> None:
    views = EvalViews(SplitRecords(Manifest.load(shards(9)), "train"), (8, 8))
    items: list[dict[str, Any]] = list(views)
    batch = views.batch(range(9))
    assert len(items) == len(views) == 9
    np.testing.assert_array_equal(batch["image"], np.stack([item["image"] for item in items]))
    assert batch["key"] == [item["key"] for item in items]
    assert batch["sample"].tolist() == [item["sample"] for item in items] == list(range(9))
    assert batch["group"] == [None] * 9  # these images name no groups
    assert len(set(batch["key"])) == 9


def test_eval_views_broken_sample_is_named_alone_and_padding_in_a_batch(
    shards: Callable[..., Path], reseal: Callable[[Path], None]
) -> None:
    directory = shards(3)
    path = directory / "train-000000.tar"
    data = path.read_bytes()
    place = data.index(b"IDAT") + 8
    path.write_bytes(data[:place] + bytes(16) + data[place + 16 :])
    reseal(directory)
    views = EvalViews(SplitRecords(Manifest.load(directory), "train"), (8, 8))
    with pytest.raises(BadImageError, match=r"train-000000\.tar: img\d+-[0-9a-f]{16}"):
        list(views)
    batch = views.batch(range(3))
    assert batch["is_padding"].tolist() == [True, False, False]
    assert not batch["image"][0].any()
    assert [(image.reason, image.key) for image in batch["bad"]] == [("damaged", batch["key"][0])]
