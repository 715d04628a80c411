"""Listing sources of every kind: names, labels, groups, splits, and what is wrong with them."""

from __future__ import annotations

import io
import json
import os
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from datamodules.pack import pack
from datamodules.packing.items import Listing
from datamodules.packing.parts import SourceOptions
from datamodules.packing.sources import list_source as list_with
from mae.errors import ConfigError, DataError


def list_source(source: Path | str, **options: Any) -> Listing:
    return list_with(source, SourceOptions(**options))


def touch(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"x")
    return root


def test_list_source_folder_finds_nested_images_sorted(tmp_path: Path) -> None:
    touch(tmp_path, "b/ü x.PNG", "b/c/z.jpeg", "a.1.5T.tiff", ".hidden/q.png", "b/._a.png")
    listing = list_source(tmp_path)
    assert [item.name for item in listing.items] == ["a.1.5T.tiff", "b/c/z.jpeg", "b/ü x.PNG"]
    assert all(Path(item.place.path).is_file() for item in listing.items)
    assert listing.notes == ()


def test_list_source_other_files_are_counted(tmp_path: Path) -> None:
    touch(tmp_path, "a.png", "x.txt", "y.txt", "z.webp", "README")
    (note,) = list_source(tmp_path).notes
    assert note == "passed over other files: 2 .txt, 1 .no suffix, 1 .webp"


def test_list_source_linked_folder_is_followed_once(tmp_path: Path) -> None:
    touch(tmp_path, "real/a.png", "src/b.png")
    (tmp_path / "src" / "link").symlink_to(tmp_path / "real")
    (tmp_path / "src" / "loop").symlink_to(tmp_path / "src")
    assert [item.name for item in list_source(tmp_path / "src").items] == ["b.png", "link/a.png"]


def test_list_source_no_images_lists_looked_for_and_seen(tmp_path: Path) -> None:
    touch(tmp_path, "x.txt")
    with pytest.raises(DataError, match=r"looked for \.jpg.*saw 1 \.txt"):
        list_source(tmp_path)
    with pytest.raises(DataError, match="does not exist"):
        list_source(tmp_path / "none")


def test_list_source_class_folders_give_labels(tmp_path: Path) -> None:
    touch(tmp_path, "cat/a.png", "cat/deep/b.png", "dog/a.png")
    items = list_source(tmp_path, labels="folders").items
    assert [item.labels for item in items] == [("cat",), ("cat",), ("dog",)]


def test_list_source_split_and_class_folders(tmp_path: Path) -> None:
    touch(tmp_path, "train/cat/a.png", "validation/dog/b.png", "test/cat/c.png")
    items = list_source(tmp_path, labels="folders", split="folders").items
    assert {item.name: (item.split, item.labels) for item in items} == {
        "train/cat/a.png": ("train", ("cat",)),
        "validation/dog/b.png": ("val", ("dog",)),
        "test/cat/c.png": ("test", ("cat",)),
    }


def test_list_source_split_folders_taken_for_classes_is_refused(tmp_path: Path) -> None:
    touch(tmp_path, "train/cat/a.png", "test/cat/c.png")
    with pytest.raises(ConfigError, match="--split folders"):
        list_source(tmp_path, labels="folders")


def test_list_source_image_outside_class_folders_is_named(tmp_path: Path) -> None:
    touch(tmp_path, "cat/a.png", "lost.png")
    with pytest.raises(DataError, match=r"lost\.png lies in no class folder"):
        list_source(tmp_path, labels="folders")


def test_list_source_group_field_reads_the_sidecar(tmp_path: Path) -> None:
    touch(tmp_path, "a.x.png", "b.png")
    (tmp_path / "a.x.json").write_text('{"patient": "p1", "age": 7}')
    (tmp_path / "b.json").write_text('{"patient": 12}')
    listing = list_source(tmp_path, group_field="patient")
    assert [i.group for i in listing.items] == ["p1", "12"]
    assert listing.notes == (
        "passed over other files: 2 .json",
        "group_field 'patient' makes every image a group of its own",
    )


def test_list_source_group_field_faults_are_named(tmp_path: Path) -> None:
    touch(tmp_path, "a.png")
    with pytest.raises(DataError, match=r"a\.png has no JSON sidecar"):
        list_source(tmp_path, group_field="patient")
    for content, words in [
        ('{"pat": 1}', "no text or whole number in the field 'patient'; it has the fields: pat"),
        ('{"patient": true}', "no text or whole number"),
        ("[1]", "is a list"),
        ("{", "cannot be read"),
        ("[" * 100_000, "cannot be read"),
        ('{"patient": "\\ud800"}', "no valid text"),
    ]:
        (tmp_path / "a.json").write_text(content)
        with pytest.raises(DataError, match=words):
            list_source(tmp_path, group_field="patient")
    (tmp_path / "a.json").write_bytes(b" " * (2**20 + 1))
    with pytest.raises(DataError, match="1,048,577 bytes"):
        list_source(tmp_path, group_field="patient")
    with pytest.raises(ConfigError, match="both given"):
        list_source(tmp_path, group_field="patient", group_regex="a")


def test_list_source_pattern_names_begin_below_its_fixed_part(tmp_path: Path) -> None:
    touch(tmp_path, "in/x/a.tif", "in/y/z/b.TIF", "in/c.png", "in/.h/d.tif", "other/e.tif")
    names = [i.name for i in list_source(f"{tmp_path}/in/**/*.[tT][iI][fF]").items]
    assert names == ["x/a.tif", "y/z/b.TIF"]
    listing = list_source(f"{tmp_path}/in/?", labels="folders")
    assert [(i.name, i.labels) for i in listing.items] == [
        ("x/a.tif", ("x",)),
        ("y/z/b.TIF", ("y",)),
    ]
    with pytest.raises(DataError, match="matches no file; put it in quotes"):
        list_source(f"{tmp_path}/in/*.gif")


def test_list_source_pattern_relative_to_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    touch(tmp_path, "x/a.tif", "x/y/b.tif")
    monkeypatch.chdir(tmp_path)
    items = list_source("**/*.tif").items
    assert [i.name for i in items] == ["x/a.tif", "x/y/b.tif"]
    assert all(Path(i.place.path).is_absolute() for i in items)


def test_list_source_name_with_brackets_that_exists_is_no_pattern(tmp_path: Path) -> None:
    touch(tmp_path, "in[1]{a,b}/x.png")
    assert [i.name for i in list_source(tmp_path / "in[1]{a,b}").items] == ["x.png"]


def test_list_source_several_are_joined(tmp_path: Path) -> None:
    touch(tmp_path, "p/a.png", "q/a.png", "q/r/a.png", "b1.png", "b2.png")
    both = list_source(f"{tmp_path}/p::{tmp_path}/q")
    assert [i.name for i in both.items] == ["p/a.png", "q/a.png", "q/r/a.png"]
    assert both == list_source(f"{tmp_path}/{{p,q}}")
    assert [i.name for i in list_source(f"{tmp_path}/b{{1..2}}.png").items] == ["b1.png", "b2.png"]
    patterns = list_source(f"{tmp_path}/{{p,q}}/**/*.png")
    assert patterns == both
    with pytest.raises(DataError, match=r"two images of the name 'p/a\.png'"):
        list_source(f"{tmp_path}/p::{tmp_path}/p")


def test_list_source_url_is_refused() -> None:
    with pytest.raises(ConfigError, match="is a URL"):
        list_source("https://example.org/a.tar")


def test_list_source_odd_files_are_passed_over(tmp_path: Path) -> None:
    touch(tmp_path, "a.png")
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "dangling.png").symlink_to(tmp_path / "nothing")
    listing = list_source(tmp_path)
    assert [i.name for i in listing.items] == ["a.png", "dangling.png"]
    assert listing.notes == ("passed over other files: 1 .png",)


# Archives


def tar_of(path: Path, members: Mapping[str, bytes]) -> Path:
    with tarfile.open(path, "w") as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def zip_of(path: Path, members: Mapping[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


MAKE = {"tar": tar_of, "zip": zip_of}


@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_list_source_archive_equals_the_folder(tmp_path: Path, kind: str) -> None:
    names = ["cat/1.2.840.1.png", "cat/1.2.840.2.png", "dog/ü x.PNG", ".hidden/a.png", "note.txt"]
    touch(tmp_path / "in", *names)
    made = MAKE[kind](tmp_path / f"a.{kind}", {name: name.encode() for name in names})
    for labels in ("none", "folders"):
        folder, archive = (list_source(s, labels=labels) for s in (tmp_path / "in", made))
        assert archive.notes == folder.notes
        fields = [[(i.name, i.labels, i.split) for i in of.items] for of in (folder, archive)]
        assert fields[0] == fields[1]
    for item in list_source(made).items:
        assert item.place.read(what="x") == item.name.encode()


@pytest.mark.parametrize("how", ["folder", "pattern", "list", "braces", "colons"])
def test_list_source_equal_names_in_archives_stay_apart(tmp_path: Path, how: str) -> None:
    (tmp_path / "in" / "sub").mkdir(parents=True)
    tar_of(tmp_path / "in" / "p.tar", {"a.png": b"1", "x/b.png": b"2"})
    tar_of(tmp_path / "in" / "sub" / "q.tar", {"./a.png": b"3"})
    zip_of(tmp_path / "in" / "r.zip", {"a.png": b"4"})
    (tmp_path / "in" / "all.txt").write_text("p.tar\nsub/q.tar\nr.zip\n")
    source = {
        "folder": "in",
        "pattern": "in/**/*.[tz]*[rp]",
        "list": "in/all.txt",
        "braces": "in/{p.tar,sub/q.tar,r.zip}",
        "colons": f"in/p.tar::{tmp_path}/in/sub/q.tar::{tmp_path}/in/r.zip",
    }[how]
    items = list_source(f"{tmp_path}/{source}").items
    found = {i.name: i.place.read(what="x") for i in items}
    assert found == {"p/a.png": b"1", "p/x/b.png": b"2", "sub/q/a.png": b"3", "r/a.png": b"4"}


def test_list_source_archives_beside_images_are_passed_over(tmp_path: Path) -> None:
    touch(tmp_path, "a.png")
    tar_of(tmp_path / "p.tar", {"a.png": b"1"})
    listing = list_source(tmp_path)
    assert [i.name for i in listing.items] == ["a.png"]
    assert listing.notes == ("passed over other files: 1 .tar",)


def test_list_source_archive_name_stands_in_for_a_missing_folder(tmp_path: Path) -> None:
    tar_of(tmp_path / "cat.tar", {"a.png": b"1"})
    zip_of(tmp_path / "dog.zip", {"a.png": b"2"})
    items = list_source(tmp_path, labels="folders").items
    assert [(i.name, i.labels) for i in items] == [("cat/a.png", ("cat",)), ("dog/a.png", ("dog",))]
    (tmp_path / "splits").mkdir()
    zip_of(tmp_path / "splits" / "train.zip", {"cat/a.png": b"1", "train/dog/b.png": b"2"})
    zip_of(tmp_path / "splits" / "test.zip", {"cat/a.png": b"3"})
    items = list_source(tmp_path / "splits", labels="folders", split="folders").items
    assert [(i.name, i.split, i.labels) for i in items] == [
        ("test/cat/a.png", "test", ("cat",)),
        ("train/cat/a.png", "train", ("cat",)),
        ("train/train/dog/b.png", "train", ("dog",)),
    ]


def test_list_source_archive_group_field_and_sidecars(tmp_path: Path) -> None:
    members = {
        "1.5T.png": b"1",
        "1.5T.json": b'{"patient": "p", "label": "x", "group": "g", "split": "valid"}',
        "2.png": b"2",
        "2.json": b'{"patient": "q"}',
        "2.cls": b" y ",
        "alone.json": b"{}",
    }
    made = tar_of(tmp_path / "a.tar", members)
    items = list_source(made).items
    assert [(i.labels, i.group, i.split) for i in items] == [
        (("x",), "g", "val"),
        (("y",), None, ""),
    ]
    assert [i.group for i in list_source(made, group_field="patient").items] == ["p", "q"]
    assert list_source(made).notes == ("passed over other files: 1 .json",)
    items = list_source(zip_of(tmp_path / "a.zip", members), group_field="patient").items
    assert [i.group for i in items] == ["p", "q"]


def test_list_source_sidecar_names_the_class_where_no_folder_does(tmp_path: Path) -> None:
    members = {"1.png": b"1", "1.cls": b"7", "cat/2.png": b"2", "cat/2.cls": b"8"}
    items = list_source(tar_of(tmp_path / "a.tar", members), labels="folders").items
    assert [i.labels for i in items] == [("7",), ("cat",)]


def test_list_source_half_labelled_or_mixed_is_refused(tmp_path: Path) -> None:
    half = tar_of(tmp_path / "a.tar", {"1.png": b"1", "1.cls": b"0", "2.png": b"2"})
    with pytest.raises(DataError, match=r"1 of 2 images .* have no label, first '2\.png'"):
        list_source(half)
    members = {"1.png": b"1", "1.json": b'{"labels": []}', "2.png": b"2", "2.cls": b"x"}
    with pytest.raises(DataError, match="one label and others a list"):
        list_source(tar_of(tmp_path / "b.tar", members))


def test_list_source_archive_without_images_says_what_it_saw(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"holds no images.*saw 1 \.txt"):
        list_source(tar_of(tmp_path / "a.tar", {"x.txt": b"1"}))
    (tmp_path / "a.tar.gz").write_bytes(b"\x1f\x8b" + bytes(20))
    with pytest.raises(DataError, match=r"compressed with gzip.*unpack it"):
        list_source(tmp_path / "a.tar.gz")


# Existing shards


@pytest.mark.parametrize("labels", ["folders", "none"])
def test_list_source_shards_keep_names_labels_and_splits(
    class_folder: Callable[..., Path], tmp_path: Path, labels: Any
) -> None:
    source = class_folder({"cat": 6, "dog": 7})
    pack(source, tmp_path / "shards", labels=labels, shard_size=4, group_regex=r"img(\d)")
    items = list_source(tmp_path / "shards").items
    again = {i.name: (i.labels, i.group, i.place.read(what="x")) for i in items}
    first = list_source(source, labels=labels, group_regex=r"img(\d)").items
    assert again == {i.name: (i.labels, i.group, i.place.read(what="x")) for i in first}
    splits = {i.name: i.split for i in items}
    for shard in (tmp_path / "shards").glob("*.tar"):
        with tarfile.open(shard) as tar:
            sidecars = [json.load(tar.extractfile(n)) for n in tar.getnames() if "json" in n]
        assert {splits[sidecar["source"]] for sidecar in sidecars} == {shard.name.split("-")[0]}
    # The tars alone know everything but the splits.
    alone = list_source(f"{tmp_path}/shards/*.tar").items
    assert [(i.name, i.labels, i.group) for i in alone] == [
        (i.name, i.labels, i.group) for i in items
    ]


def test_list_source_shards_with_a_name_that_is_no_utf8(tmp_path: Path) -> None:
    name = b"\xff.png"
    (tmp_path / "in").mkdir()
    Image.new("L", (4, 4)).save(tmp_path / "in" / os.fsdecode(name))
    pack(tmp_path / "in", tmp_path / "shards", val_fraction=0)
    (item,) = list_source(tmp_path / "shards").items
    assert os.fsencode(item.name) == name


def test_list_source_shards_of_two_sets_with_equal_names_stay_apart(
    image_folder: Callable[..., Path], tmp_path: Path
) -> None:
    for name in ("p", "q"):
        pack(image_folder(2, name=f"{name}-in"), tmp_path / name, val_fraction=0)
    names = [i.name for i in list_source(f"{tmp_path}/p::{tmp_path}/q").items]
    assert names == ["img000.png", "img001.png", "q/img000.png", "q/img001.png"]


def test_list_source_shards_that_differ_from_their_manifest_are_refused(
    shards: Callable[..., Path],
) -> None:
    directory = shards(3)
    shard = directory / "train-000000.tar"
    data = bytearray(shard.read_bytes())
    data[list_source(directory).items[0].place.offset + 40] ^= 1
    shard.write_bytes(data)
    places = [item.place for item in list_source(directory).items]
    with pytest.raises(DataError, match="differs from the checksum"):
        _ = [place.read(what="x") for place in places]
    (directory / "train-000000.idx.safetensors").unlink()
    with pytest.raises(DataError, match="is not what its manifest says"):
        list_source(directory)
    shard.write_bytes(data[:-512])
    with pytest.raises(DataError, match="bytes, the manifest says"):
        list_source(directory)
