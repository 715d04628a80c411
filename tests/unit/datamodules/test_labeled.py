"""Labelled shards, folders and CSVs: labels, groups, splits."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from datamodules.labeled import LabeledShards
from datamodules.pack import pack
from mae.errors import ConfigError, DataError


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def module(source: Path, **options: Any) -> LabeledShards:
    return LabeledShards(data_dir=str(source), **{"img_size": 8, "batch_size": 4, **options})


def test_init_folder_csv_and_shards_give_the_same_samples(
    class_folder: Callable[..., Path], tmp_path: Path
) -> None:
    source = class_folder({"cat": 12, "dog": 14})
    rows = [f"{p.relative_to(source).as_posix()},{p.parent.name}" for p in source.rglob("*.png")]
    (source / "list.csv").write_text("\n".join(["path,label", *rows]) + "\n")
    pack(source, tmp_path / "out", labels="folders")
    found = []
    for place in (source, source / "list.csv", tmp_path / "out"):
        data = module(place)
        assert data.classes == ("cat", "dog")
        views = [item for split in ("train", "val", "test") for item in data.dataset(split)]
        found.append([(i["key"], i["label"], i["image"].tobytes()) for i in views])
    assert len(found[0]) == 26
    assert found[0] == found[1] == found[2]


def test_dataloaders_have_labels_and_groups(
    csv_source: Callable[..., Path], tmp_path: Path
) -> None:
    rows = [
        [f"{i}.png", "ab"[i % 2], f"g{i // 2}", "train" if i < 8 else "test"] for i in range(14)
    ]
    source = csv_source(["path", "label", "group", "split"], rows)
    data = module(source, epochs=1)
    label_of = {f"{i}": i % 2 for i in range(14)}
    train = list(data.train_dataloader())
    keys = [key.split("-")[0] for batch in train for key in batch["key"]]
    labels = torch.cat([batch["label"] for batch in train])
    assert labels.dtype == torch.int64
    assert sorted(keys, key=int) == [str(i) for i in range(8)]
    assert labels.tolist() == [label_of[key] for key in keys]
    tested = list(data.test_dataloader())
    assert sum(len(batch["key"]) for batch in tested) == 6
    for batch in tested:
        for key, label, group in zip(batch["key"], batch["label"], batch["group"], strict=True):
            number = int(key.split("-")[0])
            assert label == label_of[str(number)]
            assert group == f"g{number // 2}"
    assert data.val_dataloader() == []


def test_init_says_where_images_are_packed_once(
    class_folder: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    source = class_folder({"cat": 4, "dog": 4})
    with caplog.at_level("INFO", logger="lightning.pytorch"):
        first = module(source)
        again = module(source)
    said = [r.message for r in caplog.records if r.message.startswith("packed")]
    assert said == [f"packed {source} into {first.manifest.root}"]
    assert again.manifest.root == first.manifest.root


def test_notes_missing_and_single_classes(csv_source: Callable[..., Path]) -> None:
    rows = [["a.png", "x", "train"], ["b.png", "x", "train"], ["c.png", "x", "test"]]
    notes = module(csv_source(["path", "label", "split"], rows)).notes
    assert any("all images have the label 'x'" in note for note in notes)
    assert any("split val is empty" in note for note in notes)


def test_class_counts_add_up(class_folder: Callable[..., Path]) -> None:
    counts = module(class_folder({"cat": 12, "dog": 14})).class_counts
    assert sum(of["cat"] for of in counts.values()) == 12
    assert sum(of["dog"] for of in counts.values()) == 14


def test_init_unlabelled_shards_are_refused(shards: Callable[..., Path]) -> None:
    with pytest.raises(DataError, match="has no labels"):
        module(shards(3))


def test_init_csv_without_labels_is_refused(csv_source: Callable[..., Path]) -> None:
    with pytest.raises(DataError, match="has no labels"):
        module(csv_source(["path"], [["a.png"], ["b.png"], ["c.png"]]))


def test_init_several_budgets_are_refused(class_folder: Callable[..., Path]) -> None:
    with pytest.raises(ConfigError, match="given 2 times"):
        module(class_folder({"cat": 4, "dog": 4}), epochs=1, steps=2)


def test_dataset_label_of_sidecar_is_the_class(class_folder: Callable[..., Path]) -> None:
    data = module(class_folder({"cat": 5, "dog": 5}))
    records = data.dataset("train").records
    for shard, size in enumerate(records.shard_sizes):
        for index in range(size):
            record = records.load(shard, index)
            assert record.label is not None
            assert data.classes[record.label] == json.loads(record.sidecar)["label"]


def test_dataloaders_several_labels_are_rows_of_zeros_and_ones(
    csv_source: Callable[..., Path], tmp_path: Path
) -> None:
    rows = [
        [f"{i}.png", label, split]
        for i, (label, split) in enumerate(
            [("b|a", "train"), ("", "train"), ("c", "train"), ("c|b", "test")]
        )
    ]
    pack(csv_source(["path", "label", "split"], rows), tmp_path / "out", labels="multi")
    data = LabeledShards(
        data_dir=str(tmp_path / "out"), img_size=8, batch_size=3, crop="center", flips="none"
    )
    assert data.multilabel
    assert data.classes == ("a", "b", "c")
    (batch,) = data.train_dataloader()
    assert sorted(batch["label"].tolist()) == [[0, 0, 0], [0, 0, 1], [1, 1, 0]]
    assert batch["label"].dtype == torch.float32
    (batch,) = data.test_dataloader()
    assert batch["label"].tolist() == [[0, 1, 1]]
    assert data.dataset("test")[0]["label"].tolist() == [0, 1, 1]


def test_load_state_dict_other_classes_are_refused_also_with_data_reset(
    class_folder: Callable[..., Path], tmp_path: Path
) -> None:
    shares = {"val_fraction": 0.0, "test_fraction": 0.0}
    pack(class_folder({"a": 3, "b": 3}), tmp_path / "one", labels="folders", **shares)
    pack(class_folder({"a": 3, "c": 3}, name="d"), tmp_path / "two", labels="folders", **shares)
    state = LabeledShards(data_dir=str(tmp_path / "one"), img_size=8).state_dict()
    other = LabeledShards(data_dir=str(tmp_path / "two"), img_size=8)
    other.data_reset = True
    with pytest.raises(DataError, match=r"classes \['a', 'b'\].*\['a', 'c'\]"):
        other.load_state_dict(state)
