"""Every example of the README and of `docs/python.md` runs, in the order it is read."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mae.cli import main

ROOT = Path(__file__).parents[2]


def blocks(path: Path, language: str) -> list[str]:
    """Return the fenced blocks of a Markdown file."""
    return re.findall(rf"```{language}\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL)


def example(name: str, language: str) -> str:
    """Return the block of the README below ``<!-- test: NAME -->``."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    found = re.search(rf"<!-- test: {name} -->\n```{language}\n(.*?)```", text, re.DOTALL)
    assert found, name
    return found[1]


def write_images(folder: Path, *, count: int, seed: int) -> None:
    """Write tiles of one colour with some noise, 72 px a side."""
    random = np.random.default_rng(seed)
    folder.mkdir(parents=True)
    for number in range(count):
        pixels = random.integers(0, 40, (72, 72, 3)) + 40 * seed
        Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{number:02d}.png")


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with the images that the examples speak of."""
    folder = tmp_path_factory.mktemp("examples")
    write_images(folder / "my_images", count=20, seed=1)
    for seed, name in enumerate(["dark", "light"], start=1):
        write_images(folder / "my_labelled" / name, count=20, seed=seed)
    return folder


@pytest.mark.slow
def test_examples_of_readme_and_python_page_run(workplace, monkeypatch):
    monkeypatch.chdir(workplace)
    monkeypatch.setenv("XDG_CACHE_HOME", str(workplace / "cache"))
    for line in example("own-images-shell", "bash").splitlines():
        command = shlex.split(line, comments=True)
        assert command[0] == "mae"
        if command[1] == "pretrain":  # the size that the README names for machines without a GPU
            command[2] = "demo/satellite-cpu"
            command += ["--data.steps", "2", "--data.batch_size", "8"]
        assert main(command[1:]) == 0, line
    names: dict[str, object] = {}
    exec(example("own-images-python", "python"), names)  # noqa: S102
    assert names["features"].shape == (8, 128)
    (workplace / "shards").rename(workplace / "shards-of-the-readme")
    names = {}
    for block in blocks(ROOT / "docs" / "python.md", "python"):
        exec(block, names)  # noqa: S102
