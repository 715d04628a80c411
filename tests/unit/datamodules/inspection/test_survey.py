"""Processes are started where they are worth it, and change nothing."""

from __future__ import annotations

import pytest

from datamodules.inspection.survey import sensible_workers
from datamodules.packing.workers import usable_cpus


@pytest.mark.parametrize(
    ("asked", "num_bytes", "found"),
    [(3, 0, 3), (None, 0, 1), (None, 19_999_999, 1), (None, 10**15, usable_cpus())],
)
def test_sensible_workers_are_asked_for_or_worth_it(
    asked: int | None, num_bytes: int, found: int
) -> None:
    assert sensible_workers(asked, num_bytes) == found
