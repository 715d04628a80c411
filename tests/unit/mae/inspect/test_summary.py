from __future__ import annotations

import json

import pytest
import torch

from mae.errors import ConfigError
from mae.inspect import summary
from mae.inspect.reconstruct import Reconstruction


def record(**changes):
    fields = {
        "input": torch.zeros(2, 1, 4, 4),
        "removed": torch.ones(2, 1, 4, 4, dtype=torch.bool),
        "reconstruction": torch.zeros(2, 1, 4, 4),
        "error": torch.zeros(2, 4, 4),
        "masked_mse": torch.tensor([0.25, 0.75]),
        "loss": torch.tensor([0.5, 0.7]),
        "loss_of_zero": torch.tensor([1.0, 1.0]),
        "baselines": {
            "mean_fill": torch.tensor([1.0, 2.0]),
            "interpolated_mean": torch.tensor([0.5, 1.0]),
        },
        "statistics": "visible",
    }
    return Reconstruction(**{**fields, **changes})


def test_numbers_hold_each_image_and_the_mean():
    numbers = summary.numbers(record(), ["a", "b"])
    assert numbers["images"][1] == {
        "name": "b",
        "masked_mse": 0.75,
        "mean_fill": 2.0,
        "interpolated_mean": 1.0,
        "loss": pytest.approx(0.7),
        "loss_of_zero": 1.0,
    }
    assert numbers["mean"]["masked_mse"] == 0.5
    assert numbers["mean"]["interpolated_mean"] == 0.75
    assert json.loads(json.dumps(numbers)) == numbers


def test_numbers_without_a_name_per_image_are_refused():
    with pytest.raises(ConfigError, match="1 names for 2 images"):
        summary.numbers(record(), ["a"])


def test_sentences_give_the_model_and_both_fillings():
    said = summary.numbers(record(), ["a", "b"])["sentences"]
    assert said == [
        "Error on the removed pixels of 2 images: model 0.500; filling with the interpolated mean "
        "of the visible patches 0.750, with the mean of all visible pixels 1.500.",
        "Training loss of these images 0.600; predicting 0 would give 1.000.",
    ]


def test_sentences_of_a_model_behind_interpolation_say_so():
    worse = record(masked_mse=torch.tensor([0.9, 0.9]))
    said = summary.numbers(worse, ["a", "b"])["sentences"]
    assert "On these images the model fills in no better than interpolation." in said


def test_sentences_with_target_statistics_name_the_help():
    said = summary.numbers(record(statistics="target"), ["a", "b"])["sentences"]
    assert "model helped by the target's statistics 0.500" in said[0]


@pytest.mark.parametrize(
    ("statistics", "expected"),
    [
        ("visible", "estimated from the visible patches"),
        ("target", "which the model cannot know"),
        (None, "Trained to predict the pixels themselves."),
    ],
)
def test_target_sentence_says_where_the_pixels_come_from(statistics, expected):
    assert expected in summary.target_sentence(record(statistics=statistics))


def test_captions_name_each_image_with_its_error():
    numbers = summary.numbers(record(), ["a", "b"])
    assert summary.captions(numbers)[0] == "a · error 0.250, interpolated mean 0.500"
