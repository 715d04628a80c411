"""Walk the headers of a tar strictly: whatever is not whole and plain is refused by its byte.

Tar readers are lenient.  A header with a flipped bit, or a file that was cut between two members,
ends an archive early without an error, and links, devices and sparse files are followed.  Here
every header's checksum is verified, every content must lie inside the file, the archive must end
with its trailer, and after the trailer there is nothing.

Source: POSIX.1-2017, pax, "ustar Interchange Format" and "pax Extended Header"; GNU tar manual,
"Basic Tar Format" (long names, base-256 numbers).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import IO, NamedTuple

from datamodules.guard import MAX_NAME_BYTES
from mae.errors import DataError

BLOCK = 512
_TRAILER_BLOCKS = 2
_CHUNK = 2**20
_MAX_EXTENSION = 64 * 1024  # bytes of one pax header; names are limited far below
_FILES = (b"0", b"\0", b"7")
_DIRECTORY, _LONG_NAME, _LONG_LINK = b"5", b"L", b"K"
_PAX, _PAX_GLOBAL = b"x", b"g"
_REFUSED = {
    b"1": "a hard link",
    b"2": "a symbolic link",
    b"3": "a device",
    b"4": "a device",
    b"6": "a pipe",
    b"S": "a sparse file",
}


class Member(NamedTuple):
    """One regular file of a tar.

    Attributes:
        name: Name as stored.
        header: Byte at which its headers begin.
        offset: Byte at which its content begins.
        size: Bytes of its content.
    """

    name: str
    header: int
    offset: int
    size: int


def walk(file: IO[bytes], *, where: str) -> Iterator[Member]:
    """Yield the regular files of a tar in order; directories are passed over.

    Args:
        file: The tar, open for reading, seekable.
        where: Its name for messages.

    Raises:
        DataError: If the tar is cut or damaged, or holds anything but files and directories; the
            message names the byte.
    """
    num_bytes = file.seek(0, os.SEEK_END)
    place = first = 0  # `first`: where the headers of the next member begin
    long_name: str | None = None
    long_size: int | None = None
    while True:
        header = _read(file, place, BLOCK, where=where)
        if header == bytes(BLOCK):
            if place != first:
                raise _damaged(where, place, "a long name is followed by no member")
            _check_end(file, place, where=where)
            return
        _check_sum(header, where=where, place=place)
        kind, size = header[156:157], _number(header[124:136], where=where, place=place)
        if long_size is not None and kind in _FILES:
            size = long_size
        content, after = place + BLOCK, place + BLOCK + -(-size // BLOCK) * BLOCK
        if after > num_bytes:
            raise _damaged(where, place, f"a member of {size:,} bytes goes beyond the file's end")
        if kind in (_LONG_NAME, _PAX, _PAX_GLOBAL, _LONG_LINK):
            extension = _extension(file, content, size, where=where, place=place)
            if kind in (_LONG_NAME, _PAX) and (long_name, long_size) != (None, None):
                # Other readers take the first one of them.
                raise _damaged(where, place, "a member has two extended headers")
            if kind == _LONG_NAME:
                long_name = _text(extension.rstrip(b"\0"), where=where, place=place)
            elif kind == _PAX:
                long_name, long_size = _pax(extension, where=where, place=place)
            elif kind == _PAX_GLOBAL and any(
                value is not None for value in _pax(extension, where=where, place=place)
            ):
                # Other readers apply it to all members that follow.
                raise _damaged(where, place, "a global header gives a name or a size")
        else:
            name = long_name if long_name is not None else _name(header, where=where, place=place)
            if size and (kind == _DIRECTORY or name.endswith("/")):
                # Other readers find members in it.
                raise _damaged(where, first, f"the folder {name!r} has {size:,} bytes of content")
            if kind in _FILES and not name.endswith("/"):
                yield Member(name, first, content, size)
            elif kind not in (*_FILES, _DIRECTORY):
                raise DataError(
                    f"{where} at byte {first}: member {name!r} is "
                    f"{_REFUSED.get(kind, f'of the unknown kind {kind!r}')}; allowed: plain files. "
                    f"Pack the images again"
                )
            first, long_name, long_size = after, None, None
        place = after


def _read(file: IO[bytes], place: int, count: int, *, where: str) -> bytes:
    file.seek(place)
    block = file.read(count)
    if len(block) != count:
        raise _damaged(where, place, "the file ends without the two blocks of zeros that close it")
    return block


def _check_sum(header: bytes, *, where: str, place: int) -> None:
    stored = _number(header[148:156], where=where, place=place)
    as_if_blank = header[:148] + b" " * 8 + header[156:]
    unsigned = sum(as_if_blank)
    # Some old writers summed signed bytes.
    if stored not in (unsigned, unsigned - 256 * sum(byte > 127 for byte in as_if_blank)):
        raise _damaged(where, place, "the checksum of the header is wrong")


def _check_end(file: IO[bytes], place: int, *, where: str) -> None:
    """Refuse a missing trailer, and anything but zeros after it."""
    _read(file, place, _TRAILER_BLOCKS * BLOCK, where=where)
    file.seek(place)
    while chunk := file.read(_CHUNK):
        if chunk.count(0) != len(chunk):
            raise _damaged(
                where, place, "there are bytes behind the end of the archive; two tars in a row?"
            )


def _number(field: bytes, *, where: str, place: int) -> int:
    """Read an octal number, or GNU's base-256 number."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:])
    text = field.split(b"\0", 1)[0].strip(b" ")
    if text.translate(None, b"01234567"):
        raise _damaged(where, place, f"{field!r} is no octal number")
    return int(text or b"0", 8)


def _extension(file: IO[bytes], content: int, size: int, *, where: str, place: int) -> bytes:
    """Return the content of a header that extends the next one."""
    if size > _MAX_EXTENSION:
        raise _damaged(where, place, f"a name takes {size:,} bytes; allowed: {MAX_NAME_BYTES:,}")
    return _read(file, content, size, where=where)


def _pax(records: bytes, *, where: str, place: int) -> tuple[str | None, int | None]:
    """Return path and size from the lines ``LENGTH KEY=VALUE`` of a pax header."""
    name: str | None = None
    size: int | None = None
    while records.rstrip(b"\0"):
        length, space, _ = records.partition(b" ")
        end = int(length) if space and length.isdigit() and len(length) < 10 else 0
        record = records[len(length) + 1 : end]
        key, equals, value = record[:-1].partition(b"=")
        if not equals or end > len(records) or record[-1:] != b"\n":
            raise _damaged(where, place, "an extended header is damaged")
        if key.startswith(b"GNU.sparse"):
            raise _damaged(where, place, "the next member is a sparse file; allowed: plain files")
        if key == b"path":
            name = _text(value, where=where, place=place)
        elif key == b"size":
            if not value.isdigit():
                raise _damaged(where, place, f"the size {value[:20]!r} is no number")
            size = int(value[:20])
        records = records[end:]
    return name, size


def _name(header: bytes, *, where: str, place: int) -> str:
    name = header[:100].split(b"\0", 1)[0]
    prefix = header[345:500].split(b"\0", 1)[0] if header[257:263] == b"ustar\0" else b""
    return _text(prefix + b"/" + name if prefix else name, where=where, place=place)


def _text(name: bytes, *, where: str, place: int) -> str:
    try:
        return name.decode()
    except UnicodeDecodeError as error:
        raise DataError(
            f"{where} at byte {place}: the member name {name[:80]!r} is no UTF-8; pack the images "
            f"again"
        ) from error


def _damaged(where: str, place: int, why: str) -> DataError:
    return DataError(f"{where} is cut or damaged at byte {place}: {why}; copy it again")
