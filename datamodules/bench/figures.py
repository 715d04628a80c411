"""Timings → figures, each beside its target and a control.

# Choice: reading and making views are judged by processor time, which other programs on the machine
disturb least and which is what a training run has to share; loaders by time on the wall, because
their workers run side by side.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from datamodules.bench import lasting, loaders, packing, reading, views
from datamodules.bench.images import LARGE, SMALL, ImageSet
from datamodules.bench.report import Figure
from datamodules.bench.timing import Ratio, Timing, ratio

Timings = Mapping[str, Sequence[Timing]]

CONTROL = " (again)"
# By size: targets of the default stack, of [fast], and of [fast] with scaled decoding.
_VIEW_TARGETS = {SMALL: (1.25, 1.45, None), LARGE: (1.6, None, 2.6)}


def reading_figures(found: Timings) -> list[Figure]:
    """Return how the reader stands between a raw read and webdataset."""
    raw, theirs = found[reading.RAW], found[reading.WEBDATASET]
    return [
        Figure(
            name="reading, shuffled, verify: open / raw sequential read",
            cpu=ratio(found[reading.OURS_OPEN], raw, "cpu"),
            wall=ratio(found[reading.OURS_OPEN], raw, "wall"),
            control=ratio(found[reading.RAW + CONTROL], raw, "cpu"),
            target=1.5,
            better="smaller",
        ),
        Figure(
            name="reading, webdataset + shuffle(100) / ours",
            cpu=ratio(theirs, found[reading.OURS_OPEN], "cpu"),
            wall=ratio(theirs, found[reading.OURS_OPEN], "wall"),
            control=ratio(found[reading.WEBDATASET + CONTROL], theirs, "cpu"),
            target=6,
        ),
    ]


def view_figures(found: Timings, images: ImageSet) -> list[Figure]:
    """Return webdataset + Pillow against our stacks, and the parts."""
    default, fast, scaled = _VIEW_TARGETS.get(images.size or (0, 0), (None, None, None))
    theirs = found[views.PIPELINE_WEBDATASET]
    control = ratio(found[views.PIPELINE_WEBDATASET + CONTROL], theirs, "cpu")
    pairs = [
        ("webdataset + Pillow / ours, default", theirs, views.PIPELINE, default),
        ("webdataset + Pillow / ours, [fast]", theirs, views.PIPELINE_FAST, fast),
        ("webdataset + Pillow / ours, [fast], scaled", theirs, views.PIPELINE_SCALED, scaled),
        ("decode alone, Pillow / simplejpeg", found[views.DECODE_PILLOW], views.DECODE_FAST, None),
        ("augment alone, on Pillow / ours", found[views.AUGMENT_PILLOW], views.AUGMENT, None),
    ]
    return [
        Figure(
            name=f"{images.name}: {name}",
            cpu=ratio(slower, found[faster], "cpu"),
            wall=ratio(slower, found[faster], "wall"),
            control=control if slower is theirs else None,
            target=target,
        )
        for name, slower, faster, target in pairs
        if faster in found
    ]


def loader_figures(found: Timings, workers: int) -> list[Figure]:
    """Return webdataset's loader against ours."""
    theirs = found[loaders.name_webdataset(workers)]
    control = ratio(found[loaders.name_webdataset(workers) + CONTROL], theirs, "wall")
    return [
        Figure(
            name=f"loader with {workers} workers, webdataset + Pillow / ours, {stack}",
            wall=ratio(theirs, found[name], "wall"),
            control=control,
        )
        for stack, name in (
            ("default", loaders.name_default(workers)),
            ("[fast], scaled", loaders.name_fast(workers)),
        )
        if name in found
    ]


def starting_figures(found: Timings) -> list[Figure]:
    """Return how much later the first batch comes far inside the stream."""
    pairs = (
        (
            "first batch at sample 10^9, later than at 0",
            lasting.FIRST_BATCH_FAR,
            lasting.FIRST_BATCH,
        ),
        (
            "its order, for 10^8 samples in 10^5 shards",
            lasting.FIRST_PLACES_FAR,
            lasting.FIRST_PLACES,
        ),
    )
    return [
        Figure(
            name=name,
            wall=_difference(found[far], found[near]),
            control=_difference(found[near + CONTROL], found[near]),
            target=1,
            better="smaller",
            unit="s",
        )
        for name, far, near in pairs
    ]


def memory_figure(resident: Sequence[int]) -> list[Figure]:
    """Return how memory grew from the second epoch to the fifth; nothing if it is not known."""
    if len(resident) < lasting.EPOCHS:
        return []
    grown = resident[4] / resident[1]
    return [
        Figure(
            name="resident memory, epoch 5 / epoch 2",
            cpu=Ratio(grown, grown, grown),
            target=1.02,
            better="smaller",
        )
    ]


def packing_figures(found: Timings) -> list[Figure]:
    """Return what a second writer brings."""
    one = found[packing.ONE_WRITER]
    return [
        Figure(
            name="pack with re-encoding, 1 writer / 2 writers",
            wall=ratio(one, found[packing.TWO_WRITERS], "wall"),
            target=1.7,
        )
    ]


def _difference(later: Sequence[Timing], sooner: Sequence[Timing]) -> Ratio:
    """Return by how many seconds one run takes longer, round by round."""
    values = [a.wall_s - b.wall_s for a, b in zip(later, sooner, strict=True)]
    return Ratio(median(values), min(values), max(values))
