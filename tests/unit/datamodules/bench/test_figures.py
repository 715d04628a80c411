"""Figures name the right cases, and say honestly whether a target is reached."""

from __future__ import annotations

from typing import Any

import pytest

from datamodules.bench import figures, lasting, loaders, packing, reading, views
from datamodules.bench.images import LARGE, SMALL, ImageSet
from datamodules.bench.report import Figure
from datamodules.bench.timing import Timing


def timings(**us_of_case: float) -> dict[str, list[Timing]]:
    return {name: [Timing(1000, us / 1e3, us / 1e3)] for name, us in us_of_case.items()}


def of(image_set: ImageSet, size: tuple[int, int] | None) -> ImageSet:
    return ImageSet("set", image_set.manifest, size, "source", image_set.files)


def values(found: list[Figure]) -> list[tuple[float, float | None, bool | None]]:
    return [(figure.value, figure.target, figure.is_reached) for figure in found]


def test_reading_figures_compare_with_both_sides() -> None:
    found = figures.reading_figures(
        timings(
            **{
                reading.RAW: 10,
                reading.RAW + figures.CONTROL: 11,
                reading.OURS_OPEN: 16,
                reading.WEBDATASET: 112,
                reading.WEBDATASET + figures.CONTROL: 56,
            }
        )
    )
    assert values(found) == [(1.6, 1.5, False), (7, 6, True)]
    assert [figure.control for figure in found] == [(1.1,) * 3, (0.5,) * 3]


VIEWS = {
    views.DECODE_PILLOW: 8,
    views.DECODE_FAST: 4,
    views.AUGMENT: 2,
    views.AUGMENT_PILLOW: 10,
    views.PIPELINE: 10,
    views.PIPELINE_FAST: 8,
    views.PIPELINE_SCALED: 5,
    views.PIPELINE_WEBDATASET: 12,
    views.PIPELINE_WEBDATASET + figures.CONTROL: 12,
}


@pytest.mark.parametrize(
    ("size", "targets"),
    [
        (SMALL, [(1.25, False), (1.45, True), (None, None)]),
        (LARGE, [(1.6, False), (None, None), (2.6, False)]),
        (None, [(None, None)] * 3),
    ],
)
def test_view_figures_have_the_targets_of_their_size(
    images: ImageSet, size: Any, targets: list[tuple[float | None, bool | None]]
) -> None:
    found = figures.view_figures(timings(**VIEWS), of(images, size))
    assert [figure.value for figure in found] == [1.2, 1.5, 2.4, 2, 5]
    assert [(f.target, f.is_reached) for f in found[:3]] == targets
    assert [f.target for f in found[3:]] == [None, None]


def test_view_figures_without_simplejpeg_leave_its_rows_out(images: ImageSet) -> None:
    slow = {name: us for name, us in VIEWS.items() if "fast" not in name and "simple" not in name}
    found = figures.view_figures(timings(**slow), of(images, SMALL))
    assert [figure.value for figure in found] == [1.2, 5]


def test_loader_figures_count_time_on_the_wall() -> None:
    cases = {
        loaders.name_default(2): 10,
        loaders.name_fast(2): 5,
        loaders.name_webdataset(2): 20,
        loaders.name_webdataset(2) + figures.CONTROL: 20,
    }
    found = figures.loader_figures(timings(**cases), 2)
    assert values(found) == [(2, None, None), (4, None, None)]
    assert [figure.cpu for figure in found] == [None, None]


def test_starting_figures_are_differences_in_seconds() -> None:
    cases = {
        lasting.FIRST_BATCH: 100,
        lasting.FIRST_BATCH + figures.CONTROL: 150,
        lasting.FIRST_BATCH_FAR: 1600,
        lasting.FIRST_PLACES: 10,
        lasting.FIRST_PLACES + figures.CONTROL: 10,
        lasting.FIRST_PLACES_FAR: 30,
    }
    found = figures.starting_figures(timings(**cases))
    assert values(found) == [
        (pytest.approx(1.5), 1, False),
        (pytest.approx(0.02), 1, True),
    ]
    assert found[0].control == (pytest.approx(0.05),) * 3


def test_memory_figure_compares_the_fifth_epoch_with_the_second() -> None:
    assert values(figures.memory_figure([1, 100, 500, 500, 103])) == [(1.03, 1.02, False)]
    assert figures.memory_figure([]) == []


def test_packing_figures_compare_the_writers() -> None:
    found = timings(**{packing.ONE_WRITER: 18, packing.TWO_WRITERS: 10})
    assert values(figures.packing_figures(found)) == [(1.8, 1.7, True)]
