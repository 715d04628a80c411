"""Small image folders and shard directories."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from datamodules.pack import pack


def write_image(path: Path, *, number: int, size: tuple[int, int] = (12, 10)) -> Path:
    """Write an RGB PNG whose pixels depend on `number` alone."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(number).integers(0, 256, (*size, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return path


@pytest.fixture
def image_folder(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes `count` PNGs into a new folder."""

    def make(count: int, *, size: tuple[int, int] = (12, 10), name: str = "images") -> Path:
        for number in range(count):
            write_image(tmp_path / name / f"img{number:03d}.png", number=number, size=size)
        return tmp_path / name

    return make


@pytest.fixture
def class_folder(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes class folders with the given number of images each."""

    def make(counts: Mapping[str, int], *, name: str = "classes") -> Path:
        number = 0
        for label, count in counts.items():
            for _ in range(count):
                write_image(tmp_path / name / label / f"img{number:03d}.png", number=number)
                number += 1
        return tmp_path / name

    return make


@pytest.fixture
def csv_source(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes a CSV and the images it names."""

    def make(header: Sequence[str], rows: Sequence[Sequence[str]], *, images: bool = True) -> Path:
        path = tmp_path / "table" / "images.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([header, *rows])
        if images:
            for number, row in enumerate(rows):
                write_image(path.parent / row[list(header).index("path")], number=number)
        return path

    return make


@pytest.fixture
def shards(image_folder: Callable[..., Path], tmp_path: Path) -> Callable[..., Path]:
    """Return a function that packs `count` unlabelled images."""

    def make(count: int, *, name: str = "shards", **options: Any) -> Path:
        size = options.pop("size", (12, 10))
        source = image_folder(count, size=size, name=f"{name}-source")
        pack(source, tmp_path / name, **{"shard_size": 7, "val_fraction": 0.0, **options})
        return tmp_path / name

    return make
