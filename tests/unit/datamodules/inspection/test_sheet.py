"""The contact sheet shows stored pixels, says how, and names what cannot be shown."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from PIL import Image

from datamodules.inspection.look import inspect_shards
from datamodules.inspection.loose import LooseShard
from datamodules.inspection.sheet import _fitted, _font, contact_sheet, thumbnail

Write = Callable[..., Path]
Png = Callable[..., bytes]
NONE = np.empty((3, 2))


def as_array(image: Image.Image) -> np.ndarray:
    return np.asarray(image)


def test_thumbnail_small_image_is_enlarged_by_a_whole_factor() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (3, 5, 7), dtype=np.uint8)
    found = as_array(thumbnail(pixels, NONE, side=30))
    expected = np.kron(np.moveaxis(pixels, 0, -1), np.ones((4, 4, 1), np.uint8))
    np.testing.assert_array_equal(found, expected)


def test_thumbnail_large_image_fits_and_keeps_its_shape() -> None:
    image = thumbnail(np.zeros((1, 4000, 3), np.uint8), NONE, side=40)
    assert image.size == (1, 40)
    assert thumbnail(np.zeros((1, 60, 120), np.uint8), NONE, side=40).size == (40, 20)


@pytest.mark.parametrize("dtype", ["uint16", "int16", "float32"])
def test_thumbnail_depths_above_8_bits_are_stretched(dtype: str) -> None:
    pixels = np.array([[[-1, 0, 100, 200, 300]]]).clip(0 if dtype == "uint16" else None)
    found = thumbnail(pixels.astype(dtype), np.array([[0.0, 200.0]]), side=5)
    assert as_array(found)[0].tolist() == [0, 0, 128, 255, 255]


def test_thumbnail_of_many_channels_shows_the_first_three() -> None:
    pixels = np.stack([np.full((2, 2), value, np.uint8) for value in (10, 20, 30, 40, 50)])
    assert as_array(thumbnail(pixels, NONE, side=2))[0, 0].tolist() == [10, 20, 30]
    assert as_array(thumbnail(pixels[:2], NONE, side=2)).shape == (2, 2)


def test_contact_sheet_is_deterministic_and_shows_pixels(write_tar: Write, png: Png) -> None:
    members = {f"{n}.png": png(n, size=(180, 180)) for n in range(3)} | {"3.png": b"?"}
    path = write_tar("t/a.tar", members)
    sheets = [contact_sheet(inspect_shards(str(path), num_sheet=9)) for _ in range(2)]
    assert sheets[0] == sheets[1]
    image = Image.open(io.BytesIO(sheets[0]))
    assert "4 of 4 images" in image.info["Description"]
    assert "3 x uint8" in image.info["Description"]
    first = np.asarray(Image.open(io.BytesIO(png(0, size=(180, 180)))))
    windows = np.lib.stride_tricks.sliding_window_view(as_array(image), (180, 180, 3))
    left = 26  # the margin
    assert any(np.array_equal(w[0], first) for w in windows[:, left])


def test_contact_sheet_shard_that_leaves_the_cache_is_fetched_again(
    write_tar: Write, png: Png, tmp_path: Path
) -> None:
    inspection = inspect_shards(str(write_tar("t/a.tar", {"1.png": png(1)})), num_sheet=1)

    class Fleeting(LooseShard):
        asked: ClassVar[list[int]] = []

        def path(self, shard: int) -> Path:
            self.asked.append(shard)
            return tmp_path / "gone" if len(self.asked) == 1 else super().path(shard)

    (block,) = inspection.sheet
    moved = replace(block, files=Fleeting(block.files.name(0)))
    assert contact_sheet(replace(inspection, sheet=(moved,))) == contact_sheet(inspection)
    assert Fleeting.asked == [0, 0]


def test_contact_sheet_says_how_16_bits_and_bands_are_shown(write_tar: Write) -> None:
    import tifffile

    stream = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 9999, (5, 20, 30), dtype=np.uint16)
    tifffile.imwrite(stream, pixels, photometric="minisblack", planarconfig="separate")
    path = write_tar("t/a.tar", {"1.tif": stream.getvalue()})
    sheet = Image.open(io.BytesIO(contact_sheet(inspect_shards(str(path), num_sheet=1))))
    said = sheet.info["Description"]
    assert "channels band1, band2, band3 of 5" in said
    assert "uint16 stretched from percentile 1 to 99 of all decoded images" in said


def test_contact_sheet_without_any_image_says_so(write_tar: Write) -> None:
    path = write_tar("t/a.tar", {"1.png": b"?"})
    sheet = Image.open(io.BytesIO(contact_sheet(inspect_shards(str(path), num_sheet=1))))
    assert "no image could be decoded" in sheet.info["Description"]


def test_fitted_shortens_the_middle() -> None:
    font = _font("DejaVuSans", 11)
    assert _fitted("short", font, 100) == "short"
    found = _fitted("begin" + "x" * 90 + "end", font, 100)
    assert found.startswith("begin")
    assert found.endswith("end")
    assert font.getlength(found) <= 100
