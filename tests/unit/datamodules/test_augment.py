"""Views: keyed by position, exact where nothing is resized, right in distribution."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from datamodules.augment import Augment, crop_resize, eval_view, resize, stack
from datamodules.decode import Box
from mae.errors import ConfigError, DataError

Array = NDArray[Any]
DTYPES = ("uint8", "uint16", "int16", "float32")


def ramp(height: int, width: int, dtype: str = "uint16", chans: int = 1) -> Array:
    """Return an image in which every pixel has its own value."""
    return np.arange(chans * height * width).reshape(chans, height, width).astype(dtype)


def views(augment: Augment, image: Array, count: int) -> list[Array]:
    return [augment(image, seed=0, position=position) for position in range(count)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("crop", ["random_resized", "random", "center"])
def test_augment_keeps_dtype_and_gives_img_size(crop: Any, dtype: str) -> None:
    augment = Augment((8, 6), crop=crop)
    for view in views(augment, ramp(20, 15, dtype, chans=5), 20):
        assert view.shape == (5, 8, 6)
        assert view.dtype == dtype


def test_augment_same_key_same_view_other_key_other_view() -> None:
    image = np.random.default_rng(0).integers(0, 256, (3, 40, 40), dtype=np.uint8)
    augment = Augment((16, 16))
    first = augment(image, seed=3, position=10**12)
    augment(image, seed=9, position=4)
    np.testing.assert_array_equal(augment(image, seed=3, position=10**12), first)
    assert not np.array_equal(augment(image, seed=4, position=10**12), first)
    assert not np.array_equal(augment(image, seed=3, position=10**12 + 1), first)


def test_augment_random_crop_is_a_window_at_every_place() -> None:
    image = ramp(6, 5)
    corners = set()
    for view in views(Augment((4, 4), crop="random", flips="none"), image, 400):
        top, left = divmod(int(view[0, 0, 0]), 5)
        np.testing.assert_array_equal(view, image[:, top : top + 4, left : left + 4])
        corners.add((top, left))
    assert corners == {(top, left) for top in range(3) for left in range(2)}


@pytest.mark.parametrize(("flips", "count"), [("none", 1), ("horizontal", 2), ("dihedral", 8)])
def test_augment_flips_give_each_symmetry_equally_often(flips: Any, count: int) -> None:
    image = ramp(4, 4)
    expected = {
        "none": [image[0]],
        "horizontal": [image[0], image[0, :, ::-1]],
        "dihedral": [f(np.rot90(image[0], k)) for k in range(4) for f in (np.array, np.transpose)],
    }[flips]
    seen: dict[bytes, int] = {view.tobytes(): 0 for view in expected}
    assert len(seen) == count
    for view in views(Augment((4, 4), crop="center", flips=flips), image, 800):
        seen[view[0].tobytes()] += 1
    spread = (800 * (1 / count) * (1 - 1 / count)) ** 0.5
    assert all(abs(n - 800 / count) <= 5 * spread for n in seen.values())


def test_draw_random_resized_boxes_have_the_areas_and_ratios_asked_for() -> None:
    augment = Augment((8, 8), scale=(0.2, 0.6))
    boxes = [augment.draw((1000, 1000), seed=0, position=p).box for p in range(2000)]
    areas = np.array([box.height * box.width for box in boxes]) / 1e6
    ratios = np.array([box.width / box.height for box in boxes])
    # A square holds every box of at most 0.6 of its area, so nothing is rejected: uniform.
    assert 0.199 < areas.min() < 0.21
    assert 0.59 < areas.max() < 0.601
    assert areas.mean() == pytest.approx(0.4, abs=5 * 0.4 / (12 * 2000) ** 0.5)
    assert 0.745 < ratios.min() < 0.76
    assert 1.32 < ratios.max() < 1.34
    assert np.log(ratios).mean() == pytest.approx(0, abs=5 * 0.58 / (12 * 2000) ** 0.5)
    assert all(b.top + b.height <= 1000 and b.left + b.width <= 1000 for b in boxes)
    assert min(b.top for b in boxes) >= 0
    assert np.corrcoef([b.top for b in boxes], [b.left for b in boxes])[0, 1] < 0.9


@pytest.mark.parametrize("crop", ["random_resized", "random", "center"])
@pytest.mark.parametrize("flips", ["horizontal", "dihedral"])
def test_draw_and_finish_make_the_same_view_of_the_box_alone(crop: Any, flips: Any) -> None:
    image = ramp(30, 25, "float32", chans=2)
    augment = Augment((12, 12), crop=crop, flips=flips)
    for position in range(30):
        view = augment.draw((30, 25), seed=1, position=position)
        top, left, height, width = view.box
        alone = image[:, top : top + height, left : left + width].copy()
        np.testing.assert_array_equal(view.finish(alone), augment(image, seed=1, position=position))


@pytest.mark.parametrize("crop", ["random_resized", "random", "center"])
def test_augment_views_share_no_memory_with_the_image(crop: Any) -> None:
    # A batch of small views must not keep its large images alive, nor may changing one change
    # a cached image.
    image = ramp(8, 8, "uint8")
    for view in views(Augment((8, 8), crop=crop, scale=(1.0, 1.0)), image, 10):
        assert not np.shares_memory(view, image)


def test_augment_random_resized_of_a_strip_takes_its_middle() -> None:
    (view,) = views(Augment((4, 4), flips="none", scale=(1.0, 1.0)), ramp(2, 100, "float32"), 1)
    # The middle of both rows: columns 48 … 50, or 49 … 51.
    assert view.mean() == pytest.approx(99.5, abs=1)


def test_augment_random_crop_of_a_small_image_is_refused() -> None:
    augment = Augment((8, 8), crop="random")
    with pytest.raises(DataError, match="key-1 has 7 x 20 px, smaller than the crop of 8 x 8"):
        augment(ramp(7, 20), seed=0, position=0, what="key-1")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"crop": "randm"}, "did you mean 'random'"),
        ({"flips": "vertical"}, "unknown flips 'vertical'"),
        ({"scale": (0.0, 1.0)}, "scale is"),
        ({"scale": (0.9, 0.2)}, "scale is"),
        ({"img_size": (8, 16), "flips": "dihedral"}, "square"),
    ],
)
def test_augment_impossible_setting_is_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Augment(**{"img_size": (8, 8), **settings})


@pytest.mark.parametrize("dtype", DTYPES)
def test_eval_view_of_exact_size_is_untouched(dtype: str) -> None:
    image = ramp(6, 9, dtype)
    np.testing.assert_array_equal(eval_view(image, (6, 9)), image)


@pytest.mark.parametrize(("size", "img_size"), [((10, 20), (5, 5)), ((30, 10), (20, 10))])
def test_eval_view_cuts_the_centre(size: tuple[int, int], img_size: tuple[int, int]) -> None:
    image = ramp(*size, "float32")
    view = eval_view(image, img_size)
    assert view.shape == (1, *img_size)
    assert view.mean() == pytest.approx(image.mean(), rel=1e-4)  # a ramp's centre is its mean


def test_crop_resize_uint8_is_pillows_bicubic_within_one_level() -> None:
    rng = np.random.default_rng(0)
    image = rng.integers(0, 256, (3, 64, 48), dtype=np.uint8)
    box = Box(5, 3, 40, 33)
    expected = Image.fromarray(image.transpose(1, 2, 0)).crop((3, 5, 36, 45))
    expected = expected.resize((20, 24), Image.Resampling.BICUBIC)
    found = crop_resize(image, box, (24, 20)).transpose(1, 2, 0)
    assert np.abs(found.astype(int) - np.asarray(expected)).max() <= 1


def test_crop_resize_16_bit_keeps_fine_steps() -> None:
    # A step of one level at the top of the range: 8 bit on the way would lose it.
    image = np.full((1, 32, 32), 65534, dtype=np.uint16)
    image[:, :, 16:] = 65535
    view = crop_resize(image, Box(0, 0, 32, 32), (16, 16))
    assert set(np.unique(view).tolist()) == {65534, 65535}


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int16"])
def test_crop_resize_overshoot_at_a_hard_edge_never_wraps(dtype: str) -> None:
    limits = np.iinfo(dtype)
    image = np.full((1, 32, 32), limits.min, dtype=dtype)
    image[:, :, 16:] = limits.max
    row = crop_resize(image, Box(0, 0, 32, 32), (45, 45))[0, 7].astype(int)
    # Bicubic overshoots on both sides of the edge; clipped, the row only rises.
    assert (np.diff(row) >= 0).all()
    assert (row[0], row[-1]) == (limits.min, limits.max)


# Files and steps on the way hand over the same pixels in many memory orders.
LAYOUTS: dict[str, Callable[[Array], Array]] = {
    "interleaved": lambda a: a.transpose(1, 2, 0).copy().transpose(2, 0, 1),
    "interleaved with gaps": lambda a: np.pad(
        a.transpose(1, 2, 0), [(1, 2), (3, 1), (0, 1)]
    ).transpose(2, 0, 1)[:-1, 1:-2, 3:-1],
    "turned": lambda a: a[:, ::-1, ::-1].copy()[:, ::-1, ::-1],
    "rows reversed": lambda a: a[:, ::-1].copy()[:, ::-1],
    "sides exchanged": lambda a: a.swapaxes(1, 2).copy().swapaxes(1, 2),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 20, 17), (3, 20, 17), (4, 9, 9), (13, 20, 17), (3, 1, 9)])
def test_resize_does_not_depend_on_the_memory_order(
    shape: tuple[int, int, int], dtype: str, layout: str
) -> None:
    image = np.random.default_rng(1).integers(0, 256, shape).astype(dtype)
    other = LAYOUTS[layout](image)
    np.testing.assert_array_equal(other, image)
    np.testing.assert_array_equal(resize(other, (8, 11)), resize(image, (8, 11)))
    np.testing.assert_array_equal(resize(other, shape[1:]), image)


@pytest.mark.parametrize("dtype", DTYPES)
def test_stack_gives_one_contiguous_batch_of_views_with_any_strides(dtype: str) -> None:
    image = ramp(6, 6, dtype, chans=3)
    shown = [layout(image) for layout in LAYOUTS.values()] + [np.rot90(image, 1, axes=(1, 2))]
    batch = stack(shown)
    assert batch.is_contiguous()
    assert batch.numpy().dtype == dtype
    assert [b.tolist() for b in batch.numpy()] == [view.tolist() for view in shown]
    assert stack([LAYOUTS["interleaved"](image)] * 2).is_contiguous()


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32])
def test_crop_resize_of_a_read_only_image_says_nothing(dtype: Any) -> None:
    image = np.arange(3 * 8 * 8).reshape(3, 8, 8).astype(dtype)
    image.flags.writeable = False
    assert crop_resize(image, Box(0, 0, 8, 8), (4, 4)).shape == (3, 4, 4)
