"""A handful of real JPEGs to run the benchmark's cases on."""

from __future__ import annotations

from pathlib import Path

import pytest
import sklearn.datasets
from PIL import Image

from datamodules.bench.images import ImageSet, users_set
from datamodules.pack import pack


@pytest.fixture(scope="session")
def photograph_shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return shards of ten pieces of a photograph, 80 x 60 px."""
    folder = tmp_path_factory.mktemp("photographs")
    with Image.open(Path(sklearn.datasets.__file__).parent / "images" / "china.jpg") as photograph:
        (folder / "jpeg").mkdir()
        for number in range(10):
            place = (40 * number, 20 * number, 40 * number + 80, 20 * number + 60)
            photograph.crop(place).save(folder / "jpeg" / f"{number}.jpg", quality=95)
    pack(folder / "jpeg", folder / "shards", val_fraction=0, shard_size=4)
    return folder / "shards"


@pytest.fixture(scope="session")
def images(photograph_shards: Path, tmp_path_factory: pytest.TempPathFactory) -> ImageSet:
    """Return eight of them as a set to measure with."""
    return users_set(tmp_path_factory.mktemp("bench"), str(photograph_shards), num_images=8)
