"""Every copy is packed."""

from __future__ import annotations

from pathlib import Path

from datamodules.bench import packing
from datamodules.bench.images import ImageSet


def test_packing_cases_pack_every_copy(images: ImageSet, tmp_path: Path) -> None:
    cases = packing.packing_cases(images, tmp_path, copies=2)
    assert cases[packing.ONE_WRITER]() == 16
    assert cases[packing.ONE_WRITER]() == 16
    assert list(cases) == [packing.ONE_WRITER, packing.TWO_WRITERS]
    assert [path.name for path in tmp_path.iterdir()] == ["source"]  # no shards left behind
