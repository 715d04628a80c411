"""Both loaders hand over everything."""

from __future__ import annotations

import pytest

from datamodules.bench import loaders
from datamodules.bench.images import ImageSet

# webdataset leaves its files to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")


@pytest.mark.parametrize("workers", [0, 1])
def test_loader_cases_hand_over_all_samples(images: ImageSet, workers: int) -> None:
    cases = loaders.loader_cases(images, workers=workers, num_samples=64, with_fast=False)
    assert list(cases) == [loaders.name_default(workers), loaders.name_webdataset(workers)]
    assert [run() for run in cases.values()] == [64, 64]
