"""What is to be packed: files, labels, groups and splits, before any pixel is read.

A source is a folder, or a CSV whose header is ``path[,label][,group][,split]``:

* ``path``: relative to the CSV's folder, or absolute;
* ``label``: name of the class, in every row or in none;
* ``group``: patient, scene, site …; one group never stands in two splits;
* ``split``: ``train``, ``val`` or ``test``.

In a folder, the class is the first folder below the source (below the split, where the folders name
splits).  Where nothing names the split, a keyed hash of the group, or else of the path, decides: an
image keeps its split when others are added.
"""

from __future__ import annotations

import csv
import hashlib
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from datamodules.guard import IMAGE_SUFFIXES
from mae.errors import ConfigError, DataError, did_you_mean, unknown_name

SPLITS = ("train", "val", "test")
_SPLIT_ALIASES = {"training": "train", "valid": "val", "validation": "val", "dev": "val"}
_COLUMNS = ("path", "label", "group", "split")


@dataclass(frozen=True)
class Item:
    """One image: its file, its name (path relative to the source), and what is known of it."""

    path: Path
    name: str
    label: str | None = None
    group: str | None = None
    split: str = ""


@dataclass(frozen=True)
class Listing:
    """All images of a source, sorted by name; `notes` says what was passed over."""

    items: tuple[Item, ...]
    notes: tuple[str, ...] = field(default=())


def list_source(
    source: Path,
    *,
    labels: Literal["none", "folders"] = "none",
    split: Literal["hash", "folders"] = "hash",
    group_regex: str | None = None,
) -> Listing:
    """List a folder or CSV with labels and groups, and the splits that the source itself names.

    Args:
        source: Folder, or CSV file.
        labels: Whether the folders of a folder source are class names; a CSV has its column.
        split: Whether the topmost folders are ``train``, ``val``, ``test``; a CSV has its column.
        group_regex: Expression searched in each name; its first bracket, or else the whole match,
            is the group.

    Raises:
        DataError: If there are no images, or labels, groups or splits are missing.
        ConfigError: If options do not fit the source.
    """
    if not source.exists():
        raise DataError(f"{source} does not exist; give a folder of images or a CSV")
    if source.is_dir():
        listing = _list_folder(source, labels=labels, split=split)
    else:
        if labels == "folders" or split == "folders":
            raise ConfigError(
                f"{source} is a file, so labels and splits come from its columns; leave out "
                f"--labels folders and --split folders, or give a folder"
            )
        listing = _list_csv(source)
    items = _with_groups(listing.items, group_regex)
    notes = listing.notes
    if group_regex is not None and len({item.group for item in items}) == len(items) > 1:
        notes += (f"group_regex {group_regex!r} makes every image a group of its own",)
    return Listing(tuple(sorted(items, key=lambda item: item.name)), notes)


def assign_splits(
    items: Iterable[Item], *, val_fraction: float, test_fraction: float, seed: int
) -> list[Item]:
    """Give every item a split: its own where the source names one, otherwise by keyed hash.

    Args:
        items: Listed images.
        val_fraction: Share of groups (or images) for validation, in [0, 1).
        test_fraction: Share for testing, in [0, 1).
        seed: Key of the hash.

    Raises:
        DataError: If a group stands in two splits.
        ConfigError: If the fractions leave nothing for training.
    """
    if val_fraction < 0 or test_fraction < 0 or val_fraction + test_fraction >= 1:
        raise ConfigError(
            f"val_fraction {val_fraction} and test_fraction {test_fraction} must be >= 0 and "
            f"together below 1, so that something remains for training"
        )
    fractions = (val_fraction, test_fraction)
    placed = [i if i.split else replace(i, split=_drawn(i, fractions, seed)) for i in items]
    _check_groups(placed)
    return placed


def shuffled(items: Iterable[Item], *, seed: int) -> list[Item]:
    """Return the items in the order of a keyed hash of their names.

    # Choice: neighbours in a folder (one class, one patient, one scene) would fill whole shards,
    # and a window of shards would then hold few classes.
    """
    return sorted(items, key=lambda item: _digest(item.name, seed, "order"))


def class_names(items: Sequence[Item]) -> tuple[str, ...] | None:
    """Return the sorted class names, numbers by value; None if nothing is labelled."""
    names = {item.label for item in items if item.label is not None}
    if not names:
        return None
    if all(re.fullmatch(r"-?\d+", name) for name in names):
        return tuple(sorted(names, key=lambda name: (int(name), name)))
    return tuple(sorted(names))


def _list_folder(source: Path, *, labels: str, split: str) -> Listing:
    items, passed_over = [], Counter[str]()
    for path in _walk(source):
        suffix = path.suffix.lower().lstrip(".")
        if suffix not in IMAGE_SUFFIXES:
            passed_over[suffix or "no suffix"] += 1
            continue
        items.append(_folder_item(source, path, labels=labels, split=split))
    seen = ", ".join(f"{count} .{suffix}" for suffix, count in passed_over.most_common(5))
    if not items:
        raise DataError(
            f"{source} holds no images; looked for .{', .'.join(IMAGE_SUFFIXES)} in all its "
            f"folders and saw {seen or 'no files'}"
        )
    top = {item.name.split("/")[0].lower() for item in items}
    if labels == "folders" and split == "hash" and top <= {*SPLITS, *_SPLIT_ALIASES}:
        raise ConfigError(
            f"the folders of {source} are {', '.join(sorted(top))}, which name splits, not "
            f"classes; add --split folders"
        )
    return Listing(tuple(items), (f"passed over other files: {seen}",) if seen else ())


def _walk(source: Path) -> Iterator[Path]:
    """Yield all files below, following links to folders once; hidden ones are left alone."""
    visited = set()
    for folder, folders, files in os.walk(source, followlinks=True):
        real = os.path.realpath(folder)
        if real in visited:
            folders.clear()
            continue
        visited.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(folder, name) for name in sorted(files) if not name.startswith("."))


def _folder_item(source: Path, path: Path, *, labels: str, split: str) -> Item:
    relative = path.relative_to(source)
    folders = list(relative.parts[:-1])
    named_split, label = "", None
    if split == "folders":
        if not folders:
            raise DataError(f"{path} lies in no split folder; allowed: {', '.join(SPLITS)}")
        named_split = _split_name(folders.pop(0), where=str(path))
    if labels == "folders":
        if not folders:
            raise DataError(
                f"{path} lies in no class folder, so it has no label; move it into one, or pack "
                f"without --labels folders"
            )
        label = folders[0]
    return Item(path, relative.as_posix(), label=label, split=named_split)


def _list_csv(source: Path) -> Listing:
    try:
        with source.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            columns = [name for name in reader.fieldnames or [] if name is not None]
            others = _check_columns(source, columns)
            rows = list(reader)
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(
            f"{source} is no UTF-8 CSV ({error}); save it as CSV UTF-8, or give the folder of the "
            f"images"
        ) from error
    if not rows:
        raise DataError(f"{source} has a header but no rows; list the images below it")
    _refuse_rows(source, [None in row for row in rows], "have more cells than the header")
    for column in _COLUMNS:
        if column in columns:
            empty = [not (row[column] or "").strip() for row in rows]
            _refuse_rows(source, empty, f"have no {column}")
    items = [_csv_item(source, row, number) for number, row in enumerate(rows, 2)]
    missing = [not item.path.is_file() for item in items]
    if any(missing):
        first = items[missing.index(True)].path
        _refuse_rows(source, missing, f"name files that do not exist, first {first}")
    repeated = [path for path, n in Counter(i.path.resolve() for i in items).items() if n > 1]
    if repeated:
        raise DataError(
            f"{source} lists {len(repeated)} files more than once, first {repeated[0]}; keep one "
            f"row per image"
        )
    notes = (f"columns of {source.name} not used: {', '.join(others)}",) if others else ()
    return Listing(tuple(items), notes)


def _check_columns(source: Path, columns: list[str]) -> list[str]:
    """Return the columns that are not used; refuse those that look like a slip of the pen."""
    if len(columns) == 1 and ";" in columns[0]:
        raise DataError(f"{source} is separated by semicolons; save it separated by commas")
    twice = [name for name, count in Counter(columns).items() if count > 1]
    if twice:
        raise DataError(f"{source} has the column {twice[0]!r} twice; keep one of them")
    others = [name for name in columns if name not in _COLUMNS]
    for name in others:
        nearest = did_you_mean(name.strip().lower(), [c for c in _COLUMNS if c not in columns])
        if nearest:
            raise DataError(f"{source} has the column {name!r}{nearest}; rename it")
    if "path" not in columns:
        raise DataError(
            f"{source} has no column 'path'; its header must be path[,label][,group][,split] and "
            f"is {','.join(columns) or 'empty'}"
        )
    return others


def _csv_item(source: Path, row: dict[str, str], number: int) -> Item:
    name = row["path"].strip()
    split = (row.get("split") or "").strip()
    return Item(
        path=source.parent / name,
        name=Path(name).as_posix(),
        label=(row.get("label") or "").strip() or None,
        group=(row.get("group") or "").strip() or None,
        split=_split_name(split, where=f"{source} row {number}") if split else "",
    )


def _refuse_rows(source: Path, is_bad: Sequence[bool], fault: str) -> None:
    bad = [number for number, wrong in enumerate(is_bad, 2) if wrong]
    if bad:
        raise DataError(
            f"{source}: {len(bad)} of {len(is_bad)} rows {fault}: row "
            f"{', '.join(map(str, bad[:5]))}{' …' if len(bad) > 5 else ''} (the header is row 1); "
            f"complete or remove them"
        )


def _split_name(name: str, *, where: str) -> str:
    found = _SPLIT_ALIASES.get(name.lower(), name.lower())
    if found not in SPLITS:
        raise DataError(f"{where}: {unknown_name('split', name, SPLITS)}")
    return found


def _with_groups(items: Sequence[Item], group_regex: str | None) -> list[Item]:
    if group_regex is None:
        return list(items)
    try:
        pattern = re.compile(group_regex)
    except re.error as error:
        raise ConfigError(f"group_regex {group_regex!r} is no expression: {error}") from error
    grouped = []
    for item in items:
        found = pattern.search(item.name)
        group = found and (found.group(1) if pattern.groups else found.group())
        if not group:
            raise DataError(
                f"group_regex {group_regex!r} finds no group in {item.name!r}; it must match every "
                f"path, or patients could stand in two splits"
            )
        grouped.append(replace(item, group=group))
    return grouped


def _drawn(item: Item, fractions: tuple[float, float], seed: int) -> str:
    """Draw val and test by the hash of the group, or of the name where there is none."""
    unit = item.name if item.group is None else item.group
    share = int.from_bytes(_digest(unit, seed, "split")) / 2**64
    val, test = fractions
    return "val" if share < val else "test" if share < val + test else "train"


def _check_groups(items: Sequence[Item]) -> None:
    split_of: dict[str, Item] = {}
    for item in items:
        if item.group is None:
            continue
        first = split_of.setdefault(item.group, item)
        if first.split != item.split:
            raise DataError(
                f"group {item.group!r} stands in two splits: {first.name!r} in {first.split} and "
                f"{item.name!r} in {item.split}; give each group one split"
            )


def _digest(text: str, seed: int, purpose: str) -> bytes:
    key = f"{seed}:{purpose}".encode()
    return hashlib.blake2b(text.encode("utf-8", "surrogateescape"), key=key, digest_size=8).digest()
