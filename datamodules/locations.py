"""Where things lie: local paths and URLs in one notation.

A location is text: a path, a URL with a scheme, or ``pipe:COMMAND``.  A list of shards may be
written with braces, ``train-{000000..000099}.tar``, and joined by ``::``, as WebDataset users write
it.  A command is the shell's: ``::`` and braces in it stay what they are, but for ranges of
numbers.  Nothing here touches a disk or a network.
"""

from __future__ import annotations

import itertools
import os
import re
import string
from pathlib import Path

from braceexpand import braceexpand

from mae.errors import ConfigError

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
PIPE = "pipe:"
_SEPARATOR = re.compile(
    r"\[[^\[\]/]*\]|::"
)  # brackets hold the address of a host: http://[::1]:80/
_BRACES = re.compile(r"\\.|[{},]", re.DOTALL)
_INT_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)(?:\.\.-?(\d+))?\n?")  # as braceexpand has it
_CHAR_RANGE = re.compile(r"([A-Za-z])\.\.([A-Za-z])(?:\.\.-?(\d+))?\n?")
_NUMBERS = re.compile(r"(\{[0-9]{1,18}\.\.[0-9]{1,18}\})")  # what is expanded in a command
# Choice: a slip such as {0..99999999} would otherwise fill the memory before anything is said.
_MAX_EXPANDED = 1_000_000
_MAX_DEPTH = 16  # of braces in braces
_MAX_SHOWN = 300  # letters of a list in a message
_MAX_DIGITS = 18
_MANY = 10**15  # so many names are not counted further


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


def shown(location: str) -> str:
    """Return a location as it may be shown: a URL without its secrets."""
    if not is_url(location):
        return location
    from datamodules.remote.filesystems import public

    try:
        return public(location)
    except ValueError:  # no URL after all, so nobody knows where its secrets are
        return f"{location.partition('://')[0]}://…"


def split_list(text: str) -> list[str]:
    """Return what ``::`` joins; a command goes to the end of the text.

    Args:
        text: One location or several joined by ``::``.
    """
    parts, start = [], 0
    for found in _SEPARATOR.finditer(text):
        if text.startswith(PIPE, start):
            break
        if found.group() == "::":
            parts.append(text[start : found.start()])
            start = found.end()
    return [*parts, text[start:]]


def expand(text: str) -> list[str]:
    """Return the locations that a brace list stands for, in order.

    Args:
        text: One location or several joined by ``::``; braces as in a shell.  Of a command,
            ``pipe:COMMAND``, only ranges of numbers as ``{000..099}`` are expanded.

    Raises:
        ConfigError: If braces do not match, or stand for too many names.
    """
    parts = split_list(text)
    # Counted first: braceexpand makes all names before it gives the first.
    count = sum(_num_commands(p) if p.startswith(PIPE) else _num_names(p, text) for p in parts)
    if count > _MAX_EXPANDED:
        raise ConfigError(
            f"{_short(text)} stands for {f'{count:,}' if count < _MANY else 'too many'} names; "
            f"allowed: {_MAX_EXPANDED:,}. Write the braces narrower, or give a folder"
        )
    return [
        name for p in parts for name in (_commands(p) if p.startswith(PIPE) else braceexpand(p))
    ]


def _commands(text: str) -> list[str]:
    parts = [braceexpand(p) if _NUMBERS.fullmatch(p) else [p] for p in _NUMBERS.split(text)]
    return ["".join(of_command) for of_command in itertools.product(*parts)]


def _num_commands(text: str) -> int:
    count = 1
    for numbers in _NUMBERS.findall(text):
        count = min(count * _size_of_range(numbers[1:-1]), _MANY)
    return count


def _num_names(text: str, whole: str) -> int:
    """Return how many names braceexpand makes of a text.

    Raises:
        ConfigError: If braces do not match, or lie too deep in each other.
    """
    # Of each open brace: names of the alternatives so far, and of the one that is being read.
    frames, starts = [[0, 1]], [0]
    for found in _BRACES.finditer(text):
        if found.group() == "{":
            frames.append([0, 1])
            starts.append(found.end())
            if len(frames) > _MAX_DEPTH:
                raise ConfigError(f"{_short(whole)} has braces more than {_MAX_DEPTH - 1} deep")
        elif found.group() == "," and len(frames) > 1:
            frames[-1] = [min(sum(frames[-1]), _MANY), 1]
        elif found.group() == "}":
            if len(frames) == 1:
                raise _unmatched(whole)
            names = sum(frames.pop())
            names = _size_of_range(text[starts.pop() : found.start()]) or names
            frames[-1][1] = min(frames[-1][1] * names, _MANY)
    if len(frames) > 1:
        raise _unmatched(whole)
    return frames[0][1]


def _size_of_range(text: str) -> int:
    """Return how many values ``first..last`` has; 0 if it is no range."""
    if found := _INT_RANGE.fullmatch(text):
        if max(len(number or "") for number in found.groups()) > _MAX_DIGITS:
            return _MANY
        first, last, step = (int(number or 1) for number in found.groups())
        return abs(last - first) // (step or 1) + 1
    if found := _CHAR_RANGE.fullmatch(text):
        first, last = (string.ascii_letters.swapcase().index(c) for c in found.groups()[:2])
        return abs(last - first) + 1
    return 0


def _unmatched(text: str) -> ConfigError:
    return ConfigError(
        f"{_short(text)} has braces that do not match; write for example "
        f"train-{{000000..000099}}.tar"
    )


def _short(text: str) -> str:
    return repr(text) if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]!r}…"
