"""Reconstructions as a picture: input, visible patches, reconstruction, error.

Everything is drawn from numbers in stored units, so the visible patches of the third panel are the
input's own pixels.  Figures are matplotlib objects without its global state: safe in threads, in
callbacks and beside a user's own plots.
"""

from __future__ import annotations

import io
import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from matplotlib import colormaps
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import Colormap, to_rgb
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from mae.errors import DataError
from mae.inspect.reconstruct import Reconstruction
from mae.spec import ImageSpec

BLANK = "#dde3ee"  # removed patches: bluish, so that it is no grey of a one-channel image
INK, FAINT, WARNING = "#1b2430", "#5b6675", "#a3330b"
ERROR_COLOURS = "magma"  # perceptually uniform, readable without colour vision
HEADERS = ("input", "visible to the model", "reconstruction", "error")
TARGET_LABEL = "uses the target's statistics"

# Choice: pixels of more than 8 bits are shown from mean - 2 std to mean + 2 std of the data set,
# per channel.  A stretch by each image's own percentiles would make images incomparable, and would
# let removed pixels change what the visible ones look like.
STRETCH_STD = 2.0


def normalise(
    stored: Float[Tensor, "batch chans height width"] | Tensor, spec: ImageSpec
) -> Float[Tensor, "batch chans height width"]:
    """Return ``(stored - mean) / std`` per channel, in float32.

    Raises:
        DataError: If the images have another number of channels than `spec`.
    """
    if stored.shape[1] != spec.num_channels:
        raise DataError(
            f"images have {stored.shape[1]} channels; the run's have {spec.num_channels}: "
            f"{', '.join(spec.channels)}; use images like those the run was trained on"
        )
    mean, std = _per_channel(spec.mean), _per_channel(spec.std)
    return ((stored.double() - mean) / std).float()


def to_stored(
    normalised: Float[Tensor, "batch chans height width"], spec: ImageSpec
) -> NDArray[Any]:
    """Return pixels in stored units and depth: rounded and clipped where the depth is whole."""
    units = normalised.double() * _per_channel(spec.std) + _per_channel(spec.mean)
    values: NDArray[np.float64] = units.cpu().numpy()
    dtype = np.dtype(spec.dtype)
    if dtype.kind == "f":
        return values.astype(dtype)
    info = np.iinfo(dtype)
    return np.clip(np.rint(values), info.min, info.max).astype(dtype)


def paste_visible(record: Reconstruction, stored: Tensor, spec: ImageSpec) -> NDArray[Any]:
    """Return the reconstruction in stored units; visible pixels are those of `stored`, bit for bit.

    Args:
        record: What `reconstruct` returned for ``normalise(stored, spec)``.
        stored: The images as they lie in the shard.
        spec: Of the run.
    """
    predicted = to_stored(record.reconstruction, spec)
    return np.where(record.removed.numpy(), predicted, stored.numpy().astype(predicted.dtype))


def display_rule(spec: ImageSpec) -> str:
    """Say in one phrase how stored pixels become colours; empty if they are shown as they are."""
    rules = []
    if spec.num_channels > 3:
        rules.append(f"channels {', '.join(spec.channels[:3])} of {spec.num_channels}")
    elif spec.num_channels == 2:
        rules.append(f"channel {spec.channels[0]} of 2")
    if spec.dtype != "uint8":
        rules.append(f"{spec.dtype} shown from mean - 2 std to mean + 2 std of the data set")
    return "; ".join(rules)


def to_display(stored: NDArray[Any], spec: ImageSpec) -> NDArray[np.float64]:
    """Return an RGB image with values in [0, 1] for the screen.

    Args:
        stored: (chans, height, width) in stored units.
        spec: Decides channels and stretch, see `display_rule`.

    Returns:
        (height, width, 3).
    """
    shown = 3 if spec.num_channels >= 3 else 1
    pixels = stored[:shown].astype(np.float64)
    if spec.dtype == "uint8":
        low, high = np.zeros((shown, 1, 1)), np.full((shown, 1, 1), 255.0)
    else:
        mean = np.reshape(spec.mean[:shown], (-1, 1, 1))
        reach = STRETCH_STD * np.reshape(spec.std[:shown], (-1, 1, 1))
        low, high = (np.clip(x, *spec.value_range) for x in (mean - reach, mean + reach))
    scaled = np.clip((pixels - low) / np.maximum(high - low, 1e-12), 0, 1)
    return np.moveaxis(np.broadcast_to(scaled, (3, *scaled.shape[1:])), 0, -1)


def reconstruction_figure(
    record: Reconstruction,
    stored: Tensor,
    spec: ImageSpec,
    *,
    title: str,
    notes: Sequence[str] = (),
    warning: str = "",
    names: Sequence[str],
) -> Figure:
    """Draw one row per image: input, visible patches, reconstruction, error.

    Args:
        record: What `reconstruct` returned.
        stored: The same images in stored units.
        spec: Meaning of the stored pixels.
        title: Headline.
        notes: Smaller lines below it.
        warning: A line in another colour, for what the reader must not miss.
        names: One caption per image.
    """
    panels = _panels(record, stored, spec)
    num_images, (height_px, width_px) = len(stored), stored.shape[-2:]
    side = 1.72  # inches of a panel's width
    row = side * height_px / width_px + 0.27
    lines = _headline(title, [*notes, display_rule(spec)], warning, record)
    top = 0.28 + 0.21 * len(lines) + 0.22
    bottom, margin, gap = 0.45, 0.22, 0.09
    width, height = 2 * margin + 4 * side + 3 * gap, top + row * num_images + bottom

    figure = Figure(figsize=(width, height), dpi=144, facecolor="white")
    FigureCanvasAgg(figure)
    for number, (text, style) in enumerate(lines):
        y = height - 0.34 - 0.21 * number - (0.03 if number else 0)
        figure.text(margin / width, y / height, text, **style)

    highest = _error_ceiling(record)
    for image in range(num_images):
        y = height - top - row * (image + 1) + 0.27
        for column, panel in enumerate(panels[image]):
            x = margin + column * (side + gap)
            box = (x / width, y / height, side / width, (row - 0.27) / height)
            axes = figure.add_axes(box)
            axes.set_axis_off()
            limits: dict[str, Any] = (
                {} if panel.ndim == 3 else {"cmap": _error_map(), "vmin": 0, "vmax": highest}
            )
            drawn = axes.imshow(panel, interpolation="nearest", **limits)
            if image == 0:
                axes.set_title(HEADERS[column], fontsize=8.5, color=INK, pad=4)
        figure.text(
            margin / width,
            (y - 0.155) / height,
            textwrap.shorten(names[image], 120),
            fontsize=7.2,
            color=FAINT,
        )
    _colour_bar(figure, drawn, (margin, width, height, side))
    return figure


def png(figure: Figure, *, alt: str) -> bytes:
    """Return `figure` as a PNG file's bytes.

    Args:
        figure: What to draw.
        alt: What the picture shows, in words; stored in the file.
    """
    buffer = io.BytesIO()
    # "Software" would name matplotlib's version: the same numbers should give the same bytes.
    figure.savefig(buffer, format="png", metadata={"Software": None, "Description": alt})
    return buffer.getvalue()


def _per_channel(values: Sequence[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)[:, None, None]


def _panels(
    record: Reconstruction, stored: Tensor, spec: ImageSpec
) -> list[tuple[NDArray[Any], ...]]:
    pasted = paste_visible(record, stored, spec)
    removed = record.removed[:, 0].numpy()
    errors = record.error.sqrt().numpy()
    rows: list[tuple[NDArray[Any], ...]] = []
    for number, original in enumerate(stored.numpy()):
        shown = to_display(original, spec)
        gone = removed[number]
        visible = np.where(gone[:, :, None], to_rgb(BLANK), shown)
        error = np.where(gone, errors[number], np.nan)
        rows.append((shown, visible, to_display(pasted[number], spec), error))
    return rows


def _headline(
    title: str, notes: Sequence[str], warning: str, record: Reconstruction
) -> list[tuple[str, dict[str, Any]]]:
    alarms = [TARGET_LABEL.capitalize()] if record.statistics == "target" else []
    styles: list[tuple[Sequence[str], int, dict[str, Any]]] = [
        ([title], 72, {"fontsize": 11.5, "color": INK, "weight": "bold"}),
        ([*alarms, warning], 90, {"fontsize": 9, "color": WARNING, "weight": "bold"}),
        (notes, 116, {"fontsize": 8, "color": FAINT}),
    ]
    return [
        (line, style)
        for texts, letters, style in styles
        for text in texts
        for line in textwrap.wrap(text, letters)
    ]


def _error_ceiling(record: Reconstruction) -> float:
    """Return the 99th percentile of the drawn errors: one pixel should not darken the rest."""
    drawn = record.error.sqrt()[record.removed[:, 0]].numpy()
    return float(max(np.percentile(drawn, 99), 1e-6))


def _error_map() -> Colormap:
    return colormaps[ERROR_COLOURS].with_extremes(bad=BLANK)


def _colour_bar(figure: Figure, drawn: Any, place: tuple[float, float, float, float]) -> None:
    margin, width, height, side = place
    box = ((width - margin - side) / width, 0.34 / height, side / width, 0.09 / height)
    bar = figure.colorbar(drawn, cax=figure.add_axes(box), orientation="horizontal", extend="max")
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=6.5, colors=FAINT, length=2, pad=2)
    figure.text(
        (width - margin - side - 0.12) / width,
        0.34 / height,
        "error of a removed pixel, in standard deviations of the data set",
        fontsize=7.2,
        color=FAINT,
        ha="right",
    )
