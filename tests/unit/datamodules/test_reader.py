"""Reading by (shard, index), against the standard library's tarfile."""

from __future__ import annotations

import pickle
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from datamodules.manifest import Manifest
from datamodules.reader import ShardReader
from datamodules.tarindex import index_path
from mae.errors import DataError


def open_reader(directory: Path) -> ShardReader:
    manifest = Manifest.load(directory)
    return ShardReader(manifest.root, manifest.shards("train"))


def test_read_equals_tarfile(shards: Callable[..., Path]) -> None:
    reader = open_reader(shards(9))
    for number, shard in enumerate(reader.shards):
        expected: dict[str, dict[str, bytes]] = {}
        with tarfile.open(reader.path(number)) as tar:
            for member in tar:
                key, suffix = member.name.split(".")
                content = tar.extractfile(member)
                assert content is not None
                expected.setdefault(key, {})[suffix] = content.read()
        found = [reader.read(number, i) for i in reversed(range(shard.num_samples))]
        assert dict(found) == expected


def test_read_after_pickling_and_closing(shards: Callable[..., Path]) -> None:
    reader = open_reader(shards(3))
    first = reader.read(0, 1)
    assert pickle.loads(pickle.dumps(reader)).read(0, 1) == first  # noqa: S301
    reader.close()
    assert reader.read(0, 1) == first


def test_read_keeps_few_files_open(
    shards: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("datamodules.reader._MAX_OPEN", 2)
    reader = open_reader(shards(12, shard_size=2))
    before = len(list(Path("/proc/self/fd").iterdir()))
    keys = [reader.read(shard, i)[0] for shard in range(6) for i in range(2)]
    again = [reader.read(shard, i)[0] for shard in range(6) for i in range(2)]
    assert keys == again
    assert len(set(keys)) == 12
    assert len(list(Path("/proc/self/fd").iterdir())) == before + 2


def test_read_shard_of_other_size_names_both_numbers(shards: Callable[..., Path]) -> None:
    reader = open_reader(shards(3))
    path, declared = reader.path(0), reader.shards[0].num_bytes
    path.write_bytes(path.read_bytes() + bytes(1024))
    with pytest.raises(DataError, match=f"{declared + 1024:,} bytes.*{declared:,}") as caught:
        reader.read(0, 0)
    assert str(path) in str(caught.value)


def test_read_foreign_index_is_refused(shards: Callable[..., Path]) -> None:
    reader, other = open_reader(shards(3)), open_reader(shards(5, name="other"))
    index_path(reader.path(0)).write_bytes(index_path(other.path(0)).read_bytes())
    with pytest.raises(DataError, match=r"5 samples.*3 samples"):
        reader.read(0, 0)


def test_read_missing_shard_is_named(shards: Callable[..., Path]) -> None:
    reader = open_reader(shards(3))
    reader.path(0).unlink()
    with pytest.raises(DataError, match=r"train-000000\.tar cannot be opened"):
        reader.read(0, 0)


def test_read_file_cut_while_open_is_refused(shards: Callable[..., Path]) -> None:
    reader = open_reader(shards(3))
    reader.read(0, 0)
    with reader.path(0).open("r+b") as file:
        file.truncate(2000)
    with pytest.raises(DataError, match=r"train-000000.tar gave 0 bytes for sample 2"):
        reader.read(0, 2)
