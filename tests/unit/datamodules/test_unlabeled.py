"""The data module in real Lightning runs: length, resume, ranks, workers, validation."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tifffile
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader

from datamodules.manifest import Manifest
from datamodules.pack import pack
from datamodules.unlabeled import UnlabeledShards
from mae.errors import ConfigError, DataError

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*does not have many workers.*",
    "ignore:.*GPU available but not used.*",
    "ignore:.*treespec, LeafSpec.*",  # Lightning 2.6 on torch 2.14
    "ignore:Be aware that when using `ckpt_path`, callbacks",
)


class Recorder(LightningModule):
    """Writes down what it is given; its one weight sums what it saw."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.seen: list[tuple[int, str, int]] = []
        self.validated: list[int] = []

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> torch.Tensor:
        checks = (image.double().sum().item() for image in batch["image"])
        prints = [hash(round(check, 3)) for check in checks]
        self.seen += zip(batch["sample"].tolist(), batch["key"], prints, strict=True)
        return (self.weight - batch["image"].mean()) ** 2

    def validation_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        self.validated += batch["sample"][~batch["is_padding"]].tolist()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def make_trainer(root: Path, **options: Any) -> Trainer:
    settings: dict[str, Any] = {
        "accelerator": "cpu",
        "max_epochs": 1,
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": False,
        "default_root_dir": root,
    }
    return Trainer(**{**settings, **options})


def module(directory: Path, **options: Any) -> UnlabeledShards:
    settings: dict[str, Any] = {"img_size": 8, "batch_size": 4}
    if not {"steps", "samples", "epochs"} & options.keys():
        settings["steps"] = 6
    return UnlabeledShards(data_dir=str(directory), **{**settings, **options})


def fit(data: UnlabeledShards, root: Path, **options: Any) -> Recorder:
    recorder = Recorder()
    checkpoint = options.pop("ckpt_path", None)
    make_trainer(root, **options).fit(
        recorder, datamodule=data, ckpt_path=checkpoint, weights_only=True
    )
    return recorder


def test_fit_sees_the_plan_in_order(shards: Callable[..., Path], tmp_path: Path) -> None:
    data = module(shards(10), flips="none", crop="center")
    recorder = fit(data, tmp_path)
    assert [position for position, _, _ in recorder.seen] == list(range(24))
    places = data.plan.at(0, 24)
    reader = data.dataset("train").records.reader
    keys = [
        reader.read(shard, index)[0]
        for shard, index in zip(places.shard.tolist(), places.index_in_shard.tolist(), strict=True)
    ]
    assert [key for _, key, _ in recorder.seen] == keys
    assert data.state_dict()["samples_consumed"] == 24


@pytest.mark.parametrize(
    ("budget", "accumulate", "batches"),
    [
        ({"steps": 3}, 2, 6),
        ({"samples": 24}, 1, 6),
        ({"samples": 25}, 1, 7),
        ({"samples": 25}, 4, 8),
        ({"epochs": 1.5}, 1, 4),  # 15 of 10 images in batches of 4
        ({"epochs": 2}, 3, 6),
    ],
)
def test_fit_length_is_the_budget(
    shards: Callable[..., Path],
    tmp_path: Path,
    budget: dict[str, Any],
    accumulate: int,
    batches: int,
) -> None:
    data = module(shards(10), **budget)
    recorder = fit(data, tmp_path, accumulate_grad_batches=accumulate)
    assert len(recorder.seen) == 4 * batches
    assert recorder.trainer.global_step == batches // accumulate


@pytest.mark.parametrize("workers", [0, 2])
def test_fit_resumed_equals_uninterrupted(
    shards: Callable[..., Path], tmp_path: Path, workers: int
) -> None:
    directory = shards(10, val_fraction=0.3)
    saver = ModelCheckpoint(tmp_path / "c", every_n_train_steps=1, save_top_k=-1, filename="{step}")
    whole = fit(
        module(directory, flips="dihedral"),
        tmp_path,
        accumulate_grad_batches=2,
        callbacks=[saver],
        enable_checkpointing=True,
        val_check_interval=4,
    )
    assert len(whole.seen) == 6 * 2 * 4
    for step in (1, 2, 5):
        data = module(directory, flips="dihedral", num_workers=workers)
        rest = fit(
            data,
            tmp_path,
            accumulate_grad_batches=2,
            ckpt_path=tmp_path / "c" / f"step={step}.ckpt",
            val_check_interval=4,
        )
        assert rest.seen == whole.seen[step * 8 :]
        assert rest.trainer.global_step == 6
        assert torch.equal(rest.weight, whole.weight)
        assert data.samples_consumed == 48


def as_rank(data: UnlabeledShards, rank: int, world_size: int) -> UnlabeledShards:
    data.trainer = SimpleNamespace(  # type: ignore[assignment]
        global_rank=rank,
        world_size=world_size,
        node_rank=0,
        num_nodes=1,
        accumulate_grad_batches=1,
        training=True,
    )
    return data


def train_batches(data: UnlabeledShards) -> list[dict[str, Any]]:
    return [data.on_after_batch_transfer(batch, 0) for batch in data.train_dataloader()]


@pytest.mark.parametrize("world_size", [2, 3])
def test_train_dataloader_ranks_share_the_same_stream(
    shards: Callable[..., Path], world_size: int
) -> None:
    directory = shards(10)
    alone = train_batches(as_rank(module(directory, samples=24, batch_size=24), 0, 1))
    size = 12 // world_size
    ranks = [
        train_batches(as_rank(module(directory, samples=24, batch_size=size), rank, world_size))
        for rank in range(world_size)
    ]
    assert {len(batches) for batches in ranks} == {2}
    batches = [rank[step] for step in range(2) for rank in ranks]
    order = torch.cat([b["sample"] for b in batches]).argsort()
    keys = [key for b in batches for key in b["key"]]
    assert torch.equal(torch.cat([b["sample"] for b in batches])[order], alone[0]["sample"])
    assert torch.equal(torch.cat([b["image"] for b in batches])[order], alone[0]["image"])
    assert [keys[i] for i in order.tolist()] == alone[0]["key"]


def test_load_state_dict_other_number_of_ranks_goes_on_at_the_same_sample(
    shards: Callable[..., Path],
) -> None:
    directory = shards(10)
    two = as_rank(module(directory, samples=40, batch_size=4), 0, 2)
    loader = iter(two.train_dataloader())
    for _ in range(2):
        two.on_after_batch_transfer(next(loader), 0)
    one = as_rank(module(directory, samples=40, batch_size=4), 0, 1)
    one.load_state_dict(two.state_dict())
    positions = torch.cat([batch["sample"] for batch in one.train_dataloader()])
    assert positions.tolist() == list(range(16, 40))
    assert len(one.train_dataloader()) == 2 + 6  # what was done, and what is left


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "start"), [(1, "fork"), (2, "fork"), (1, "spawn")])
def test_train_dataloader_workers_change_nothing(
    shards: Callable[..., Path], workers: int, start: Any
) -> None:
    directory = shards(20, val_fraction=0.4)
    plain = module(directory, steps=3)
    other = module(directory, steps=3, num_workers=workers, multiprocessing_context=start)
    names = ("train_dataloader",) if start == "spawn" else ("train_dataloader", "val_dataloader")
    for name in names:
        expected, found = list(getattr(plain, name)()), list(getattr(other, name)())
        assert len(expected) == len(found) > 0
        for a, b in zip(expected, found, strict=True):
            assert a["key"] == b["key"]
            assert torch.equal(a["image"], b["image"])
            assert a["image"].dtype == torch.uint8
            assert torch.equal(a["sample"], b["sample"])


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_val_dataloader_every_sample_once_over_ranks(
    shards: Callable[..., Path], world_size: int
) -> None:
    directory = shards(20, val_fraction=0.4)
    seen: dict[int, torch.Tensor] = {}
    for rank in range(world_size):
        data = as_rank(module(directory, val_batch_size=3), rank, world_size)
        loader = data.val_dataloader()
        assert isinstance(loader, DataLoader)
        for batch in loader:
            for i, number in enumerate(batch["sample"].tolist()):
                if not batch["is_padding"][i]:
                    assert number not in seen
                    seen[number] = batch["image"][i]
    views = data.dataset("val")
    assert sorted(seen) == list(range(len(views)))
    for number, image in seen.items():
        np.testing.assert_array_equal(image, views[number]["image"])


def test_fit_validates_each_sample_once_and_counts_only_training(
    shards: Callable[..., Path], tmp_path: Path
) -> None:
    data = module(shards(20, val_fraction=0.4), steps=4)
    recorder = fit(data, tmp_path, num_sanity_val_steps=0)
    assert sorted(recorder.validated) == list(range(data.manifest.num_samples("val")))
    assert data.samples_consumed == 16


def test_fit_without_val_split_trains(shards: Callable[..., Path], tmp_path: Path) -> None:
    recorder = fit(module(shards(5)), tmp_path)
    assert recorder.validated == []
    assert len(recorder.seen) == 24


def test_on_after_batch_transfer_normalises_with_the_manifest(
    shards: Callable[..., Path],
) -> None:
    data = module(shards(30, size=(8, 8)), crop="center", flips="none", samples=30, batch_size=30)
    (batch,) = train_batches(data)
    assert batch["image"].dtype == torch.float32
    assert "bad" not in batch
    # One whole epoch at the stored size: exactly the pixels that were measured.
    assert batch["image"].mean(dim=(0, 2, 3)).abs().max() < 1e-5
    std = batch["image"].double().std(dim=(0, 2, 3), correction=0)
    assert (std - 1).abs().max() < 1e-5


def test_normalize_16_bit_keeps_every_level(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    levels = np.arange(65536, dtype=np.uint16).reshape(256, 256)
    tifffile.imwrite(tmp_path / "src" / "a.tif", levels)
    pack(tmp_path / "src", tmp_path / "out", val_fraction=0)
    data = module(tmp_path / "out", img_size=256, batch_size=1, crop="center", flips="none")
    raw = next(iter(data.train_dataloader()))
    assert raw["image"].dtype == torch.uint16
    image = data.on_after_batch_transfer(raw, 0)["image"].double()
    back = image * data.spec.std[0] + data.spec.mean[0]
    np.testing.assert_array_equal(back.round().numpy()[0, 0], levels)
    np.testing.assert_array_equal(data.dataset("train")[0]["image"][0], levels)


def test_use_statistics_of_a_model_count_or_are_refused(shards: Callable[..., Path]) -> None:
    data = module(shards(5))
    fields = data.spec.to_dict()
    spec = type(data.spec).from_dict(fields | {"mean": [0, 0, 0], "std": [2, 2, 2]})
    data.use_statistics(spec)
    images = torch.full((1, 3, 2, 2), 6, dtype=torch.uint8)
    assert data.normalize(images).unique().tolist() == [3.0]
    other = type(data.spec).from_dict(fields | {"channels": ["blue", "green", "red"]})
    with pytest.raises(DataError, match=r"channels: .* in the model"):
        data.use_statistics(other)


def test_load_state_dict_changed_order_is_refused_by_name(shards: Callable[..., Path]) -> None:
    directory = shards(10)
    state = module(directory).state_dict()
    module(directory, batch_size=2, num_workers=1, steps=99).load_state_dict(state)
    for options, words in (
        ({"seed": 1}, "seed: 0 in the checkpoint, 1 now"),
        ({"window": 3}, "window: 16 in the checkpoint, 3 now"),
        ({"lanes": 2}, "lanes: 1 in the checkpoint, 2 now"),
    ):
        with pytest.raises(DataError, match=words):
            module(directory, **options).load_state_dict(state)
    more = module(shards(11, name="more"))
    with pytest.raises(DataError, match=r"data: .*add --data-reset"):
        more.load_state_dict(state | {"samples_consumed": 8})
    more.data_reset = True
    more.load_state_dict(state | {"samples_consumed": 8})
    assert more.samples_consumed == 8


def test_load_state_dict_changed_accumulation_is_refused(shards: Callable[..., Path]) -> None:
    directory = shards(10)
    state = module(directory).state_dict() | {"accumulate_grad_batches": 2}
    with pytest.raises(ConfigError, match="was 2 in the checkpoint and is 1 now"):
        module(directory).load_state_dict(state)


def test_state_dict_is_primitive_and_equal_on_all_ranks(shards: Callable[..., Path]) -> None:
    directory = shards(10)
    states = []
    for rank in range(2):
        data = as_rank(module(directory), rank, 2)
        loader = iter(data.train_dataloader())
        data.on_after_batch_transfer(next(loader), 0)
        states.append(json.dumps(data.state_dict()))
    assert states[0] == states[1]


def damage(directory: Path, count: int, *, shard: str = "train-000000.tar") -> None:
    """Break the pixels of the first images of the first shard, as if they had come so."""
    path = directory / shard
    data = bytearray(path.read_bytes())
    place = 0
    for _ in range(count):
        place = data.index(b"IDAT", place) + 8
        data[place : place + 16] = bytes(16)
    path.write_bytes(data)


def test_fit_few_bad_images_are_replaced_counted_and_listed(
    shards: Callable[..., Path], reseal: Callable[[Path], None], tmp_path: Path
) -> None:
    directory = shards(20, val_fraction=0.5)
    damage(directory, 1)
    val = directory / "val-000000.tar"
    damage(directory, 1, shard=val.name)
    reseal(directory)
    num_train = Manifest.load(directory).num_samples("train")
    data = module(directory, samples=2 * num_train, batch_size=num_train)
    fit(data, tmp_path / "run", val_check_interval=1)
    train = directory / "train-000000.tar"
    with (tmp_path / "run" / "bad_images.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    # Twice in training, once in two validations of the same image.
    assert [(r["reason"], r["shard"], r["count"]) for r in rows] == [
        ("damaged", str(train), "2"),
        ("damaged", str(val), "1"),
    ]
    resumed = module(directory, samples=2 * num_train, batch_size=num_train)
    resumed.load_state_dict(json.loads(json.dumps(data.state_dict())))
    # Those of validation are met again by the next one.
    assert [row[:3] for row in resumed.bad.state()] == [["damaged", str(train), 2]]


def test_fit_many_bad_images_stop_the_run_with_reasons(
    shards: Callable[..., Path], reseal: Callable[[Path], None], tmp_path: Path
) -> None:
    directory = shards(10)
    damage(directory, 5)
    reseal(directory)
    with pytest.raises(DataError, match=r"\d+ x damaged.*max_bad_fraction.*train-000000"):
        fit(module(directory, steps=50), tmp_path)


def test_setup_cut_shard_is_refused_before_the_first_step(shards: Callable[..., Path]) -> None:
    directory = shards(10)
    path = directory / "train-000001.tar"
    path.write_bytes(path.read_bytes()[:-1024])
    with pytest.raises(DataError, match=r"train-000001\.tar has"):
        module(directory).setup("fit")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"steps": None}, "given 0 times.*exactly one of steps, samples, epochs"),
        ({"steps": 3, "epochs": 1}, "given 2 times"),
        ({"steps": 0}, "steps is 0"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"img_size": (0, 8)}, "img_size"),
        ({"num_workers": -1}, "num_workers"),
        ({"crop": "random", "img_size": 16}, "smallest images have 12 x 10"),
        ({"flips": "dihedral", "img_size": (8, 4)}, "square"),
    ],
)
def test_init_impossible_setting_is_refused(
    shards: Callable[..., Path], options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        module(shards(3), **options)


def test_init_without_train_split_is_refused(
    csv_source: Callable[..., Path], tmp_path: Path
) -> None:
    pack(csv_source(["path", "split"], [["a.png", "test"]]), tmp_path / "out")
    with pytest.raises(DataError, match="no samples in split 'train'; it has: test"):
        module(tmp_path / "out")
