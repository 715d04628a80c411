"""Mutations of contents and of index files: what decoders and loaders are to be blown up with."""

from __future__ import annotations

import gzip
import io
import json
import random
import struct
import zlib
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import tifffile
from PIL import Image

from tests.soak.archives import Archive, entry, grouped, header, joined, payload

Content = tuple[str, bytes]  # suffix, bytes
_MIB = 2**20


@lru_cache
def deflated_zeros(num_mib: int) -> bytes:
    """Return a zlib stream of zeros, made without ever holding them."""
    deflater = zlib.compressobj(9)
    deflater.compress(bytes(_MIB))
    deflater.flush(zlib.Z_FULL_FLUSH)
    of_one = deflater.compress(bytes(_MIB)) + deflater.flush(zlib.Z_FULL_FLUSH)
    checksum = (num_mib * _MIB % 65_521) << 16 | 1  # Adler-32 of zeros
    return b"\x78\xda" + of_one * num_mib + b"\x03\0" + struct.pack(">I", checksum)


@lru_cache
def gzipped_zeros() -> bytes:
    """Return a gzip file of 64 MiB of zeros."""
    return gzip.compress(bytes(64 * _MIB))


def png_chunks(*chunks: tuple[bytes, bytes]) -> bytes:
    """Return a PNG of these chunks, with right checksums."""
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
        for name, body in chunks
    )


def png_bomb(draw: random.Random, archive: Archive) -> Content:
    """A PNG that declares, or holds, far more than its file is long."""
    zeros = deflated_zeros(draw.choice((64, 256)))
    sides = draw.choice(
        ((65_535, 65_535), (2**31 - 1, 1), (1, 2**31 - 1), (0, 5), (2**32 - 1,) * 2)
    )
    depth, colours = draw.choice(((8, 2), (16, 6), (16, 2), (1, 0), (8, 3), (7, 9)))
    small = struct.pack(">IIBBBBB", 4, 4, depth, colours, 0, 0, draw.choice((0, 1)))
    huge = struct.pack(">IIBBBBB", *sides, depth, colours, 0, 0, 0)
    text = draw.choice((b"zTXt", b"iCCP", b"iTXt"))
    body = b"key\0\1\0\0\0" + zeros if text == b"iTXt" else b"key\0\0" + zeros
    frames = struct.pack(">II", 2**31, 0)
    end = (b"IEND", b"")
    content = draw.choice(
        [
            png_chunks((b"IHDR", huge), (b"IDAT", zeros), end),
            png_chunks((b"IHDR", small), (b"IDAT", zeros), end),
            png_chunks((b"IHDR", small), (text, body), (b"IDAT", zeros), end),
            png_chunks((b"IHDR", small), (b"IDAT", zlib.compress(bytes(200))), (text, body), end),
            png_chunks((b"IHDR", small), (b"acTL", frames), (b"IDAT", zeros), end),
            png_chunks((b"IHDR", small), *[(b"IDAT", b"")] * 20_000, end),
            png_chunks((b"IHDR", small)),
        ]
    )
    return "png", content


def tiff_tags(tags: Sequence[tuple[int, int, int, int]], *, following: int = 0) -> bytes:
    """Return a little-endian TIFF of one directory: code, type, count, value."""
    directory = struct.pack("<H", len(tags))
    directory += b"".join(struct.pack("<HHII", *tag) for tag in sorted(tags))
    return b"II*\0" + struct.pack("<I", 8) + directory + struct.pack("<I", following) + bytes(64)


def tiff_bomb(draw: random.Random, archive: Archive) -> Content:
    """A TIFF that declares, or holds, far more than its file is long."""
    huge = draw.choice((10**5, 2**31 - 1, 2**32 - 1))
    size = draw.choice(((4, 4), (huge, huge), (huge, 1), (1, huge), (0, 4)))
    tags = {
        256: (4, 1, size[0]),  # width
        257: (4, 1, size[1]),  # height
        258: (3, 1, draw.choice((8, 8, 16, 64))),  # bits
        259: (3, 1, draw.choice((1, 1, 8, 5, 7, 32773, 34925, 50000))),  # compression
        262: (3, 1, 1),  # photometric
        273: (4, draw.choice((1, 1, huge)), 8),  # strip offsets
        277: (3, 1, draw.choice((1, 1, 60_000))),  # channels
        278: (4, 1, draw.choice((4, huge))),  # rows per strip
        279: (4, draw.choice((1, 1, huge)), draw.choice((16, huge))),  # strip bytes
    }
    if draw.random() < 0.3:
        side = draw.choice((16, huge))
        tags |= {322: (4, 1, side), 323: (4, 1, side), 324: (4, 1, 8), 325: (4, 1, 16)}
    if draw.random() < 0.3:
        tags[draw.choice((270, 320, 330, 34665, 42113, 700))] = (
            draw.choice((1, 2, 4, 13)),
            draw.choice((1, huge)),
            draw.choice((0, 8, huge)),
        )
    rows = [(code, *value) for code, value in tags.items()]
    return "tif", tiff_tags(rows, following=draw.choice((0, 0, 8, huge)))


def inflating_tiff(draw: random.Random, archive: Archive) -> Content:
    """A small TIFF whose strip inflates to far more than its pixels."""
    stream = io.BytesIO()
    tifffile.imwrite(stream, np.zeros((8, 8), np.uint8), compression="zlib", rowsperstrip=8)
    data = stream.getvalue()
    with tifffile.TiffFile(io.BytesIO(data)) as file:
        page = file.pages.first
        counts = page.tags["StripByteCounts"].valueoffset
        offsets = page.tags["StripOffsets"].valueoffset
    bomb = deflated_zeros(draw.choice((1, 512)))
    changed = bytearray(data + bomb)
    struct.pack_into("<I", changed, offsets, len(data))
    wide = page.tags["StripByteCounts"].dtype == 4
    if wide:
        struct.pack_into("<I", changed, counts, len(bomb))
    else:
        struct.pack_into("<H", changed, counts, min(len(bomb), 65_535))
    return "tif", bytes(changed)


def jpeg_bomb(draw: random.Random, archive: Archive) -> Content:
    """A JPEG that declares a huge picture, or is damaged in its segments."""
    stream = io.BytesIO()
    Image.new("RGB", (12, 10)).save(stream, "JPEG", progressive=draw.random() < 0.5)
    data = bytearray(stream.getvalue())
    if draw.random() < 0.5:
        marker = max(data.find(b"\xff\xc0"), data.find(b"\xff\xc2"))
        struct.pack_into(
            ">HH", data, marker + 5, *draw.choice(((65_535, 65_535), (0, 9), (1, 65_535)))
        )
    else:
        for _ in range(draw.randrange(1, 6)):
            data[draw.randrange(2, len(data))] = draw.randrange(256)
    return "jpg", bytes(data)


def mutated_image(draw: random.Random, archive: Archive) -> Content:
    """An image with some bytes changed, or cut off."""
    name, content = draw.choice(archive.members[::3])
    data = bytearray(content)
    for _ in range(draw.randrange(4)):
        place = draw.randrange(min(len(data), draw.choice((64, 256, 10**6))))
        data[place] = draw.choice((0, 255, data[place] ^ (1 << draw.randrange(8))))
    keep = len(data) if draw.random() < 0.7 else draw.randrange(len(data))
    return name.rpartition(".")[2], bytes(data[:keep])


def foreign_content(draw: random.Random, archive: Archive) -> Content:
    """A pickle, an archive or nothing at all under the name of an image or a text."""
    suffix = draw.choice(("png", "jpg", "tif", "json", "cls"))
    numpy = io.BytesIO()
    np.save(numpy, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    return suffix, draw.choice(
        (
            payload(archive.canary),
            gzipped_zeros(),
            numpy.getvalue(),
            b"",
            b"GIF89a" + bytes(20),
            b"#!/bin/sh\ntouch canary\n",
            archive.members[0][1][:3],
        )
    )


def text_bomb(draw: random.Random, archive: Archive) -> Content:
    """A sidecar or class that is huge, deeply nested, or no JSON."""
    suffix = draw.choice(("json", "json", "cls"))
    return suffix, draw.choice(
        (
            b"[" * draw.choice((100, 100_000, 1_000_000)),
            b'{"a":' * 150_000,
            b'{"group": "' + b"g" * draw.choice((10, 2**20)) + b'"}',
            b'{"group": ' + b"9" * 10_000 + b"}",
            b"9" * draw.choice((30, 10_000)),
            b"-1",
            b" 1 ",
            b"NaN",
            b"[]",
            b"null",
            b'"text"',
            b'{"group": [1, {"a": null}]}',
            b"\xff\xfe{}",
            b"{" + b"\0" * 50,
            json.dumps({"group": "g\ud800"}).encode(),
        )
    )


CONTENTS: dict[str, Callable[[random.Random, Archive], Content]] = {
    function.__name__: function
    for function in (
        png_bomb,
        tiff_bomb,
        inflating_tiff,
        jpeg_bomb,
        mutated_image,
        foreign_content,
        text_bomb,
    )
}


def with_content(archive: Archive, suffix: str, content: bytes, *, number: int) -> bytes:
    """Return the archive with the content in place of a member of that kind of one sample."""
    key = grouped(archive.members)[number][0]
    kept = []
    for (name, old), same in zip(archive.members, archive.entries, strict=True):
        own = name.rpartition(".")[2]
        if not name.startswith(f"{key}."):
            kept.append(same)
        elif own == suffix or not {own, suffix} & {"json", "cls"}:
            kept.append(entry(f"{key[:60]}.{suffix}", content))
        else:
            kept.append(entry(f"{key[:60]}.{own}", old))
    return joined(kept)


def hollow(draw: random.Random, archive: Archive) -> tuple[bytes, int]:
    """Return the beginning of a shard, and how many bytes of zeros its last header declares."""
    name, kind, size = draw.choice(
        (
            (b"pax", b"x", 2**30),
            (b"pax", b"g", 2**30),
            (b"././@LongLink", b"L", 2**30),
            (b"././@LongLink", b"K", 2**30),
            (b"zz.png", b"0", 2**28),
            (b"zz.png", b"0", 2**33),
            (b"zz.json", b"0", 2**30),
            (b"zz", b"5", 2**30),
        )
    )
    kept = archive.entries[: draw.choice((0, 3, len(archive.entries)))]
    return b"".join((*kept, header(name, size, kind=kind))), size


def bad_index(draw: random.Random, archive: Archive, index: bytes) -> bytes:
    """Return something in place of an index file."""
    length = int.from_bytes(index[:8], "little")
    described = json.loads(index[8 : 8 + length])
    name = draw.choice([key for key in described if not key.startswith("__")])
    tensor: dict[str, Any] = described[name]
    change = draw.randrange(6)
    if change == 0:
        tensor["dtype"] = draw.choice(("BF16", "F8_E4M3", "BOOL", "U64", "I32", "F64", "X"))
    elif change == 1:
        tensor["shape"] = draw.choice(([2**62], [2**31, 2**31], [-1], [], [0], [1, 1, 1], ["a"]))
    elif change == 2:
        tensor["data_offsets"] = draw.choice(([0, 2**62], [5, 1], [-8, 8], [0, 0]))
    elif change == 3:
        tensor |= {"shape": [0], "data_offsets": [0, 0]}
    elif change == 4:
        del described[name]
    else:
        described["__metadata__"] = {"a": "b" * 10_000}
    text = json.dumps(described).encode()
    flipped = bytearray(index)
    for _ in range(draw.choice((1, 1, 20))):
        flipped[draw.randrange(len(index))] ^= 1 << draw.randrange(8)
    return draw.choice(
        (
            struct.pack("<Q", len(text)) + text + index[8 + length :],
            struct.pack("<Q", len(text)) + text + index[8 + length :],
            bytes(flipped),
            bytes(flipped),
            index[: draw.randrange(len(index))],
            struct.pack("<Q", draw.choice((0, 2**40, 2**63, len(index)))) + index[8:],
            struct.pack("<Q", 10**6) + b"[" * 10**6,
            payload(archive.canary),
            b"",
            empty_index(),
        )
    )


def empty_index() -> bytes:
    """Return an index of no members that lacks even the size of its shard."""
    from safetensors.numpy import save

    kinds = {"keys": np.uint8, "suffixes": np.uint8, "crcs": np.uint32}
    names = ("keys", "key_ends", "suffixes", "suffix_ends", "offsets", "sizes", "crcs", "num_bytes")
    arrays = {name: np.zeros(0, kinds.get(name, np.int64)) for name in names}
    return bytes(save(arrays | {"first": np.zeros(1, np.int64)}))


def huge_index(num_bytes: int) -> bytes:
    """Return the beginning of an index file that is so long."""
    described = {"keys": {"dtype": "U8", "shape": [num_bytes], "data_offsets": [0, num_bytes]}}
    text = json.dumps(described).encode()
    return struct.pack("<Q", len(text)) + text
