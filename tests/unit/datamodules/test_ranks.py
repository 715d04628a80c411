"""Any number of processes and workers over any shards: the same samples, views and metrics."""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from datamodules.unlabeled import UnlabeledShards
from mae.encoder import Encoder
from mae.spec import ImageSpec
from mae.weights import save_encoder
from tests.soak.ranks import MODEL, train_and_evaluate
from tests.soak.recorder import Row, digest, read_rows
from tests.soak.shards import write_shards
from tests.soak.warm import Child, free_port, run_all

UNEVEN = [9, 1, 7, 3, 5]
WORLDS = (1, 2, 3)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with shard directories of awkward sizes, and encoder weights."""
    folder = tmp_path_factory.mktemp("ranks")
    write_shards(folder / "uneven", {"train": UNEVEN, "val": [1, 6, 1]})
    write_shards(folder / "single", {"train": [5], "val": [2]})
    labelled = write_shards(folder / "labelled", {"train": [4], "val": [5, 2]}, labelled=True)
    torch.manual_seed(0)
    shape = {name: value for name, value in MODEL.items() if not name.startswith("decoder")}
    spec = ImageSpec.from_dict(json.loads((labelled / "manifest.json").read_text())["spec"])
    save_encoder(folder / "encoder.safetensors", Encoder(in_chans=3, **shape), spec, info={})
    return folder


@pytest.fixture(scope="module")
def by_world(root: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Train and evaluate on 1, 2 and 3 processes; return where each left its results."""
    found = {}
    for world_size in WORLDS:
        out = found[world_size] = tmp_path_factory.mktemp(f"world-{world_size}")
        port = free_port()
        run_all(
            [
                Child(
                    functools.partial(train_and_evaluate, rank=rank, world_size=world_size),
                    root,
                    out,
                    log=out / f"{rank}.txt",
                    environment={"LOCAL_RANK": str(rank), "MASTER_PORT": port},
                )
                for rank in range(world_size)
            ],
            timeout_s=90,
        )
    return found


def facts(row: Row) -> tuple[Any, ...]:
    return row.position, row.key, row.view, row.mask


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "steps", "per_epoch"), [("uneven-1", 6, 25), ("uneven-4", 4, 25), ("single-3", 4, 5)]
)
def test_fit_over_gloo_makes_equal_steps_and_sees_what_one_process_sees(
    by_world: dict[int, Path], case: str, steps: int, per_epoch: int
) -> None:
    (alone,) = read_rows(by_world[1] / case)
    num_batches = 2 * steps
    assert [row.position for row in alone] == list(range(12 * num_batches))
    for epoch in range(len(alone) // per_epoch):
        keys = Counter(row.key for row in alone[epoch * per_epoch : (epoch + 1) * per_epoch])
        assert (len(keys), set(keys.values())) == (per_epoch, {1})
    for world_size in WORLDS[1:]:
        ranks = list(read_rows(by_world[world_size] / case))
        assert len(ranks) == world_size
        for rank in ranks:
            assert [row.batch for row in rank] == [
                batch for batch in range(num_batches) for _ in range(12 // world_size)
            ]
        together = sorted((row for rank in ranks for row in rank), key=lambda row: row.position)
        assert [facts(row) for row in together] == [facts(row) for row in alone]
        assert [row.batch for row in together] == [row.batch for row in alone]


@pytest.mark.slow
def test_validate_over_gloo_gives_the_metrics_of_one_process(by_world: dict[int, Path]) -> None:
    (alone,) = (json.loads((by_world[1] / "0.json").read_text()),)
    assert alone.keys() == {"pretrain uneven", "pretrain single", "finetune"}
    assert {"val/loss", "val/predict_zero", "val/feature_std"} <= alone["pretrain uneven"].keys()
    assert alone["finetune"].keys() == {"val/accuracy", "val/balanced_accuracy"}
    assert 0 < alone["finetune"]["val/accuracy"] < 1, "else equality says little"
    for world_size in WORLDS[1:]:
        for rank in range(world_size):
            found = json.loads((by_world[world_size] / f"{rank}.json").read_text())
            for case, metrics in alone.items():
                assert found[case] == pytest.approx(metrics, abs=1e-6, rel=0), (world_size, case)


def rows_of_a_loader(data: UnlabeledShards, *, rank: int, world_size: int) -> Iterator[list[Any]]:
    data.trainer = SimpleNamespace(  # type: ignore[assignment]
        global_rank=rank,
        world_size=world_size,
        node_rank=0,
        num_nodes=1,
        accumulate_grad_batches=1,
        training=True,
    )
    for batch in data.train_dataloader():
        views = [digest(image) for image in batch["image"]]
        yield list(zip(batch["sample"].tolist(), batch["key"], views, strict=True))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:This DataLoader will create 4 worker processes")
@pytest.mark.parametrize("case", ["uneven", "single"])
def test_train_dataloader_union_does_not_depend_on_ranks_workers_or_start_method(
    root: Path, case: str
) -> None:
    options: dict[str, Any] = {"img_size": 16, "window": 2, "lanes": 2, "steps": 3, "seed": 4}
    alone: list[Any] | None = None
    for world_size, workers, start in (
        (1, 0, None),
        (1, 4, "fork"),
        (2, 1, "fork"),
        (3, 0, None),
        (8, 0, None),
        (8, 1, "fork"),
        *(((2, 1, "spawn"),) if case == "uneven" else ()),
    ):
        steps: list[list[Any]] = [[] for _ in range(3)]
        for rank in range(world_size):
            data = UnlabeledShards(
                data_dir=str(root / case),
                batch_size=24 // world_size,
                num_workers=workers,
                multiprocessing_context=start,
                **options,
            )
            batches = list(rows_of_a_loader(data, rank=rank, world_size=world_size))
            assert [len(batch) for batch in batches] == [24 // world_size] * 3
            for step, batch in zip(steps, batches, strict=True):
                step += batch
        found = [sorted(step) for step in steps]
        alone = alone or found
        assert found == alone, (world_size, workers, start)
    assert alone is not None
    assert [row[0] for step in alone for row in step] == list(range(72))
