"""Archives that are damaged, or want more than a list of images should."""

from __future__ import annotations

import contextlib
import io
import random
import struct
import tarfile
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from datamodules.guard import BadImageError
from datamodules.packing.archives import list_archive
from mae.errors import DataError


def tar_with(path: Path, name: str, *, change: Callable[[tarfile.TarInfo], None] = id) -> Path:
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as tar:
        for member in ("first.png", name):
            info = tarfile.TarInfo(member)
            info.size = 1
            if member == name:
                change(info)
            tar.addfile(info, io.BytesIO(b"x"))
    return path


def kind(value: bytes) -> Callable[[tarfile.TarInfo], None]:
    def change(info: tarfile.TarInfo) -> None:
        info.type, info.linkname, info.size = value, "first.png", 0

    return change


def zip_with(path: Path, name: str, *, attr: int = 0o100644, method: int = 8) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        info = zipfile.ZipInfo("x")
        info.filename, info.external_attr, info.compress_type = name, attr << 16, method
        archive.writestr(info, b"x" * 100)
    return path


BAD_NAMES = ["../evil.png", "/etc/evil.png", "a/../../evil.png", "a\\evil.png"]


@pytest.mark.parametrize("make", [tar_with, zip_with])
@pytest.mark.parametrize("name", BAD_NAMES)
def test_list_archive_name_outside_is_refused(
    tmp_path: Path, make: Callable[..., Path], name: str
) -> None:
    with pytest.raises(DataError, match="points outside the archive"):
        list_archive(str(make(tmp_path / "a", name)))
    assert [p.name for p in tmp_path.iterdir()] == ["a"]
    assert not (tmp_path.parent / "evil.png").exists()


@pytest.mark.parametrize("make", [tar_with, zip_with])
def test_list_archive_impossible_image_names_are_refused(
    tmp_path: Path, make: Callable[..., Path]
) -> None:
    for name in ("a\nb.png", "x" * 1100 + ".png"):
        with pytest.raises(DataError, match="control characters; rename it"):
            list_archive(str(make(tmp_path / "a", name)))
    assert list_archive(str(make(tmp_path / "a", "Icon\r")))  # of no use, so of no harm


@pytest.mark.parametrize("value", [b"1", b"2", b"3", b"6"])
def test_list_archive_links_and_devices_of_a_tar_are_refused(tmp_path: Path, value: bytes) -> None:
    with pytest.raises(DataError, match=r"b\.png.*allowed: plain files"):
        list_archive(str(tar_with(tmp_path / "a.tar", "b.png", change=kind(value))))


def test_list_archive_link_of_a_zip_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"b\.png' is a link"):
        list_archive(str(zip_with(tmp_path / "a.zip", "b.png", attr=0o120777)))


def test_list_archive_other_compression_and_passwords_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="compressed by method 12; allowed: stored and deflated"):
        list_archive(str(zip_with(tmp_path / "a.zip", "b.png", method=zipfile.ZIP_BZIP2)))
    path = zip_with(tmp_path / "b.zip", "b.png")
    data = bytearray(path.read_bytes())
    data[data.index(b"PK\x01\x02") + 8] |= 1  # general purpose flag of the central directory
    path.write_bytes(data)
    with pytest.raises(DataError, match="is encrypted"):
        list_archive(str(path))


@pytest.mark.parametrize("make", [tar_with, zip_with])
def test_list_archive_name_twice_is_refused(tmp_path: Path, make: Callable[..., Path]) -> None:
    path = make(tmp_path / "a", "first.png")
    if make is zip_with:
        with pytest.warns(UserWarning, match="Duplicate"), zipfile.ZipFile(path, "a") as archive:
            archive.writestr("first.png", b"y")
    with pytest.raises(DataError, match=r"'first\.png' twice"):
        list_archive(str(path))


def test_list_archive_compressed_tars_are_refused_whatever_their_name(tmp_path: Path) -> None:
    for mode in ("gz", "bz2", "xz"):
        with tarfile.open(tmp_path / "a.tar", f"w:{mode}") as tar:
            tar.addfile(tarfile.TarInfo("a.png"))
        with pytest.raises(DataError, match="cannot be read one by one; unpack it"):
            list_archive(str(tmp_path / "a.tar"))


def test_list_archive_tar_that_is_cut_is_refused(tmp_path: Path) -> None:
    data = tar_with(tmp_path / "a.tar", "b.png").read_bytes()
    for length in (0, 100, 512, 1024, 1500, 2048, 2560):
        (tmp_path / "a.tar").write_bytes(data[:length])
        with pytest.raises(DataError, match="cut or damaged"):
            list_archive(str(tmp_path / "a.tar"))


def zip_members(path: Path) -> list[bytes]:
    return [member.place.read(what=member.name) for member in list_archive(str(path))]


def test_zip_place_reads_what_zipfile_reads(tmp_path: Path) -> None:
    random.seed(0)
    contents = [b"", b"x", random.randbytes(70_000), b"ab" * 50_000]
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        with zipfile.ZipFile(tmp_path / "a.zip", "w", method) as archive:
            for number, data in enumerate(contents):
                with archive.open(f"{number}.png", "w", force_zip64=number == 1) as file:
                    file.write(data)
        assert zip_members(tmp_path / "a.zip") == contents
    # A zip behind other bytes: offsets count from where the zip begins.
    (tmp_path / "b.zip").write_bytes(b"PK??" + (tmp_path / "a.zip").read_bytes())
    assert zip_members(tmp_path / "b.zip") == contents


def test_zip_place_bomb_is_read_to_its_declared_size_only(tmp_path: Path) -> None:
    bomb = zlib.compressobj(9, zlib.DEFLATED, -15)
    packed = bomb.compress(bytes(100 * 2**20)) + bomb.flush()  # 100 MiB in 100 kB
    crc = zlib.crc32(bytes(10))
    name = b"bomb.png"
    local = struct.pack("<4s5H3I2H", b"PK\3\4", 20, 0, 8, 0, 0, crc, len(packed), 10, len(name), 0)
    central = struct.pack(
        "<4s6H3I5H2I",
        b"PK\1\2", 20, 20, 0, 8, 0, 0, crc, len(packed), 10, len(name), 0, 0, 0, 0, 0, 0,
    )  # fmt: skip
    body = local + name + packed
    end = struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 1, 1, len(central) + len(name), len(body), 0)
    (tmp_path / "a.zip").write_bytes(body + central + name + end)
    (member,) = list_archive(str(tmp_path / "a.zip"))
    tracemalloc.start()
    try:
        with pytest.raises(BadImageError, match="does not have the bytes") as caught:
            member.place.read(what="bomb.png")
        assert tracemalloc.get_traced_memory()[1] < 2 * 2**20
    finally:
        tracemalloc.stop()
    assert caught.value.reason == "damaged archive"


def test_zip_place_that_declares_too_much_is_refused_before_reading(tmp_path: Path) -> None:
    path = zip_with(tmp_path / "a.zip", "b.png")
    data = bytearray(path.read_bytes())
    place = data.index(b"PK\x01\x02")
    data[place + 24 : place + 28] = struct.pack("<I", 2**31)
    path.write_bytes(data)
    (member,) = list_archive(str(path))
    with pytest.raises(BadImageError, match=r"2,147,483,648 bytes; allowed"):
        member.place.read(what="b.png")


def test_zip_flipped_bits_are_refused_or_harmless(tmp_path: Path) -> None:
    path = zip_with(tmp_path / "a.zip", "b.png")
    whole = path.read_bytes()
    for bit in range(0, 8 * len(whole), 3):
        data = bytearray(whole)
        data[bit // 8] ^= 1 << (bit % 8)
        path.write_bytes(data)
        with contextlib.suppress(DataError):
            assert zip_members(path) in ([], [b"x" * 100])
