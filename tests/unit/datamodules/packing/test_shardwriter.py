"""One shard against webdataset's own writer."""

from __future__ import annotations

import json
import math
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from webdataset.writer import TarWriter

from datamodules.manifest import ShardInfo
from datamodules.packing.items import Item
from datamodules.packing.places import StoredPlace
from datamodules.packing.results import Kind, LeftOut, ShardResult
from datamodules.packing.shardwriter import ShardRules, sample_key, write_shard
from datamodules.statistics import ChannelStats

RGB = Kind(3, "uint8", "x")


def item(path: Path, number: int, labels: tuple[str, ...] | None = None) -> Item:
    pixels = np.random.default_rng(number).integers(0, 256, (9, 8, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    place = StoredPlace.of_file(str(path))
    assert place is not None
    return Item(place, path.name, labels, f"g{number}", "train")


def test_write_shard_bytes_are_those_of_webdataset(tmp_path: Path) -> None:
    items = [item(tmp_path / f"i{n}.1.png", n, ("ab"[n % 2],)) for n in range(5)]
    rules = ShardRules(kind=RGB, classes=("a", "b"), max_pixels=10**6)
    write_shard(tmp_path / "ours.tar", items, rules, split="train")
    with (tmp_path / "theirs.tar").open("wb") as file:
        writer = TarWriter(file, user="", group="", mtime=0, encoder=False)
        for number, one in enumerate(items):
            sidecar = {"group": f"g{number}", "label": "ab"[number % 2], "source": one.name}
            writer.write(
                {
                    "__key__": sample_key(one.name),
                    "png": Path(one.place.path).read_bytes(),
                    "json": json.dumps(sidecar).encode(),
                    "cls": str(number % 2).encode(),
                }
            )
        writer.close()
    assert (tmp_path / "ours.tar").read_bytes() == (tmp_path / "theirs.tar").read_bytes()


def test_write_shard_several_labels_go_into_the_sidecar(tmp_path: Path) -> None:
    labels = [("10", "9"), (), ("9",)]
    items = [item(tmp_path / f"{n}.png", n, names) for n, names in enumerate(labels)]
    rules = ShardRules(kind=RGB, classes=("9", "10"), multilabel=True, max_pixels=10**6)
    result = write_shard(tmp_path / "s.tar", items, rules, split="train")
    with tarfile.open(tmp_path / "s.tar") as tar:
        assert not any(name.endswith(".cls") for name in tar.getnames())
        found = [json.load(tar.extractfile(n)) for n in tar.getnames() if n.endswith("json")]  # type: ignore[arg-type]
    assert [(s["labels"], s["classes"]) for s in found] == [
        (["9", "10"], [0, 1]),
        ([], []),
        (["9"], [0]),
    ]
    assert (result.class_counts, result.num_unlabelled) == ({"9": 2, "10": 1}, 1)


def test_write_shard_that_stops_leaves_nothing(tmp_path: Path) -> None:
    def stop(left_out: LeftOut | None) -> None:
        raise KeyboardInterrupt

    (tmp_path / "out").mkdir()
    rules = ShardRules(kind=RGB, max_pixels=10**6)
    with pytest.raises(KeyboardInterrupt):
        write_shard(
            tmp_path / "out" / "s.tar",
            [item(tmp_path / "a.png", 0)],
            rules,
            split="train",
            on_image=stop,
        )
    assert not list((tmp_path / "out").iterdir())


def test_sample_key_depends_on_the_whole_path() -> None:
    assert sample_key("a/x.png") != sample_key("b/x.png")
    assert sample_key("a/x.png").startswith("x-")
    assert sample_key("\udcff.png").startswith("image-")  # a name that is no UTF-8


def test_shard_result_survives_json_bit_by_bit() -> None:
    values = np.array([math.pi, 1 / 3, 1e-300])
    stats = ChannelStats(7, values, values**2, -values, values * 1e300)
    result = ShardResult(
        info=ShardInfo(
            path="s.tar", split="val", num_samples=3, num_bytes=4, sha256="ab", index_sha256="cd"
        ),
        stats=stats,
        left_out=(LeftOut("\udcffx", "damaged", "why"),),
        class_counts={"a": 2},
        num_unlabelled=1,
        num_bytes_images=9,
        num_reencoded=2,
        min_size=(1, 2),
        max_size=(3, 4),
    )
    back = ShardResult.from_dict(json.loads(json.dumps(result.to_dict())))
    for name in ("mean", "squares", "low", "high"):
        assert getattr(back.stats, name).tobytes() == getattr(stats, name).tobytes()
    assert (back.info, back.left_out, back.min_size) == (result.info, result.left_out, (1, 2))
    assert json.dumps(back.to_dict()) == json.dumps(result.to_dict())
