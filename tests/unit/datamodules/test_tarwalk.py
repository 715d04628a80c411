"""Headers are walked as strictly as GNU tar, pax and webdataset write them, and no laxer."""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datamodules.tarwalk import Member, walk
from mae.errors import DataError

NAMES = st.text(st.characters(codec="utf-8", exclude_characters="/\0\n"), min_size=1, max_size=150)


def write(members: list[tuple[str, bytes]], kind: int = tarfile.PAX_FORMAT) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=kind) as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return stream.getvalue()


def members(data: bytes) -> list[Member]:
    return list(walk(io.BytesIO(data), where="x.tar"))


@given(
    st.lists(st.tuples(NAMES, st.binary(max_size=1500)), max_size=5),
    st.sampled_from([tarfile.PAX_FORMAT, tarfile.GNU_FORMAT]),
)
def test_walk_agrees_with_tarfile(files: list[tuple[str, bytes]], kind: int) -> None:
    data = write(files, kind)
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        expected = [(m.name, m.offset, m.offset_data, m.size) for m in tar]
    assert [tuple(member) for member in members(data)] == expected


def test_walk_reads_what_gnu_tar_writes_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "in" / ("long" * 30)).mkdir(parents=True)
    paths = [tmp_path / "in" / "a.png", tmp_path / "in" / ("long" * 30) / ("b" * 90 + ".png")]
    for path in paths:
        path.write_bytes(path.name.encode() * 100)
    for kind in ("gnu", "pax", "ustar", "oldgnu", "v7"):
        if kind in ("ustar", "v7"):
            paths = paths[:1]
        names = [str(path.relative_to(tmp_path)) for path in paths]
        out = tmp_path / f"{kind}.tar"
        # The folder itself becomes a member as well, where no single files are named.
        what = ["in"] if kind in ("gnu", "pax") else names
        subprocess.run(["tar", f"--format={kind}", "-cf", out, *what], cwd=tmp_path, check=True)
        data = out.read_bytes()
        found = {m.name: data[m.offset : m.offset + m.size] for m in members(data)}
        assert found == {name: (tmp_path / name).read_bytes() for name in names}


def test_walk_large_sizes_are_read_in_base_256() -> None:
    data = bytearray(write([("a.png", b"abc")], tarfile.GNU_FORMAT))
    header = bytearray(data[:512])
    header[124:136] = b"\x80" + (3).to_bytes(11)
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    data[:512] = header
    assert members(bytes(data)) == [Member("a.png", 0, 512, 3)]


def test_walk_two_archives_in_a_row_are_refused() -> None:
    one = write([("a.png", b"x")])
    with pytest.raises(DataError, match="two tars in a row"):
        members(one + one)


def test_walk_second_block_of_the_trailer_is_needed() -> None:
    data = write([("a.png", b"x")])
    assert members(data[:2048])
    for length in (1024, 1535, 1536, 2047):
        with pytest.raises(DataError, match="two blocks of zeros"):
            members(data[:length])


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (tarfile.SYMTYPE, "a symbolic link"),
        (tarfile.LNKTYPE, "a hard link"),
        (tarfile.CHRTYPE, "a device"),
        (tarfile.BLKTYPE, "a device"),
        (tarfile.FIFOTYPE, "a pipe"),
        (b"S", "a sparse file"),
        (b"Z", "unknown kind"),
    ],
)
def test_walk_anything_but_files_and_folders_is_refused(kind: bytes, words: str) -> None:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        info = tarfile.TarInfo("a.png")
        info.type = kind
        tar.addfile(info)
    with pytest.raises(DataError, match=words) as caught:
        members(stream.getvalue())
    assert "x.tar at byte 0: member 'a.png'" in str(caught.value)


@pytest.mark.parametrize(
    ("records", "words"),
    [
        (b"99999999999 path=x\n", "damaged"),
        (b"5 path=x\n", "damaged"),
        (b"no length", "damaged"),
        (b"22 GNU.sparse.major=1\n", "sparse"),
        (b"13 size=-100\n", "no number"),
        (b"11 path=\xff\xfe\n", "no UTF-8"),
    ],
)
def test_walk_bad_extended_header_is_refused(records: bytes, words: str) -> None:
    with pytest.raises(DataError, match=words):
        members(_with_pax(records))


def test_walk_huge_extended_header_is_refused_unread() -> None:
    with pytest.raises(DataError, match="allowed: 1,024"):
        members(_with_pax(bytes(70_000)))


def _with_pax(records: bytes) -> bytes:
    """Return a tar with one extended header of these bytes."""
    info = tarfile.TarInfo("pax")
    info.type, info.size = tarfile.XHDTYPE, len(records)
    header = info.tobuf(format=tarfile.USTAR_FORMAT)
    return header + records + bytes(-len(records) % 512) + write([("a.png", b"x")])
