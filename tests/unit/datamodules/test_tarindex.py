"""The index finds every member, and a damaged tar never passes for a short one."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datamodules.tarindex import TarIndex, index_path, open_index
from mae.errors import DataError


def write_tar(path: Path, members: Sequence[tuple[str, bytes]]) -> Path:
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


MEMBERS = [
    ("a.png", b"one"),
    ("a.json", b"{}"),
    ("b.jpg", bytes(513)),
    ("c.png", b""),
    ("c.cls", b"12"),
]


def test_build_finds_every_member(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "s.tar", MEMBERS)
    index = TarIndex.build(path)
    assert index.keys.tolist() == [b"a", b"b", b"c"]
    assert index.first.tolist() == [0, 2, 3, 5]
    data = path.read_bytes()
    found = [
        data[o : o + n] for o, n in zip(index.offsets.tolist(), index.sizes.tolist(), strict=True)
    ]
    assert found == [content for _, content in MEMBERS]
    assert index.suffixes.tolist() == [b"png", b"json", b"jpg", b"png", b"cls"]
    assert index.num_bytes == len(data)


def test_build_reads_pax_and_gnu_headers(tmp_path: Path) -> None:
    for kind in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT):
        path = tmp_path / f"{kind}.tar"
        with tarfile.open(path, "w", format=kind) as tar:
            info = tarfile.TarInfo("ü" * 120 + ".png")
            info.size = 3
            tar.addfile(info, io.BytesIO(b"abc"))
        index = TarIndex.build(path)
        assert index.keys[0].decode() == "ü" * 120
        assert path.read_bytes()[index.offsets[0] :][:3] == b"abc"


def test_build_cut_anywhere_is_refused(tmp_path: Path) -> None:
    whole = write_tar(tmp_path / "whole.tar", MEMBERS).read_bytes()
    content_end = 8 * 512  # 5 headers, contents of 1, 1, 2, 0, 1 blocks, minus what is cut below
    for length in (*range(0, content_end, 256), content_end + 512, content_end + 1024 + 511):
        path = tmp_path / f"{length}.tar"
        path.write_bytes(whole[:length])
        with pytest.raises(DataError, match=r"\.tar"):
            TarIndex.build(path)


def test_build_flipped_header_bit_is_refused_with_place(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "s.tar", MEMBERS)
    whole = path.read_bytes()
    for place in range(2 * 512 + 1, 2 * 512 + 140, 9):  # the second header
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        with pytest.raises(DataError, match="byte 1024"):
            TarIndex.build(path)


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["a.png", "b.png", "a.json"], "not adjacent"),
        (["a.png", "b.png", "a.png"], "not adjacent"),
        (["a.png", "a.png"], "two members .png"),
        (["a.pyd"], "suffix 'pyd'"),
    ],
)
def test_build_ambiguous_members_are_refused(tmp_path: Path, names: list[str], words: str) -> None:
    path = write_tar(tmp_path / "s.tar", [(name, b"x") for name in names])
    with pytest.raises(DataError, match=words):
        TarIndex.build(path)


def test_build_link_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "s.tar"
    with tarfile.open(path, "w") as tar:
        info = tarfile.TarInfo("a.png")
        info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(info)
    with pytest.raises(DataError, match="no regular file"):
        TarIndex.build(path)


def test_save_load_round_trip_and_equal_bytes(tmp_path: Path) -> None:
    index = TarIndex.build(write_tar(tmp_path / "s.tar", MEMBERS))
    for name in ("one.npz", "two.npz"):
        index.save(tmp_path / name)
    assert (tmp_path / "one.npz").read_bytes() == (tmp_path / "two.npz").read_bytes()
    loaded = TarIndex.load(tmp_path / "one.npz")
    for name, value in vars(index).items():
        assert np.array_equal(value, getattr(loaded, name)), name


class Canary:
    """Creates a file if it is ever unpickled."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_load_pickled_objects_are_refused_and_run_nothing(tmp_path: Path) -> None:
    index = TarIndex.build(write_tar(tmp_path / "s.tar", MEMBERS))
    fields = vars(index) | {"keys": np.array([Canary(tmp_path / "canary")] * 3, dtype=object)}
    np.savez(tmp_path / "s.idx.npz", **fields)
    with pytest.raises(DataError, match="rebuilt"):
        TarIndex.load(tmp_path / "s.idx.npz")
    assert not (tmp_path / "canary").exists()


def test_open_index_absent_is_rebuilt_and_left_there(shards: Callable[..., Path]) -> None:
    shard = shards(3) / "train-000000.tar"
    stored = index_path(shard).read_bytes()
    index_path(shard).unlink()
    assert open_index(shard).num_samples == 3
    assert index_path(shard).read_bytes() == stored
