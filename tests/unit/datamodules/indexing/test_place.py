"""Nothing is left behind by failure, and other people's folders are left alone."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from datamodules.indexing import index_shards
from datamodules.indexing.place import index_place
from datamodules.manifest import Manifest
from mae.errors import DataError, OutputError

Write = Callable[..., Path]
Png = Callable[..., bytes]


@pytest.fixture
def tar(write_tar: Write, png: Png) -> Path:
    return write_tar("data/tars/a.tar", {"1.png": png(1)})


def test_index_place_folder_above_the_shards_has_relative_paths(tar: Path, tmp_path: Path) -> None:
    index_shards(str(tar), tmp_path / "data")
    manifest = Manifest.load(tmp_path / "data")
    assert [info.path for info in manifest.shard_list] == ["tars/a.tar"]
    assert (tar.parent / "a.idx.safetensors").exists()
    (tmp_path / "data").rename(tmp_path / "moved")
    moved = Manifest.load(tmp_path / "moved")
    moved.verify_sizes(moved.shard_list)


def test_index_place_folder_elsewhere_has_absolute_paths(tar: Path, tmp_path: Path) -> None:
    index_shards(str(tar), tmp_path / "new" / "out")
    manifest = Manifest.load(tmp_path / "new" / "out")
    (info,) = manifest.shard_list
    assert info.path == str(tar)
    assert sorted(p.name for p in (tmp_path / "new" / "out").iterdir()) == [
        "indexes",
        "manifest.json",
    ]
    (stored,) = (tmp_path / "new" / "out" / "indexes").iterdir()
    assert stored.name == f"{info.index_sha256}.idx.safetensors"
    assert os.access(stored.parent, os.X_OK)


def test_index_place_overwriting_removes_what_is_outdated(
    tar: Path, write_tar: Write, png: Png, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    bad = write_tar("data/tars/b.tar", {"1.png": b"?", "2.png": png(1)})
    index_shards(str(bad), out, max_bad_fraction=0.5)
    assert (out / "bad_images.csv").exists()
    index_shards(str(tar), out, overwrite=True)
    assert not (out / "bad_images.csv").exists()
    assert len(list((out / "indexes").iterdir())) == 1


@pytest.mark.parametrize("is_there", [False, True])
def test_index_place_failure_leaves_nothing(tmp_path: Path, is_there: bool) -> None:
    out = tmp_path / "out"
    if is_there:
        out.mkdir()

    def fail_late() -> None:
        with index_place(out, [], overwrite=False) as place:
            (place.scratch / "half").write_bytes(b"x")
            raise DataError("found out late")

    with pytest.raises(DataError, match="found out late"):
        fail_late()
    assert [*out.iterdir()] == [] if is_there else not out.exists()


def test_index_place_goes_on_after_a_kill(tar: Path, tmp_path: Path) -> None:
    left_over = tmp_path / "out" / ".index.tmp"
    left_over.mkdir(parents=True)
    (left_over / "half.tar").touch()
    index_shards(str(tar), tmp_path / "out")
    assert not left_over.exists()


def test_index_place_is_used_by_one_process_at_a_time(tar: Path, tmp_path: Path) -> None:
    with (
        index_place(tmp_path / "out", [], overwrite=False),
        pytest.raises(OutputError, match="another process is indexing"),
    ):
        index_shards(str(tar), tmp_path / "out")


def test_index_place_foreign_folder_is_refused(tar: Path, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "me.jpg").touch()
    with pytest.raises(OutputError, match="holds files, but neither these shards"):
        index_shards(str(tar), tmp_path / "photos")
    with pytest.raises(OutputError, match="is a file"):
        index_shards(str(tar), tar)


def test_index_place_read_only_folder_is_refused_at_once(
    tar: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Permissions do not stop root, so the system's answer is given here.
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(OutputError, match=r"give .* directory .* as OUT"):
        index_shards(str(tar.parent))
