"""JSON objects from outside, taken apart field by field.

A file that came from a server may hold anything.  What a field must be is said where it is read,
and whatever else it is becomes one kind of error: file, field, value, what is allowed.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, NoReturn

from datamodules.locations import is_url
from mae.errors import DataError

_LARGEST = 2**63 - 1
_MAX_SHOWN = 60  # letters of a value in a message
_DIGEST = re.compile(r"[0-9a-f]{64}")


def parse(data: bytes, *, place: str) -> Any:
    """Return what a JSON file holds.

    Args:
        data: The file.
        place: Its name for the message.

    Raises:
        DataError: If it is no JSON, or is nested too deep.
    """
    try:
        return json.loads(data, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place} cannot be read as JSON ({error}); copy it here again") from error


class Fields:
    """An object that has certain fields and no others.

    Args:
        values: What the file has in its place.
        names: The fields.
        place: Name of the file for messages.
        name: Name of the object inside the file, with a dot behind it; empty for all of it.

    Raises:
        DataError: If it is no object, or lacks a field, or has one that nobody knows.
    """

    def __init__(self, values: object, names: Collection[str], *, place: str, name: str = ""):
        self.place, self.name = place, name
        if not isinstance(values, dict):
            raise DataError(
                f"{place}: {name.rstrip('.') or 'all of it'} is {_short(values)}; allowed: an "
                f"object with the fields {', '.join(names)}"
            )
        lacking = [field for field in names if field not in values]
        unknown = [field for field in values if field not in names]
        if lacking or unknown:
            raise DataError(
                f"{place} lacks or misspells fields of {name.rstrip('.') or 'the whole'}: lacks "
                f"{', '.join(lacking) or 'none'}; has unknown "
                f"{', '.join(map(_short, unknown)) or 'none'}. Pack or index the images again"
            )
        self.values = values

    def take(self, field: str, is_allowed: Callable[[Any], bool], allowed: str) -> Any:
        """Return a field.

        Args:
            field: Its name.
            is_allowed: Whether a value can be used.
            allowed: The same in words.

        Raises:
            DataError: If it cannot.
        """
        if not is_allowed(self.values[field]):
            self.refuse(field, allowed)
        return self.values[field]

    def refuse(self, field: str, allowed: str) -> NoReturn:
        """Refuse the value of a field.

        Raises:
            DataError: Always.
        """
        raise DataError(
            f"{self.place}: {self.name}{field} is {_short(self.values[field])}; allowed: "
            f"{allowed}. Copy the file here again, or pack or index the images again"
        )

    def text(self, field: str) -> str:
        """Return a text."""
        found: str = self.take(field, is_text, "a text")
        return found

    def count(self, field: str) -> int:
        """Return a whole number of things."""
        found: int = self.take(field, is_count, "a whole number, 0 or more")
        return found

    def digest(self, field: str) -> str:
        """Return a SHA-256."""
        found: str = self.take(
            field, lambda v: is_text(v) and bool(_DIGEST.fullmatch(v)), "64 hexadecimal digits"
        )
        return found

    def flag(self, field: str) -> bool:
        """Return true or false."""
        found: bool = self.take(field, lambda v: isinstance(v, bool), "true or false")
        return found

    def texts(self, field: str) -> tuple[str, ...]:
        """Return a list of different texts."""
        allowed = "a list of texts, each once"
        found = self.take(field, lambda v: is_list(v, is_text) and len(set(v)) == len(v), allowed)
        return tuple(found)

    def numbers(self, field: str, length: int | None = None) -> tuple[float, ...]:
        """Return a list of finite numbers, of `length` where one is given."""
        allowed = "a list of numbers" if length is None else f"a list of {length} numbers"
        return tuple(self.take(field, lambda v: is_list(v, is_number, length), allowed))

    def size(self, field: str) -> tuple[int, int]:
        """Return height and width."""
        found = self.take(field, lambda v: is_list(v, is_count, 2), "[height, width]")
        return found[0], found[1]

    def counts(self, field: str) -> Mapping[str, int]:
        """Return numbers by name."""
        allowed = "an object of whole numbers, 0 or more"
        found: dict[str, int] = self.take(field, is_counts, allowed)
        return found


def is_text(value: object) -> bool:
    """Return whether a value is a text."""
    return isinstance(value, str)


def is_name(value: object) -> bool:
    """Return whether a value is a text that can be part of a path or URL."""
    if not isinstance(value, str) or not value or "\0" in value:
        return False
    try:
        os.fsencode(value)
    except UnicodeEncodeError:  # half a character
        return False
    return True


def is_path(value: object) -> bool:
    """Return whether a value is a path without ``..``, or an absolute one, or a URL."""
    if not (isinstance(value, str) and is_name(value)):
        return False
    return is_url(value) or Path(value).is_absolute() or ".." not in value.split("/")


def is_count(value: object) -> bool:
    """Return whether a value is a whole number from 0 to the largest of 64 bits."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _LARGEST


def is_number(value: object) -> bool:
    """Return whether a value is a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) <= _LARGEST if isinstance(value, int) else math.isfinite(value)


def is_list(value: object, of: Callable[[object], bool], length: int | None = None) -> bool:
    """Return whether a value is a list whose values are all allowed, of `length` if given."""
    return isinstance(value, list) and length in (None, len(value)) and all(map(of, value))


def is_counts(value: object) -> bool:
    """Return whether a value is an object of counts."""
    return isinstance(value, dict) and all(map(is_count, value.values()))


def is_shallow(value: object, depth: int) -> bool:
    """Return whether a value nests `depth` times at most, and its numbers are finite."""
    if isinstance(value, dict | list):
        inner = value.values() if isinstance(value, dict) else value
        return depth > 0 and all(is_shallow(each, depth - 1) for each in inner)
    return value is None or isinstance(value, str | bool) or is_number(value)


def _short(value: object) -> str:
    if isinstance(value, dict | list):
        return f"{'an object' if isinstance(value, dict) else 'a list'} of {len(value)} values"
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > _LARGEST:
        return "a number beyond 64 bits"
    text = json.dumps(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")
