"""The numbers of an inspection against numpy's, and the lines that show them."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile

from datamodules.inspection.look import inspect_shards
from datamodules.inspection.numbers import PERCENTILES, numbers_of
from datamodules.inspection.words import lines

Write = Callable[..., Path]
Png = Callable[..., bytes]


def tiff(pixels: np.ndarray[Any, Any]) -> bytes:
    stream = io.BytesIO()
    tifffile.imwrite(stream, pixels, photometric="minisblack", planarconfig="separate")
    return stream.getvalue()


@pytest.fixture
def images() -> list[np.ndarray[Any, Any]]:
    """Return five uint16 images of four channels."""
    random = np.random.default_rng(5)
    return [random.integers(0, 4000, (4, 5 + n, 9), dtype=np.uint16) for n in range(5)]


@pytest.fixture
def numbers(images: list[np.ndarray[Any, Any]], write_tar: Write) -> dict[str, Any]:
    members: dict[str, Any] = {}
    for place, pixels in enumerate(images):
        members[f"{place}.tif"] = tiff(pixels)
        members[f"{place}.json"] = {"group": f"g{place // 3}"}
    members["5.tif"] = tiff(np.full((4, 5, 9), 77, np.uint16))
    write_tar("t/train-0.tar", members)
    path = write_tar("t/val-0.tar", {"7.tif": tiff(images[0]), "8.tif": b"II*\0", "9.tif": b"GIF8"})
    return numbers_of(inspect_shards(str(path.parent), deep=True))


def test_numbers_of_pixels_are_numpys(
    numbers: dict[str, Any], images: list[np.ndarray[Any, Any]]
) -> None:
    every = [*images, np.full((4, 5, 9), 77, np.uint16), images[0]]
    values = np.concatenate([image.reshape(4, -1) for image in every], axis=1)
    for channel, of_channel in zip(numbers["channels"], values, strict=True):
        assert channel["mean"] == pytest.approx(of_channel.mean(), rel=1e-12)
        assert channel["std"] == pytest.approx(of_channel.std(), rel=1e-12)
        assert (channel["min"], channel["max"]) == (of_channel.min(), of_channel.max())
        expected = np.percentile(of_channel, PERCENTILES, method="inverted_cdf")
        assert list(channel["percentiles"].values()) == expected.tolist()
        edges = channel["histogram"]["edges"]
        assert channel["histogram"]["counts"] == np.histogram(of_channel, edges)[0].tolist()
    heights = [image.shape[1] for image in every]
    assert numbers["height_px"]["median"] == np.median(heights)
    assert (numbers["height_px"]["min"], numbers["height_px"]["max"]) == (5, 9)


def test_numbers_of_everything_else_are_counted(numbers: dict[str, Any]) -> None:
    assert json.loads(json.dumps(numbers)) == numbers
    assert numbers["splits"]["train"]["num_samples"] == 6
    assert numbers["members"] == {"json": 5, "tif": 9}
    assert numbers["num_decoded"] == numbers["num_samples"] == 9
    assert numbers["kinds"] == {"4 x uint16": 7}
    assert [(b["key"], b["reason"]) for b in numbers["broken"]] == [
        ("8", "damaged"),
        ("9", "GIF is not supported"),
    ]
    assert [c["key"] for c in numbers["constant"]] == ["5"]
    assert numbers["duplicates"]["compared"] == "bytes"
    assert (numbers["duplicates"]["within"], numbers["duplicates"]["across"]) == ({}, 1)
    assert [name.rpartition("/")[2] for name in numbers["duplicates"]["across_examples"][0]] == [
        "train-0.tar: 0",
        "val-0.tar: 7",
    ]
    train = numbers["groups"]["splits"]["train"]
    assert (train["num_groups"], train["largest"], train["largest_num_samples"]) == (2, "g0", 3)
    assert len(numbers["problems"]) == 2


def test_lines_say_what_the_numbers_say(numbers: dict[str, Any]) -> None:
    said = "\n".join(lines(numbers))
    for words in (
        "9 samples in 2 shards",
        "members: 5 .json, 9 .tif",
        "decoded: all 9 images",
        "channels x depth: 4 x uint16 (7)",
        "broken: 1 x damaged, 1 x GIF is not supported",
        "constant (all pixels equal): 1, such as 5",
        "duplicates, by bytes: 1 across splits",
        "groups in train: 2, the largest is 'g0' with 3 images",
        "problems: 2",
    ):
        assert words in said
    assert "█" in said
    assert "\n".join(lines(numbers, is_unicode=False)).isascii() is False  # "…" in "5 … 9 px"
    bars = [line.rpartition("|")[0] for line in lines(numbers, is_unicode=False) if "|" in line]
    assert len(bars) == 4
    assert all(bar.isascii() for bar in bars)


def test_lines_of_a_sample_say_that_it_is_one(write_tar: Write, png: Png) -> None:
    members: dict[str, Any] = {f"{n}.png": png(n % 9) for n in range(10)}
    path = write_tar("t/a.tar", members | {f"{n}.json": {"group": "g"} for n in range(10)})
    # The members of a sample stand together in a tar.
    path = write_tar("t/a.tar", dict(sorted((members | {"0.cls": b"0"}).items())))
    seen = numbers_of(inspect_shards(str(path), num_images=4))
    said = "\n".join(lines(seen))
    assert "decoded: 4 of 10 images, spread over the shards; --deep decodes all" in said
    assert "duplicates, by size and CRC-32 (--deep compares bytes): 1 in train" in said
    assert "t/a.tar: 0 = " in said
    assert "groups, of the decoded images: none" in said
    assert "there is no manifest to compare with; `mae index` makes one" in said


def test_lines_of_shards_without_any_image(write_tar: Write) -> None:
    path = write_tar("t/a.tar", {"1.png": b"?"})
    said = "\n".join(lines(numbers_of(inspect_shards(str(path)))))
    assert "channels x depth: no image could be decoded" in said
    assert "problems: 1" in said
