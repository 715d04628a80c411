"""``mae inspect`` from its command line."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path

import pytest
from PIL import Image

from mae.cli import main


def test_inspect_shows_numbers_writes_them_and_a_picture(
    labeled_shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = ["--json", str(tmp_path / "x.json"), "--sheet", str(tmp_path / "x.png")]
    assert main(["inspect", str(labeled_shards), "--deep", "--workers", "1", *files]) == 0
    said = capsys.readouterr().out
    for words in (
        f"{labeled_shards}: 30 samples in",
        "channels x depth: 3 x uint8 (30)",
        "the shards are what their manifest says, every byte of them",
        f"numbers: {tmp_path / 'x.json'}",
        f"picture: {tmp_path / 'x.png'}",
    ):
        assert words in said
    numbers = json.loads((tmp_path / "x.json").read_text())
    assert (numbers["num_samples"], numbers["deep"], numbers["problems"]) == (30, True, [])
    sheet = Image.open(io.BytesIO((tmp_path / "x.png").read_bytes()))
    assert "30 of 30 images" in sheet.info["Description"]


def test_inspect_damage_is_listed_and_ends_with_an_error(
    labeled_shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(labeled_shards, copy)
    tar = next(copy.glob("train-*.tar"))
    tar.write_bytes(tar.read_bytes()[:-512])
    out = tmp_path / "x.json"
    assert main(["inspect", str(copy), "--workers", "1", "--json", str(out)]) == 1
    captured = capsys.readouterr()
    assert "problems: 1" in captured.out
    assert captured.err.startswith("mae: 1 problems:\n")
    assert str(tar) in captured.err
    assert len(json.loads(out.read_text())["problems"]) == 1


def test_inspect_impossible_options_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for options, said in (
        (["--sheet", "x.jpg"], "ends in .png"),
        (["--sheet_images", "0"], "sheet_images is 0"),
        (["--images", "0"], "is 0; allowed: 1 or more"),
    ):
        assert main(["inspect", str(tmp_path), *options]) == 1
        assert said in capsys.readouterr().err


def test_inspect_files_that_cannot_be_written_are_refused_before_looking(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.png").mkdir()
    for option in ("--json", "--sheet"):
        assert main(["inspect", str(tmp_path / "nothing"), option, str(tmp_path / "x.png")]) == 1
        assert "x.png cannot be written" in capsys.readouterr().err


def test_inspect_terminal_without_unicode_gets_ascii(
    labeled_shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr("sys.stdout", stream)
    assert main(["inspect", str(labeled_shards), "--workers", "1"]) == 0
    stream.flush()
    assert b"bytes of an image: " in stream.buffer.getvalue()  # type: ignore[attr-defined]


def test_inspect_many_problems_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    import tarfile

    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for number in range(14):
            info = tarfile.TarInfo(f"{number}.png")
            info.size = 3
            tar.addfile(info, io.BytesIO(b"bad"))
    assert main(["inspect", str(tmp_path), "--workers", "1"]) == 1
    said = capsys.readouterr().err
    assert "14 problems:" in said
    assert "… and 4 more; --json has all" in said


def test_inspect_never_writes_over_the_shards(
    labeled_shards: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = labeled_shards / "manifest.json"
    before = manifest.read_bytes()
    assert main(["inspect", str(labeled_shards), "--json", str(manifest)]) == 1
    assert "belongs to a shard directory" in capsys.readouterr().err
    assert manifest.read_bytes() == before
