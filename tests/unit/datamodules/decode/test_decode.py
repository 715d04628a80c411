"""Pixels come out as they were stored, or the image is refused by name."""

from __future__ import annotations

import io
import struct
import tracemalloc
import warnings
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tifffile
from numpy.typing import NDArray
from PIL import Image

from datamodules.decode import Box, decode, open_picture, orient
from datamodules.guard import BadImageError

Array = NDArray[Any]
RNG = np.random.default_rng(0)


def png_bytes(pixels: Array, colour_type: int, *, extra: bytes = b"") -> bytes:
    """Write a PNG by hand, so that the oracle is the specification and not a library.

    `pixels` is ``(height, width[, samples])``, uint8 or uint16.
    """
    height, width = pixels.shape[:2]
    depth = 8 * pixels.dtype.itemsize
    rows = b"".join(b"\0" + row.astype(f">u{depth // 8}").tobytes() for row in pixels)
    header = struct.pack(">IIBBBBB", width, height, depth, colour_type, 0, 0, 0)
    data = chunk(b"IHDR", header) + extra + chunk(b"IDAT", zlib.compress(rows))
    return b"\x89PNG\r\n\x1a\n" + data + chunk(b"IEND", b"")


def chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def saved(image: Image.Image, kind: str, **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def tiff_bytes(pixels: Array, **options: Any) -> bytes:
    stream = io.BytesIO()
    tifffile.imwrite(stream, pixels, **options)
    return stream.getvalue()


def levels(*shape: int, dtype: Any = np.uint16) -> Array:
    info = np.iinfo(dtype)
    return RNG.integers(info.min, info.max, shape, dtype=dtype, endpoint=True)


def planes(pixels: Array) -> Array:
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


EVERY_LEVEL = np.arange(65536, dtype=np.uint16).reshape(256, 256)
COLOUR16 = levels(5, 7, 3)
COLOUR8 = levels(5, 7, 3, dtype=np.uint8)
OPAQUE16 = np.full((5, 7, 1), 65535, dtype=np.uint16)
OPAQUE8 = np.full((5, 7, 1), 255, dtype=np.uint8)
FLOATS = RNG.normal(size=(4, 6)).astype(np.float32)

EXACT: dict[str, tuple[bytes, Array]] = {
    "png grey 8": (png_bytes(COLOUR8[..., 0], 0), COLOUR8[..., 0]),
    "png grey 16, every level": (png_bytes(EVERY_LEVEL, 0), EVERY_LEVEL),
    "png rgb 8": (png_bytes(COLOUR8, 2), COLOUR8),
    "png rgb 16": (png_bytes(COLOUR16, 2), COLOUR16),
    "png opaque rgba 16": (png_bytes(np.concatenate([COLOUR16, OPAQUE16], 2), 6), COLOUR16),
    "png opaque grey alpha 16": (
        png_bytes(np.concatenate([COLOUR16[..., :1], OPAQUE16], 2), 4),
        COLOUR16[..., 0],
    ),
    "png opaque rgba 8": (png_bytes(np.concatenate([COLOUR8, OPAQUE8], 2), 6), COLOUR8),
    "png opaque grey alpha 8": (
        png_bytes(np.concatenate([COLOUR8[..., :1], OPAQUE8], 2), 4),
        COLOUR8[..., 0],
    ),
    "tiff grey 16, every level": (tiff_bytes(EVERY_LEVEL), EVERY_LEVEL),
    "tiff grey 16 big endian": (tiff_bytes(EVERY_LEVEL, byteorder=">"), EVERY_LEVEL),
    "tiff grey 16 deflate": (tiff_bytes(EVERY_LEVEL, compression="zlib"), EVERY_LEVEL),
    "tiff rgb 16": (tiff_bytes(COLOUR16, photometric="rgb"), COLOUR16),
    "tiff rgb 8 planes": (
        tiff_bytes(planes(COLOUR8).copy(), photometric="rgb", planarconfig="separate"),
        COLOUR8,
    ),
    "tiff int16": (tiff_bytes(EVERY_LEVEL.view(np.int16)), EVERY_LEVEL.view(np.int16)),
    "tiff int8": (
        tiff_bytes(COLOUR8[..., 0].view(np.int8)),
        COLOUR8[..., 0].view(np.int8).astype(np.int16),
    ),
    "tiff float32": (tiff_bytes(FLOATS), FLOATS),
    "tiff float16": (tiff_bytes(FLOATS.astype(np.float16)), FLOATS.astype(np.float16).astype("f4")),
    "tiff 13 bands, interleaved": (
        (bands := levels(6, 5, 13)) is not None
        and tiff_bytes(bands, photometric="minisblack", planarconfig="contig"),
        bands,
    ),
    "tiff 13 bands, planes": (
        tiff_bytes(planes(bands).copy(), photometric="minisblack", planarconfig="separate"),
        bands,
    ),
    "tiff white is zero": (
        tiff_bytes(EVERY_LEVEL, photometric="miniswhite"),
        65535 - EVERY_LEVEL,
    ),
    "tiff lzw grey 16": (
        saved(Image.fromarray(EVERY_LEVEL), "TIFF", compression="tiff_lzw"),
        EVERY_LEVEL,
    ),
    "tiff lzw rgb 8": (saved(Image.fromarray(COLOUR8), "TIFF", compression="tiff_lzw"), COLOUR8),
    "bigtiff": (tiff_bytes(EVERY_LEVEL, bigtiff=True), EVERY_LEVEL),
}


@pytest.mark.parametrize("name", EXACT)
def test_decode_lossless_file_keeps_every_level(name: str) -> None:
    data, expected = EXACT[name]
    pixels = decode(data, what=name)
    assert pixels.dtype == expected.dtype
    np.testing.assert_array_equal(pixels, planes(expected))
    assert pixels.flags.c_contiguous


@pytest.mark.parametrize("name", EXACT)
def test_open_picture_says_what_read_gives_and_reads_any_box(name: str) -> None:
    data, expected = EXACT[name]
    picture = open_picture(data, what=name)
    whole = planes(expected)
    assert (picture.num_channels, picture.dtype) == (len(whole), whole.dtype.name)
    assert picture.size == whole.shape[1:]
    np.testing.assert_array_equal(picture.read(Box(2, 1, 2, 3)), whole[:, 2:4, 1:4])
    np.testing.assert_array_equal(picture.read(at_least=(1, 1)), whole)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_open_picture_box_is_one_of_the_upright_picture(kind: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    picture = open_picture(saved(Image.fromarray(COLOUR8), kind, exif=exif), what="turned")
    whole = orient(planes(COLOUR8), orientation)
    assert picture.size == whole.shape[1:]
    np.testing.assert_array_equal(picture.read(), whole)
    np.testing.assert_array_equal(picture.read(Box(1, 2, 4, 3)), whole[:, 1:5, 2:5])


def test_decode_palette_png_becomes_rgb() -> None:
    image = Image.fromarray(np.array([[0, 1], [2, 1]], dtype=np.uint8), mode=None).convert("P")
    image.putpalette([10, 20, 30, 40, 50, 60, 70, 80, 90])
    image.putdata([0, 1, 2, 1])
    expected = [[[10, 40], [70, 40]], [[20, 50], [80, 50]], [[30, 60], [90, 60]]]
    assert decode(saved(image, "PNG"), what="p").tolist() == expected


def test_decode_palette_tiff_becomes_rgb() -> None:
    table = np.zeros((3, 256), dtype=np.uint16)
    table[:, 1] = [257 * 10, 257 * 20, 257 * 30]
    data = tiff_bytes(np.array([[1, 0]], dtype=np.uint8), photometric="palette", colormap=table)
    assert decode(data, what="p").tolist() == [[[10, 0]], [[20, 0]], [[30, 0]]]


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_decode_one_bit_becomes_0_and_255(kind: str) -> None:
    bits = np.array([[True, False, True], [False, False, True]])
    pixels = decode(saved(Image.fromarray(bits), kind), what="bits")
    assert pixels.dtype == np.uint8
    assert pixels.tolist() == [[[255, 0, 255], [0, 0, 255]]]


def test_decode_cmyk_jpeg_becomes_rgb() -> None:
    red = Image.new("CMYK", (16, 16), (0, 255, 255, 0))
    pixels = decode(saved(red, "JPEG", quality=100), what="cmyk").astype(int)
    assert pixels.shape == (3, 16, 16)
    assert abs(pixels.mean(axis=(1, 2)) - [255, 0, 0]).max() < 4


def test_decode_cmyk_tiff_becomes_rgb() -> None:
    red = Image.new("CMYK", (4, 4), (0, 255, 255, 0))
    assert decode(saved(red, "TIFF"), what="cmyk")[:, 0, 0].tolist() == [255, 0, 0]


# Exif 2.32: where the stored first row and first column lie in the upright picture.
FIRST_ROW_AND_COLUMN = {
    1: ("top", "left"),
    2: ("top", "right"),
    3: ("bottom", "right"),
    4: ("bottom", "left"),
    5: ("left", "top"),
    6: ("right", "top"),
    7: ("right", "bottom"),
    8: ("left", "bottom"),
}
SIDES: dict[str, Callable[[Array], Array]] = {
    "top": lambda a: a[0],
    "bottom": lambda a: a[-1],
    "left": lambda a: a[:, 0],
    "right": lambda a: a[:, -1],
}


@pytest.mark.parametrize("value", FIRST_ROW_AND_COLUMN)
def test_orient_puts_first_row_and_column_where_exif_says(value: int) -> None:
    stored = np.arange(12).reshape(3, 4)
    upright = orient(stored[None], value)[0]
    row_side, column_side = FIRST_ROW_AND_COLUMN[value]
    assert sorted(SIDES[row_side](upright)) == stored[0].tolist()
    assert sorted(SIDES[column_side](upright)) == stored[:, 0].tolist()


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "TIFF"])
def test_decode_orientation_is_applied(kind: str) -> None:
    stored = np.zeros((16, 32), dtype=np.uint8)
    stored[:8] = 255  # bright above; orientation 6 turns that to the right
    exif = Image.Exif()
    exif[0x0112] = 6
    pixels = decode(saved(Image.fromarray(stored), kind, exif=exif), what="turned")
    assert pixels.shape == (1, 32, 16)
    assert pixels[0, :, 8:].min() > 250
    assert pixels[0, :, :8].max() < 5


TRANSPARENT8 = np.concatenate([COLOUR8, OPAQUE8 - 1], 2)
NAN = np.array([[1.0, np.nan]], dtype=np.float32)
JPEG = saved(Image.fromarray(levels(64, 64, 3, dtype=np.uint8)), "JPEG")
ANIMATED = saved(
    Image.fromarray(COLOUR8),
    "PNG",
    save_all=True,
    append_images=[Image.fromarray(255 - COLOUR8)],
)
LAB = tiff_bytes(COLOUR8, photometric="cielab")

REFUSED: dict[str, tuple[bytes, str, str]] = {
    "empty": (b"", "empty file", "0 bytes"),
    "text": (b"hello world", "not an image", "JPEG, PNG, TIFF"),
    "gif": (saved(Image.fromarray(COLOUR8), "GIF"), "GIF is not supported", "Convert it"),
    "webp": (saved(Image.fromarray(COLOUR8), "WEBP"), "WebP is not supported", "Convert it"),
    "transparent 8": (png_bytes(TRANSPARENT8, 6), "transparent pixels", "35 transparent"),
    "transparent 16": (
        png_bytes(np.concatenate([COLOUR16, OPAQUE16 - 1], 2), 6),
        "transparent pixels",
        "Flatten",
    ),
    "transparent level 16": (
        png_bytes(EVERY_LEVEL, 0, extra=chunk(b"tRNS", struct.pack(">H", 77))),
        "transparent pixels",
        "1 transparent",
    ),
    "transparent level rgb 16": (
        png_bytes(COLOUR16, 2, extra=chunk(b"tRNS", COLOUR16[1, 1].astype(">u2").tobytes())),
        "transparent pixels",
        "1 transparent",
    ),
    "animated png": (ANIMATED, "several pages", "animation"),
    "stack": (tiff_bytes(levels(3, 8, 8), photometric="minisblack"), "several pages", "3 pages"),
    "lab": (LAB, "colour mode CIELAB", "Convert it to RGB"),
    "float64": (tiff_bytes(FLOATS.astype(np.float64)), "depth float64", "float32"),
    "uint32": (tiff_bytes(EVERY_LEVEL.astype(np.uint32)), "depth uint32", "uint16"),
    "nan": (tiff_bytes(NAN), "non-finite pixels", "NaN"),
    "no-data": (
        tiff_bytes(np.array([[1, 9]], dtype=np.uint16), extratags=[(42113, 2, 2, "9", True)]),
        "no-data pixels",
        "1 no-data values",
    ),
    "lzw rgb 16": (
        # tifffile cannot write LZW alone: claim it in the header of an uncompressed file.
        tiff_bytes(COLOUR16, photometric="rgb").replace(
            struct.pack("<HHII", 259, 3, 1, 1), struct.pack("<HHII", 259, 3, 1, 5)
        ),
        "TIFF compression LZW",
        "imagecodecs",
    ),
    "png cut": (png_bytes(EVERY_LEVEL, 0)[:-500], "damaged", "cut off"),
    "png 16 rgb cut": (png_bytes(levels(64, 64, 3), 2)[:-500], "damaged", "cut off"),
    "jpeg cut": (JPEG[:-300], "damaged", "cut off"),
    "jpeg header only": (JPEG[:30], "damaged", "cut off"),
    "tiff cut": (tiff_bytes(EVERY_LEVEL)[:9000], "damaged", "cut off"),
    "png bit flipped": (
        (flipped := bytearray(png_bytes(COLOUR8, 2))).__setitem__(60, flipped[60] ^ 1)
        or bytes(flipped),
        "damaged",
        "cut off",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_decode_unusable_image_is_refused_with_reason_and_name(name: str) -> None:
    data, reason, words = REFUSED[name]
    with pytest.raises(BadImageError, match="shard-1: key-2") as caught:
        decode(data, what="shard-1: key-2")
    assert caught.value.reason == reason
    assert words in str(caught.value)


def bomb(height: int, width: int) -> bytes:
    """Return a PNG of a few bytes that declares a huge size."""
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")


def resized_header(tiff: bytes, tag: int, old: int, new: int) -> bytes:
    """Change a LONG entry of a little-endian TIFF directory."""
    entry = struct.pack("<HHII", tag, 4, 1, old)
    assert tiff.count(entry) == 1
    return tiff.replace(entry, struct.pack("<HHII", tag, 4, 1, new))


SMALL_TIFF = tiff_bytes(np.zeros((2, 2), np.uint8))
BOMBS = {
    "png": bomb(40_000, 50_000),
    "tiff": resized_header(resized_header(SMALL_TIFF, 256, 2, 50_000), 257, 2, 40_000),
}


@pytest.mark.parametrize("kind", BOMBS)
def test_decode_bomb_is_refused_from_its_header(kind: str) -> None:
    with pytest.raises(BadImageError, match=r"2,000,000,000 px.*max_pixels = 100,000,000"):
        decode(BOMBS[kind], what="bomb")


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "TIFF"])
def test_decode_limit_is_exact_and_an_argument(kind: str) -> None:
    data = saved(Image.fromarray(levels(20, 30, dtype=np.uint8)), kind)
    assert decode(data, what="x", max_pixels=600).shape == (1, 20, 30)
    with pytest.raises(BadImageError, match="max_pixels = 599"):
        decode(data, what="x", max_pixels=599)


def test_decode_large_limit_ignores_and_keeps_pillows_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    data = png_bytes(EVERY_LEVEL, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert decode(data, what="x").shape == (1, 256, 256)
    assert Image.MAX_IMAGE_PIXELS == 10


def test_decode_kind_is_decided_by_content() -> None:
    # The name says JPEG, the bytes say TIFF.
    assert decode(EXACT["tiff rgb 16"][0], what="photo.jpg").dtype == np.uint16


def paeth(left: int, up: int, corner: int) -> int:
    """PNG (ISO 15948) 9.4, written out."""
    estimate = left + up - corner
    return min((left, up, corner), key=lambda v: abs(estimate - v))


def filtered_rows(pixels: Array, first_filter: int) -> bytes:
    """Filter rows with all five types in turn, byte by byte as the specification says."""
    raw = pixels.astype(">u2").view(np.uint8).reshape(len(pixels), -1).astype(int)
    bpp, out = 2 * pixels.shape[2], bytearray()
    for y, row in enumerate(raw):
        kind = (y + first_filter) % 5
        out.append(kind)
        for i, value in enumerate(row):
            left = row[i - bpp] if i >= bpp else 0
            up = raw[y - 1][i] if y else 0
            corner = raw[y - 1][i - bpp] if y and i >= bpp else 0
            guess = (0, left, up, (left + up) // 2, paeth(left, up, corner))[kind]
            out.append((value - guess) % 256)
    return bytes(out)


# First row and column, then distances, of each pass: PNG (ISO 15948) 8.2.
ADAM7 = (
    (0, 0, 8, 8),
    (0, 4, 8, 8),
    (4, 0, 8, 4),
    (0, 2, 4, 4),
    (2, 0, 4, 2),
    (0, 1, 2, 2),
    (1, 0, 2, 1),
)


@pytest.mark.parametrize("size", [(11, 9), (1, 1), (3, 17)])
@pytest.mark.parametrize("interlaced", [False, True])
@pytest.mark.parametrize("colour_type", [2, 6])
def test_decode_16_bit_colour_png_with_every_filter_is_exact(
    size: tuple[int, int], interlaced: bool, colour_type: int
) -> None:
    pixels = levels(*size, 3 if colour_type == 2 else 4)
    pixels[..., 3:] = 65535
    passes = [pixels[y::dy, x::dx] for y, x, dy, dx in ADAM7] if interlaced else [pixels]
    rows = b"".join(filtered_rows(part, i) for i, part in enumerate(passes) if part.size)
    header = struct.pack(">IIBBBBB", size[1], size[0], 16, colour_type, 0, 0, int(interlaced))
    packed = zlib.compress(rows)
    data = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header)
    data += chunk(b"IDAT", packed[:20]) + chunk(b"IDAT", packed[20:]) + chunk(b"IEND", b"")
    np.testing.assert_array_equal(decode(data, what="x"), planes(pixels[..., :3]))


def refused_within(data: bytes, num_bytes: float, words: str) -> None:
    tracemalloc.start()
    with pytest.raises(BadImageError, match=words):
        decode(data, what="x")
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < num_bytes


def test_decode_tiff_small_image_in_a_huge_tile_is_refused_undecoded() -> None:
    small = np.zeros((16, 16), dtype=np.uint8)
    decode(tiff_bytes(small, tile=(1024, 1024), compression="zlib"), what="x")
    data = tiff_bytes(small, tile=(8192, 8192), compression="zlib")
    refused_within(data, 4e6, r"256 bytes of pixels in pieces of 67,108,864 bytes")


def test_decode_tiff_of_a_depth_that_is_not_kept_is_refused_undecoded() -> None:
    data = tiff_bytes(np.zeros((2000, 2000)), compression="zlib")
    refused_within(data, 4e6, "float64 values")
