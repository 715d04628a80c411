from __future__ import annotations

import io

import matplotlib as mpl
import numpy as np
import pytest
import torch
from PIL import Image

from mae.errors import DataError
from mae.inspect import pictures
from mae.inspect.reconstruct import reconstruct
from mae.masking import keyed_noise
from mae.model import MaskedAutoencoder
from mae.spec import ImageSpec

RANGES = {
    "uint8": (0.0, 255.0),
    "uint16": (0.0, 65535.0),
    "int16": (-32768.0, 32767.0),
    "float32": (-1000.0, 1000.0),
}


def spec_of(dtype, chans=1):
    low, high = RANGES[dtype]
    return ImageSpec(
        channels=tuple(f"band{i}" for i in range(chans)),
        dtype=dtype,
        mean=tuple(low + (high - low) * 0.4137 + i for i in range(chans)),
        std=tuple((high - low) * 0.17 + i for i in range(chans)),
        value_range=(low, high),
    )


def stored_images(dtype, chans, count=2):
    values = np.random.default_rng(0).uniform(*RANGES[dtype], (count, chans, 16, 24))
    return torch.from_numpy(values.astype(dtype))


def record_of(stored, spec, **options):
    torch.manual_seed(0)
    model = MaskedAutoencoder(
        img_size=(16, 24),
        patch_size=8,
        in_chans=spec.num_channels,
        embed_dim=16,
        depth=1,
        num_heads=2,
        decoder_embed_dim=16,
        decoder_depth=1,
        decoder_num_heads=2,
    )
    noise = keyed_noise(0, torch.arange(len(stored)), 6)
    return reconstruct(model, pictures.normalise(stored, spec), noise, **options)


def figure_of(record, stored, spec, **options):
    names = [f"image {i}" for i in range(len(stored))]
    return pictures.reconstruction_figure(
        record, stored, spec, **{"title": "A title", "names": names, **options}
    )


def words(figure):
    return [text.get_text() for text in figure.texts]


def panels(figure):
    return [np.asarray(axes.images[0].get_array()) for axes in figure.axes if axes.images]


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int16"])
def test_to_stored_after_normalise_gives_back_every_level(dtype):
    low, high = map(int, RANGES[dtype])
    levels = torch.from_numpy(np.arange(low, high + 1, dtype=dtype)).reshape(1, 1, 16, -1)
    back = pictures.to_stored(pictures.normalise(levels, spec_of(dtype)), spec_of(dtype))
    assert back.dtype == np.dtype(dtype)
    assert np.array_equal(back, levels.numpy())


def test_to_stored_outside_the_depth_is_clipped_not_wrapped():
    far = torch.tensor([-100.0, 100.0]).reshape(1, 1, 1, 2)
    assert pictures.to_stored(far, spec_of("uint8")).tolist() == [[[[0, 255]]]]


def test_normalise_other_number_of_channels_is_refused():
    with pytest.raises(DataError, match=r"2 channels.*the run's have 3"):
        pictures.normalise(torch.zeros(1, 2, 4, 4), spec_of("uint8", 3))


@pytest.mark.parametrize("dtype", list(RANGES))
def test_paste_visible_keeps_visible_stored_pixels_bit_for_bit(dtype):
    spec, stored = spec_of(dtype, 2), stored_images(dtype, 2)
    record = record_of(stored, spec)
    pasted = pictures.paste_visible(record, stored, spec)
    visible = ~record.removed.expand(-1, 2, -1, -1).numpy()
    assert pasted.dtype == np.dtype(dtype)
    assert np.array_equal(pasted[visible], stored.numpy()[visible])
    assert not np.array_equal(pasted[~visible], stored.numpy()[~visible])


def test_to_display_uint8_colour_is_shown_as_it_is():
    pixels = np.arange(12, dtype=np.uint8).reshape(3, 2, 2)
    shown = pictures.to_display(pixels, spec_of("uint8", 3))
    assert np.array_equal(np.rint(shown * 255), np.moveaxis(pixels, 0, -1))


def test_to_display_one_channel_is_grey():
    shown = pictures.to_display(np.full((1, 2, 2), 51, np.uint8), spec_of("uint8"))
    assert shown.shape == (2, 2, 3)
    assert np.allclose(shown, 0.2)


def test_to_display_16_bit_spans_two_standard_deviations_around_the_mean():
    spec = ImageSpec(
        channels=("a",), dtype="uint16", mean=(1000.0,), std=(400.0,), value_range=(0.0, 65535.0)
    )
    pixels = np.array([[[0, 200, 1000, 1800, 65535]]], np.uint16)
    assert pictures.to_display(pixels, spec)[0, :, 0].tolist() == [0, 0, 0.5, 1, 1]


@pytest.mark.parametrize(
    ("dtype", "chans", "expected"),
    [
        ("uint8", 3, ""),
        ("uint8", 1, ""),
        ("uint8", 5, "channels band0, band1, band2 of 5"),
        ("uint16", 2, "channel band0 of 2; uint16 shown from mean - 2 std"),
    ],
)
def test_display_rule_says_what_was_left_out_or_stretched(dtype, chans, expected):
    rule = pictures.display_rule(spec_of(dtype, chans))
    assert rule.startswith(expected)
    assert bool(rule) == bool(expected)


def test_reconstruction_figure_shows_input_visible_reconstruction_and_error():
    spec, stored = spec_of("uint8", 3), stored_images("uint8", 3)
    record = record_of(stored, spec)
    original, visible, reconstruction, error = panels(figure_of(record, stored, spec))[:4]
    gone = record.removed[0, 0].numpy()
    assert np.array_equal(original, np.moveaxis(stored[0].numpy(), 0, -1) / 255)
    assert np.array_equal(visible[~gone], original[~gone])
    assert len(np.unique(visible[gone], axis=0)) == 1
    assert np.array_equal(reconstruction[~gone], original[~gone])
    assert np.isnan(error[~gone]).all()
    assert np.allclose(np.square(error[gone]), record.error[0].numpy()[gone])


def test_reconstruction_figure_of_target_statistics_carries_the_label():
    spec, stored = spec_of("uint8", 3), stored_images("uint8", 3)
    honest, helped = (
        figure_of(record_of(stored, spec, statistics=s), stored, spec)
        for s in ("visible", "target")
    )
    assert "Uses the target's statistics" in words(helped)
    assert "Uses the target's statistics" not in words(honest)


def test_reconstruction_figure_states_title_warning_names_and_display():
    spec, stored = spec_of("uint16", 4), stored_images("uint16", 4)
    figure = figure_of(
        record_of(stored, spec), stored, spec, warning="Mind this.", notes=["A note."]
    )
    said = words(figure)
    assert {"A title", "Mind this.", "A note.", "image 0", "image 1"} <= set(said)
    assert any(text.startswith("channels band0, band1, band2 of 4; uint16 shown") for text in said)


def test_reconstruction_figure_long_notes_are_wrapped():
    spec, stored = spec_of("uint8", 3), stored_images("uint8", 3, count=1)
    figure = figure_of(record_of(stored, spec), stored, spec, notes=["long words " * 40])
    assert max(map(len, words(figure))) < 120


def test_reconstruction_figure_of_a_perfect_image_is_drawn():
    spec, stored = spec_of("uint8", 1), torch.full((1, 1, 16, 24), 7, dtype=torch.uint8)
    record = record_of(stored, spec)
    assert len(panels(figure_of(record, stored, spec))) >= 4


def test_png_holds_the_words_and_leaves_matplotlibs_settings_alone():
    spec, stored = spec_of("uint8", 3), stored_images("uint8", 3)
    settings = {name: value for name, value in mpl.rcParams.items() if name != "backend"}
    record = record_of(stored, spec)
    first, second = (
        pictures.png(figure_of(record, stored, spec), alt="what is seen") for _ in range(2)
    )
    assert first == second
    image = Image.open(io.BytesIO(first))
    assert image.text == {"Description": "what is seen"}
    assert image.height > image.width / 2
    assert {name: mpl.rcParams[name] for name in settings} == settings
