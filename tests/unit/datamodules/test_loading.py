"""Samplers share work without a gap; the stream replaces broken samples by position."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datamodules.augment import Augment
from datamodules.guard import BadImageError
from datamodules.loading import EvalViews, TrainStream
from datamodules.manifest import Manifest
from datamodules.plan import Plan
from datamodules.records import Record, SplitRecords
from mae.errors import DataError


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
