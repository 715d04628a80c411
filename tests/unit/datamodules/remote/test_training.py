"""A run on remote shards, over servers that fail, is the run on local ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer

from datamodules import shardfiles
from datamodules.remote import ShardCache
from datamodules.unlabeled import UnlabeledShards

from .conftest import PATIENCE, Store

pytestmark = [
    pytest.mark.network,
    pytest.mark.filterwarnings(
        "ignore:.*does not have many workers.*",
        "ignore:.*GPU available but not used.*",
        "ignore:.*treespec, LeafSpec.*",
    ),
]
FAULTS = ["503", "reset", "", "cut", "flip", "500", "slow", "whole", "", "short", "reset", "stall"]


class Regression(LightningModule):
    """Something that learns, and remembers what it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(3, 8, 8))
        self.seen: list[tuple[int, str]] = []

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> torch.Tensor:
        self.seen += zip(batch["sample"].tolist(), batch["key"], strict=True)
        return ((batch["image"] - self.weight) ** 2).mean()

    def validation_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        self.seen += [(-1, key) for key in batch["key"]]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.5)


def train(location: str, root: Path, **options: Any) -> Regression:
    data = UnlabeledShards(
        data_dir=location, img_size=8, batch_size=5, samples=120, window=2, **options
    )
    task = Regression()
    trainer = Trainer(
        accelerator="cpu",
        max_epochs=1,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        num_sanity_val_steps=0,
        default_root_dir=root,
    )
    trainer.fit(task, datamodule=data)
    return task


@pytest.mark.parametrize("workers", [0, 2])
def test_fit_on_a_failing_server_equals_the_local_run(
    shards: Callable[..., Path],
    store: Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    workers: int,
) -> None:
    directory = shards(44, shard_size=5, val_fraction=0.1)
    for path in directory.iterdir():
        store.put(path.name, path.read_bytes())
    largest = max(path.stat().st_size for path in directory.glob("*.tar"))
    cache = tmp_path / "cache"

    def small_and_patient(*_: object) -> ShardCache:
        return ShardCache(cache, max_bytes=4 * largest, patience=PATIENCE)

    monkeypatch.setattr(shardfiles, "open_cache", small_and_patient)
    monkeypatch.setattr("datamodules.unlabeled.open_cache", small_and_patient)
    store.server.faults[:] = ["503", *FAULTS, *FAULTS]
    remote = train(store.root, tmp_path / "remote", num_workers=workers)
    local = train(str(directory), tmp_path / "here")
    assert remote.seen == local.seen
    assert len(local.seen) > 120
    assert torch.equal(remote.weight, local.weight)
    assert store.server.faults == [], "the server has failed as often as it should"
    assert sum(path.stat().st_size for path in cache.glob("*.tar")) <= 4 * largest
