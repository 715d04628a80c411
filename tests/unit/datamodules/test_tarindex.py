"""The index finds every member, and a damaged tar never passes for a short one."""

from __future__ import annotations

import io
import tarfile
import zlib
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from datamodules.tarindex import TarIndex, checksum
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
    assert index.keys == ("a", "b", "c")
    assert index.first.tolist() == [0, 2, 3, 5]
    data = path.read_bytes()
    found = [
        data[o : o + n] for o, n in zip(index.offsets.tolist(), index.sizes.tolist(), strict=True)
    ]
    assert found == [content for _, content in MEMBERS]
    assert index.suffixes == ("png", "json", "jpg", "png", "cls")
    assert index.crcs.tolist() == [zlib.crc32(content) for _, content in MEMBERS]
    assert index.num_bytes == len(data)


def test_build_reads_pax_and_gnu_headers(tmp_path: Path) -> None:
    for kind in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT):
        path = tmp_path / f"{kind}.tar"
        with tarfile.open(path, "w", format=kind) as tar:
            info = tarfile.TarInfo("ü" * 120 + ".png")
            info.size = 3
            tar.addfile(info, io.BytesIO(b"abc"))
        index = TarIndex.build(path)
        assert index.keys[0] == "ü" * 120
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
        with pytest.raises(DataError, match=r"byte (1024|1536)"):
            TarIndex.build(path)


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["a.png", "b.png", "a.json"], "not adjacent"),
        (["a.png", "b.png", "a.png"], "not adjacent"),
        (["a.png", "a.png"], "two members .png"),
        (["a.png", "a.json", "a.tif"], r"at byte 2048: sample 'a' has 2 images \(png, tif\); al"),
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
    with pytest.raises(DataError, match="a symbolic link"):
        TarIndex.build(path)


def test_build_ignored_suffixes_are_passed_over(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "s.tar", [("a.png", b"x"), ("a.txt", b"y"), ("b.txt", b"z")])
    index = TarIndex.build(path, ignore={"txt"})
    assert (index.keys, index.suffixes) == (("a",), ("png",))
    with pytest.raises(DataError, match="suffix 'txt'"):
        TarIndex.build(path)


def test_digest_sees_names_places_and_contents(tmp_path: Path) -> None:
    changed = [
        MEMBERS,
        [("z.png", b"one"), *MEMBERS[1:]],
        [("a.jpg", b"one"), *MEMBERS[1:]],
        [("a.png", b"two"), *MEMBERS[1:]],
        MEMBERS[:-1],
    ]
    digests = [
        TarIndex.build(write_tar(tmp_path / f"{i}.tar", members)).digest
        for i, members in enumerate(changed)
    ]
    assert len(set(digests)) == len(changed)
    assert TarIndex.build(write_tar(tmp_path / "again.tar", MEMBERS)).digest == digests[0]


def test_checksum_is_crc_32_and_goes_on() -> None:
    assert checksum(b"abcdef") == zlib.crc32(b"abcdef") == checksum(b"def", checksum(b"abc"))


@pytest.mark.parametrize("members", [MEMBERS, []])
def test_save_load_round_trip_and_equal_bytes(
    tmp_path: Path, members: list[tuple[str, bytes]]
) -> None:
    index = TarIndex.build(write_tar(tmp_path / "s.tar", members))
    for name in ("one", "two"):
        index.save(tmp_path / name)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    loaded = TarIndex.load(tmp_path / "one")
    for field in fields(TarIndex):
        found, expected = getattr(loaded, field.name), getattr(index, field.name)
        assert np.array_equal(found, expected), field.name
    assert loaded.digest == index.digest


def test_load_other_arrays_are_refused(tmp_path: Path) -> None:
    index = TarIndex.build(write_tar(tmp_path / "s.tar", MEMBERS))
    index.save(tmp_path / "good")
    good = safetensors.numpy.load_file(tmp_path / "good")
    wrong: list[dict[str, Any]] = [
        {},
        {**good, "first": good["first"][:-1]},
        {**good, "first": good["first"][::-1].copy()},
        {**good, "sizes": good["sizes"][:-1]},
        {**good, "key_ends": good["key_ends"] * 1000},
        {**good, "key_ends": good["key_ends"][::-1].copy()},
        {**good, "num_bytes": good["num_bytes"][:0]},
        {**good, "crcs": good["crcs"].astype(np.int64)},
    ]
    for arrays in wrong:
        safetensors.numpy.save_file(arrays, tmp_path / "bad")
        with pytest.raises(DataError, match="rebuilt"):
            TarIndex.load(tmp_path / "bad")
