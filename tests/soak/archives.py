"""The shards that are mutated, and tools to build tar headers that nobody would write."""

from __future__ import annotations

import io
import itertools
import json
import pickle
import random
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tifffile
from PIL import Image

BLOCK = 512
TRAILER = bytes(2 * BLOCK)
# Name → (first byte, one past the last) of a ustar header.
FIELDS: Mapping[str, tuple[int, int]] = {
    "name": (0, 100),
    "mode": (100, 108),
    "uid": (108, 116),
    "gid": (116, 124),
    "size": (124, 136),
    "mtime": (136, 148),
    "checksum": (148, 156),
    "kind": (156, 157),
    "link": (157, 257),
    "magic": (257, 263),
    "version": (263, 265),
    "user": (265, 297),
    "group": (297, 329),
    "device": (329, 345),
    "prefix": (345, 500),
    "rest": (500, 512),
}


@dataclass(frozen=True)
class Archive:
    """A tar in pieces.

    Attributes:
        members: Name and content of each member.
        entries: The bytes of each member: headers, content, padding.
        canary: File that appears if anything of the archive is ever run.
    """

    members: tuple[tuple[str, bytes], ...]
    entries: tuple[bytes, ...]
    canary: Path

    @property
    def data(self) -> bytes:
        """The whole file."""
        return joined(self.entries)

    @property
    def starts(self) -> list[int]:
        """Where each entry begins, and where the trailer does."""
        places = np.cumsum([0, *map(len, self.entries)])
        return [int(place) for place in places]

    @property
    def samples(self) -> list[tuple[str, dict[str, bytes]]]:
        """The samples by WebDataset's rule."""
        return grouped(self.members)


def joined(entries: Sequence[bytes]) -> bytes:
    """Return an archive of these entries."""
    return b"".join(entries) + TRAILER


def grouped(members: Sequence[tuple[str, bytes]]) -> list[tuple[str, dict[str, bytes]]]:
    """Return samples: neighbours whose names are the same up to the first dot of the file name."""
    found: list[tuple[str, dict[str, bytes]]] = []
    for name, content in members:
        folder, slash, file = name.rpartition("/")
        stem, _, suffix = file.partition(".")
        key = folder + slash + stem
        if not found or found[-1][0] != key:
            found.append((key, {}))
        found[-1][1][suffix.lower()] = content
    return found


def header(name: bytes, size: int, *, kind: bytes = b"0", link: bytes = b"") -> bytes:
    """Return a ustar header; nothing is checked."""
    block = bytearray(BLOCK)
    for field, value in (
        ("name", name),
        ("mode", b"0000644\0"),
        ("uid", b"0000000\0"),
        ("gid", b"0000000\0"),
        ("size", b"%011o\0" % size if size < 8**11 else b"\x80" + size.to_bytes(11, "big")),
        ("mtime", b"00000000000\0"),
        ("kind", kind),
        ("link", link),
        ("magic", b"ustar\0"),
        ("version", b"00"),
    ):
        set_field(block, field, value)
    return sealed(bytes(block))


def set_field(block: bytearray, field: str, value: bytes) -> None:
    """Overwrite the beginning of a field."""
    begin, end = FIELDS[field]
    value = value[: end - begin]
    block[begin : begin + len(value)] = value


def sealed(block: bytes) -> bytes:
    """Return a header with the checksum that belongs to it."""
    blank = block[:148] + b" " * 8 + block[156:]
    return block[:148] + b"%06o\0 " % sum(blank) + block[156:]


def entry(name: bytes | str, content: bytes, *, kind: bytes = b"0", link: bytes = b"") -> bytes:
    """Return header, content and padding of one member."""
    encoded = name.encode() if isinstance(name, str) else name
    return header(encoded, len(content), kind=kind, link=link) + padded(content)


def padded(content: bytes) -> bytes:
    """Return content filled up to whole blocks."""
    return content + bytes(-len(content) % BLOCK)


def pax(records: Mapping[str, bytes], *, kind: bytes = b"x") -> bytes:
    """Return a pax header with these records."""
    lines = b""
    for key, value in records.items():
        rest = b" " + key.encode() + b"=" + value + b"\n"
        length = len(rest) + 1
        while length != len(rest) + len(str(length)):
            length = len(rest) + len(str(length))
        lines += b"%d" % length + rest
    return entry(b"pax", lines, kind=kind)


def gnu_long(name: bytes, *, kind: bytes = b"L") -> bytes:
    """Return a GNU header with a long name."""
    return entry(b"././@LongLink", name + b"\0", kind=kind)


class Payload:
    """Touches a file if it is ever unpickled."""

    def __init__(self, canary: Path):
        self.canary = canary

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.canary,)


def payload(canary: Path) -> bytes:
    """Return a pickle that touches a file."""
    return pickle.dumps(Payload(canary))


def make_archive(first: int, *, canary: Path, flavour: int = tarfile.USTAR_FORMAT) -> Archive:
    """Return an archive of seven samples of all kinds of images, some names being long."""
    members: list[tuple[str, bytes]] = []
    for number in range(first, first + 7):
        long = "x" * 130 if flavour != tarfile.USTAR_FORMAT and number % 3 == 0 else ""
        key = f"folder{number % 2}/{number:03d}{long}"
        suffix, image = _image(number)
        members.append((f"{key}.{suffix}", image))
        members.append((f"{key}.json", json.dumps({"group": f"g{number}"}).encode()))
        members.append((f"{key}.cls", b"%d" % (number % 2)))
    stream, ends = io.BytesIO(), []
    with tarfile.open(fileobj=stream, mode="w", format=flavour) as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
            ends.append(tar.offset)
    data = stream.getvalue()
    entries = [data[a:b] for a, b in itertools.pairwise([0, *ends])]
    return Archive(tuple(members), tuple(entries), canary)


def _image(number: int) -> tuple[str, bytes]:
    pixels = np.random.default_rng(number).integers(0, 256, (10, 12, 3), dtype=np.uint8)
    stream = io.BytesIO()
    if number % 3 == 0:
        options: dict[str, Any] = {"compression": "zlib"} if number % 2 else {}
        tifffile.imwrite(stream, pixels, photometric="rgb", **options)
        return "tif", stream.getvalue()
    Image.fromarray(pixels).save(stream, "JPEG" if number % 3 == 1 else "PNG")
    return ("jpg", "png")[number % 3 - 1], stream.getvalue()


def pick_entry(draw: random.Random, archive: Archive) -> int:
    """Return the number of any member."""
    return draw.randrange(len(archive.entries))
