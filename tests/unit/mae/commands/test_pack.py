"""``mae pack`` from its command line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mae.cli import main


@pytest.fixture
def source(tmp_path: Path) -> Path:
    for label, count in (("cat", 12), ("dog", 15)):
        (tmp_path / "src" / label).mkdir(parents=True)
        for number in range(count):
            pixels = np.full((6, 8, 3), 10 * number + len(label), dtype=np.uint8)
            pixels[0, 0] = count
            Image.fromarray(pixels).save(tmp_path / "src" / label / f"{number}.png")
    return tmp_path / "src"


def test_pack_says_what_was_packed_and_what_comes_next(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (source / "cat" / "cut.png").write_bytes(b"")
    out = tmp_path / "out"
    assert main(["pack", str(source), str(out), "--max_bad_fraction", "0.5"]) == 0
    said = capsys.readouterr().out
    for words in (
        f"{out}: ",
        "6 x 8, 3 x uint8 (red, green, blue)",
        "left out: 1 x empty file; listed with reasons in",
        f"next: mae pretrain RECIPE --data {out}",
    ):
        assert words in said


def test_pack_labels_are_counted_by_split(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--labels", "folders", "--val_fraction", "0", "--test_fraction", "0"]
    assert main(["pack", str(source), str(tmp_path / "out"), *options]) == 0
    said = capsys.readouterr().out
    assert "labels in train: cat 12, dog 15" in said
    assert "note: split test is empty" in said
    assert "next: mae probe RUN --data" in said


def test_pack_error_is_a_sentence_on_stderr(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pack", str(tmp_path / "none"), str(tmp_path / "out")]) == 1
    captured = capsys.readouterr()
    assert captured.err.strip().startswith("mae: ")
    assert "does not exist" in captured.err
    assert "Traceback" not in captured.err


def test_pack_counts_what_is_special(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (source / "cat" / "copy.png").write_bytes((source / "cat" / "0.png").read_bytes())
    out = tmp_path / "out"
    options = ["--max-side", "4", "--quality", "90", "--workers", "2", "--shard-size", "10"]
    assert main(["pack", str(source), str(out), *options]) == 0
    said = capsys.readouterr().out
    for words in (
        "left out: 1 x duplicate; listed with reasons in",
        "pixels: 3 x 4, 3 x uint8",
        "note: re-encoded 27 of 27 images (max_side 4, quality 90)",
        "packed by 2 processes",
    ):
        assert words in said
    assert main(["pack", str(source), str(out)]) == 1
    assert "exists already" in capsys.readouterr().err


def test_pack_takes_patterns_and_several_labels(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pack", f"{source}/**/1*.png", str(tmp_path / "a"), "--val_fraction", "0"]) == 0
    assert "9 train in 1 shards" in capsys.readouterr().out
    (source / "t.csv").write_text("path,label\ncat/1.png,x+y\ndog/1.png,\ndog/2.png,y\n")
    options = ["--labels", "multi", "--label-separator", "+", "--val_fraction", "0"]
    options += ["--test_fraction", "0", "--group_field", "patient"]
    for name in ("cat/1", "dog/1", "dog/2"):
        (source / f"{name}.json").write_text(f'{{"patient": "{name}"}}')
    assert main(["pack", f"{source}/t.csv", str(tmp_path / "b"), *options]) == 0
    said = capsys.readouterr().out
    assert "labels in train: x 1, y 2" in said
    assert "note: 1 of 3 images have an empty list of labels" in said
