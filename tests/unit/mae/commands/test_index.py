"""``mae index`` from its command line."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mae.cli import main


@pytest.fixture
def tars(tmp_path: Path) -> Path:
    (tmp_path / "tars").mkdir()
    for name in ("a-train-0", "a-train-1", "a-val-0"):
        with tarfile.open(tmp_path / "tars" / f"{name}.tar", "w") as tar:
            for number in range(4):
                stream = io.BytesIO()
                pixels = np.full((6, 8, 3), 10 * number, dtype=np.uint8)
                Image.fromarray(pixels).save(stream, "PNG")
                for suffix, data in (("png", stream.getvalue()), ("cls", b"1"), ("txt", b"-")):
                    info = tarfile.TarInfo(f"{name[2:]}{number}.{suffix}")
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))
    return tmp_path / "tars"


def test_index_says_what_was_found_and_what_comes_next(
    tars: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["index", str(tars), "--ignore", "txt", "--workers", "1"]) == 0
    said = capsys.readouterr().out
    for words in (
        f"{tars}: 12 samples in 3 shards",
        "train: 8 samples in 2 shards, a-train-0.tar … a-train-1.tar",
        "val: 4 samples in 1 shards, a-val-0.tar",
        "pixels: 6 x 8, 3 x uint8 (red, green, blue)",
        "labels in train: 0 0, 1 8",
        "note: WARNING: 4 images stand in more than one split",
        f"next: mae probe RUN --data {tars}",
    ):
        assert words in said


def test_index_error_is_a_sentence_and_names_options_that_exist(
    tars: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["index", str(tars), "--workers", "1"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("mae: ")
    assert "add --ignore txt to pass over such members" in said
    assert "Traceback" not in said
    (tars / "a-train-0.tar").rename(tars / "a-train-3.tar")
    (tars / "a-train-1.tar").rename(tars / "a-train-5.tar")
    options = ["--ignore", "txt", "--workers", "1"]
    assert main(["index", str(tars), *options]) == 1
    assert "a-train-N.tar lacks 1: 4" in capsys.readouterr().err
    assert main(["index", str(tars), *options, "--allow_gaps"]) == 0
    assert "note: numbers are missing: a-train-N.tar lacks 1: 4" in capsys.readouterr().out


def test_index_without_val_says_so(tars: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--ignore", "txt,cls", "--split", "train", "--workers", "1"]
    assert main(["index", str(tars), str(tars.parent / "out"), *options]) == 0
    said = capsys.readouterr().out
    assert "note: no val split" in said
    assert f"next: mae pretrain RECIPE --data {tars.parent / 'out'}" in said
