"""From source to shards: the same bytes whoever works, and what is kept of every image."""

from __future__ import annotations

import json
import shutil
import tarfile
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from PIL import Image

from datamodules.decode import decode
from datamodules.labels import read_label
from datamodules.manifest import Manifest
from datamodules.pack import pack
from datamodules.reader import ShardReader
from datamodules.shardfiles import LocalShards
from mae.errors import ConfigError, DataError

Tree = Callable[[Path], dict[str, bytes]]
OPTIONS: dict[str, Any] = {
    "shard_size": 7,
    "group_regex": r"(p\d\d)/",
    "val_fraction": 0.3,
    "max_bad_fraction": 0.1,
}


def samples(directory: Path) -> dict[str, tuple[str, dict[str, bytes], dict[str, Any]]]:
    """Return split, members and sidecar of every sample by the name of its source."""
    manifest, found = Manifest.load(directory), {}
    for split in manifest.splits:
        shards = manifest.shards(split)
        reader = ShardReader(LocalShards(manifest, shards), shards)
        for shard, info in enumerate(shards):
            for index in range(info.num_samples):
                _, members = reader.read(shard, index)
                sidecar = json.loads(members["json"])
                found[sidecar["source"]] = (split, members, sidecar)
    return found


@pytest.mark.parametrize(("workers", "options"), [(4, {}), (2, {"max_side": 16, "quality": 80})])
def test_run_any_number_of_workers_gives_equal_bytes(
    busy_source: Path, tmp_path: Path, tree: Tree, workers: int, options: dict[str, int]
) -> None:
    one = pack(busy_source, tmp_path / "one", **OPTIONS, **options)
    many = pack(busy_source, tmp_path / "many", **OPTIONS, **options, workers=workers)
    assert (one.workers, many.workers) == ("in this process", f"by {workers} processes")
    assert tree(tmp_path / "one") == tree(tmp_path / "many")
    assert one.manifest.left_out == {
        "damaged": 1,
        "duplicate": 1,
        "other channels or depth": 1,
    }
    assert one.num_duplicates == 1
    assert {"p00/z-copy.png", "p03/cut.png", "p05/gray.png"} == {e.name for e in one.left_out}
    assert len(one.manifest.shard_list) > 8
    assert not list(tmp_path.glob(".*"))


def test_run_no_group_stands_in_two_splits(busy_source: Path, tmp_path: Path) -> None:
    pack(busy_source, tmp_path / "out", **OPTIONS)
    found = samples(tmp_path / "out")
    assert len(found) == 60
    splits: dict[str, set[str]] = {}
    for name, (split, _, sidecar) in found.items():
        assert sidecar["group"] == name.split("/")[0]
        splits.setdefault(sidecar["group"], set()).add(split)
    assert all(len(of_group) == 1 for of_group in splits.values())
    assert set().union(*splits.values()) == {"train", "val"}


def test_run_seed_is_the_salt_of_the_group_split(busy_source: Path, tmp_path: Path) -> None:
    val_groups = []
    for seed in (0, 1):
        pack(busy_source, tmp_path / f"{seed}", **OPTIONS, seed=seed)
        found = samples(tmp_path / f"{seed}").values()
        val_groups.append({sidecar["group"] for split, _, sidecar in found if split == "val"})
    assert val_groups[0] != val_groups[1]


def test_run_duplicates_in_named_splits_are_an_error(
    csv_source: Callable[..., Path], tmp_path: Path
) -> None:
    table = csv_source(["path", "split"], [["a.png", "train"], ["b.png", "test"]])
    shutil.copy(table.parent / "a.png", table.parent / "b.png")
    with pytest.raises(DataError, match=r"(?s)two splits.*'a\.png' in train and 'b\.png' in test"):
        pack(table, tmp_path / "out")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["table"]
    kept = pack(table, tmp_path / "out", duplicates="keep").manifest
    assert (kept.num_samples("train"), kept.num_samples("test")) == (1, 1)


def test_run_duplicates_without_a_split_of_their_own_are_dropped(
    image_folder: Callable[..., Path], tmp_path: Path
) -> None:
    source = image_folder(30)
    for path in sorted(source.iterdir()):
        shutil.copy(path, path.with_name(f"x-{path.name}"))
    summary = pack(source, tmp_path / "out", val_fraction=0.4)
    assert summary.num_duplicates == summary.manifest.left_out["duplicate"] == 30
    assert set(samples(tmp_path / "out")) == {f"img{n:03d}.png" for n in range(30)}


def test_run_duplicates_do_not_count_as_bad(
    image_folder: Callable[..., Path], tmp_path: Path
) -> None:
    source = image_folder(3)
    for number in range(10):
        shutil.copy(source / "img000.png", source / f"x{number}.png")
    assert pack(source, tmp_path / "out", max_bad_fraction=0).num_duplicates == 10


@pytest.mark.parametrize("kind", ["tar", "zip", "pattern", "list"])
def test_run_every_kind_of_source_gives_the_same_shards(
    class_folder: Callable[..., Path], tmp_path: Path, tree: Tree, kind: str
) -> None:
    folder = class_folder({"cat": 5, "dog": 6})
    files = sorted(p for p in folder.rglob("*.png"))
    names = {path: path.relative_to(folder).as_posix() for path in files}
    source = tmp_path / f"source.{kind}"
    if kind == "tar":
        with tarfile.open(source, "w") as tar:
            for path in reversed(files):
                tar.add(path, names[path])
    elif kind == "zip":
        with zipfile.ZipFile(source, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in files:
                archive.write(path, names[path])
    elif kind == "pattern":
        source = folder / "**" / "*.png"
    else:
        source = folder / "all.txt"
        source.write_text("\n".join(names.values()))
    labels = "none" if kind == "list" else "folders"
    out = []
    for place in (folder, source):
        out.append(tmp_path / f"out{len(out)}")
        pack(place, out[-1], labels=labels, shard_size=4, val_fraction=0.3, test_fraction=0)
    first, second = (tree(directory) for directory in out)
    manifests = [json.loads(of.pop("manifest.json")) for of in (first, second)]
    assert first == second
    assert [m.pop("source") for m in manifests] == [str(folder), str(source)]
    assert manifests[0] == manifests[1]


def test_run_packing_shards_again_changes_their_size_only(
    busy_source: Path, tmp_path: Path, tree: Tree
) -> None:
    pack(busy_source, tmp_path / "small", **OPTIONS)
    pack(busy_source, tmp_path / "large", **(OPTIONS | {"shard_size": 40}))
    pack(tmp_path / "small", tmp_path / "again", shard_size=40)
    expected, found = tree(tmp_path / "large"), tree(tmp_path / "again")
    assert {k: v for k, v in found.items() if k.endswith(".tar")} == {
        k: v for k, v in expected.items() if k.endswith(".tar")
    }


def test_run_several_labels_come_back(csv_source: Callable[..., Path], tmp_path: Path) -> None:
    cells = ["x|y", "", "y", "z|x|y", "x", "", "z", "y"]
    rows = [[f"{n}.png", cell, "train" if n < 6 else "test"] for n, cell in enumerate(cells)]
    table = csv_source(["path", "label", "split"], rows)
    summary = pack(table, tmp_path / "out", labels="multi", shard_size=3)
    manifest = summary.manifest
    assert (manifest.classes, manifest.multilabel) == (("x", "y", "z"), True)
    expected = {
        split: Counter(n for _, c, s in rows if s == split for n in c.split("|") if n)
        for split in ("train", "test")
    }
    assert manifest.class_counts == {
        split: {name: counts[name] for name in "xyz"} for split, counts in expected.items()
    }
    assert "2 of 8 images have an empty list of labels" in summary.notes
    assert "split test has no image of: x" in summary.notes
    for where in ("out", "again"):
        for name, (_, members, sidecar) in samples(tmp_path / where).items():
            names = sorted(filter(None, cells[int(name[0])].split("|")))
            label = read_label(members, manifest.classes, multilabel=True, what=name)
            assert label == tuple("xyz".index(n) for n in names)
            assert sidecar["labels"] == names
            assert "cls" not in members
        if where == "out":  # labels survive packing the shards again
            pack(tmp_path / "out", tmp_path / "again", shard_size=2)


def test_run_all_labels_empty_is_an_error(csv_source: Callable[..., Path], tmp_path: Path) -> None:
    table = csv_source(["path", "label"], [["a.png", ""], ["b.png", ""]])
    with pytest.raises(DataError, match=r"the labels of .* are empty for all 2 images"):
        pack(table, tmp_path / "out", labels="multi")


def test_run_max_side_is_recorded_and_measured(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    random = np.random.default_rng(0)
    sizes = {"a": (40, 100), "b": (90, 30), "c": (20, 20)}
    for name, size in sizes.items():
        pixels = random.integers(0, 65536, (*size, 5), dtype=np.uint16)
        tifffile.imwrite(
            tmp_path / "in" / f"{name}.tif", pixels, photometric="minisblack", planarconfig="contig"
        )
    summary = pack(tmp_path / "in", tmp_path / "out", max_side=50, val_fraction=0)
    manifest, found = summary.manifest, samples(tmp_path / "out")
    stored = {n: decode(members["tif"], what=n) for n, (_, members, _) in found.items()}
    assert {n[0]: p.shape for n, p in stored.items()} == {
        "a": (5, 20, 50),
        "b": (5, 50, 17),
        "c": (5, 20, 20),
    }
    assert {p.dtype.name for p in stored.values()} == {manifest.spec.dtype} == {"uint16"}
    original = {n[0]: sidecar.get("original") for n, (_, _, sidecar) in found.items()}
    num_bytes = (tmp_path / "in" / "a.tif").stat().st_size
    assert original["a"] == {"format": "tiff", "height": 40, "width": 100, "num_bytes": num_bytes}
    assert original["c"] is None
    assert found["c.tif"][1]["tif"] == (tmp_path / "in" / "c.tif").read_bytes()
    pixels = np.concatenate([p.reshape(5, -1) for p in stored.values()], axis=1).astype(float)
    np.testing.assert_allclose(manifest.spec.mean, pixels.mean(axis=1), rtol=1e-12)
    assert (manifest.options["max_side"], manifest.options["quality"]) == (50, None)
    assert summary.num_reencoded == 2
    assert "re-encoded 2 of 3 images (max_side 50)" in summary.notes


def test_run_quality_applies_orientation_and_measures_what_is_stored(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    ramp = np.linspace(0, 255, 40) + np.linspace(-90, 90, 24)[:, None]
    pixels = np.stack([ramp, ramp[::-1], ramp[:, ::-1]], axis=2).clip(0, 255).astype(np.uint8)
    exif = Image.Exif()
    exif[0x0112] = 6  # a quarter turn
    Image.fromarray(pixels).save(tmp_path / "in" / "a.png", exif=exif)
    manifest = pack(tmp_path / "in", tmp_path / "out", quality=40, val_fraction=0).manifest
    ((_, members, sidecar),) = samples(tmp_path / "out").values()
    stored = decode(members["jpg"], what="a")
    assert stored.shape == (3, 40, 24)
    assert sidecar["original"]["format"] == "png"
    np.testing.assert_allclose(manifest.spec.mean, stored.mean(axis=(1, 2)), rtol=1e-12)
    with Image.open(tmp_path / "in" / "a.png") as image:
        upright = np.asarray(image.transpose(Image.Transpose.ROTATE_270)).transpose(2, 0, 1)
    assert np.corrcoef(stored.ravel(), upright.ravel())[0, 1] > 0.99


def test_run_quality_for_deep_images_is_refused(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    Image.fromarray(np.zeros((4, 4), np.uint16)).save(tmp_path / "in" / "a.png")
    with pytest.raises(ConfigError, match=r"the images are 1 x uint16; a JPEG holds"):
        pack(tmp_path / "in", tmp_path / "out", quality=90)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in"]


def test_run_many_bad_images_stop_all_workers_early(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    Image.new("RGB", (2000, 2000)).save(tmp_path / "whole.png")
    data = (tmp_path / "whole.png").read_bytes()
    (tmp_path / "whole.png").unlink()
    for number in range(80):
        path = tmp_path / "in" / f"{number:02d}.png"
        path.write_bytes(data if number % 4 else data[:1000])
    seen = [0]
    with pytest.raises(DataError, match=r"(?s)at least \d+ of 80 images .* damaged"):
        pack(
            tmp_path / "in",
            tmp_path / "out",
            shard_size=40,
            workers=2,
            duplicates="keep",
            max_bad_fraction=0.1,
            on_progress=lambda stage, done, _: seen.append(done if stage == "packing" else 0),
        )
    assert 0 < max(seen) < 80
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"workers": 0}, "workers is 0"),
        ({"workers": 2, "dask": "tcp://127.0.0.1:1"}, "workers and dask"),
        ({"max_side": 0}, "max_side is 0"),
        ({"quality": 101}, "quality is 101"),
    ],
)
def test_run_impossible_options_are_named(
    image_folder: Callable[..., Path], tmp_path: Path, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        pack(image_folder(2), tmp_path / "out", **options)
