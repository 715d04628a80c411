"""16-bit colour PNG, exactly.

Pillow cuts 16-bit colour to 8 bit, and torchvision's decoder is about to be removed.  But PNG
filters work byte by byte, each byte with its counterpart in the neighbouring pixels, so the high
bytes and the low bytes of a 16-bit image are two 8-bit images with the same filters.  They are
taken apart here and given to Pillow one by one, which undoes filters and interlacing in C.

Source: PNG (ISO/IEC 15948:2004), sections 7.2 (filtering), 8.2 (Adam7), 11.2.2 (IHDR).
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from PIL.PngImagePlugin import PngImageFile

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_NUM_SAMPLES = {2: 3, 4: 2, 6: 4}  # RGB, grey + alpha, RGB + alpha, by colour type
# First row and column, and distance of rows and columns, of each pass.
_ONE_PASS = ((0, 0, 1, 1),)
_ADAM7 = (
    (0, 0, 8, 8),
    (0, 4, 8, 8),
    (4, 0, 8, 4),
    (0, 2, 4, 4),
    (2, 0, 4, 2),
    (0, 1, 2, 2),
    (1, 0, 2, 1),
)


def is_deep_colour(data: bytes) -> bool:
    """Return whether a PNG stores 16 bits in more than one channel."""
    depth, colour_type = struct.unpack_from("BB", data, 24)
    return depth == 16 and colour_type in _NUM_SAMPLES


def decode_deep_colour(data: bytes) -> NDArray[np.uint16]:
    """Decode a PNG for which `is_deep_colour` holds.

    Returns:
        ``(chans, height, width)``, alpha last where the file has it.

    Raises:
        ValueError: If the file is damaged.
    """
    chunks = list(_chunks(data))
    header = chunks[0][1]
    width, height, _, colour_type, _, _, interlaced = struct.unpack(">IIBBBBB", header)
    num_samples = _NUM_SAMPLES[colour_type]
    passes = _ADAM7 if interlaced else _ONE_PASS
    sizes = [(-(-(height - y) // dy), -(-(width - x) // dx)) for y, x, dy, dx in passes]
    sizes = [(rows, columns) for rows, columns in sizes if rows > 0 and columns > 0]
    length = sum(rows * (1 + 2 * num_samples * columns) for rows, columns in sizes)
    filtered = _inflate(b"".join(body for name, body in chunks if name == b"IDAT"), length)
    high, low = _split_bytes(filtered, sizes, num_samples)
    pixels = _decode_8_bit(header, high).astype(np.uint16)
    pixels <<= 8
    pixels |= _decode_8_bit(header, low)
    return pixels


def _chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    place = len(_SIGNATURE)
    while True:
        length, name = struct.unpack_from(">I4s", data, place)
        body = data[place + 8 : place + 8 + length]
        (checksum,) = struct.unpack_from(">I", data, place + 8 + length)
        if zlib.crc32(name + body) != checksum:
            raise ValueError(f"checksum of chunk {name!r} is wrong")
        if name == b"IEND":
            return
        yield name, body
        place += 12 + length


def _inflate(packed: bytes, length: int) -> bytes:
    """Inflate exactly `length` bytes, never more."""
    inflater = zlib.decompressobj()
    filtered = inflater.decompress(packed, length + 1)
    if len(filtered) != length:
        raise ValueError(f"{len(filtered)} bytes of pixels or more, {length} expected")
    return filtered


def _split_bytes(
    filtered: bytes, sizes: list[tuple[int, int]], num_samples: int
) -> tuple[bytes, bytes]:
    """Return the scan lines of the high and of the low bytes; both keep the filter type."""
    place, halves = 0, ([], [])  # type: tuple[int, tuple[list[bytes], list[bytes]]]
    for rows, columns in sizes:
        width = 1 + 2 * num_samples * columns
        lines = np.frombuffer(filtered, np.uint8, rows * width, place).reshape(rows, width)
        for first, half in enumerate(halves):
            half.append(np.hstack([lines[:, :1], lines[:, 1 + first :: 2]]).tobytes())
        place += rows * width
    return b"".join(halves[0]), b"".join(halves[1])


def _decode_8_bit(header: bytes, lines: bytes) -> NDArray[np.uint8]:
    shallow = header[:8] + b"\x08" + header[9:]
    stored = zlib.compress(lines, level=0)
    chunks = ((b"IHDR", shallow), (b"IDAT", stored), (b"IEND", b""))
    data = _SIGNATURE + b"".join(
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
        for name, body in chunks
    )
    with PngImageFile(io.BytesIO(data)) as image:
        image.load()
        pixels: NDArray[np.uint8] = np.asarray(image)
    return pixels.transpose(2, 0, 1)
