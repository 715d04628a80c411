"""A reconstruction's numbers and what they say, for the terminal, the picture and the report.

The numbers lie beside the picture as JSON, so that nobody has to read them off the colours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mae.errors import ConfigError
from mae.inspect.reconstruct import Reconstruction, Statistics

UNIT = "squared error of a removed pixel; 1 is the variance of a pixel over the data set"

_TARGETS = {
    "visible": (
        "Trained on patches normalised by their own mean and std (norm_pix_loss); "
        "here both are estimated from the visible patches."
    ),
    "target": (
        "Trained on patches normalised by their own mean and std (norm_pix_loss); "
        "here they are the removed patch's own, which the model cannot know."
    ),
    None: "Trained to predict the pixels themselves.",
}


def target_sentence(record: Reconstruction) -> str:
    """Say what the network predicts and how that became pixels."""
    return _TARGETS[record.statistics]


def numbers(record: Reconstruction, names: Sequence[str]) -> dict[str, Any]:
    """Return a JSON-able dictionary of all errors, per image and averaged.

    Args:
        record: What `reconstruct` returned.
        names: One per image.

    Raises:
        ConfigError: If there are not as many names as images.
    """
    if len(names) != len(record.input):
        raise ConfigError(f"{len(names)} names for {len(record.input)} images; give one per image")
    columns = {
        "masked_mse": record.masked_mse,
        **record.baselines,
        "loss": record.loss,
        "loss_of_zero": record.loss_of_zero,
    }
    values = {name: column.double().tolist() for name, column in columns.items()}
    mean = {name: sum(column) / len(column) for name, column in values.items()}
    return {
        "unit": UNIT,
        "target": target_sentence(record),
        "statistics": record.statistics,
        "mean": mean,
        "images": [
            {"name": name, **{column: cells[i] for column, cells in values.items()}}
            for i, name in enumerate(names)
        ],
        "sentences": sentences(mean, num_images=len(names), statistics=record.statistics),
    }


def sentences(
    mean: Mapping[str, float], *, num_images: int, statistics: Statistics | None
) -> list[str]:
    """Compare the mean errors in words.

    Args:
        mean: From `numbers`.
        num_images: How many images were averaged.
        statistics: As in `Reconstruction`.
    """
    model, interpolated = mean["masked_mse"], mean["interpolated_mean"]
    images = "1 image" if num_images == 1 else f"{num_images} images"
    helped = " helped by the target's statistics" if statistics == "target" else ""
    said = [
        f"Error on the removed pixels of {images}: model{helped} {model:.3f}; filling with the "
        f"interpolated mean of the visible patches {interpolated:.3f}, with the mean of all "
        f"visible pixels {mean['mean_fill']:.3f}."
    ]
    if model >= interpolated:
        said.append("On these images the model fills in no better than interpolation.")
    said.append(
        f"Training loss of these images {mean['loss']:.3f}; predicting 0 would give "
        f"{mean['loss_of_zero']:.3f}."
    )
    return said


def captions(numbers: Mapping[str, Any]) -> list[str]:
    """Return one line per image for the picture."""
    return [
        f"{image['name']} · error {image['masked_mse']:.3f}, "
        f"interpolated mean {image['interpolated_mean']:.3f}"
        for image in numbers["images"]
    ]
