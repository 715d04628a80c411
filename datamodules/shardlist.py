"""Anybody's tars: which ones a folder, a pattern or a list stands for, and what their names say.

A list with a hole in it looks like a smaller data set, so numbers that are missing between others
are an error, and so is every name for which there is no file.
"""

from __future__ import annotations

import glob
import itertools
import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from datamodules.ledger import LEDGER_FILE
from datamodules.locations import expand, is_url
from datamodules.manifest import FILE_NAME
from datamodules.shardnames import gaps, late_starts, some
from datamodules.tarindex import INDEX_SUFFIX
from mae.errors import DataError

_SUFFIX = ".tar"
_OURS = (FILE_NAME, LEDGER_FILE, "left_out.csv")
_NUM_NAMED = 5
_MAX_SHOWN = 80  # letters of what may be no name at all
_STALL_S = 60.0  # without an answer of an object store
_GLOB = re.compile(r"[*?\[]")


@dataclass(frozen=True)
class ShardList:
    """Shards in order.

    Attributes:
        locations: Absolute path or URL of each.
        root: Deepest folder that holds them all; of URLs, its path.
        notes: Sentences about what was passed over.
    """

    locations: tuple[str, ...]
    root: str
    notes: tuple[str, ...] = field(default=())

    @property
    def names(self) -> tuple[str, ...]:
        """Path of each below `root`, with ``/`` between its parts."""
        paths = (urlsplit(name).path if is_url(name) else name for name in self.locations)
        return tuple(path.removeprefix(self.root).lstrip("/") for path in paths)


@dataclass
class _Found:
    """What was found so far."""

    locations: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    passed_over: Counter[str] = field(default_factory=Counter)
    is_searched: bool = False  # a folder or pattern, whose first number nobody has named


def list_shards(source: str, *, allow_gaps: bool = False) -> ShardList:
    """Return the shards that a source stands for.

    Args:
        source: A tar; a folder, with all folders below it; a pattern with ``*``; a brace list;
            several of these joined by ``::``; a text file with one of them per line; or URLs.
        allow_gaps: Pass over missing files and numbers instead of refusing.

    Raises:
        DataError: If there are no shards, or some are missing, or one is named twice.
        ConfigError: If braces do not match.
    """
    found = _Found()
    if not is_url(source) and Path(source).exists():  # a name with braces of its own
        _add(found, source)
    else:
        for name in expand(source):
            _add(found, name)
    notes = []
    if found.missing:
        problem = _missing(found, source)
        if not (allow_gaps and found.locations):
            raise DataError(
                f"{problem}; copy them here, or correct the name or the list (mae index passes "
                f"over them with --allow_gaps)"
            )
        notes.append(problem)
    if not found.locations:
        raise DataError(_nothing(found, source))
    twice = [name for name, count in Counter(found.locations).items() if count > 1]
    if twice:
        raise DataError(f"{source} names {some(twice)} more than once; name each shard once")
    listed = ShardList(tuple(found.locations), _common_root(found.locations, source))
    holes = list(gaps(listed.names))
    if holes and not allow_gaps:
        raise DataError(
            f"{source}: numbers are missing between others: {'; '.join(holes)}. Seen: "
            f"{some(listed.names)}. Copy the missing shards here, or add --allow_gaps if there "
            f"are none"
        )
    notes += [f"numbers are missing: {gap}" for gap in holes]
    if found.is_searched:
        notes += late_starts(listed.names)
    if found.passed_over:
        notes.append(f"passed over other files: {_counted(found.passed_over)}")
    return ShardList(listed.locations, listed.root, tuple(notes))


def is_tar(location: str) -> bool:
    """Return whether a path or URL ends in ``.tar``."""
    return (urlsplit(location).path if is_url(location) else location).endswith(_SUFFIX)


def _add(found: _Found, name: str, *, base: Path | None = None) -> None:
    """Add what one name stands for; relative ones lie below `base`."""
    if is_url(name):
        _add_url(found, name)
        return
    path = Path(os.path.abspath((base or Path()) / name))  # noqa: PTH100 (keeps links as they are)
    if path.is_dir():
        found.is_searched = True
        _add_folder(found, path)
    elif path.is_file():
        _add_file(found, path)
    elif _GLOB.search(name):
        found.is_searched = True
        matches = sorted(glob.glob(str(path), recursive=True))  # noqa: PTH207 (absolute pattern)
        if not matches:
            found.missing.append(str(path))
        for match in matches:
            if Path(match).is_dir():
                _add_folder(found, Path(match))
            else:
                _add_searched(found, Path(match))
    else:
        found.missing.append(str(path))


def _add_url(found: _Found, url: str) -> None:
    """Add a URL, or what a folder or pattern of an object store stands for."""
    is_pattern = "*" in url or "[" in url
    if is_tar(url) and not is_pattern:
        found.locations.append(url)
        return
    from datamodules.remote.filesystems import describe, filesystem, final_error, public, scheme

    if scheme(url) in ("http", "https"):
        raise DataError(
            f"{public(url)} is no .tar, and a web server does not tell what it has; give a brace "
            f"list as https://…/train-{{000000..000099}}.tar"
        )
    found.is_searched = True
    files = filesystem(url, stall_s=_STALL_S)
    try:
        names = files.glob(url) if is_pattern else files.find(url)
    except Exception as error:
        final = final_error(error, url)
        if final is error:
            raise
        why = describe(error) if final is None else final
        raise DataError(f"{public(url)} cannot be listed: {why}") from error
    tars = [files.unstrip_protocol(name) for name in sorted(names) if name.endswith(_SUFFIX)]
    found.locations += tars
    if not tars:
        found.missing.append(public(url))


def _add_folder(found: _Found, folder: Path) -> None:
    """Add the tars of all folders below; hidden ones are left alone."""
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            if not name.startswith("."):
                _add_searched(found, Path(place, name))


def _add_searched(found: _Found, path: Path) -> None:
    if path.name.endswith(_SUFFIX):
        found.locations.append(str(path))
    elif path.name not in _OURS and not path.name.endswith(INDEX_SUFFIX):
        found.passed_over[path.suffix or "no suffix"] += 1


def _add_file(found: _Found, path: Path) -> None:
    """Add a tar, or the lines of a list."""
    if path.name.endswith(_SUFFIX):
        found.locations.append(str(path))
        return
    if re.search(r"\.(tgz|tar\.\w+)$", path.name):
        raise DataError(f"{path} is compressed; unpack it to .tar, which can be read from anywhere")
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (UnicodeDecodeError, OSError) as error:
        raise DataError(
            f"{path} is neither a .tar nor a list of shards, one per line ({error})"
        ) from error
    for line in lines:
        if line.strip() and not line.startswith("#"):
            for name in expand(line.strip()):
                try:
                    _add(found, name, base=path.parent)
                except (OSError, ValueError):  # a line of prose is no name of a file
                    found.missing.append(name[:_MAX_SHOWN])


def _missing(found: _Found, source: str) -> str:
    folders = dict.fromkeys(Path(name).parent for name in found.missing)
    seen = [p.name for folder in folders if folder.is_dir() for p in sorted(folder.iterdir())]
    seen = [name for name in seen if name.endswith(_SUFFIX)] or seen
    return (
        f"{source}: {len(found.missing)} of {len(found.missing) + len(found.locations)} shards do "
        f"not exist: {some(found.missing)}. Seen beside them: {some(seen) or 'nothing'}"
    )


def _nothing(found: _Found, source: str) -> str:
    seen = _counted(found.passed_over) or "no files"
    hint = " Compressed tars must be unpacked first." if ".gz" in found.passed_over else ""
    return f"{source} holds no shards; looked for *{_SUFFIX} and saw {seen}.{hint}"


def _common_root(locations: Sequence[str], source: str) -> str:
    """Return the deepest folder of all; of a folder, itself."""
    if not is_url(source) and Path(source).is_dir():
        return os.path.abspath(source)  # noqa: PTH100
    paths = [urlsplit(name).path if is_url(name) else name for name in locations]
    folders = [path.rpartition("/")[0].split("/") for path in paths]
    same = itertools.takewhile(lambda parts: len(set(parts)) == 1, zip(*folders, strict=False))
    return "/".join(parts[0] for parts in same)


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.most_common(_NUM_NAMED))
