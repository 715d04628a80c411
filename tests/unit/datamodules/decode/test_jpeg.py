"""Both backends give Pillow's pixels and errors; a box and a smaller picture are what they say."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, get_args

import matplotlib
import numpy as np
import pytest
import sklearn.datasets
from numpy.typing import NDArray
from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile

from datamodules.augment import Augment
from datamodules.decode import jpeg, open_picture
from datamodules.decode.geometry import Box, Size, cut, orient_size
from datamodules.decode.jpeg import Backend, JpegPicture
from datamodules.guard import BadImageError
from mae.errors import ConfigError

simplejpeg = pytest.importorskip("simplejpeg")

Array = NDArray[Any]
_SKLEARN = Path(sklearn.datasets.__file__).parent / "images"
PHOTOGRAPHS = {
    "china": (_SKLEARN / "china.jpg").read_bytes(),
    "flower": (_SKLEARN / "flower.jpg").read_bytes(),
    "hopper": (Path(matplotlib.get_data_path()) / "sample_data" / "grace_hopper.jpg").read_bytes(),
}
CHINA = Image.open(io.BytesIO(PHOTOGRAPHS["china"]))


def saved(image: Image.Image, **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, "JPEG", **options)
    return stream.getvalue()


def kinds() -> dict[str, bytes]:
    """Return pieces of a photograph in every kind of JPEG that is around, of odd sizes too."""
    found = {}
    for size in ((1, 1), (7, 9), (16, 16), (99, 65)):  # width, height
        piece = CHINA.crop((200, 150, 200 + size[0], 150 + size[1]))
        for mode in ("L", "RGB", "CMYK"):
            for subsampling in ("4:4:4", "4:2:2", "4:2:0"):
                for progressive in (False, True):
                    name = f"{mode} {subsampling} {size}{' progressive' * progressive}"
                    found[name] = saved(
                        piece.convert(mode),
                        quality=85,
                        subsampling=subsampling,
                        progressive=progressive,
                        restart_marker_blocks=3 * progressive,
                    )
        found[f"stored as RGB {size}"] = saved(piece, quality=90, keep_rgb=True)
        for subsampling in ("440", "411"):
            found[f"{subsampling} {size}"] = simplejpeg.encode_jpeg(
                np.array(piece), colorsubsampling=subsampling
            )
        exif = Image.Exif()
        exif[0x0112] = 6
        found[f"turned {size}"] = saved(piece, exif=exif)
    return found | PHOTOGRAPHS


KINDS = kinds()


def outcome(data: bytes, backend: Backend, at_least: Size | None = None) -> Array | str:
    """Return the pixels, or the reason and message of the error."""
    try:
        return open_picture(data, what="x", backend=backend).read(at_least=at_least)
    except BadImageError as error:
        return f"{error.reason}: {error}"


def assert_same(data: bytes, at_least: Size | None = None) -> str | None:
    expected, found = (outcome(data, backend, at_least) for backend in ("pillow", "simplejpeg"))
    np.testing.assert_array_equal(found, expected)  # compares texts as well
    return expected if isinstance(expected, str) else None


@pytest.mark.parametrize("name", KINDS)
def test_decode_backends_give_the_same_pixels(name: str) -> None:
    for at_least in (None, (1, 1), (3, 3), (9, 9), (40, 40)):
        assert assert_same(KINDS[name], at_least) is None


def mutated(data: bytes, random: np.random.Generator) -> bytes:
    changed, place = bytearray(data), int(random.integers(len(data)))
    match int(random.integers(4)):
        case 0:
            return data[:place]
        case 1:
            changed[place] ^= 1 << int(random.integers(8))
        case 2:
            del changed[place : place + int(random.integers(1, 64))]
        case 3:
            changed[place:place] = random.bytes(int(random.integers(1, 64)))
    return bytes(changed)


def test_decode_backends_agree_on_damaged_files() -> None:
    random = np.random.default_rng(0)
    small = [data for data in KINDS.values() if len(data) < 20_000]
    errors = [
        assert_same(mutated(small[int(random.integers(len(small)))], random)) for _ in range(1000)
    ]
    assert 100 < errors.count(None) < 900  # both happen, or nothing was tested


@pytest.mark.parametrize("backend", get_args(Backend))
@pytest.mark.parametrize("orientation", range(1, 9))
def test_read_box_is_that_box_of_the_whole(backend: Backend, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    for mode in ("L", "RGB", "CMYK"):
        data = saved(CHINA.crop((0, 0, 61, 43)).convert(mode), exif=exif)
        picture = open_picture(data, what="x", backend=backend)
        whole = picture.read()
        assert whole.shape == (picture.num_channels, *picture.size)
        assert picture.size == orient_size((43, 61), orientation)
        for box in (Box(0, 0, *picture.size), Box(5, 7, 20, 13), Box(0, 4, picture.size[0], 9)):
            np.testing.assert_array_equal(picture.read(box), cut(whole, box))


@pytest.mark.parametrize("backend", ["pillow", "simplejpeg"])
@pytest.mark.parametrize(
    ("at_least", "expected"),
    [
        ((12, 16), (12, 16)),
        ((13, 16), (24, 32)),
        ((12, 17), (24, 32)),
        ((25, 1), (48, 64)),
        ((48, 64), (48, 64)),
        ((49, 64), (96, 128)),
        ((500, 500), (96, 128)),
    ],
)
def test_read_at_least_decodes_the_smallest_that_is_enough(
    backend: Backend, at_least: Size, expected: Size
) -> None:
    picture = open_picture(saved(CHINA.crop((0, 0, 128, 96))), what="x", backend=backend)
    assert picture.read(at_least=at_least).shape == (3, *expected)
    assert picture.read().shape == (3, 96, 128)


def test_read_at_least_counts_the_upright_axes() -> None:
    exif = Image.Exif()
    exif[0x0112] = 8
    picture = open_picture(saved(CHINA.crop((0, 0, 128, 96)), exif=exif), what="x")
    assert picture.size == (128, 96)
    assert picture.read(at_least=(16, 12)).shape == (3, 16, 12)
    assert picture.read(at_least=(12, 16)).shape == (3, 32, 24)


def test_read_scaled_of_a_plain_slope_keeps_its_place() -> None:
    # Where a value says the place, a piece that moved by a reduced pixel would show.
    slope = np.tile(np.arange(64, 192, dtype=np.uint8), (128, 1))
    picture = open_picture(saved(Image.fromarray(slope), quality=100), what="x")
    for factor in (2, 4, 8):
        box = Box(32, 16, 64, 96)
        piece = picture.read(box, at_least=(64 // factor, 96 // factor))[0].astype(float)
        assert piece.shape == (64 // factor, 96 // factor)
        centres = 64 + 16 + factor * (np.arange(96 // factor) + 0.5) - 0.5
        assert np.abs(piece - centres).max() < 1.5


@pytest.mark.parametrize("name", PHOTOGRAPHS)
def test_read_scaled_views_of_photographs_are_close_to_exact_ones(name: str) -> None:
    picture = open_picture(PHOTOGRAPHS[name], what=name)
    assert isinstance(picture, JpegPicture)
    augment = Augment((96, 96))
    decibels, as_drawn = [], []
    for position in range(30):
        view = augment.draw(picture.size, seed=0, position=position)
        scaled = picture.read(view.box, at_least=view.img_size)
        factor = round(view.box.height / scaled.shape[1])
        assert factor in (2, 4)
        # The same box with its edges where the scaled pixels have theirs, decoded exactly.
        top, left = (factor * round(edge / factor + 1e-9) for edge in view.box[:2])
        moved = Box(top, left, factor * scaled.shape[1], factor * scaled.shape[2])
        found = view.finish(scaled)
        decibels.append(psnr(found, view.finish(picture.read(moved))))
        as_drawn.append(psnr(found, view.finish(picture.read(view.box))))
    assert min(decibels) > 32
    assert np.median(decibels) > 37
    assert min(as_drawn) > 23  # edges lie up to half a pixel of the view apart
    assert np.median(as_drawn) > 28


def psnr(found: Array, expected: Array) -> float:
    """Return the peak signal-to-noise ratio of 8-bit pixels in dB."""
    error = np.square(found.astype(float) - expected).mean()
    return float(10 * np.log10(255**2 / error))


def test_read_uses_simplejpeg_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(image: JpegImageFile) -> None:
        raise AssertionError("Pillow decoded")

    expected = open_picture(PHOTOGRAPHS["china"], what="x", backend="pillow").read()
    jpeg.fast_decoder("auto")  # its self-check needs Pillow
    monkeypatch.setattr(JpegImageFile, "load", refuse)
    np.testing.assert_array_equal(open_picture(PHOTOGRAPHS["china"], what="x").read(), expected)
    with pytest.raises(BadImageError, match="Pillow decoded"):
        open_picture(PHOTOGRAPHS["china"], what="x", backend="pillow").read()


def test_fast_decoder_with_other_pixels_than_pillow_is_not_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decode_jpeg = simplejpeg.decode_jpeg

    def one_level_off(data: bytes, **options: Any) -> Array:
        pixels: Array = decode_jpeg(data, **options)
        pixels[0, 0] ^= 1
        return pixels

    jpeg._simplejpeg.cache_clear()
    monkeypatch.setattr(simplejpeg, "decode_jpeg", one_level_off)
    try:
        assert jpeg.fast_decoder("auto") is None
        with pytest.raises(ConfigError, match=r"domain-mae\[fast\]"):
            open_picture(PHOTOGRAPHS["china"], what="x", backend="simplejpeg")
    finally:
        jpeg._simplejpeg.cache_clear()


def test_fast_decoder_unknown_name_is_refused() -> None:
    with pytest.raises(ConfigError, match="did you mean 'pillow'"):
        open_picture(PHOTOGRAPHS["china"], what="x", backend="pilow")  # type: ignore[arg-type]
