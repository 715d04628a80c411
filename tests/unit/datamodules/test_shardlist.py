"""Every way to name shards, and that none goes missing in silence."""

from __future__ import annotations

from pathlib import Path

import pytest

from datamodules.shardlist import list_shards
from mae.errors import DataError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder of empty files; listing opens none of them."""
    root = tmp_path / "data"
    names = ["train-000.tar", "train-001.tar", "train-002.tar", "val/a.tar", "notes.txt"]
    for name in [*names, ".hidden.tar", ".hidden/b.tar", "manifest.json", "bad_images.csv"]:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    return root


def test_list_shards_folder_takes_all_tars_below(folder: Path) -> None:
    listed = list_shards(str(folder))
    assert listed.names == ("train-000.tar", "train-001.tar", "train-002.tar", "val/a.tar")
    assert listed.locations == tuple(str(folder / name) for name in listed.names)
    assert listed.notes == ("passed over other files: 1 .txt",)


@pytest.mark.parametrize(
    "source",
    [
        "train-{000..002}.tar",
        "train-000.tar::train-{001..002}.tar",
        "train-*.tar",
        "list.txt",
    ],
)
def test_list_shards_equal_sources_are_equal(
    folder: Path, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "list.txt").write_text("# mine\ntrain-000.tar\n\ntrain-{001..002}.tar\n")
    monkeypatch.chdir(folder)
    listed = list_shards(source)
    assert listed.names == ("train-000.tar", "train-001.tar", "train-002.tar")
    assert listed.root == str(folder)


def test_list_shards_list_is_relative_to_its_own_folder(folder: Path, tmp_path: Path) -> None:
    (folder / "list.txt").write_text("val/a.tar\n")
    assert list_shards(str(folder / "list.txt")).locations == (str(folder / "val" / "a.tar"),)


def test_list_shards_missing_names_are_listed_with_what_is_there(folder: Path) -> None:
    source = f"{folder}/train-{{000..004}}.tar"
    with pytest.raises(DataError) as error:
        list_shards(source)
    for words in ("2 of 5 shards", "train-003.tar", "train-004.tar", "train-002.tar", "allow_gaps"):
        assert words in str(error.value)
    listed = list_shards(source, allow_gaps=True)
    assert len(listed.names) == 3
    assert "2 of 5 shards do not exist" in listed.notes[0]


def test_list_shards_hole_in_the_numbers_is_refused(folder: Path) -> None:
    (folder / "train-001.tar").unlink()
    with pytest.raises(DataError, match=r"train-N.tar lacks 1: 1.*allow_gaps"):
        list_shards(str(folder))
    listed = list_shards(str(folder), allow_gaps=True)
    assert "numbers are missing: train-N.tar lacks 1: 1" in listed.notes


def test_list_shards_series_without_its_beginning_is_said(folder: Path) -> None:
    (folder / "train-000.tar").rename(folder / "train-003.tar")
    (folder / "train-001.tar").rename(folder / "train-004.tar")
    assert "train-N.tar begins at number 2" in list_shards(str(folder)).notes


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("nowhere", "nowhere.*Seen beside them: data"),
        ("data/*.tgz", r"\*.tgz.*Seen beside them: "),
        ("data/val/::data/val/a.tar", "more than once"),
        ("data/x.tar.gz", "compressed; unpack"),
        ("data/{a", "braces that do not match"),
        ("data/picture.bin", "neither a .tar nor a list"),
        ("data/prose.txt", "2 of 2 shards do not exist: aaaaaaaa"),
        ("empty", r"holds no shards; looked for \*.tar and saw no files"),
        ("zipped", "saw 1 .gz. Compressed tars must be unpacked first"),
        ("http://localhost/shards", "web server does not tell what it has"),
    ],
)
def test_list_shards_impossible_source_is_refused(
    folder: Path, source: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.parent)
    for name in ("data/x.tar.gz", "zipped/a.tar.gz", "empty/.keep"):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).touch()
    Path("data/prose.txt").write_text("a" * 5000 + "\nb\0*\n")
    Path("data/picture.bin").write_bytes(b"\xff\xfe\xfd")
    with pytest.raises(Exception, match=said) as error:
        list_shards(source)
    assert type(error.value).__name__ in ("DataError", "ConfigError")


def test_list_shards_urls_are_named_by_their_paths() -> None:
    listed = list_shards("https://host/d/train-{0..1}.tar?key=a/b::https://host/d/val-0.tar")
    assert listed.names == ("train-0.tar", "train-1.tar", "val-0.tar")
    assert listed.locations[0] == "https://host/d/train-0.tar?key=a/b"


def test_list_shards_name_with_braces_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "{a,b}.tar").touch()
    assert list_shards(str(tmp_path / "{a,b}.tar")).names == ("{a,b}.tar",)
