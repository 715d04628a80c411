"""Every reader reads every sample."""

from __future__ import annotations

from typing import Any

import pytest

from datamodules.bench import reading
from datamodules.bench.images import ImageSet
from datamodules.reader import ShardReader

# webdataset leaves its files to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")


@pytest.fixture
def read_keys(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the list that keys of samples are added to as they are read."""
    keys: list[str] = []
    read = ShardReader.read

    def noting(reader: ShardReader, shard: int, index: int) -> Any:
        found = read(reader, shard, index)
        keys.append(found[0])
        return found

    monkeypatch.setattr(ShardReader, "read", noting)
    return keys


def test_reading_cases_read_every_sample_in_each_pass(
    images: ImageSet, read_keys: list[str]
) -> None:
    cases = reading.reading_cases(images, passes=3)
    for name, run in cases.items():
        read_keys.clear()
        assert run() == 3 * 8, name
        if name.startswith(("index", "the same")):
            passes = [read_keys[at : at + 8] for at in (0, 8, 16)]
            assert all(len(set(keys)) == 8 for keys in passes)
            assert passes[0] != passes[1]  # shuffled anew
        else:
            assert read_keys == []


def test_image_bytes_are_the_files(images: ImageSet) -> None:
    files = {path.read_bytes() for path in images.files.iterdir()}
    assert set(reading.image_bytes(images)) == files
