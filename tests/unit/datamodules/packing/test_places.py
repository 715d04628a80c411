"""Reading places: whole files and members, and what changes under one's hands."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest

from datamodules.guard import MAX_MEMBER_BYTES, BadImageError
from datamodules.packing.places import StoredPlace
from datamodules.tarindex import checksum
from mae.errors import DataError


def place_of(path: Path) -> StoredPlace:
    place = StoredPlace.of_file(str(path))
    assert place is not None
    return place


def test_read_returns_the_file_or_the_part_of_it(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"0123456789")
    whole = place_of(tmp_path / "a")
    assert whole.read(what="a") == b"0123456789"
    part = StoredPlace(whole.path, 3, whole.modified_ns, offset=4, crc=checksum(b"456"))
    assert pickle.loads(pickle.dumps(part)).read(what="a") == b"456"  # noqa: S301
    with pytest.raises(DataError, match="differs from the checksum"):
        StoredPlace(whole.path, 3, whole.modified_ns, offset=5, crc=part.crc).read(what="a")


def test_peek_sees_both_ends(tmp_path: Path) -> None:
    contents = [b"", b"x", b"x" * 4096 + b"y", bytes(9000), bytes(8999) + b"z", b"z" + bytes(8999)]
    peeks = []
    for data in contents:
        (tmp_path / "a").write_bytes(data)
        peeks.append(place_of(tmp_path / "a").peek(what="a"))
    assert len(set(peeks)) == len(contents)
    assert max(map(len, peeks)) == 8192


@pytest.mark.parametrize("change", ["longer", "shorter", "touched"])
def test_read_of_a_file_that_changed_is_refused(tmp_path: Path, change: str) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"0123456789")
    place = place_of(path)
    if change == "touched":
        os.utime(path, ns=(1, 1))
    else:
        path.write_bytes(b"0" * (5 if change == "shorter" else 20))
        if change == "shorter":
            os.utime(path, ns=(place.modified_ns, place.modified_ns))
    with pytest.raises(BadImageError, match="changed after it was listed") as caught:
        place.read(what="a")
    assert caught.value.reason == "changed while packing"


def test_read_of_a_missing_file_is_a_bad_image(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    assert StoredPlace.of_file(str(tmp_path / "link"), must_exist=True) is None
    with pytest.raises(BadImageError, match="No such file") as caught:
        place_of(tmp_path / "link").read(what="link")
    assert caught.value.reason == "unreadable file"


def test_read_too_many_bytes_is_refused_unread(tmp_path: Path) -> None:
    with (tmp_path / "big").open("wb") as file:
        file.truncate(MAX_MEMBER_BYTES + 1)  # a hole: takes no room
    with pytest.raises(BadImageError, match=r"1,073,741,825 bytes; allowed"):
        place_of(tmp_path / "big").read(what="big")


def test_of_file_is_absolute_and_takes_files_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").write_bytes(b"x")
    monkeypatch.chdir(tmp_path)
    assert place_of(Path("a")).path == str(tmp_path / "a")
    assert StoredPlace.of_file(str(tmp_path)) is None
