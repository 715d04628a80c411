"""The whole benchmark, small enough for a test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from datamodules.bench import lasting
from datamodules.bench.data import Effort, bench_data

# webdataset leaves its files to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")

TINY = Effort(
    rounds=1, num_small=4, reading_passes=1, loader_samples=1, packing_rounds=1, packing_copies=1
)


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    """Give torch another number of threads than it is measured with."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_bench_data_measures_everything_and_cleans_up(
    photograph_shards: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(lasting, "resident_bytes", lambda images: [2**20] * 5)
    monkeypatch.setattr("gc.collect", lambda: 0)  # takes its time beside a thousand tests
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("datamodules.bench.data.num_processors", lambda: 1)
    steps: list[str] = []
    report = bench_data(str(photograph_shards), effort=TINY, workers=0, on_step=steps.append)
    assert list(report.timings) == [
        "reading, as stored",
        "views of 224 px, as stored",
        "loaders with 0 workers, as stored",
        "starting anew",
    ]
    assert all(len(found) == 1 for cases in report.timings.values() for found in cases.values())
    names = [figure.name for figure in report.figures]
    assert len(names) == len(set(names))
    assert names[0].startswith("reading, shuffled, verify: open")
    assert "resident memory, epoch 5 / epoch 2" in names
    assert report.conditions["resident memory"].startswith("1.0, 1.0")
    assert report.images == [f"4 of as stored, 3 kB each, from {photograph_shards}"]
    assert steps[0] == "making images"
    assert torch.get_num_threads() == 2
    assert list(tmp_path.iterdir()) == []
