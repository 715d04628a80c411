"""Samples of a split: numbers, labels, and members that contradict the manifest."""

from __future__ import annotations

import io
import json
import pickle
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn.datasets
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile

from datamodules.augment import Augment, eval_view
from datamodules.decode import decode
from datamodules.guard import BadImageError
from datamodules.manifest import Manifest
from datamodules.pack import pack
from datamodules.records import SplitRecords
from mae.errors import ConfigError, DataError

PHOTOGRAPH = Path(sklearn.datasets.__file__).parent / "images" / "china.jpg"


def rewrite(directory: Path, change: Callable[[str, bytes], tuple[str, bytes] | None]) -> None:
    """Change members of the first shard."""
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
    labelled: Path,
    reseal: Callable[[Path], None],
    suffix: str,
    content: bytes | None,
    words: str,
) -> None:
    def change(name: str, old: bytes) -> tuple[str, bytes] | None:
        if not name.endswith(suffix):
            return name, old
        return None if content is None else (name, content)

    rewrite(labelled, change)
    reseal(labelled)
    with pytest.raises(DataError, match=r"train-000000\.tar: img") as caught:
        SplitRecords(Manifest.load(labelled), "train").load(0, 0)
    assert words in str(caught.value)


def test_load_other_depth_than_the_manifest_is_refused(
    labelled: Path, reseal: Callable[[Path], None]
) -> None:
    stream = io.BytesIO()
    Image.new("L", (4, 4)).save(stream, "PNG")
    rewrite(labelled, lambda n, old: (n, stream.getvalue() if n.endswith("png") else old))
    reseal(labelled)
    with pytest.raises(DataError, match="1 x uint8, the manifest says 3 x uint8"):
        SplitRecords(Manifest.load(labelled), "train").load(0, 0)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return shards of JPEG, PNG and TIFF of one photograph, turned in all ways, in odd sizes."""
    folder = tmp_path_factory.mktemp("mixed")
    photograph = Image.open(PHOTOGRAPH)
    for number in range(16):
        exif = Image.Exif()
        exif[0x0112] = 1 + number % 8
        piece = photograph.crop((9 * number, 7 * number, 9 * number + 60 + number, 7 * number + 45))
        kind = ("jpg", "jpg", "png", "tif")[number % 4]
        piece.save(folder / f"{number:02d}.{kind}", exif=exif)
    pack(folder, folder / "shards", val_fraction=0, shard_size=5)
    return folder / "shards"


@settings(max_examples=60)
@given(
    st.integers(0, 15),
    st.integers(0, 10**12),
    st.sampled_from(["random_resized", "random", "center"]),
    st.sampled_from(["none", "horizontal", "dihedral"]),
    st.sampled_from([16, 45]),
    st.sampled_from(["pillow", "auto"]),
    st.sampled_from([0, 30_000, 10**6]),
)
def test_view_is_the_augmented_whole_image(
    mixed: Path,
    number: int,
    position: int,
    crop: Any,
    flips: Any,
    img_size: int,
    backend: Any,
    cache_bytes: int,
) -> None:
    records = SplitRecords(Manifest.load(mixed), "train", backend=backend, cache_bytes=cache_bytes)
    place = records.locate(number)
    whole = SplitRecords(Manifest.load(mixed), "train", backend="pillow").load(*place)
    augment = Augment((img_size, img_size), crop=crop, flips=flips)
    expected = augment(whole.pixels, seed=7, position=position)
    for _ in range(2):  # the second time out of the cache, if there is one
        record = records.view(*place, augment, seed=7, position=position)
        np.testing.assert_array_equal(record.pixels, expected)
        assert (record.key, record.label, record.sidecar) == (
            whole.key, whole.label, whole.sidecar
        )  # fmt: skip


@pytest.mark.parametrize("img_size", [(16, 16), (20, 45), (60, 30)])
def test_eval_view_is_that_of_the_whole_image_whatever_trains(
    mixed: Path, img_size: tuple[int, int]
) -> None:
    exact = SplitRecords(Manifest.load(mixed), "train")
    scaled = SplitRecords(Manifest.load(mixed), "train", decode="scaled")
    for number in range(16):
        place = exact.locate(number)
        expected = eval_view(exact.load(*place).pixels, img_size)
        for records in (exact, scaled):
            np.testing.assert_array_equal(records.eval_view(*place, img_size).pixels, expected)


def test_view_scaled_changes_jpegs_with_pixels_to_spare_alone(mixed: Path) -> None:
    augment = Augment((16, 16), scale=(0.8, 1.0))
    exact, scaled, pillow = (
        SplitRecords(Manifest.load(mixed), "train", decode=decode, backend=backend)
        for decode, backend in (("exact", "auto"), ("scaled", "auto"), ("scaled", "pillow"))
    )
    changed = []
    for number in range(16):
        place = exact.locate(number)
        views = [
            records.view(*place, augment, seed=0, position=number).pixels.astype(int)
            for records in (exact, scaled, pillow)
        ]
        np.testing.assert_array_equal(views[1], views[2])  # whichever backend is installed
        assert np.abs(views[0] - views[1]).mean() < 16
        if not np.array_equal(views[0], views[1]):
            changed.append(Path(json.loads(exact.load(*place).sidecar)["source"]).suffix)
    assert changed == [".jpg"] * 8


def test_view_with_a_cache_reads_each_image_once(
    mixed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = SplitRecords(Manifest.load(mixed), "train", cache_bytes=10**6)
    first = records.eval_view(0, 1, (16, 16))
    monkeypatch.setattr(records.reader, "read", None)
    np.testing.assert_array_equal(records.eval_view(0, 1, (16, 16)).pixels, first.pixels)
    records.view(0, 1, Augment((16, 16)), seed=0, position=5)


def test_load_decodes_with_the_backend_asked_for(
    mixed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(image: JpegImageFile) -> None:
        raise AssertionError("Pillow decoded")

    pytest.importorskip("simplejpeg")
    fast, pillow = (
        SplitRecords(Manifest.load(mixed), "train", backend=backend)
        for backend in ("simplejpeg", "pillow")
    )
    names = [json.loads(fast.load(0, i).sidecar)["source"] for i in range(5)]
    number = next(i for i, name in enumerate(names) if name.endswith(".jpg"))
    monkeypatch.setattr(JpegImageFile, "load", refuse)
    fast.load(0, number)
    with pytest.raises(BadImageError, match="Pillow decoded"):
        pillow.load(0, number)


def test_view_that_cannot_be_had_names_shard_and_key(mixed: Path) -> None:
    records = SplitRecords(Manifest.load(mixed), "train")
    with pytest.raises(DataError, match=r"train-000000\.tar: .* px, smaller than the crop of 99"):
        records.view(0, 0, Augment((99, 99), crop="random"), seed=0, position=0)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"decode": "scald"}, "did you mean 'scaled'"),
        ({"backend": "pil"}, "unknown decode backend 'pil'"),
        ({"decode": "scaled", "cache_bytes": 10}, "use decode: exact, or no cache"),
    ],
)
def test_split_records_impossible_setting_is_refused(
    mixed: Path, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        SplitRecords(Manifest.load(mixed), "train", **changes)


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
