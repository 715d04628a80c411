"""Samples of a split: numbers, labels, and members that contradict the manifest."""

from __future__ import annotations

import io
import json
import pickle
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from datamodules.decode import decode
from datamodules.manifest import Manifest
from datamodules.pack import pack
from datamodules.records import SplitRecords
from datamodules.tarindex import index_path
from mae.errors import DataError


def rewrite(directory: Path, change: Callable[[str, bytes], tuple[str, bytes] | None]) -> None:
    """Change members of the first shard, and the manifest's size with it."""
    path = directory / "train-000000.tar"
    with tarfile.open(path) as tar:
        members = [(m.name, f.read()) for m in tar if (f := tar.extractfile(m)) is not None]
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
        for name, content in members:
            changed = change(name, content)
            if changed is not None:
                info = tarfile.TarInfo(changed[0])
                info.size = len(changed[1])
                tar.addfile(info, io.BytesIO(changed[1]))
    index_path(path).unlink()
    fields = json.loads((directory / "manifest.json").read_text())
    fields["shards"][0]["num_bytes"] = path.stat().st_size
    (directory / "manifest.json").write_text(json.dumps(fields))


@pytest.fixture
def labelled(class_folder: Callable[..., Path], tmp_path: Path) -> Path:
    pack(
        class_folder({"cat": 3, "dog": 2}),
        tmp_path / "out",
        labels="folders",
        val_fraction=0,
        test_fraction=0,
        group_regex=r"img(\d)",
    )
    return tmp_path / "out"


def test_locate_counts_through_all_shards(shards: Callable[..., Path]) -> None:
    records = SplitRecords(Manifest.load(shards(16)), "train")
    assert [records.locate(i) for i in (0, 6, 7, 13, 14, 15)] == [
        (0, 0), (0, 6), (1, 0), (1, 6), (2, 0), (2, 1)
    ]  # fmt: skip
    assert len(records) == 16


def test_load_gives_the_folders_pixels_labels_and_groups(labelled: Path, tmp_path: Path) -> None:
    records = SplitRecords(Manifest.load(labelled), "train")
    for number in range(5):
        record = records.load(0, number)
        source = json.loads(record.sidecar)["source"]
        path = tmp_path / "classes" / source
        np.testing.assert_array_equal(record.pixels, decode(path.read_bytes(), what=source))
        np.testing.assert_array_equal(record.pixels.transpose(1, 2, 0), Image.open(path))
        assert record.label == ("cat", "dog").index(source.split("/")[0])
        assert record.group == "0"


@pytest.mark.parametrize(
    ("suffix", "content", "words"),
    [
        ("cls", b"2", "class b'2'; allowed: 0 … 1"),
        ("cls", b"cat", "class b'cat'"),
        ("cls", None, "class b'none'"),
        ("png", None, "0 images"),
    ],
)
def test_load_member_that_contradicts_the_manifest_is_named(
    labelled: Path, suffix: str, content: bytes | None, words: str
) -> None:
    def change(name: str, old: bytes) -> tuple[str, bytes] | None:
        if not name.endswith(suffix):
            return name, old
        return None if content is None else (name, content)

    rewrite(labelled, change)
    with pytest.raises(DataError, match=r"train-000000\.tar: img") as caught:
        SplitRecords(Manifest.load(labelled), "train").load(0, 0)
    assert words in str(caught.value)


def test_load_other_depth_than_the_manifest_is_refused(labelled: Path) -> None:
    stream = io.BytesIO()
    Image.new("L", (4, 4)).save(stream, "PNG")
    rewrite(labelled, lambda n, old: (n, stream.getvalue() if n.endswith("png") else old))
    with pytest.raises(DataError, match="1 x uint8, the manifest says 3 x uint8"):
        SplitRecords(Manifest.load(labelled), "train").load(0, 0)


def test_load_with_a_cache_decodes_what_fits_once(
    shards: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = Manifest.load(shards(3))
    plain = [SplitRecords(manifest, "train").load(0, i) for i in range(3)]
    two_images = 2 * plain[0].pixels.nbytes
    cached = SplitRecords(manifest, "train", cache_bytes=two_images)
    first = [cached.load(0, i) for i in range(3)]
    again = [cached.load(0, i) for i in range(3)]
    for record, expected in zip(again, plain, strict=True):
        np.testing.assert_array_equal(record.pixels, expected.pixels)
        assert (record.key, record.label) == (expected.key, expected.label)
    assert [a is b for a, b in zip(first, again, strict=True)] == [True, True, False]
    with pytest.raises(ValueError, match="read-only"):
        again[0].pixels[:] = 0
    assert pickle.loads(pickle.dumps(cached))._cache == {}  # noqa: S301
