"""Smaller images: size, depth, losses."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms.v2 import InterpolationMode
from torchvision.transforms.v2 import functional as tv

from datamodules.decode import Pixels, decode
from datamodules.guard import BadImageError, sniff
from datamodules.packing.reencode import Reencoding, resize
from mae.errors import ConfigError

KINDS = [
    ("uint8", 1, "png"),
    ("uint8", 3, "png"),
    ("uint8", 4, "tiff"),
    ("uint16", 1, "png"),
    ("uint16", 3, "tiff"),
    ("uint16", 13, "tiff"),
    ("int16", 1, "tiff"),
    ("float32", 1, "tiff"),
    ("float32", 3, "tiff"),
]


def image(dtype: str, chans: int, height: int = 60, width: int = 90) -> Pixels:
    random = np.random.default_rng(0)
    if dtype == "float32":
        return random.normal(3, 50, (chans, height, width)).astype(np.float32)
    limits = np.iinfo(dtype)
    return random.integers(limits.min, limits.max + 1, (chans, height, width)).astype(dtype)


@pytest.mark.parametrize(("dtype", "chans", "expected"), KINDS)
def test_reencoding_keeps_depth_and_loses_nothing_but_pixels(
    dtype: str, chans: int, expected: str
) -> None:
    pixels = image(dtype, chans)
    data = Reencoding(max_side=40)(pixels, what="x")
    assert data is not None
    assert sniff(data, what="x") == expected
    stored = decode(data, what="x")
    assert stored.shape == (chans, 27, 40)
    np.testing.assert_array_equal(stored, resize(pixels, 40 / 90))
    assert stored.dtype == dtype


@pytest.mark.parametrize(("dtype", "chans"), [(k[0], k[1]) for k in KINDS])
def test_resize_agrees_with_torchvision(dtype: str, chans: int) -> None:
    pixels = image(dtype, chans)
    ours = resize(pixels, 1 / 3).astype(np.float64)
    theirs = tv.resize_image(
        torch.from_numpy(pixels.astype(np.float32)),
        [20, 30],
        interpolation=InterpolationMode.BICUBIC,
        antialias=True,
    ).numpy()
    low, high = pixels.min(axis=(1, 2)), pixels.max(axis=(1, 2))
    theirs = theirs.clip(low[:, None, None], high[:, None, None])
    # Integers are rounded; Pillow's 8-bit path rounds between its two passes as well.
    tolerance = 1.01 if dtype == "uint8" else 0.51 if dtype != "float32" else 1e-3
    assert np.abs(ours - theirs).max() <= tolerance


def test_resize_never_leaves_the_range_of_the_image() -> None:
    edge = np.full((1, 64, 64), -1024, dtype=np.int16)
    edge[:, :, 33:] = 500
    small = resize(edge, 0.5)
    assert (small.min(), small.max()) == (-1024, 500)


def test_reencoding_small_images_keep_their_bytes() -> None:
    assert Reencoding(max_side=90)(image("uint8", 3), what="x") is None
    assert not Reencoding().is_asked
    assert Reencoding()(image("uint8", 3), what="x") is None


def test_reencoding_extreme_shapes_keep_a_pixel() -> None:
    assert resize(image("uint8", 1, 1, 300), 0.1).shape == (1, 1, 30)


@pytest.mark.parametrize("chans", [1, 3])
def test_reencoding_quality_stores_jpeg_near_the_image(chans: int) -> None:
    ramp = np.linspace(0, 255, 64).astype(np.uint8)
    pixels = np.broadcast_to(ramp, (chans, 48, 64)).copy()
    sizes = []
    for quality in (50, 95):
        data = Reencoding(quality=quality)(pixels, what="x")
        assert data is not None
        assert sniff(data, what="x") == "jpeg"
        stored = decode(data, what="x")
        assert stored.shape == pixels.shape
        assert np.abs(stored.astype(int) - pixels).mean() < 2
        with Image.open(io.BytesIO(data)) as found:
            sizes.append(found.quantization[0][0])  # type: ignore[attr-defined]
    assert sizes[0] > sizes[1]  # coarser steps at lower quality


def test_reencoding_jpeg_has_a_largest_side() -> None:
    with pytest.raises(BadImageError, match="Give max_side as well"):
        Reencoding(quality=90)(np.zeros((1, 1, 70_000), np.uint8), what="x")


@pytest.mark.parametrize("options", [{"max_side": 0}, {"quality": 0}, {"quality": 101}])
def test_reencoding_impossible_options_are_named(options: dict[str, int]) -> None:
    with pytest.raises(
        ConfigError, match=f"{next(iter(options))} is {next(iter(options.values()))}"
    ):
        Reencoding(**options)
