"""A source with everything in it, and directories as bytes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image


@pytest.fixture
def busy_source(tmp_path: Path) -> Path:
    """Return 60 images of 12 groups with a duplicate, a broken one and one of another depth."""
    source = tmp_path / "busy"
    for number in range(60):
        path = source / f"p{number % 12:02d}" / f"i{number:02d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 256, (30, 20, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(path)
    (source / "p00" / "z-copy.png").write_bytes((source / "p00" / "i12.png").read_bytes())
    (source / "p03" / "cut.png").write_bytes((source / "p03" / "i03.png").read_bytes()[:-99])
    Image.new("L", (20, 30)).save(source / "p05" / "gray.png")
    return source


@pytest.fixture
def tree() -> Callable[[Path], dict[str, bytes]]:
    """Return a function that returns the files of a directory."""

    def read(directory: Path) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in directory.iterdir()}

    return read
