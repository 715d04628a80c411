"""The sets hold what they say, from the sources they name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from datamodules.bench import images as bench_images
from datamodules.bench.images import ImageSet, made_sets, users_set
from datamodules.pack import pack
from mae.errors import DataError


def test_made_sets_are_jpegs_of_both_sizes_from_real_imagery(tmp_path: Path) -> None:
    done: list[None] = []
    sets = made_sets(tmp_path, num_small=2, num_large=1, on_image=lambda: done.append(None))
    assert len(done) == 3
    assert [(s.name, s.size, s.num_samples) for s in sets] == [
        ("500 x 375 px", (375, 500), 2),
        ("2000 x 1500 px", (1500, 2000), 1),
    ]
    for images in sets:
        assert images.source == "NASA Blue Marble"
        for path in images.files.iterdir():
            with Image.open(path) as picture:
                assert (picture.format, picture.size[::-1]) == ("JPEG", images.size)
        sizes = [path.stat().st_size for path in images.files.iterdir()]
        assert images.bytes_per_image == pytest.approx(np.mean(sizes))
        assert all(Path(path).is_file() for path in images.paths)


def test_made_sets_without_imagery_take_a_made_texture_and_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*names: str) -> Path:
        raise DataError("not installed")

    texture = bench_images._texture(64, 96)
    assert (texture == bench_images._texture(64, 96)).all()
    monkeypatch.setattr(bench_images, "locate", missing)
    monkeypatch.setattr(bench_images, "_texture", lambda *size: texture)
    monkeypatch.setattr(bench_images, "SMALL", (16, 24))
    monkeypatch.setattr(bench_images, "LARGE", (32, 48))
    sets = made_sets(tmp_path, num_small=4, num_large=1)
    assert "pip install 'domain-mae[demo]'" in sets[0].source
    assert [s.num_samples for s in sets] == [4, 1]
    assert texture.shape == (64, 96, 3)
    # Neighbours are alike, as in pictures: plain noise would make JPEG unrealistically large.
    values = texture[..., 0].astype(float)
    assert np.corrcoef(values[:, 1:].ravel(), values[:, :-1].ravel())[0, 1] > 0.7


def test_users_set_holds_their_files_byte_by_byte(
    images: ImageSet, photograph_shards: Path
) -> None:
    theirs = {path.read_bytes() for path in (photograph_shards.parent / "jpeg").iterdir()}
    ours = [path.read_bytes() for path in images.files.iterdir()]
    assert len(set(ours)) == images.num_samples == 8
    assert set(ours) <= theirs
    assert (images.name, images.size) == ("as stored", (60, 80))
    assert images.source == str(photograph_shards)
    assert len(images.paths) == 4  # so that loaders have something to deal out


def test_users_set_of_large_images_is_small(
    photograph_shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_images, "_MAX_PIXELS", 5 * 80 * 60 - 1)
    assert users_set(tmp_path, str(photograph_shards), num_images=8).num_samples == 5


def test_users_set_of_mixed_sizes_has_no_size(tmp_path: Path) -> None:
    (tmp_path / "mixed").mkdir()
    for number in range(3):
        Image.new("L", (20, 20 + number), 50 * number).save(tmp_path / "mixed" / f"{number}.png")
    pack(tmp_path / "mixed", tmp_path / "shards", val_fraction=0)
    assert users_set(tmp_path, str(tmp_path / "shards"), num_images=3).size is None


@pytest.mark.parametrize("kind", ["16 bit", "tiff"])
def test_users_set_the_other_side_cannot_read_is_refused(kind: str, tmp_path: Path) -> None:
    (tmp_path / "odd").mkdir()
    for number in range(2):
        level = np.full((8, 8), number, dtype=np.uint16 if kind == "16 bit" else np.uint8)
        Image.fromarray(level).save(
            tmp_path / "odd" / f"{number}.{'png' if level.itemsize > 1 else 'tif'}"
        )
    pack(tmp_path / "odd", tmp_path / "shards", val_fraction=0)
    with pytest.raises(DataError, match="8-bit JPEG and PNG"):
        users_set(tmp_path, str(tmp_path / "shards"), num_images=2)
