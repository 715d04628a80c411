"""Tars as others write them."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image


@pytest.fixture
def png() -> Callable[..., bytes]:
    """Return a function that makes a PNG whose pixels depend on its arguments alone."""

    def make(number: int, *, size: tuple[int, int] = (6, 8), mode: str = "RGB") -> bytes:
        random, stream = np.random.default_rng(number), io.BytesIO()
        channels = {"RGB": (3,), "L": ()}[mode]
        pixels = random.integers(0, 256, (*size, *channels), dtype=np.uint8)
        Image.fromarray(pixels).save(stream, "PNG")
        return stream.getvalue()

    return make


@pytest.fixture
def write_tar(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes members, dictionaries as JSON, into a tar below `tmp_path`."""

    def write(name: str, members: Mapping[str, Any] | Sequence[tuple[str, Any]]) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(path, "w") as tar:
            for member, data in members.items() if isinstance(members, Mapping) else members:
                content = data if isinstance(data, bytes) else json.dumps(data).encode()
                info = tarfile.TarInfo(member)
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
        return path

    return write
