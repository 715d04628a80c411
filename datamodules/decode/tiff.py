"""TIFF and GeoTIFF through tifffile, which keeps 16 bit, floats and any number of bands.

Compressions that tifffile cannot undo alone (LZW, JPEG) are read by Pillow where that is exact,
which is 8 bit and 16-bit grey; for the rest the message names the package to install.
"""

from __future__ import annotations

import io
import logging
import lzma
import math
from itertools import islice
from typing import Any

import numpy as np
import tifffile
from PIL import Image
from PIL.TiffImagePlugin import TiffImageFile

from datamodules.decode.geometry import Pixels, orient
from datamodules.decode.picture import drop_opaque_alpha
from datamodules.guard import VALUES_PER_PIXEL, BadImageError, check_pixels

try:
    from isal import isal_zlib as zlib  # inflates in half the time
except ImportError:  # no wheel for this platform
    import zlib  # type: ignore[no-redef]

logging.getLogger("tifffile").setLevel(logging.CRITICAL)  # our errors say what is damaged
_LOSSLESS = {"bool": "uint8", "int8": "int16", "float16": "float32"}
_NATIVE = ("uint8", "uint16", "int16", "float32")
_MAX_PADDING, _MIN_PIECE_BYTES = 4, 2**24  # tiles may be larger than small images
_DEFLATE_RATIO, _HARMLESS_BYTES = 1032, 2**26
_DEFLATE, _LZMA = (8, 32946), 34925  # values of the tag Compression
_ALPHA = (1, 2)  # TIFF 6.0, ExtraSamples: associated and unassociated alpha
_MAX_PAGES = 64  # reduced copies and masks of one image
_REDUCED_OR_MASK = 1 | 4  # TIFF 6.0, NewSubfileType bits


def decode_tiff(data: bytes, *, what: str, max_pixels: int) -> Pixels:
    """Decode a TIFF; see `datamodules.decode.decode`."""
    with tifffile.TiffFile(io.BytesIO(data)) as file:
        page = _only_page(file, what=what)
        check_pixels(
            page.imagelength,
            page.imagewidth,
            page.samplesperpixel,
            max_pixels=max_pixels,
            what=what,
        )
        _refuse_depth(str(page.dtype), what=what)
        _check_segments(page, data, max_pixels=max_pixels, what=what)
        if page.axes not in ("YX", "YXS", "SYX"):
            raise BadImageError(
                f"{what} has the axes {page.axes}; allowed: one 2-D image. Save the slices apart",
                reason="several pages",
            )
        pixels = _channels_first(_read(page, data, what=what), page.axes)
        pixels = _to_brightness(pixels, page, what=what)
        _check_valid(pixels, page, what=what)
        return orient(_to_native(pixels), int(_tag(page, "Orientation", 1)))


def _only_page(file: Any, *, what: str) -> Any:
    # The chain of pages may run in a circle.
    found = list(islice(file.pages, _MAX_PAGES + 1))
    pages = [p for p in found if not int(p.subfiletype) & _REDUCED_OR_MASK]
    if len(pages) != 1 or len(found) > _MAX_PAGES:
        raise BadImageError(
            f"{what} holds {len(pages)} pages; allowed: one image per file. Save the pages apart",
            reason="several pages",
        )
    return pages[0]


def _check_segments(page: Any, data: bytes, *, max_pixels: int, what: str) -> None:
    """Refuse strips or tiles that would take far more memory than the image.

    tifffile alone inflates without a limit.  A piece that could take much memory, by deflate's
    largest ratio, is inflated here first, up to the limit.
    """
    limit = math.prod(page.chunks) * page.dtype.itemsize
    image = math.prod(page.shape) * page.dtype.itemsize
    harmless = min(VALUES_PER_PIXEL * max_pixels * page.dtype.itemsize, _HARMLESS_BYTES)
    if limit > _MAX_PADDING * image + _MIN_PIECE_BYTES:
        raise BadImageError(
            f"{what} has {image:,} bytes of pixels in pieces of {limit:,} bytes; allowed: pieces "
            f"of at most {_MAX_PADDING} times the image. Save it in smaller tiles",
            reason="too many pixels",
        )
    for offset, size in zip(page.dataoffsets, page.databytecounts, strict=True):
        segment = data[offset : offset + size]
        if page.compression in _DEFLATE:
            if size * _DEFLATE_RATIO <= harmless:
                continue
            length = len(zlib.decompressobj().decompress(segment, limit + 1))
        elif page.compression == _LZMA:
            length = len(lzma.LZMADecompressor().decompress(segment, limit + 1))
        else:
            return
        if length > limit:
            raise BadImageError(
                f"{what} has a piece that inflates to more than its {limit:,} bytes of pixels; it "
                f"is damaged or made to harm: leave it out",
                reason="damaged",
            )


def _read(page: Any, data: bytes, *, what: str) -> Pixels:
    try:
        return np.asarray(page.asarray())
    except ValueError as error:
        if "imagecodecs" not in str(error):
            raise
    depth, channels = str(page.dtype), page.samplesperpixel
    if (depth == "uint8" and channels in (1, 3, 4)) or (depth == "uint16" and channels == 1):
        return _read_with_pillow(data)
    raise BadImageError(
        f"{what} is a {depth} TIFF of {channels} channels with {page.compression.name} "
        f"compression; run `pip install imagecodecs` to read it, or save it with deflate",
        reason=f"TIFF compression {page.compression.name}",
    )


def _read_with_pillow(data: bytes) -> Pixels:
    with TiffImageFile(io.BytesIO(data)) as image:
        image.load()
        return np.asarray(image.convert("RGB") if image.mode == "YCbCr" else image)


def _channels_first(pixels: Pixels, axes: str) -> Pixels:
    if pixels.ndim == 2:
        return pixels[None]
    # Pillow's fallback interleaves also what the file stores as planes.
    interleaved = axes == "YXS" or pixels.shape[-1] <= 4 < pixels.shape[0]
    return pixels.transpose(2, 0, 1) if interleaved else pixels


def _to_brightness(pixels: Pixels, page: Any, *, what: str) -> Pixels:
    """Undo what the photometric interpretation says: larger is brighter afterwards."""
    kind = page.photometric.name
    if kind == "PALETTE":
        table = (np.asarray(page.colormap) >> 8).astype(np.uint8)  # (3, levels), 16 bit in the file
        return table[:, pixels[0]]
    if kind == "MINISWHITE" and pixels.dtype.kind in "bu":
        inverted: Pixels = np.invert(pixels.view(np.uint8) if pixels.dtype == bool else pixels)
        return inverted
    if kind == "SEPARATED" and pixels.dtype == np.uint8 and len(pixels) == 4:
        inks = Image.fromarray(np.ascontiguousarray(pixels.transpose(1, 2, 0)), mode="CMYK")
        return np.asarray(inks.convert("RGB")).transpose(2, 0, 1)
    if kind not in ("MINISBLACK", "RGB", "YCBCR"):
        raise BadImageError(
            f"{what} stores {kind} colours; allowed: grey, RGB, bands. Convert it to RGB",
            reason=f"colour mode {kind}",
        )
    extra = tuple(int(sample) for sample in page.extrasamples)
    if extra and extra[-1] in _ALPHA and len(pixels) in (2, 4):
        return drop_opaque_alpha(pixels, what=what)
    return pixels


def _check_valid(pixels: Pixels, page: Any, *, what: str) -> None:
    if pixels.dtype.kind == "f" and not np.isfinite(pixels).all():
        raise BadImageError(
            f"{what} has NaN or infinite pixels; allowed: finite values. Cut such borders off",
            reason="non-finite pixels",
        )
    declared = _tag(page, "GDAL_NODATA", None)
    if declared is None:
        return
    missing = int((pixels == float(str(declared).strip("\0 "))).sum())
    if missing:
        raise BadImageError(
            f"{what} has {missing:,} no-data values ({declared}); allowed: complete images. Tile "
            f"the scene so that its empty border falls away",
            reason="no-data pixels",
        )


def _to_native(pixels: Pixels) -> Pixels:
    depth = pixels.dtype.name
    if depth == "bool":
        return pixels.astype(np.uint8) * np.uint8(255)
    return pixels.astype(_LOSSLESS.get(depth, depth), copy=False)


def _refuse_depth(depth: str, *, what: str) -> None:
    if depth not in (*_LOSSLESS, *_NATIVE):
        raise BadImageError(
            f"{what} stores {depth} values; allowed: {', '.join(_NATIVE)}. Convert it to the "
            f"depth that keeps what you need",
            reason=f"depth {depth}",
        )


def _tag(page: Any, name: str, default: Any) -> Any:
    tag = page.tags.get(name)
    return default if tag is None else tag.value
