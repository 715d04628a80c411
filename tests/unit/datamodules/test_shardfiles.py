"""The index that is read is the one the manifest means."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from datamodules.manifest import Manifest, ShardInfo
from datamodules.shardfiles import LocalShards, index_location
from datamodules.tarindex import index_path
from mae.errors import DataError


def open_files(directory: Path) -> LocalShards:
    manifest = Manifest.load(directory)
    return LocalShards(manifest, manifest.shards("train"))


def test_index_foreign_or_damaged_file_is_replaced(shards: Callable[..., Path]) -> None:
    files, other = open_files(shards(3)), open_files(shards(5, name="other"))
    stored = index_path(files.path(0))
    good = stored.read_bytes()
    for wrong in (index_path(other.path(0)).read_bytes(), b"", good[:-1], b"x" * 100):
        stored.write_bytes(wrong)
        assert files.index(0).num_samples == 3
        assert stored.read_bytes() == good


def test_index_missing_is_rebuilt_and_left_there(shards: Callable[..., Path]) -> None:
    files = open_files(shards(3))
    stored = index_path(files.path(0))
    good = stored.read_bytes()
    stored.unlink()
    assert files.index(0).num_samples == 3
    assert stored.read_bytes() == good


def test_index_changed_shard_without_its_index_is_refused(shards: Callable[..., Path]) -> None:
    files = open_files(shards(3))
    place = int(files.index(0).offsets[0])
    data = bytearray(files.path(0).read_bytes())
    data[place] ^= 1
    files.path(0).write_bytes(data)
    index_path(files.path(0)).unlink()
    with pytest.raises(DataError, match=r"train-000000\.tar is not what its manifest says"):
        files.index(0)


def test_index_location_shards_elsewhere_have_theirs_beside_the_manifest() -> None:
    here = ShardInfo(
        path="a/x.tar", split="train", num_samples=1, num_bytes=1, sha256="", index_sha256="ab"
    )
    assert index_location("/data", here) == Path("/data/a/x.idx.safetensors")
    elsewhere = replace(here, path="/other/x.tar")
    assert index_location("/data", elsewhere) == Path("/data/indexes/ab.idx.safetensors")
