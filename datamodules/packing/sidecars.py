"""What is written beside an image: ``KEY.json`` and ``KEY.cls``, as WebDataset shards have them.

Of the JSON object the fields ``label``, ``labels``, ``group``, ``split`` and ``source`` count where
they are text or whole numbers; whatever else it holds is left alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from datamodules.guard import MAX_TEXT_BYTES
from datamodules.packing.items import split_name
from datamodules.packing.places import Place
from mae.errors import DataError


@dataclass(frozen=True, slots=True)
class Facts:
    """What the sidecars of one image say; None or empty where they say nothing.

    Attributes:
        labels: Class names.
        has_list: Whether they were given as a list, so that there may be several or none.
        group: Patient, scene …
        split: Name of the split.
        source: Name that the image had where it was first packed.
    """

    labels: tuple[str, ...] | None = None
    has_list: bool = False
    group: str | None = None
    split: str = ""
    source: str | None = None


def read_facts(
    sidecars: Mapping[str, Place], *, what: str, classes: Sequence[str] | None = None
) -> Facts:
    """Read the sidecars of one image.

    Args:
        sidecars: Places by suffix; ``json`` and ``cls`` are looked at.
        what: Name of the image for messages.
        classes: Class names that the numbers in ``cls`` stand for; None if they are unknown.

    Raises:
        DataError: If a sidecar is too large or no JSON object, or its class is none of `classes`.
    """
    fields = read_json(sidecars["json"], what=what) if "json" in sidecars else {}
    labels, has_list = _names(fields.get("labels")), True
    if labels is None:
        label, has_list = _text(fields.get("label"), what), False
        if label is None and "cls" in sidecars:
            label = _class_name(_read(sidecars["cls"], what=what), classes, what)
        labels = None if label is None else (label,)
    split = _text(fields.get("split"), what)
    source = fields.get("source")
    return Facts(
        labels=labels,
        has_list=has_list,
        group=_text(fields.get("group"), what),
        split=split_name(split, where=what) if split else "",
        source=source if isinstance(source, str) and _is_name(source) else None,
    )


def read_json(place: Place, *, what: str) -> dict[str, Any]:
    """Return the object that a JSON sidecar holds.

    Raises:
        DataError: If it is too large, or no JSON object.
    """
    try:
        fields = json.loads(_read(place, what=what))
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"the JSON sidecar of {what} cannot be read ({error}); repair it"
        ) from error
    if not isinstance(fields, dict):
        raise DataError(
            f"the JSON sidecar of {what} is a {type(fields).__name__}; allowed: an object "
            f'{{"name": value, …}}'
        )
    return fields


def group_of(fields: Mapping[str, Any], group_field: str, *, what: str) -> str:
    """Return the group that a field of a JSON sidecar names.

    Args:
        fields: The object.
        group_field: Name of the field.
        what: Name of the image for messages.

    Raises:
        DataError: If there is no such field, or it is neither text nor a whole number.
    """
    group = _text(fields.get(group_field), what)
    if not group:
        raise DataError(
            f"the JSON sidecar of {what} has no text or whole number in the field "
            f"{group_field!r}; it has the fields: {', '.join(sorted(fields)[:10]) or 'none'}"
        )
    return group


def _read(place: Place, *, what: str) -> bytes:
    if place.num_bytes > MAX_TEXT_BYTES:
        raise DataError(
            f"a sidecar of {what} has {place.num_bytes:,} bytes; allowed: {MAX_TEXT_BYTES:,}"
        )
    return place.read(what=f"the sidecar of {what}")


def _text(value: object, what: str) -> str | None:
    """Return text, or a whole number as text; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        return None
    text = str(value)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(f"a sidecar of {what} holds {text!r}, which is no valid text") from error
    return text.strip() or None


def _is_name(text: str) -> bool:
    """Return whether this can be a file's name, in whatever encoding."""
    try:
        return bool(text.encode("utf-8", "surrogateescape"))
    except UnicodeEncodeError:
        return False


def _names(values: object) -> tuple[str, ...] | None:
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        return None
    return tuple(sorted({value.strip() for value in values if value.strip()}))


def _class_name(data: bytes, classes: Sequence[str] | None, what: str) -> str | None:
    text = data.decode("utf-8", "replace").strip()
    if classes is None:
        return text or None
    if not text.isdecimal() or len(text) > 9 or int(text) >= len(classes):
        raise DataError(
            f"{what} has the class {text!r}; allowed: 0 … {len(classes) - 1}, the places in the "
            f"manifest's classes"
        )
    return classes[int(text)]
