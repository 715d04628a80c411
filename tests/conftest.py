"""Real images and shards that several parts share; made once per session."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("GOMP_SPINCOUNT", "20000")  # as `mae` has it; before torch is loaded

import numpy as np
import pytest
import tifffile
import yaml
from PIL import Image

from datamodules.pack import pack
from datamodules.tarindex import TarIndex, index_path

# A masked autoencoder of 4 patches and some thousand parameters: a step takes milliseconds.
TINY: dict[str, Any] = {
    "seed_everything": 3,
    "trainer": {"accelerator": "cpu", "log_every_n_steps": 1},
    "model": {
        "img_size": 16,
        "patch_size": 8,
        "embed_dim": 16,
        "depth": 1,
        "num_heads": 2,
        "decoder_embed_dim": 16,
        "decoder_depth": 1,
        "decoder_num_heads": 2,
        "mask_ratio": 0.5,
    },
    "data": {"batch_size": 4},
    "checkpoint": {"every_n_steps": 1, "keep_last": -1},
}


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of 24 RGB PNGs, 20 x 24 px."""
    folder = tmp_path_factory.mktemp("images")
    random = np.random.default_rng(0)
    for number in range(24):
        pixels = random.integers(0, 256, (20, 24, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:02d}.png")
    return folder


@pytest.fixture(scope="session")
def shards(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return shards of `images` with splits train and val."""
    out = tmp_path_factory.mktemp("shards") / "rgb"
    pack(images, out, val_fraction=0.3, shard_size=7)
    return out


@pytest.fixture(scope="session")
def gray_shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return shards of 12 one-channel 16-bit TIFFs without a val split."""
    folder = tmp_path_factory.mktemp("gray")
    random = np.random.default_rng(1)
    (folder / "images").mkdir()
    for number in range(12):
        pixels = random.integers(0, 4096, (20, 20), dtype=np.uint16)
        tifffile.imwrite(folder / "images" / f"{number}.tif", pixels)
    pack(folder / "images", folder / "shards", val_fraction=0.0)
    return folder / "shards"


@pytest.fixture(scope="session")
def class_images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return class folders `dark` and `bright` of 15 RGB PNGs each."""
    folder = tmp_path_factory.mktemp("classes")
    random = np.random.default_rng(2)
    for label, low in (("dark", 0), ("bright", 128)):
        (folder / label).mkdir()
        for number in range(15):
            pixels = random.integers(low, low + 128, (20, 24, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / label / f"{number}.png")
    return folder


@pytest.fixture(scope="session")
def labeled_shards(class_images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return shards of `class_images` with splits train, val and test."""
    out = tmp_path_factory.mktemp("labeled") / "shards"
    pack(class_images, out, labels="folders", val_fraction=0.2, test_fraction=0.2)
    return out


@pytest.fixture(scope="session")
def reseal() -> Callable[[Path], None]:
    """Return a function that makes manifest and index fit shards that a test has changed."""

    def fit(directory: Path) -> None:
        manifest = json.loads((directory / "manifest.json").read_text())
        for shard in manifest["shards"]:
            path = directory / shard["path"]
            index = TarIndex.build(path)
            index.save(index_path(path))
            shard |= {"num_bytes": index.num_bytes, "num_samples": index.num_samples}
            shard |= {"index_sha256": index.digest}
            shard |= {"sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
        (directory / "manifest.json").write_text(json.dumps(manifest))

    return fit


@pytest.fixture(scope="session")
def write_config() -> Callable[..., Path]:
    """Return a function that writes the configuration of a tiny pretraining run.

    Its arguments are the file and sections of the configuration, laid over the defaults.
    """

    def write(path: Path, **sections: Any) -> Path:
        content = dict(TINY)
        for name, section in sections.items():
            is_group = isinstance(section, dict)
            content[name] = {**content.get(name, {}), **section} if is_group else section
        path.write_text(yaml.safe_dump(content), encoding="utf-8")
        return path

    return write
