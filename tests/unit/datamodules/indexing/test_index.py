"""Tars of other tools become shards with all guarantees, and keep every byte."""

from __future__ import annotations

import csv
import hashlib
import shutil
import subprocess
import tarfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import webdataset
from PIL import Image

from datamodules.decode import decode
from datamodules.indexing import index_shards
from datamodules.manifest import Manifest
from datamodules.pack import pack
from datamodules.reader import ShardReader
from datamodules.records import SplitRecords
from datamodules.shardfiles import LocalShards
from datamodules.tarindex import TarIndex
from mae.errors import ConfigError, DataError, OutputError

Write = Callable[..., Path]
Png = Callable[..., bytes]


def read_all(manifest: Manifest, split: str) -> list[tuple[str, dict[str, bytes]]]:
    """Read a split sample by sample, as training does."""
    shards = manifest.shards(split)
    reader = ShardReader(LocalShards(manifest, shards), shards)
    return [
        reader.read(shard, place)
        for shard, info in enumerate(shards)
        for place in range(info.num_samples)
    ]


def files_below(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture
def tars(write_tar: Write, png: Png, tmp_path: Path) -> Path:
    """Return a folder of two train shards and a val shard, with labels and groups."""
    number = 0
    for name in ("train-000", "train-001", "val-000"):
        members: dict[str, Any] = {}
        for place in range(3):
            number += 1
            key = f"{name[:2]}{number}"
            members[f"{key}.png"] = png(number, size=(6 + number, 8))
            members[f"{key}.cls"] = str(place % 2).encode()
            members[f"{key}.json"] = {"group": f"{name[0]}{place}"}
        write_tar(f"tars/{name}.tar", members)
    return tmp_path / "tars"


def test_index_shards_written_by_webdataset_read_back_as_webdataset_reads_them(
    png: Png, tmp_path: Path
) -> None:
    (tmp_path / "wds").mkdir()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # webdataset leaves its files open
        pattern = str(tmp_path / "wds" / "x-train-%04d.tar")
        with webdataset.ShardWriter(pattern, maxcount=4, verbose=0) as writer:
            for number in range(9):
                sample = {"png": png(number), "cls": number % 3, "json": {"group": str(number)}}
                writer.write({"__key__": f"dir/{number:03d}", **sample})
        paths = [str(path) for path in sorted((tmp_path / "wds").glob("*.tar"))]
        expected = list(webdataset.WebDataset(paths, shardshuffle=False))
    summary = index_shards(str(tmp_path / "wds"))
    found = read_all(Manifest.load(tmp_path / "wds"), "train")
    assert [key for key, _ in found] == [sample["__key__"] for sample in expected]
    for (_, members), sample in zip(found, expected, strict=True):
        assert members == {suffix: sample[suffix] for suffix in members}
    assert summary.manifest.class_counts == {"train": {"0": 3, "1": 3, "2": 3}}


@pytest.mark.skipif(shutil.which("tar") is None, reason="needs GNU tar")
@pytest.mark.parametrize("kind", ["gnu", "posix", "ustar"])
def test_index_shards_written_by_tar_read_back_as_tarfile_reads_them(
    png: Png, tmp_path: Path, kind: str
) -> None:
    for number in range(4):
        folder = tmp_path / "src" / ("a long name of a folder " * 4) / f"{'x' * 60}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"ü{number}.png").write_bytes(png(number))
    path = tmp_path / "tars" / "a.tar"
    path.parent.mkdir()
    command = ["tar", "-C", str(tmp_path / "src"), f"--format={kind}", "-cf", str(path), "."]
    subprocess.run(command, check=True)
    summary = index_shards(str(path), tmp_path / "out")
    with tarfile.open(path) as tar:
        files = [member for member in tar if member.isfile()]
        expected = [(m.name.removesuffix(".png"), tar.extractfile(m).read()) for m in files]  # type: ignore[union-attr]
    found = read_all(summary.manifest, "train")
    assert [(key, members["png"]) for key, members in found] == expected


def test_index_shards_measures_what_numpy_measures(tars: Path) -> None:
    before = files_below(tars)
    manifest = index_shards(str(tars)).manifest
    assert Manifest.load(tars).to_dict() == manifest.to_dict()
    after = files_below(tars)
    assert {name: after[name] for name in before} == before
    samples = {split: read_all(manifest, split) for split in ("train", "val")}
    pixels = [decode(members["png"], what=key) for key, members in samples["train"]]
    values = np.concatenate([image.reshape(3, -1) for image in pixels], axis=1).astype(float)
    np.testing.assert_allclose(manifest.spec.mean, values.mean(axis=1), rtol=1e-12)
    np.testing.assert_allclose(manifest.spec.std, values.std(axis=1), rtol=1e-12)
    assert (manifest.min_size, manifest.max_size) == ((7, 8), (15, 8))
    assert manifest.class_counts == {"train": {"0": 4, "1": 2}, "val": {"0": 2, "1": 1}}
    every = [members for of_split in samples.values() for _, members in of_split]
    assert manifest.num_bytes_images == sum(len(members["png"]) for members in every)
    for info in manifest.shard_list:
        data = (tars / info.path).read_bytes()
        assert (info.num_bytes, info.sha256) == (len(data), hashlib.sha256(data).hexdigest())
        assert info.index_sha256 == TarIndex.build(tars / info.path).digest


def test_index_shards_labels_and_groups_reach_training(tars: Path, tmp_path: Path) -> None:
    names = tmp_path / "names.txt"
    names.write_text("cat\ndog\nbird\n")
    summary = index_shards(str(tars), classes=names)
    assert not any("_fraction" in note for note in summary.notes)  # options of `mae pack`
    manifest = summary.manifest
    records = SplitRecords(manifest, "train")
    assert [records.load(0, place).label for place in range(3)] == [0, 1, 0]
    assert [records.load(1, place).group for place in range(3)] == ["t0", "t1", "t2"]
    assert manifest.classes == ("cat", "dog", "bird")
    assert manifest.class_counts["val"] == {"cat": 2, "dog": 1, "bird": 0}


def test_index_shards_any_number_of_workers_gives_equal_bytes(tars: Path, tmp_path: Path) -> None:
    outs = [tmp_path / "one", tmp_path / "two"]
    for workers, out in enumerate(outs, 1):
        index_shards(str(tars), out, workers=workers)
    assert files_below(outs[0]) == files_below(outs[1])
    assert len(files_below(outs[0])) == 1 + 3


def test_index_shards_of_packed_ones_are_packed_ones(
    image_folder: Callable[..., Path], class_folder: Callable[..., Path], tmp_path: Path
) -> None:
    source = class_folder({"cat": 6, "dog": 5})
    packed = pack(source, tmp_path / "packed", labels="folders", shard_size=3, seed=2).manifest
    manifest = index_shards(str(tmp_path / "packed"), tmp_path / "out").manifest
    for name in ("classes", "class_counts", "num_bytes_images", "min_size", "max_size"):
        assert getattr(manifest, name) == getattr(packed, name)
    np.testing.assert_allclose(manifest.spec.mean, packed.spec.mean, rtol=1e-12)
    sums = [(i.split, i.num_samples, i.sha256, i.index_sha256) for i in packed.shard_list]
    found = [(i.split, i.num_samples, i.sha256, i.index_sha256) for i in manifest.shard_list]
    assert sorted(found) == sorted(sums)


def test_index_shards_multilabel_sidecars_are_understood(write_tar: Write, png: Png) -> None:
    path = write_tar(
        "tars/a.tar",
        [
            ("1.png", png(1)),
            ("1.json", {"labels": ["cat", "dog"], "classes": [0, 1]}),
            ("2.png", png(2)),
            ("2.json", {"labels": [], "classes": []}),
        ],
    )
    summary = index_shards(str(path.parent))
    assert summary.manifest.multilabel
    assert summary.manifest.classes == ("cat", "dog")
    assert summary.manifest.class_counts == {"train": {"cat": 1, "dog": 1}}
    assert any("1 of 2 images have an empty list" in note for note in summary.notes)


def test_index_shards_contradicting_names_are_refused(
    write_tar: Write, png: Png, tmp_path: Path
) -> None:
    one = {"labels": ["cat"], "classes": [2]}
    path = write_tar("tars/a.tar", {"1.png": png(1), "1.json": one})
    assert index_shards(str(path), tmp_path / "o").manifest.classes == ("0", "1", "cat")
    (tmp_path / "names.txt").write_text("a\nb\nc\n")
    with pytest.raises(DataError, match=r"class 2 is called 'cat' by .* and 'c' by the names"):
        index_shards(str(path), tmp_path / "none", classes=tmp_path / "names.txt")
    other = {"labels": ["dog"], "classes": [2]}
    members = {"1.png": png(1), "1.json": one, "2.png": png(2), "2.json": other}
    with pytest.raises(DataError, match="give one class two names"):
        index_shards(str(write_tar("tars/a.tar", members)), tmp_path / "none")


def test_index_shards_bad_images_stay_and_are_listed(
    write_tar: Write, png: Png, tmp_path: Path
) -> None:
    members = {f"{number:02d}.png": png(number) for number in range(10)}
    members |= {"03.png": b"GIF89a", "07.png": png(7, mode="L")}
    path = write_tar("tars/a.tar", members)
    with pytest.raises(DataError, match=r"2 of 10 images cannot be used; allowed: 0") as error:
        index_shards(str(path.parent))
    assert "1 x GIF is not supported, e.g. " in str(error.value)
    assert not (path.parent / "manifest.json").exists()
    summary = index_shards(str(path.parent), max_bad_fraction=0.2)
    assert summary.num_bad == {"GIF is not supported": 1, "other channels or depth": 1}
    assert summary.manifest.options["bad_images"] == summary.num_bad
    assert summary.manifest.num_samples("train") == 10
    with (path.parent / "bad_images.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["shard"], row["key"]) for row in rows] == [("a.tar", "03"), ("a.tar", "07")]
    assert "1 x uint8 (channels x depth), most others have 3 x uint8" in rows[1]["message"]


def test_index_shards_nothing_but_bad_images_is_refused(write_tar: Write) -> None:
    path = write_tar("a.tar", {"1.png": b"no image"})
    with pytest.raises(DataError, match="1 of 1 images cannot be used"):
        index_shards(str(path), path.parent / "out", max_bad_fraction=0.99)


@pytest.mark.parametrize(
    ("members", "fault"),
    [
        ({"1.png": 1, "1.txt": b"x"}, "add --ignore txt to pass over"),
        ({"1.cls": b"0"}, "sample '1' has 0 images; allowed: exactly one"),
        ({"1.png": 1, "1.jpg": 1}, r"sample '1' has 2 images \(png, jpg\); allowed: exactly"),
        ({"1.png": 1, "1.cls": b"cat"}, r"1: its .cls holds b'cat'.*--ignore cls"),
        ({"1.png": 1, "1.cls": b"9999999"}, "allowed: a class index, 0 … 999,999"),
        ({"1.png": 1, "1.cls": b"-1"}, "allowed: a class index"),
        ({"1.png": 1, "1.json": [1]}, "its .json holds a list; allowed: an object"),
        ({"1.png": 1, "1.json": b"{"}, "its .json cannot be read"),
        ({"1.png": 1, "1.json": b"[" * 99_999}, "its .json cannot be read"),
        ({"1.png": 1, "2.png": 1, "2.cls": b"0"}, r"1 of 2 samples have a .cls.*a.tar: 1 of 2"),
    ],
)
def test_index_shards_what_is_no_sample_is_refused_by_name(
    write_tar: Write, png: Png, members: dict[str, Any], fault: str
) -> None:
    path = write_tar("a.tar", {name: png(1) if d == 1 else d for name, d in members.items()})
    with pytest.raises(DataError, match=fault) as error:
        index_shards(str(path), path.parent / "out")
    assert "a.tar" in str(error.value)
    assert not (path.parent / "out").exists()


def test_index_shards_ignored_members_are_no_part_of_a_sample(write_tar: Write, png: Png) -> None:
    members = {"1.png": png(1), "1.cls": b"cat", "1.seg.png": b"?", "2.png": png(2)}
    path = write_tar("tars/a.tar", members)
    index_shards(str(path.parent), ignore=("seg.png", ".CLS"))
    found = read_all(Manifest.load(path.parent), "train")
    assert found == [("1", {"png": png(1)}), ("2", {"png": png(2)})]
    # Without its stored index the shard is indexed anew, by the same rule.
    (path.parent / "a.idx.safetensors").unlink()
    assert read_all(Manifest.load(path.parent), "train") == found


def test_index_shards_all_damaged_shards_are_named(tars: Path) -> None:
    for name in ("train-000.tar", "val-000.tar"):
        data = (tars / name).read_bytes()
        (tars / name).write_bytes(data[: len(data) // 2 // 512 * 512])
    with pytest.raises(DataError, match="2 of 3 shards cannot be used") as error:
        index_shards(str(tars))
    assert "train-000.tar" in str(error.value)
    assert "val-000.tar" in str(error.value)
    assert not list(tars.glob("*.safetensors"))


def test_index_shards_sample_cut_in_two_is_refused(write_tar: Write, png: Png) -> None:
    write_tar("tars/a-0.tar", {"1.png": png(1), "2.png": png(2)})
    path = write_tar("tars/a-1.tar", {"2.json": {}, "3.png": png(3)})
    with pytest.raises(DataError, match=r"'2' is cut in two: png at the end of .*a-0.tar, json"):
        index_shards(str(path.parent))


def test_index_shards_repetitions_and_crossings_are_said(write_tar: Write, png: Png) -> None:
    group = {"group": "p1"}
    write_tar("t/train-0.tar", {"1.png": png(1), "1.json": group, "2.png": png(2)})
    write_tar("t/train-1.tar", {"1.png": png(3), "2.png": png(2)})
    path = write_tar("t/val-0.tar", {"1.png": png(1), "1.json": group})
    notes = "\n".join(index_shards(str(path.parent)).notes)
    assert "2 keys stand in several shards of a split" in notes
    assert "1 images of train have the bytes of another one of train" in notes
    assert "WARNING: 1 images stand in more than one split" in notes
    assert "WARNING: 1 groups stand in more than one split, first 'p1'" in notes


def test_index_shards_empty_tars_are_refused_or_said(write_tar: Write, png: Png) -> None:
    path = write_tar("t/a-0.tar", {})
    with pytest.raises(DataError, match=r"holds no samples; looked for members .jpg.*saw none"):
        index_shards(str(path.parent))
    write_tar("t/a-1.tar", {"1.txt": b"x"})
    with pytest.raises(DataError, match="holds no samples"):
        index_shards(str(path.parent), ignore=["txt"])
    write_tar("t/a-2.tar", {"1.png": png(1)})
    summary = index_shards(str(path.parent), ignore=["txt"])
    assert [info.path for info in summary.manifest.shard_list] == ["a-2.tar"]
    assert any("2 shards without samples" in note for note in summary.notes)


def test_index_shards_impossible_options_are_refused(tars: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="max_bad_fraction is 1"):
        index_shards(str(tars), max_bad_fraction=1)
    with pytest.raises(ConfigError, match="no place of its own; give a new directory as OUT"):
        index_shards(f"{tars}/train-*.tar")
    with pytest.raises(ConfigError, match="workers is 0"):
        index_shards(str(tars), workers=0)
    for text, fault in (
        ("a\na\n", "has 'a' twice"),
        ("", "no line at all"),
        ("a\n\n", "empty line"),
    ):
        (tmp_path / "names.txt").write_text(text)
        with pytest.raises(DataError, match=fault):
            index_shards(str(tars), classes=tmp_path / "names.txt")
    (tmp_path / "names.txt").write_text("a")
    with pytest.raises(DataError, match="classes up to 1, but 1 names are given"):
        index_shards(str(tars), classes=tmp_path / "names.txt")
    with pytest.raises(DataError, match="cannot be read"):
        index_shards(str(tars), classes=tmp_path / "none.txt")
    assert not list(tars.glob("*.safetensors"))


def test_index_shards_16_bit_levels_are_kept(write_tar: Write, tmp_path: Path) -> None:
    pixels = np.arange(70, dtype=np.uint16).reshape(7, 10) * 900
    Image.fromarray(pixels).save(tmp_path / "x.png")
    path = write_tar("tars/a.tar", {"1.png": (tmp_path / "x.png").read_bytes()})
    manifest = index_shards(str(path.parent)).manifest
    assert (manifest.spec.dtype, manifest.spec.channels) == ("uint16", ("gray",))
    np.testing.assert_allclose(manifest.spec.mean, [pixels.mean()])


def test_index_shards_manifest_that_is_there_stays(tars: Path) -> None:
    index_shards(str(tars), split="train")
    first = (tars / "manifest.json").read_bytes()
    with pytest.raises(OutputError, match="exists already; add --overwrite"):
        index_shards(str(tars))
    assert (tars / "manifest.json").read_bytes() == first
    assert index_shards(str(tars), overwrite=True).manifest.splits == ("train", "val")


def test_index_shards_progress_ends_at_one(tars: Path) -> None:
    shares: list[float] = []
    index_shards(str(tars), on_progress=shares.append)
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(1)
