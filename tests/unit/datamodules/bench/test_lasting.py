"""Starting far inside, and memory over epochs."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datamodules.bench import lasting
from datamodules.bench.images import ImageSet
from datamodules.bench.timing import Run


def test_starting_cases_take_one_batch_where_they_say(
    images: ImageSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[range] = []

    class Noting(lasting.TrainStream):
        def __getitem__(self, positions: range) -> Any:
            asked.append(positions)
            return super().__getitem__(range(positions.start, positions.start + 2))

    monkeypatch.setattr(lasting, "TrainStream", Noting)
    cases: dict[str, Run] = lasting.starting_cases(images)
    assert [run() for run in cases.values()] == [1, 1, 1, 1]
    assert asked == [range(64), range(10**9, 10**9 + 64)]


def test_read_epochs_returns_the_memory_of_each(
    images: ImageSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = iter(range(1, 100))
    monkeypatch.setattr(lasting, "BATCH", 3)  # three batches an epoch
    monkeypatch.setattr(lasting, "_resident", lambda: next(memory))
    assert lasting._read_epochs(images.manifest.root) == [3, 6, 9, 12, 15]
    monkeypatch.setattr(lasting, "_resident", lambda: 0)
    assert lasting._read_epochs(images.manifest.root) == []


def test_resident_is_the_memory_of_this_process() -> None:
    if not Path("/proc/self/statm").exists():
        pytest.skip("the system does not say")
    before = lasting._resident()
    with mmap.mmap(-1, 2**26) as fresh:  # never memory that was freed before
        pages = np.frombuffer(fresh, dtype=np.uint8)
        pages.fill(1)
        grown = lasting._resident() - before
        del pages
    assert grown > 0.9 * 2**26
