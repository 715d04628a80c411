"""Where the bytes of a file lie: in a file of their own, in a tar, or compressed in a zip.

A place is a small value that can be sent to another process and read there.  Archives are never
extracted: a member is read by its offset, and at most as many bytes as its archive declares.

Source: PKWARE APPNOTE 6.3.10, section 4.3.7 "Local file header".
"""

from __future__ import annotations

import os
import stat
import struct
import zlib
from dataclasses import dataclass
from typing import Protocol

from datamodules.guard import MAX_MEMBER_BYTES, BadImageError
from datamodules.tarindex import checksum
from mae.errors import DataError

_PEEK_BYTES = 4096
_LOCAL_HEADER = struct.Struct("<4s22xHH")
_STORED, _DEFLATED = 0, 8
ZIP_METHODS = (_STORED, _DEFLATED)


def absolute(path: str) -> str:
    """Return a path that other processes and machines understand, links left as they are."""
    return os.path.abspath(path)  # noqa: PTH100 (a million times)


class Place(Protocol):
    """Bytes of one file, wherever they lie."""

    @property
    def path(self) -> str:
        """File on the disk: the file itself, or the archive."""

    @property
    def num_bytes(self) -> int:
        """Number of bytes."""

    @property
    def modified_ns(self) -> int:
        """Time of the last change of the file on the disk."""

    @property
    def identity(self) -> tuple[str | int, ...]:
        """What tells this place, and its contents as far as ``stat`` knows, from all others."""

    def read(self, *, what: str) -> bytes:
        """Return all bytes.

        Args:
            what: Name for messages.

        Raises:
            BadImageError: If they cannot be read, or changed since they were listed.
            DataError: If they differ from the checksum of a manifest.
        """

    def peek(self, *, what: str) -> bytes:
        """Return some bytes, those of the beginning among them; equal contents give equal ones.

        Raises:
            BadImageError: See `read`.
        """


@dataclass(frozen=True, slots=True)
class StoredPlace:
    """Bytes as they are: a whole file, or a member of a tar from `offset` on.

    `crc` is the checksum that a manifest promises; None where there is none.
    """

    path: str
    num_bytes: int
    modified_ns: int
    offset: int = 0
    crc: int | None = None

    @classmethod
    def of_file(cls, path: str, *, must_exist: bool = False) -> StoredPlace | None:
        """Return the place of a whole file; None if there is something else under this name.

        Args:
            path: The file.
            must_exist: Return None also for a link that leads nowhere, which otherwise passes here
                and fails when it is read.
        """
        path = absolute(path)
        try:
            found = os.stat(path)  # noqa: PTH116 (of a million files)
        except OSError:
            return None if must_exist else cls(path, 0, 0)
        is_file = stat.S_ISREG(found.st_mode)
        return cls(path, found.st_size, found.st_mtime_ns) if is_file else None

    @property
    def identity(self) -> tuple[str | int, ...]:
        """See `Place`."""
        return (self.path, self.num_bytes, self.modified_ns, self.offset)

    def read(self, *, what: str) -> bytes:
        """See `Place`."""
        _check_size(self.num_bytes, what=what)
        (data,) = _read(self, [(self.offset, self.num_bytes)], what=what)
        if self.crc is not None and checksum(data) != self.crc:
            raise DataError(
                f"{what} differs from the checksum that its manifest promises; the shard was "
                f"changed or is damaged: copy {self.path} again"
            )
        return data

    def peek(self, *, what: str) -> bytes:
        """Return the first and the last bytes."""
        count = min(self.num_bytes, _PEEK_BYTES)
        last = self.offset + self.num_bytes - count
        return b"".join(_read(self, [(self.offset, count), (last, count)], what=what))


@dataclass(frozen=True, slots=True)
class ZipPlace:
    """A member of a zip archive, stored or deflated.

    Attributes:
        path: The archive.
        num_bytes: Bytes of the member, as the archive declares them.
        modified_ns: Time of the archive's last change.
        header: Byte at which the member's local header begins.
        num_packed_bytes: Bytes that it takes in the archive.
        crc: CRC-32 of its contents.
        method: 0 for stored, 8 for deflated.
    """

    path: str
    num_bytes: int
    modified_ns: int
    header: int
    num_packed_bytes: int
    crc: int
    method: int

    @property
    def identity(self) -> tuple[str | int, ...]:
        """See `Place`."""
        return (self.path, self.num_bytes, self.modified_ns, self.header, self.crc)

    def read(self, *, what: str) -> bytes:
        """See `Place`."""
        _check_size(max(self.num_bytes, self.num_packed_bytes), what=what)
        (header,) = _read(self, [(self.header, _LOCAL_HEADER.size)], what=what)
        magic, name_bytes, extra_bytes = _LOCAL_HEADER.unpack(header)
        start = self.header + _LOCAL_HEADER.size + name_bytes + extra_bytes
        (packed,) = _read(self, [(start, self.num_packed_bytes)], what=what)
        try:
            data = self._unpack(packed) if magic == b"PK\x03\x04" else b""
        except zlib.error:
            data = b""
        if len(data) != self.num_bytes or checksum(data) != self.crc:
            raise BadImageError(
                f"{what} does not have the bytes that {self.path} declares; the archive is "
                f"damaged: copy it again",
                reason="damaged archive",
            )
        return data

    def peek(self, *, what: str) -> bytes:
        """Return all bytes: the end of a compressed member cannot be read without the rest."""
        return self.read(what=what)

    def _unpack(self, packed: bytes) -> bytes:
        """Undo the compression; never more than one byte above what is declared."""
        if self.method == _STORED:
            return packed
        return zlib.decompressobj(-zlib.MAX_WBITS).decompress(packed, self.num_bytes + 1)


def _check_size(num_bytes: int, *, what: str) -> None:
    if num_bytes > MAX_MEMBER_BYTES:
        raise BadImageError(
            f"{what} has {num_bytes:,} bytes; allowed: {MAX_MEMBER_BYTES:,}. Cut it into tiles",
            reason="too many bytes",
        )


def _read(place: Place, spans: list[tuple[int, int]], *, what: str) -> list[bytes]:
    """Return the bytes of each span (offset, count) of the file on the disk."""
    try:
        with open(place.path, "rb", buffering=0) as file:  # noqa: PTH123 (a million times)
            changed = os.fstat(file.fileno()).st_mtime_ns != place.modified_ns
            found = [_pread(file.fileno(), offset, count) for offset, count in spans]
    except OSError as error:
        raise BadImageError(
            f"{what} cannot be read ({error.strerror}); check the file and its permissions",
            reason="unreadable file",
        ) from error
    if changed or any(len(data) != count for data, (_, count) in zip(found, spans, strict=True)):
        raise BadImageError(
            f"{what} was changed after it was listed; wait until {place.path} is complete, and "
            f"pack again",
            reason="changed while packing",
        )
    return found


def _pread(handle: int, offset: int, count: int) -> bytes:
    """Read `count` bytes, fewer only at the end; one call returns at most 2 GiB."""
    data = os.pread(handle, count, offset)
    while data and len(data) < count:
        more = os.pread(handle, count - len(data), offset + len(data))
        if not more:
            break
        data += more
    return data
