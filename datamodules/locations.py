"""Where things lie: local paths and URLs in one notation.

A location is text: a path, or a URL with a scheme.  A list of shards may be written with braces,
``train-{000000..000099}.tar``, and joined by ``::``, as WebDataset users write it.  Nothing here
touches a disk or a network.
"""

from __future__ import annotations

import math
import os
import re
from pathlib import Path

from braceexpand import braceexpand

from mae.errors import ConfigError

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_RANGE = re.compile(r"\{(-?\d+)\.\.(-?\d+)(?:\.\.-?\d+)?\}")
# Choice: a slip such as {0..99999999} would otherwise fill the memory before anything is said.
_MAX_EXPANDED = 1_000_000


def cache_folder(name: str) -> Path:
    """Return our folder of this name below ``$XDG_CACHE_HOME`` or ``~/.cache``."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "domain-mae" / name


def is_url(location: str) -> bool:
    """Return whether a location has a scheme, as ``s3://bucket/shards``."""
    return _SCHEME.match(location) is not None


def absolute(location: str) -> str:
    """Return a path that holds in every working directory; a URL stays what it is."""
    return location if is_url(location) else str(Path(location).absolute())


def join(root: str, name: str) -> str:
    """Return `name` below `root`; an absolute path or a URL stays what it is.

    Args:
        root: Directory or URL.
        name: Name below it, with ``/`` between its parts.
    """
    if is_url(name) or Path(name).is_absolute():
        return name
    return f"{root.rstrip('/')}/{name}" if is_url(root) else str(Path(root) / name)


def expand(text: str) -> list[str]:
    """Return the locations that a brace list stands for, in order.

    Args:
        text: One location or several joined by ``::``; braces as in a shell.

    Raises:
        ConfigError: If braces do not match, or stand for too many names.
    """
    found: list[str] = []
    for part in text.split("::"):
        # Counted first: braceexpand makes all names before it gives the first.
        ranges = [(int(first), int(last)) for first, last in _RANGE.findall(part)]
        count = math.prod(abs(last - first) + 1 for first, last in ranges)
        if count > _MAX_EXPANDED:
            raise ConfigError(
                f"{text!r} stands for {count:,} names; allowed: {_MAX_EXPANDED:,}. Write the "
                f"braces narrower, or give a folder"
            )
        try:
            found += braceexpand(part)
        except ValueError as error:
            raise ConfigError(
                f"{text!r} has braces that do not match; write for example "
                f"train-{{000000..000099}}.tar"
            ) from error
    return found
