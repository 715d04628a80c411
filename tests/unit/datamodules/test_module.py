"""What all data modules share: bad images are judged by phase, over all ranks."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from datamodules.ledger import BadImage
from datamodules.unlabeled import UnlabeledShards
from mae.errors import DataError


def bad(count: int, *, shard: str = "s.tar") -> list[BadImage]:
    return [BadImage("damaged", shard, str(i), f"{shard}: {i} is damaged") for i in range(count)]


def as_rank(
    data: UnlabeledShards, root: Path, *, rank: int = 0, world_size: int = 1, training: bool = True
) -> UnlabeledShards:
    data.trainer = SimpleNamespace(  # type: ignore[assignment]
        global_rank=rank,
        world_size=world_size,
        node_rank=0,
        num_nodes=1,
        accumulate_grad_batches=1,
        training=training,
        default_root_dir=str(root),
    )
    return data


def hand_over(data: UnlabeledShards, found: list[BadImage]) -> None:
    pixels = torch.zeros(1, 3, 8, 8, dtype=torch.uint8)
    data.on_after_batch_transfer({"image": pixels, "bad": found}, 0)


@pytest.fixture
def data(shards: Callable[..., Path]) -> UnlabeledShards:
    return UnlabeledShards(data_dir=str(shards(10)), img_size=8, batch_size=4, steps=10)


def test_bad_in_evaluation_is_judged_by_the_size_of_the_splits(
    data: UnlabeledShards, tmp_path: Path
) -> None:
    as_rank(data, tmp_path, training=False)
    data.num_evaluated = 10_000
    hand_over(data, bad(10))  # 0.1 %
    data.num_evaluated = 100
    with pytest.raises(DataError, match=r"10 of 100 images .* allowed: 8"):
        hand_over(data, bad(1))


def test_bad_in_evaluation_is_counted_once_and_not_carried_along(
    data: UnlabeledShards, tmp_path: Path
) -> None:
    as_rank(data, tmp_path, training=False)
    for _ in range(5):
        hand_over(data, bad(3))
    assert data.bad.total() == 3
    assert data.state_dict()["bad"] == []


def test_bad_in_training_is_carried_along(data: UnlabeledShards, tmp_path: Path) -> None:
    as_rank(data, tmp_path)
    for _ in range(2):
        hand_over(data, bad(2))
    state = data.state_dict()
    assert [row[:3] for row in state["bad"]] == [["damaged", "s.tar", 4]]
    data.load_state_dict(state)
    assert data.bad.total() == 4


def test_bad_of_other_ranks_is_listed_and_judged_at_a_checkpoint(
    data: UnlabeledShards, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other: list[Any] = [bad(2, shard="other.tar")]

    def gather(states: list[Any], own: Any) -> None:
        elsewhere = [["damaged", "other.tar", len(other[0]), "0", "other.tar: 0 is damaged"]]
        states[:] = [own, (elsewhere, [])]

    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "all_gather_object", gather)
    as_rank(data, tmp_path, world_size=2)
    hand_over(data, bad(1))
    state = data.state_dict()
    assert sum(row[2] for row in state["bad"]) == data.bad.total() == 3
    with (tmp_path / "bad_images.csv").open(newline="") as file:
        assert {row["shard"]: row["count"] for row in csv.DictReader(file)} == {
            "s.tar": "1",
            "other.tar": "2",
        }
    other[0] = bad(8)
    hand_over(data, bad(1))  # alone nobody stops: the other ranks would wait
    with pytest.raises(DataError, match="10 of 16 images"):
        data.state_dict()


def test_num_batches_of_a_share_of_a_pass_is_not_one_too_many(
    shards: Callable[..., Path],
) -> None:
    data = UnlabeledShards(data_dir=str(shards(100)), img_size=8, batch_size=1, epochs=0.07)
    assert data.num_batches == 7
