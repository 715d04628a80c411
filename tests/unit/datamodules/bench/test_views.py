"""Both sides make one view of each image."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from datamodules.bench import views
from datamodules.bench.images import ImageSet

# webdataset leaves its files to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")


def test_view_cases_make_one_view_of_each_image(images: ImageSet) -> None:
    pytest.importorskip("simplejpeg")
    cases = views.view_cases(images, with_fast=True)
    assert {name: run() for name, run in cases.items()} == dict.fromkeys(cases, 8)
    assert set(views.view_cases(images, with_fast=False)) == set(cases) - {
        views.DECODE_FAST,
        views.PIPELINE_FAST,
        views.PIPELINE_SCALED,
    }


def test_stacked_views_draw_other_views_in_each_pass(
    images: ImageSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[range] = []

    class Noting(views.TrainStream):
        def __getitem__(self, positions: range) -> Any:
            asked.append(positions)
            batch = super().__getitem__(positions)
            assert batch["image"].shape == (len(positions), 3, *views.IMG_SIZE)
            return batch

    monkeypatch.setattr(views, "TrainStream", Noting)
    monkeypatch.setattr(views, "BATCH", 5)
    run = views.StackedViews(images)
    assert (run(), run()) == (8, 8)
    assert asked == [range(5), range(5, 8), range(8, 13), range(13, 16)]


def test_webdataset_stream_gives_uint8_views_like_ours(images: ImageSet) -> None:
    found = [view for (view,) in views.webdataset_stream(images)]
    assert len(found) == 8
    for view in found:
        assert view.shape == (3, *views.IMG_SIZE)
        assert view.numpy().dtype == np.uint8
