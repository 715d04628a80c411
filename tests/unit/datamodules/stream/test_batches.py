"""Batches of a stream, broken images in it, and the measuring of its first images."""

from __future__ import annotations

import io
import pickle
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
import torch
from numpy.typing import NDArray
from PIL import Image

from datamodules.augment import Augment
from datamodules.stream.batches import Measured, StreamBatches, measure
from datamodules.stream.samples import Reader, ShardStream
from mae.errors import DataError

Pixels = NDArray[Any]


def png(pixels: Pixels) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "png")
    return file.getvalue()


def tiff(pixels: Pixels) -> bytes:
    file = io.BytesIO()
    tifffile.imwrite(file, pixels, photometric="minisblack", planarconfig="separate")
    return file.getvalue()


def noise(number: int, *, shape: tuple[int, ...] = (9, 7, 3)) -> Pixels:
    return np.random.default_rng(number).integers(0, 256, shape, dtype=np.uint8)


def write_tar(path: Path, contents: Sequence[bytes], *, suffix: str = "png") -> str:
    """Write one image per sample, with the keys ``STEM-NUMBER``."""
    with tarfile.open(path, "w") as tar:
        for number, content in enumerate(contents):
            info = tarfile.TarInfo(f"{path.stem}-{number}.{suffix}")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return str(path)


def measured(stream: ShardStream, num_images: int = 256) -> Measured:
    return measure(stream, num_images=num_images, max_pixels=1000)


def batches(stream: ShardStream, **options: Any) -> StreamBatches:
    settings: dict[str, Any] = {
        "augment": Augment((9, 7), crop="center", flips="none"),
        "spec": measured(stream, 4).spec,
        "max_pixels": 1000,
    }
    return StreamBatches(stream, **{**settings, **options})


def test_getitem_gives_the_pixels_of_the_key_and_the_positions_asked_for(tmp_path: Path) -> None:
    stream = ShardStream([write_tar(tmp_path / "a.tar", [png(noise(n)) for n in range(6)])], seed=0)
    data, keys = batches(stream), []
    for start in (100, 106, 112):
        batch = data[range(start, start + 6, 2)]
        assert batch["sample"].tolist() == [start, start + 2, start + 4]
        assert batch["image"].dtype == torch.uint8
        assert not batch["is_padding"].any()
        assert batch["bad"] == []
        keys += batch["key"]
        for key, image in zip(batch["key"], batch["image"], strict=True):
            np.testing.assert_array_equal(image, noise(int(key[2:])).transpose(2, 0, 1))
    assert sorted(keys[:6]) == [f"a-{n}" for n in range(6)]
    whole = [sample.key for epoch in (0, 1) for sample in stream.epoch(epoch, Reader())]
    assert whole == keys + data[range(118, 121)]["key"]


def test_getitem_view_depends_on_seed_and_position_alone(tmp_path: Path) -> None:
    stream = ShardStream([write_tar(tmp_path / "a.tar", [png(noise(0))])], seed=3)
    augment = Augment((4, 4), flips="dihedral")
    data = batches(stream, augment=augment)
    views = {position: data[range(position, position + 1)]["image"][0] for position in (0, 7, 50)}
    image = noise(0).transpose(2, 0, 1)
    for position, view in views.items():
        np.testing.assert_array_equal(view, augment(image, seed=3, position=position))


def test_getitem_from_the_beginning_again_begins_anew(tmp_path: Path) -> None:
    stream = ShardStream([write_tar(tmp_path / "a.tar", [png(noise(n)) for n in range(5)])], seed=0)
    data = batches(stream)
    asked = [range(n, n + 2) for n in (0, 2, 4, 6)]
    first = [data[positions]["key"] for positions in asked]
    assert [data[positions]["key"] for positions in asked] == first
    again = pickle.loads(pickle.dumps(data))  # noqa: S301
    assert [again[positions]["key"] for positions in asked] == first


def test_getitem_broken_images_are_listed_and_replaced_by_the_next(tmp_path: Path) -> None:
    good = [png(noise(n)) for n in range(4)]
    contents = [good[0], good[1][:60], png(noise(9, shape=(9, 7))), *good[2:], b"GIF89a"]
    path = write_tar(tmp_path / "a.tar", contents)
    stream = ShardStream([path], seed=0, shuffle_buffer=1)
    batch = batches(stream)[range(4)]
    assert batch["key"] == ["a-0", "a-3", "a-4", "a-0"]  # the last one of the next epoch
    found = [(bad.key, bad.reason, bad.shard) for bad in batch["bad"]]
    assert found == [
        ("a-1", "damaged", path),
        ("a-2", "other channels or depth", path),
        ("a-5", "GIF is not supported", path),
    ]
    assert "a.tar: a-2 has 1 x uint8, the first images of the stream have 3 x uint8" in (
        batch["bad"][1].message
    )


def test_getitem_smaller_than_a_random_crop_is_broken(tmp_path: Path) -> None:
    images = [png(noise(0)), png(noise(1, shape=(9, 6, 3)))]
    stream = ShardStream([write_tar(tmp_path / "a.tar", images)], seed=0, shuffle_buffer=1)
    batch = batches(stream, augment=Augment((9, 7), crop="random"))[range(2)]
    assert batch["key"] == ["a-0", "a-0"]
    assert [bad.reason for bad in batch["bad"]] == ["smaller than the crop"]


def test_getitem_nothing_but_broken_images_ends(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", [png(noise(0)), *[b"nothing"] * 20])
    stream = ShardStream([path], seed=0, shuffle_buffer=1)
    with pytest.raises(DataError, match=r"8 images in a row cannot be used.*a\.tar: a-8"):
        batches(stream)[range(2)]


def test_getitem_too_many_pixels_are_refused_before_decoding(tmp_path: Path) -> None:
    large = png(np.zeros((40, 40, 3), dtype=np.uint8))
    path = write_tar(tmp_path / "a.tar", [png(noise(0)), large])
    data = batches(ShardStream([path], seed=0, shuffle_buffer=1))
    assert [bad.reason for bad in data[range(2)]["bad"]] == ["too many pixels"]


def test_measure_equals_numpy_over_all_pixels(tmp_path: Path) -> None:
    images = [noise(n, shape=(5 + n, 8, 3)) for n in range(7)]
    paths = [
        write_tar(tmp_path / "a.tar", [png(image) for image in images[:3]]),
        write_tar(tmp_path / "b.tar", [png(image) for image in images[3:]]),
    ]
    seen: list[None] = []
    found = measure(
        ShardStream(paths, seed=0),
        num_images=9,
        max_pixels=1000,
        on_image=lambda: seen.append(None),
    )
    flat = np.concatenate([image.reshape(-1, 3) for image in images])
    np.testing.assert_allclose(found.spec.mean, flat.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(found.spec.std, flat.std(axis=0), rtol=1e-12)
    assert (found.spec.channels, found.spec.dtype) == (("red", "green", "blue"), "uint8")
    assert found.spec.value_range == (0, 255)
    assert (found.num_images, found.num_left_out, found.min_size) == (7, 0, (5, 8))
    assert len(seen) == 7
    # Equally many from each shard, and no more than were asked for.
    few = measured(ShardStream(paths, seed=5), 2)
    flat = np.concatenate([images[n].reshape(-1, 3) for n in (0, 3)])
    np.testing.assert_allclose(few.spec.mean, flat.mean(axis=0), rtol=1e-12)


def test_measure_16_bit_many_channels(tmp_path: Path) -> None:
    image = np.random.default_rng(0).integers(0, 65536, (6, 5, 4), dtype=np.uint16)
    contents = [tiff(image.transpose(2, 0, 1))]
    with_planes = write_tar(tmp_path / "a.tar", contents, suffix="tif")
    spec = measured(ShardStream([with_planes], seed=0)).spec
    assert (spec.num_channels, spec.dtype) == (4, "uint16")
    assert spec.value_range == (0, 65535)
    np.testing.assert_allclose(spec.mean, image.reshape(-1, 4).mean(axis=0))


def test_measure_takes_the_commonest_kind_and_leaves_broken_ones_out(tmp_path: Path) -> None:
    gray = png(noise(0, shape=(9, 7)))
    contents = [gray, b"broken", png(noise(1)), png(noise(2)), png(np.zeros((9, 7, 3), np.uint8))]
    found = measured(ShardStream([write_tar(tmp_path / "a.tar", contents)], seed=0))
    assert (found.spec.num_channels, found.num_images, found.num_left_out) == (3, 3, 2)


def test_measure_constant_channel_gets_std_one(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", [png(np.full((9, 7), 5, dtype=np.uint8))])
    assert measured(ShardStream([path], seed=0)).spec.std == (1.0,)


def test_measure_no_image_decodes_is_an_error_with_reasons(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", [b"GIF89a", b"nothing", b"nothing"])
    with pytest.raises(DataError, match=r"none of the first 3 .*2 x not an image.*a\.tar: a-0"):
        measured(ShardStream([path], seed=0))
