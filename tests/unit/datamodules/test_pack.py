"""Packing: the bytes, their order, and everything that can be wrong."""

from __future__ import annotations

import csv
import gc
import json
import multiprocessing
import os
import re
import resource
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
import webdataset
from PIL import Image

from datamodules.guard import BadImageError
from datamodules.manifest import Manifest
from datamodules.pack import pack, pack_into_cache
from mae.errors import ConfigError, DataError


def read_back(directory: Path) -> list[dict[str, Any]]:
    """Read all shards with plain webdataset."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # webdataset leaves its files open
        tars = sorted(map(str, directory.glob("*.tar")))
        samples = [s for tar in tars for s in webdataset.WebDataset(tar, shardshuffle=False)]
        gc.collect()
    return samples


def tree(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_pack_plain_webdataset_reads_the_same_bytes(
    class_folder: Callable[..., Path], tmp_path: Path
) -> None:
    source = class_folder({"cat": 9, "dog": 12})
    summary = pack(source, tmp_path / "out", labels="folders", shard_size=5)
    samples = {json.loads(s["json"])["source"]: s for s in read_back(tmp_path / "out")}
    files = {p.relative_to(source).as_posix(): p for p in source.rglob("*.png")}
    assert samples.keys() == files.keys()
    for name, sample in samples.items():
        assert sample["png"] == files[name].read_bytes()
        assert sample["cls"] == (b"0" if name.startswith("cat") else b"1")
        assert json.loads(sample["json"])["label"] == name.split("/")[0]
    manifest = summary.manifest
    assert manifest.classes == ("cat", "dog")
    counts = [sum(of[name] for of in manifest.class_counts.values()) for name in ("cat", "dog")]
    assert counts == [9, 12]
    assert sum(map(manifest.num_samples, manifest.splits)) == 21
    assert set(manifest.splits) == {"train", "val", "test"}


def test_pack_statistics_are_those_of_the_train_split(
    csv_source: Callable[..., Path], tmp_path: Path
) -> None:
    rows = [[f"{i}.png", "train" if i < 5 else "test"] for i in range(9)]
    source = csv_source(["path", "split"], rows)
    spec = pack(source, tmp_path / "out", shard_size=2).manifest.spec
    train = [np.asarray(Image.open(source.parent / f"{i}.png")) for i in range(5)]
    pixels = np.concatenate([image.reshape(-1, 3) for image in train]).astype(np.float64)
    np.testing.assert_allclose(spec.mean, pixels.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(spec.std, pixels.std(axis=0), rtol=1e-12)
    assert spec.channels == ("red", "green", "blue")
    assert spec.dtype == "uint8"
    assert spec.value_range == (0, 255)


def test_pack_twice_gives_equal_bytes(image_folder: Callable[..., Path], tmp_path: Path) -> None:
    source = image_folder(11)
    pack(source, tmp_path / "a", shard_size=4, val_fraction=0.3)
    for path in source.iterdir():
        os.utime(path, (1, 1))
    pack(source, tmp_path / "b", shard_size=4, val_fraction=0.3)
    assert tree(tmp_path / "a") == tree(tmp_path / "b")
    assert not list(tmp_path.glob(".*"))


def test_pack_hashes_are_those_of_the_files(
    image_folder: Callable[..., Path], tmp_path: Path
) -> None:
    manifest = pack(image_folder(5), tmp_path / "out", shard_size=2).manifest
    for shard in manifest.shard_list:
        done = subprocess.run(
            ["sha256sum", tmp_path / "out" / shard.path], capture_output=True, text=True, check=True
        )
        assert done.stdout.split()[0] == shard.sha256


@pytest.mark.parametrize("seed", [0, 1])
def test_pack_seed_changes_order_only(
    image_folder: Callable[..., Path], tmp_path: Path, seed: int
) -> None:
    source = image_folder(8)
    pack(source, tmp_path / "out", seed=seed, val_fraction=0)
    pack(source, tmp_path / "zero", seed=0, val_fraction=0)
    orders = [[s["__key__"] for s in read_back(tmp_path / name)] for name in ("out", "zero")]
    assert sorted(orders[0]) == sorted(orders[1])
    assert (orders[0] == orders[1]) == (seed == 0)


def test_pack_difficult_names_become_safe_distinct_keys(tmp_path: Path) -> None:
    source = tmp_path / "src"
    names = ["a/1.2.840.1.png", "b/1.2.840.1.png", "a/ü x (1).png", "a/x..png"]
    names.append("a/" + "l" * 200 + ".png")
    for number, name in enumerate(names):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (4, 4), number).save(source / name, "PNG")
    pack(source, tmp_path / "out", val_fraction=0)
    samples = read_back(tmp_path / "out")
    keys = [sample["__key__"] for sample in samples]
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{1,60}", key) for key in keys)
    assert len(set(keys)) == len(names)
    assert {json.loads(sample["json"])["source"] for sample in samples} == set(names)


def broken(source: Path, name: str, data: bytes) -> None:
    (source / name).write_bytes(data)


def test_pack_broken_images_are_left_out_counted_and_listed(
    image_folder: Callable[..., Path], tmp_path: Path
) -> None:
    source = image_folder(6)
    whole = (source / "img000.png").read_bytes()
    broken(source, "cut.png", whole[:-200])
    broken(source, "empty.jpg", b"")
    broken(source, "text.tif", b"hello")
    Image.new("L", (12, 10)).save(source / "gray.png")
    summary = pack(source, tmp_path / "out", max_bad_fraction=0.5)
    expected = {"damaged": 1, "empty file": 1, "not an image": 1, "other channels or depth": 1}
    assert summary.manifest.left_out == expected
    with (tmp_path / "out" / "left_out.csv").open() as file:
        rows = {row["path"]: row for row in csv.DictReader(file)}
    assert rows.keys() == {"cut.png", "empty.jpg", "text.tif", "gray.png"}
    assert re.search(
        r"gray\.png has 1 x uint8.*img\d+\.png.*3 x uint8", rows["gray.png"]["message"]
    )
    assert len(read_back(tmp_path / "out")) == 6


def test_pack_too_many_broken_images_keep_nothing(
    image_folder: Callable[..., Path], tmp_path: Path
) -> None:
    source = image_folder(6)
    broken(source, "empty.jpg", b"")
    with pytest.raises(DataError, match=r"(?s)1 of 7 images.*allowed: 0.*1 x empty file") as caught:
        pack(source, tmp_path / "out")
    assert "empty.jpg" in str(caught.value)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["images"]


def test_pack_only_broken_images_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    for number in range(3):
        broken(tmp_path / "src", f"{number}.png", b"x")
    with pytest.raises(DataError, match="3 of 3 images"):
        pack(tmp_path / "src", tmp_path / "out", max_bad_fraction=0.99)


def test_pack_shard_of_broken_images_only_vanishes(
    image_folder: Callable[..., Path], tmp_path: Path
) -> None:
    source = image_folder(6)
    broken(source, "empty.jpg", b"")
    manifest = pack(
        source, tmp_path / "out", shard_size=1, max_bad_fraction=0.5, val_fraction=0
    ).manifest
    assert len(manifest.shard_list) == len(list((tmp_path / "out").glob("*.tar"))) == 6
    assert len(list((tmp_path / "out").glob("*.idx.safetensors"))) == 6


@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_pack_16_bit_keeps_every_level_through_the_shard(tmp_path: Path, suffix: str) -> None:
    levels = np.arange(65536, dtype=np.uint16).reshape(256, 256)
    (tmp_path / "src").mkdir()
    path = tmp_path / "src" / f"deep.{suffix}"
    Image.fromarray(levels).save(path) if suffix == "png" else tifffile.imwrite(path, levels)
    manifest = pack(tmp_path / "src", tmp_path / "out", val_fraction=0).manifest
    assert manifest.spec.dtype == "uint16"
    assert manifest.spec.channels == ("gray",)
    assert manifest.spec.mean == (pytest.approx(65535 / 2),)
    (sample,) = read_back(tmp_path / "out")
    assert sample[suffix] == path.read_bytes()


def test_pack_bands_and_floats_are_described(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    pixels = np.random.default_rng(0).normal(5, 2, (6, 7, 5)).astype(np.float32)
    tifffile.imwrite(
        tmp_path / "src" / "a.tif", pixels, photometric="minisblack", planarconfig="contig"
    )
    spec = pack(tmp_path / "src", tmp_path / "out", val_fraction=0).manifest.spec
    assert spec.channels == ("band1", "band2", "band3", "band4", "band5")
    assert spec.value_range == (pixels.min(), pixels.max())


def test_pack_constant_channel_is_said(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    Image.new("RGB", (4, 4), (1, 2, 3)).save(tmp_path / "src" / "a.png")
    summary = pack(tmp_path / "src", tmp_path / "out", val_fraction=0)
    assert summary.manifest.spec.std == (1.0, 1.0, 1.0)
    assert "channel red is 1 everywhere; its std is taken as 1" in summary.notes


def test_pack_classes_missing_from_splits_are_said(
    csv_source: Callable[..., Path], tmp_path: Path
) -> None:
    rows = [["a.png", "x", "train"], ["b.png", "y", "train"], ["c.png", "x", "test"]]
    source = csv_source(["path", "label", "split"], rows)
    notes = pack(source, tmp_path / "out").notes
    assert any(note.startswith("split test has no image of: y") for note in notes)
    assert any(note.startswith("split val is empty") for note in notes)


def test_pack_single_class_is_said(class_folder: Callable[..., Path], tmp_path: Path) -> None:
    notes = pack(class_folder({"only": 4}), tmp_path / "out", labels="folders").notes
    assert any("all images have the label 'only'" in note for note in notes)


def test_pack_existing_output_is_refused_and_kept(
    image_folder: Callable[..., Path], tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("x")
    with pytest.raises(DataError, match="exists already"):
        pack(image_folder(2), tmp_path / "out")
    assert tree(tmp_path / "out") == {"mine.txt": b"x"}


@pytest.mark.parametrize(
    ("option", "value"), [("shard_size", 0), ("max_bad_fraction", 1.0), ("val_fraction", 1.5)]
)
def test_pack_impossible_option_is_named(
    image_folder: Callable[..., Path], tmp_path: Path, option: str, value: float
) -> None:
    with pytest.raises(ConfigError, match=option):
        pack(image_folder(2), tmp_path / "out", **{option: value})


def _pack_with_file_limit(source: Path, out: Path) -> None:
    # A limit on the size of files stands for a full disk: write() fails half-way.
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))
    try:
        pack(source, out)
    except DataError as error:
        sys.exit(0 if "nothing was kept" in str(error) else 3)
    sys.exit(4)


def test_pack_disk_that_refuses_leaves_nothing(
    image_folder: Callable[..., Path], tmp_path: Path
) -> None:
    source = image_folder(40, size=(40, 40))
    child = multiprocessing.get_context("fork").Process(
        target=_pack_with_file_limit, args=(source, tmp_path / "out")
    )
    child.start()
    child.join()
    assert child.exitcode == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["images"]


def test_pack_disk_too_small_is_said_before_the_first_byte(
    image_folder: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(DataError, match=r"needs about 0\.00 GB"):
        pack(image_folder(2), tmp_path / "out")


def test_pack_interrupted_before_the_first_shard_leaves_nothing(
    image_folder: Callable[..., Path], tmp_path: Path
) -> None:
    def interrupt(stage: str, done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt, match="packing was interrupted; nothing was kept"):
        pack(image_folder(5), tmp_path / "out", on_progress=interrupt)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["images"]


def test_pack_progress_grows_to_all(image_folder: Callable[..., Path], tmp_path: Path) -> None:
    calls: list[tuple[str, int, int]] = []
    pack(image_folder(5), tmp_path / "out", shard_size=2, on_progress=lambda *c: calls.append(c))
    packing = [done for stage, done, total in calls if stage == "packing" and total == 5]
    assert packing == sorted(set(packing))
    assert packing[-1] == 5
    assert calls[-1] == ("packing", 5, 5)


def test_pack_unreadable_file_is_left_out(
    image_folder: Callable[..., Path], tmp_path: Path
) -> None:
    source = image_folder(4)
    (source / "img001.png").unlink()
    (source / "img001.png").symlink_to(source / "nothing")
    summary = pack(source, tmp_path / "out", max_bad_fraction=0.5)
    assert [(e.name, e.reason) for e in summary.left_out] == [("img001.png", "unreadable file")]


def test_pack_into_cache_finds_unchanged_and_repacks_changed(
    image_folder: Callable[..., Path], tmp_path: Path
) -> None:
    source, cache, packed = image_folder(4), tmp_path / "cache", []
    first = pack_into_cache(source, cache=cache, on_packed=packed.append)
    assert pack_into_cache(source, cache=cache, on_packed=packed.append) == first
    assert Manifest.load(first).num_samples("train") > 0
    (source / "img000.png").unlink()
    assert pack_into_cache(source, cache=cache, on_packed=packed.append) != first
    assert len(packed) == 2
    assert pack_into_cache(first, cache=cache) == first  # shards are taken as they are


def test_pack_into_cache_place_follows_the_environment(
    image_folder: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert (tmp_path / "xdg" / "domain-mae" / "packed") in pack_into_cache(image_folder(2)).parents


def test_pack_error_type_is_shared() -> None:
    assert issubclass(BadImageError, DataError)
