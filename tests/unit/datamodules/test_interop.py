"""Shards of stock webdataset are read by ours, and ours by stock webdataset: the same bytes."""

from __future__ import annotations

import gc
import io
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn.datasets
import tifffile
import webdataset
from numpy.typing import NDArray
from PIL import Image

from datamodules.manifest import Manifest, ShardInfo
from datamodules.pack import pack
from datamodules.records import SplitRecords
from datamodules.stream.samples import Reader, ShardStream
from datamodules.tarindex import TarIndex, index_path
from mae.spec import ImageSpec

SUFFIXES = {"jpg", "png", "tif"}
SPEC = ImageSpec(
    channels=("red", "green", "blue"),
    dtype="uint8",
    mean=(0.0,) * 3,
    std=(1.0,) * 3,
    value_range=(0, 255),
)


@pytest.fixture(scope="module")
def photos() -> list[tuple[str, NDArray[Any], bytes]]:
    """Return suffix, pixels and bytes of crops of two photographs, as JPEG, PNG and TIFF."""
    folder = Path(sklearn.datasets.__file__).parent / "images"
    found = []
    for number, name in enumerate(("china.jpg", "flower.jpg")):
        with Image.open(folder / name) as image:
            pieces = [
                image.crop((left, top, left + 90 + 7 * number, top + 80))
                for left in (0, 100, 200)
                for top in (0, 150)
            ]
        for place, piece in enumerate(pieces):
            file = io.BytesIO()
            suffix = ("jpg", "png", "tif")[place % 3]
            if suffix == "tif":
                tifffile.imwrite(file, np.asarray(piece), photometric="rgb")
            else:
                piece.save(file, {"jpg": "jpeg", "png": "png"}[suffix])
            data = file.getvalue()
            file.seek(0)
            with Image.open(file) as stored:
                found.append((suffix, np.asarray(stored).transpose(2, 0, 1), data))
    return found


def manifest_of(paths: list[Path]) -> Manifest:
    """Index tars that somebody else has written."""
    shards = []
    for path in paths:
        index = TarIndex.build(path)
        index.save(index_path(path))
        shards.append(
            ShardInfo(
                path=path.name,
                split="train",
                num_samples=index.num_samples,
                num_bytes=index.num_bytes,
                sha256="",
                index_sha256=index.digest,
            )
        )
    return Manifest(
        spec=SPEC,
        shard_list=tuple(shards),
        classes=("a", "b", "c"),
        root=str(paths[0].parent),
    )


@pytest.fixture(scope="module")
def stock(
    photos: list[tuple[str, NDArray[Any], bytes]], tmp_path_factory: pytest.TempPathFactory
) -> list[Path]:
    """Return shards written by webdataset's ShardWriter, with dictionaries and numbers encoded."""
    folder = tmp_path_factory.mktemp("stock")
    with webdataset.ShardWriter(f"{folder}/s-%03d.tar", maxcount=5, verbose=0) as writer:
        for number, (suffix, _, data) in enumerate(photos):
            writer.write(
                {
                    "__key__": f"some/folder/{number:04d}",
                    suffix: data,
                    "json": {"number": number, "text": "ü"},
                    "cls": number % 3,
                }
            )
    return sorted(folder.glob("*.tar"))


def test_read_stock_webdataset_shards_give_the_same_bytes_and_pixels(
    stock: list[Path], photos: list[tuple[str, NDArray[Any], bytes]]
) -> None:
    assert len(stock) == 3
    records = SplitRecords(manifest_of(stock), "train", verify="always")
    assert len(records) == len(photos)
    for number, (suffix, pixels, data) in enumerate(photos):
        shard, index = records.locate(number)
        key, members = records.reader.read(shard, index)
        assert key == f"some/folder/{number:04d}"
        assert members.keys() == {suffix, "json", "cls"}
        assert members[suffix] == data
        assert json.loads(members["json"]) == {"number": number, "text": "ü"}
        record = records.load(shard, index)
        assert record.label == number % 3
        np.testing.assert_array_equal(record.pixels, pixels)


def test_stream_stock_webdataset_shards_give_the_same_bytes(
    stock: list[Path], photos: list[tuple[str, NDArray[Any], bytes]]
) -> None:
    stream = ShardStream([str(path) for path in stock], seed=0)
    found = {sample.key: sample.image for sample in stream.epoch(0, Reader())}
    assert found == {f"some/folder/{i:04d}": data for i, (_, _, data) in enumerate(photos)}


def read_by_stock(paths: list[Path]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return samples as webdataset gives them, and as it decodes them."""
    found = webdataset.WebDataset([str(path) for path in paths], shardshuffle=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # it leaves its files to the collector
        pairs = list(zip(found, found.decode(), strict=True))
        gc.collect()
    return pairs


def test_packed_shards_are_read_by_stock_webdataset(
    photos: list[tuple[str, NDArray[Any], bytes]], tmp_path: Path
) -> None:
    for number, (suffix, _, data) in enumerate(photos):
        file = tmp_path / "source" / ("left", "right")[number % 2] / f"{number}.{suffix}"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
    out = tmp_path / "out"
    pack(tmp_path / "source", out, labels="folders", val_fraction=0.2, shard_size=4)
    manifest = Manifest.load(out)
    images = {}
    for split in manifest.splits:
        shards = manifest.shards(split)
        found = read_by_stock([out / shard.path for shard in shards])
        records = SplitRecords(manifest, split)
        assert len(found) == len(records) > 0
        for number, (sample, decoded) in enumerate(found):
            key, members = records.reader.read(*records.locate(number))
            assert sample["__key__"] == key
            assert {k: v for k, v in sample.items() if not k.startswith("__")} == members
            sidecar = json.loads(members["json"])
            (images[sidecar["source"]],) = (members[k] for k in members.keys() & SUFFIXES)
            assert decoded["json"] == sidecar
            assert (manifest.classes or ())[decoded["cls"]] == sidecar["label"]
    expected = {
        f"{('left', 'right')[n % 2]}/{n}.{suffix}": data
        for n, (suffix, _, data) in enumerate(photos)
    }
    assert images == expected
