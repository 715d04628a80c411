"""What a tar or a zip holds: names and places of its files, without extracting anything.

Names are checked as those of a shard are: nothing absolute, nothing upward, no links.  Hidden files
and folders are left alone, as on a disk.  A compressed tar has no random access and is refused.
"""

from __future__ import annotations

import os
import stat
import zipfile
from typing import NamedTuple

from datamodules.guard import MAX_NAME_BYTES, MEMBER_SUFFIXES
from datamodules.packing.places import ZIP_METHODS, Place, StoredPlace, ZipPlace, absolute
from datamodules.tarwalk import walk
from mae.errors import DataError

ARCHIVE_SUFFIXES = ("tar", "zip")
_COMPRESSED = {
    b"\x1f\x8b": "gzip",
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"7z\xbc\xaf": "7z",
    b"Rar!": "RAR",
}
_ENCRYPTED = 0x1  # general purpose bit 0


class Member(NamedTuple):
    """One file of an archive."""

    name: str
    place: Place


def list_archive(path: str) -> list[Member]:
    """Return the files of a tar or zip, in the archive's order.

    Raises:
        DataError: If it is damaged or compressed as a whole, holds links or names that point
            elsewhere, or a name stands twice.
    """
    try:
        start = _start(path)
        members = _list_zip(path) if start.startswith(b"PK") else _list_tar(path)
    except OSError as error:
        raise DataError(
            f"{path} cannot be read ({error.strerror or error}); copy it here again"
        ) from error
    seen: set[str] = set()
    for member in members:
        if member.name in seen:
            raise DataError(
                f"{path} holds {member.name!r} twice; make the archive anew, with each file once"
            )
        seen.add(member.name)
    return members


def _start(path: str) -> bytes:
    """Return the first bytes of an archive that is not compressed as a whole."""
    with open(path, "rb") as file:  # noqa: PTH123
        start = file.read(6)
    for magic, name in _COMPRESSED.items():
        if start.startswith(magic):
            raise DataError(
                f"{path} is compressed with {name}, so its members cannot be read one by one; "
                f"unpack it into a .tar or a folder, and pack that"
            )
    return start


def _list_tar(path: str) -> list[Member]:
    found = []
    with open(path, "rb") as file:  # noqa: PTH123
        modified_ns = os.fstat(file.fileno()).st_mtime_ns
        for member in walk(file, where=path):
            name = _checked(member.name, f"{path} at byte {member.header}")
            if name:
                place = StoredPlace(absolute(path), member.size, modified_ns, member.offset)
                found.append(Member(name, place))
    return found


def _list_zip(path: str) -> list[Member]:
    found = []
    modified_ns = os.stat(path).st_mtime_ns  # noqa: PTH116
    try:
        with zipfile.ZipFile(path) as archive:
            infos = archive.infolist()
    except (zipfile.BadZipFile, NotImplementedError, ValueError) as error:
        raise DataError(f"{path} is a damaged zip archive ({error}); copy it again") from error
    for info in infos:
        if info.is_dir():
            continue
        where = f"{path}: member {info.filename!r}"
        if stat.S_ISLNK(info.external_attr >> 16):
            raise DataError(f"{where} is a link; allowed: plain files. Make the archive without it")
        if info.flag_bits & _ENCRYPTED:
            raise DataError(f"{where} is encrypted; make the archive without a password")
        if info.compress_type not in ZIP_METHODS:
            raise DataError(
                f"{where} is compressed by method {info.compress_type}; allowed: stored and "
                f"deflated. Unpack the archive and pack the folder"
            )
        name = _checked(info.filename, path)
        if name:
            place = ZipPlace(
                absolute(path),
                info.file_size,
                modified_ns,
                header=info.header_offset,
                num_packed_bytes=info.compress_size,
                crc=info.CRC,
                method=info.compress_type,
            )
            found.append(Member(name, place))
    return found


def _checked(name: str, where: str) -> str:
    """Return the name without ``./`` in it; empty for hidden files.

    Raises:
        DataError: If it points outside the archive, or an image has an impossible name.
    """
    parts = [part for part in name.split("/") if part not in (".", "")]
    if name.startswith("/") or ".." in parts or "\\" in name:
        raise DataError(
            f"{where}: member {name!r} points outside the archive; allowed: names below it, with "
            f"'/' between folders. Make the archive anew"
        )
    if not parts or any(part.startswith(".") for part in parts):
        return ""
    is_used = parts[-1].rpartition(".")[2].lower() in MEMBER_SUFFIXES
    if is_used and (not name.isprintable() or len(name.encode()) > MAX_NAME_BYTES):
        raise DataError(
            f"{where}: the member name {name[:60]!r} is longer than {MAX_NAME_BYTES:,} bytes or "
            f"has control characters; rename it"
        )
    return "/".join(parts)
