"""Files below folders and behind patterns, and what their folders say: label and split."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from datamodules.packing.items import SPLIT_ALIASES, SPLITS, split_name
from mae.errors import DataError


class Leaf(NamedTuple):
    """A file and its name, relative to where the search began, with ``/`` between folders."""

    path: str
    name: str


def split_suffix(name: str) -> tuple[str, str]:
    """Split a path at the last dot of its last part; the suffix comes in lower case.

    ``a.b/1.2.840.PNG`` gives ``a.b/1.2.840`` and ``png``; ``a/b`` and ``a/.b`` have no suffix.
    """
    folders, slash, last = name.rpartition("/")
    stem, _, suffix = last.rpartition(".")
    return (f"{folders}{slash}{stem}", suffix.lower()) if stem else (name, "")


def walk_folder(root: str) -> Iterator[Leaf]:
    """Yield all files below, following links to folders once; hidden ones are left alone."""
    visited = set()
    top = str(Path(root))
    for folder, folders, files in os.walk(top, followlinks=True):
        real = Path(folder).resolve()
        if real in visited:
            folders.clear()
            continue
        visited.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        prefix = _relative(f"{folder}/", top)
        for name in sorted(files):
            if not name.startswith("."):
                yield Leaf(f"{folder}/{name}", f"{prefix}{name}")


def fixed_part(pattern: str) -> str:
    """Return the folder above the first part of a pattern that has a wildcard."""
    parts = pattern.split("/")
    fixed = next(number for number, part in enumerate(parts) if glob.has_magic(part))
    return "/".join(parts[:fixed]) or ("/" if pattern.startswith("/") else ".")


def match_pattern(pattern: str) -> list[Leaf]:
    """Return the files that a pattern with ``*``, ``?``, ``[…]`` or ``**`` matches.

    Names are relative to the folder above the first part with a wildcard.  A folder that matches
    stands for all files below it.

    Raises:
        DataError: If nothing matches.
    """
    root = fixed_part(pattern)
    found: dict[str, Leaf] = {}
    for match in glob.iglob(pattern, recursive=True):  # noqa: PTH207 (pathlib's finds hidden files)
        path = os.path.normpath(match)
        files = [leaf.path for leaf in walk_folder(path)] if Path(path).is_dir() else [path]
        found |= {file: Leaf(file, _relative(file, os.path.normpath(root))) for file in files}
    if not found:
        raise DataError(
            f"{pattern} matches no file; put it in quotes, so that the shell leaves it alone, and "
            f"write ** for folders of any depth"
        )
    return [found[path] for path in sorted(found)]


def _relative(path: str, root: str) -> str:
    """Return a normalised path below `root` with ``/`` between its parts."""
    above = "" if root == "." else root if root.endswith("/") else f"{root}/"
    return path.removeprefix(above).removeprefix("./")


def folder_facts(
    name: str, *, split: Literal["hash", "folders"], where: str, archive: str = ""
) -> tuple[str, str | None]:
    """Return the split that the folders of a name give, and the first folder below it.

    Args:
        name: Name relative to the source, or inside its archive.
        split: ``folders``: the first folder names the split.
        where: The file for messages.
        archive: Name of the archive without suffix; names the split where no folder does.

    Raises:
        DataError: If a folder is missing or names no split.
    """
    folders, named_split = name.split("/")[:-1], ""
    if split == "folders":
        inside = folders[0].lower() if folders else ""
        if archive and inside not in (*SPLITS, *SPLIT_ALIASES):
            named_split = split_name(archive, where=where)
        elif folders:
            named_split = split_name(folders.pop(0), where=where)
        else:
            raise DataError(f"{where} lies in no split folder; allowed: {', '.join(SPLITS)}")
    return named_split, folders[0] if folders else None
