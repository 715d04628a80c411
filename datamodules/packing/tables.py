"""Tables of images: a CSV with labels, groups and splits, or a text file with one path per line.

The header of a CSV is ``path[,label][,group][,split]``:

* ``path``: relative to the CSV's folder, or absolute;
* ``label``: name of the class, in every row or in none; of several classes on request;
* ``group``: patient, scene, site …; one group never stands in two splits;
* ``split``: ``train``, ``val`` or ``test``.
"""

from __future__ import annotations

import csv
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from datamodules.packing.items import Item, split_name
from datamodules.packing.places import StoredPlace
from mae.errors import DataError, did_you_mean

_COLUMNS = ("path", "label", "group", "split")


def list_csv(source: Path, *, label_separator: str | None = None) -> tuple[list[Item], list[str]]:
    """List the images of a CSV.

    Args:
        source: The CSV.
        label_separator: What stands between several labels; None where each image has one.

    Returns:
        The items, and a note about columns that are not used.

    Raises:
        DataError: If columns or cells are missing, or name files that do not exist.
    """
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
    refuse_rows(source, [None in row for row in rows], "have more cells than the header")
    for column in _COLUMNS:
        may_be_empty = column == "label" and label_separator is not None
        if column in columns and not may_be_empty:
            refuse_rows(source, [not _cell(row, column) for row in rows], f"have no {column}")
    places = places_of(source, [_cell(row, "path") for row in rows], first_row=2)
    items = [
        Item(
            place,
            Path(_cell(row, "path")).as_posix(),
            labels=_labels(row, label_separator) if "label" in columns else None,
            group=_cell(row, "group") or None,
            split=_split(row, f"{source} row {number}"),
        )
        for number, (row, place) in enumerate(zip(rows, places, strict=True), 2)
    ]
    return items, [f"columns of {source.name} not used: {', '.join(others)}"] if others else []


def read_list(source: Path) -> list[str]:
    """Return the paths that a text file lists, one per line, as they are written there.

    Raises:
        DataError: If it is no UTF-8 text, or lists nothing.
    """
    try:
        lines = source.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise DataError(f"{source} is no UTF-8 text ({error}); save it as UTF-8") from error
    paths = [line.strip() for line in lines if line.strip()]
    if not paths:
        raise DataError(f"{source} lists nothing; write one path per line")
    return paths


def places_of(source: Path, paths: Sequence[str], *, first_row: int) -> list[StoredPlace]:
    """Return where the files lie that a table names, relative to its folder.

    Args:
        source: The table.
        paths: What it names.
        first_row: Number of the row of the first path, for messages.

    Raises:
        DataError: If files do not exist or are named twice.
    """
    full = [os.path.normpath(source.parent / path) for path in paths]
    places = [StoredPlace.of_file(path, must_exist=True) for path in full]
    missing = [place is None for place in places]
    if any(missing):
        first = full[missing.index(True)]
        refuse_rows(
            source, missing, f"name files that do not exist, first {first}", first_row=first_row
        )
    repeated = [path for path, count in Counter(full).items() if count > 1]
    if repeated:
        raise DataError(
            f"{source} lists {len(repeated)} files more than once, first {repeated[0]}; keep one "
            f"row per image"
        )
    return [place for place in places if place is not None]


def refuse_rows(source: Path, is_bad: Sequence[bool], fault: str, *, first_row: int = 2) -> None:
    """Refuse a table if any of its rows is bad, naming the first five.

    Raises:
        DataError: If any is.
    """
    bad = [number for number, wrong in enumerate(is_bad, first_row) if wrong]
    if bad:
        header = " (the header is row 1)" if first_row == 2 else ""
        raise DataError(
            f"{source}: {len(bad)} of {len(is_bad)} rows {fault}: row "
            f"{', '.join(map(str, bad[:5]))}{' …' if len(bad) > 5 else ''}{header}; "
            f"complete or remove them"
        )


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


def _cell(row: Mapping[str, str | None], column: str) -> str:
    return (row.get(column) or "").strip()


def _labels(row: Mapping[str, str | None], separator: str | None) -> tuple[str, ...]:
    """Return the label or labels of a row; an empty cell means none where several may stand."""
    cell = _cell(row, "label")
    if separator is None:
        return (cell,)
    names = (name.strip() for name in cell.split(separator))
    return tuple(sorted({name for name in names if name}))


def _split(row: Mapping[str, str | None], where: str) -> str:
    name = _cell(row, "split")
    return split_name(name, where=where) if name else ""
