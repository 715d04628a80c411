"""A contact sheet: images of all shards in one picture, each with its key.

Images of more than 8 bits are stretched alike, by percentiles of all decoded images, so that they
can be compared; the sheet says so.  Tiny images are enlarged by whole factors: their pixels show.
"""

from __future__ import annotations

import io
import os
import textwrap
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont, PngImagePlugin

from datamodules.decode import Pixels, decode
from datamodules.guard import IMAGE_SUFFIXES, BadImageError
from datamodules.inspection.blocks import Block, open_file
from datamodules.inspection.findings import OTHER_KIND
from datamodules.inspection.histogram import percentiles
from datamodules.inspection.look import Inspection
from datamodules.inspection.numbers import channel_names
from datamodules.packing.results import Kind

INK, FAINT, WARNING, BLANK = "#1b2430", "#5b6675", "#a3330b", "#dde3ee"
_SIDE, _GAP, _MARGIN, _CAPTION = 180, 14, 26, 38  # px
_COLUMNS = 8
_STRETCH = (1.0, 99.0)  # percentiles

Font = ImageFont.FreeTypeFont


@dataclass(frozen=True)
class _Cell:
    """One place on the sheet."""

    picture: Image.Image | None
    fault: str
    captions: tuple[str, str]


def contact_sheet(inspection: Inspection) -> bytes:
    """Return a PNG with the images that were chosen for it.

    Args:
        inspection: From `inspect_shards` with ``num_sheet``.
    """
    kind = inspection.kind
    stretch = _stretch(inspection, kind)
    cells = [
        cell for block in inspection.sheet for cell in _cells(block, kind=kind, stretch=stretch)
    ]
    columns = max(3, min(_COLUMNS, len(cells)))
    width = 2 * _MARGIN + columns * (_SIDE + _GAP) - _GAP
    title, notes = _title(inspection, len(cells)), _rules(inspection, kind)
    lines = [line for note in notes for line in textwrap.wrap(note, width // 8)]
    top = _MARGIN + 32 + 20 * len(lines) + 14
    rows = -(-len(cells) // columns)
    height = top + rows * (_SIDE + _CAPTION + _GAP) - _GAP + _MARGIN
    sheet = Image.new("RGB", (width, height), "white")
    draw = ImageDraw.Draw(sheet)
    bold, plain = _font("DejaVuSans-Bold", 19), _font("DejaVuSans", 13)
    draw.text((_MARGIN, _MARGIN), _fitted(title, bold, width - 2 * _MARGIN), INK, font=bold)
    for number, line in enumerate(lines):
        draw.text((_MARGIN, _MARGIN + 32 + 20 * number), line, FAINT, font=plain)
    for number, cell in enumerate(cells):
        row, column = divmod(number, columns)
        place = (_MARGIN + column * (_SIDE + _GAP), top + row * (_SIDE + _CAPTION + _GAP))
        _draw(sheet, draw, cell, place)
    return _png(sheet, alt=" ".join([title, *notes]))


def _title(inspection: Inspection, count: int) -> str:
    total = inspection.findings.num_samples
    manifest = inspection.manifest
    if manifest is not None:
        total = sum(info.num_samples for info in manifest.shard_list)
    return f"{count:,} of {total:,} images of {inspection.source}"


def _rules(inspection: Inspection, kind: Kind | None) -> list[str]:
    """Return in words how stored pixels become colours."""
    if kind is None:
        return ["no image could be decoded"]
    rules = [f"{kind} (channels x depth), spread over the shards"]
    names = channel_names(inspection, kind)
    if kind.num_channels > 3:
        rules.append(f"shown as red, green, blue: channels {', '.join(names[:3])} of {len(names)}")
    elif kind.num_channels == 2:
        rules.append(f"shown: channel {names[0]} of {', '.join(names)}")
    if kind.dtype != "uint8":
        low, high = _STRETCH
        rules.append(
            f"{kind.dtype} stretched from percentile {low:g} to {high:g} of all decoded images, "
            f"per channel, the same for all images"
        )
    return rules


def _stretch(inspection: Inspection, kind: Kind | None) -> NDArray[np.float64]:
    """Return ``(shown channels, 2)`` stored values that become black and white."""
    values = inspection.findings.values.get(kind) if kind is not None else None
    if kind is None or values is None or kind.dtype == "uint8":
        return np.array([[0.0, 255.0]] * 3)
    return np.array([percentiles(channel, kind.dtype, list(_STRETCH)) for channel in values[:3]])


def _cells(block: Block, *, kind: Kind | None, stretch: NDArray[np.float64]) -> list[_Cell]:
    shard = block.files.name(0).rpartition("/")[2].removesuffix(".tar")
    cells = []
    with os.fdopen(open_file(block.files), "rb") as file:
        for key, members in zip(block.keys, block.members, strict=True):
            image = next((m for m in members if m.suffix in IMAGE_SUFFIXES), None)
            data = b"" if image is None else os.pread(file.fileno(), image.size, image.offset)
            picture, fault, size = None, "", ""
            try:
                pixels = decode(data, what=key, max_pixels=block.max_pixels)
                size = f"{pixels.shape[1]} x {pixels.shape[2]} px"
                if Kind.of(pixels, key) == kind:
                    picture = thumbnail(pixels, stretch)
                else:
                    fault = f"{OTHER_KIND}: {Kind.of(pixels, key)}"
            except BadImageError as error:
                fault = error.reason
            cells.append(_Cell(picture, fault, (key, "  ".join(filter(None, [shard, size])))))
    return cells


def thumbnail(pixels: Pixels, stretch: NDArray[np.float64], *, side: int = _SIDE) -> Image.Image:
    """Return an image that fits into a square, in gray or colour.

    Args:
        pixels: ``(chans, height, width)``.
        stretch: ``(shown channels, 2)`` stored values that become black and white.
        side: Of the square, in px.
    """
    shown = pixels[: 3 if len(pixels) >= 3 else 1]
    if pixels.dtype != np.uint8:
        low, high = (stretch[: len(shown), end].reshape(-1, 1, 1) for end in (0, 1))
        scaled = (shown.astype(np.float64) - low) / np.maximum(high - low, 1e-12)
        shown = np.rint(255 * np.clip(scaled, 0, 1)).astype(np.uint8)
    planes = shown[0] if len(shown) == 1 else np.moveaxis(shown, 0, -1)
    image = Image.fromarray(np.ascontiguousarray(planes))
    longest = max(image.size)
    if longest <= side:
        factor = side // longest
        size = (image.width * factor, image.height * factor)
        return image.resize(size, Image.Resampling.NEAREST)
    size = (
        max(1, round(image.width * side / longest)),
        max(1, round(image.height * side / longest)),
    )
    return image.resize(size, Image.Resampling.LANCZOS)


def _draw(
    sheet: Image.Image, draw: ImageDraw.ImageDraw, cell: _Cell, place: tuple[int, int]
) -> None:
    left, top = place
    small = _font("DejaVuSans", 11)
    if cell.picture is not None:
        above = top + _SIDE - cell.picture.height
        edges = (left - 1, above - 1, left + cell.picture.width, top + _SIDE)
        draw.rectangle(edges, outline=BLANK)  # white images have an edge, too
        sheet.paste(cell.picture, (left, above))
    else:
        draw.rectangle((left, top, left + _SIDE - 1, top + _SIDE - 1), fill=BLANK)
        text = "\n".join(textwrap.wrap(cell.fault, 22))
        draw.multiline_text((left + 10, top + 10), text, WARNING, font=small)
    for number, (caption, colour) in enumerate(zip(cell.captions, (INK, FAINT), strict=True)):
        text = _fitted(caption, small, _SIDE)
        draw.text((left, top + _SIDE + 5 + 15 * number), text, colour, font=small)


def _fitted(text: str, font: Font, width: int) -> str:
    """Return a text that is not wider than this; its middle gives way."""
    kept = len(text)
    shown = text
    while font.getlength(shown) > width and kept > 2:
        kept -= 1
        shown = f"{text[: kept - kept // 2]}…{text[len(text) - kept // 2 :]}"
    return shown


def _font(name: str, size: int) -> Font:
    from matplotlib import get_data_path  # its fonts know the letters of most languages

    return ImageFont.truetype(str(Path(get_data_path(), "fonts", "ttf", f"{name}.ttf")), size)


def _png(sheet: Image.Image, *, alt: str) -> bytes:
    words = PngImagePlugin.PngInfo()
    words.add_itxt("Description", alt)
    stream = io.BytesIO()
    sheet.save(stream, "PNG", pnginfo=words)
    return stream.getvalue()
