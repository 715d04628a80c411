"""Numbers and settings, written for a reader."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any

Rows = list[tuple[str, str]]


def number(value: float | int | None, digits: int = 4) -> str:
    """Write a number for a reader: whole numbers grouped, others with `digits` significant."""
    if value is None:
        return ""
    if isinstance(value, int) or (isfinite(value) and value == int(value) and abs(value) < 1e15):
        return f"{int(value):,}"
    return f"{value:.{digits}g}"


def percent(share: float) -> str:
    """Write a share in [0, 1] in percent with one decimal."""
    return f"{100 * share:.1f}"


def duration(seconds: float) -> str:
    """Write a time in the two largest units that it fills."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def flatten(values: Mapping[str, Any], prefix: str = "") -> Rows:
    """Return nested settings as (dotted name, value) rows."""
    rows: Rows = []
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            rows += flatten(value, f"{name}.")
        elif isinstance(value, list):
            separator = " " if key == "command" else ", "
            rows.append((name, separator.join(map(str, value)) or "none"))
        else:
            rows.append((name, "none" if value in (None, {}, "") else str(value)))
    return rows
