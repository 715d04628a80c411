"""Every example of `docs/shards.md` runs, in the order it is read."""

from __future__ import annotations

import inspect
import io
import re
import shlex
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from datamodules import StreamedShards, UnlabeledShards
from mae.cli import main
from mae.commands.bench import bench
from mae.commands.index import index
from mae.commands.inspect import inspect as look
from mae.commands.pack import pack

PAGE = Path(__file__).parents[2] / "docs" / "shards.md"


@pytest.fixture
def _tars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Go to a directory with the tars that the page speaks of."""
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    Path("tars").mkdir()
    for name in ("train-000", "train-001", "val-000"):
        with tarfile.open(f"tars/{name}.tar", "w") as tar:
            for number in range(3):
                stream = io.BytesIO()
                pixels = random.integers(0, 256, (20, 30, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(stream, "JPEG")
                for suffix, data in (("jpg", stream.getvalue()), ("txt", b"a caption")):
                    info = tarfile.TarInfo(f"{name}-{number}.{suffix}")
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))


@pytest.mark.usefixtures("_tars")
def test_examples_of_the_shards_page_run(capsys: pytest.CaptureFixture[str]) -> None:
    found = re.findall(r"```(bash|python)\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert {language for language, _ in found} == {"bash", "python"}
    for language, block in found:
        if language == "python":
            exec(block, {})  # noqa: S102
            continue
        for line in block.splitlines():
            command = shlex.split(line)
            assert command[0] == "mae"
            assert main([*command[1:], "--workers", "1"]) == 0, (line, capsys.readouterr().err)
    said = capsys.readouterr().out
    quoted = "the shards are what their manifest says, every byte of them"
    assert quoted in said
    assert quoted in PAGE.read_text(encoding="utf-8")
    assert Path("sheet.png").read_bytes().startswith(b"\x89PNG")
    assert Path("numbers.json").exists()


def test_options_that_the_shards_page_names_exist() -> None:
    text = PAGE.read_text(encoding="utf-8")
    verbs = [index, look, pack, bench]
    known = {name for verb in verbs for name in inspect.signature(verb).parameters}
    assert set(re.findall(r"--(\w+)(?![\w.-])", text)) - {"data"} <= known
    modules = {UnlabeledShards, StreamedShards}
    keys = {name for module in modules for name in inspect.signature(module).parameters}
    assert set(re.findall(r"data\.(\w+)", text)) <= keys
