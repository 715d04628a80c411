"""The one family of errors that users see.

Every message names which value is wrong, what is allowed, and what to do.  Anything that is not a
`MAEError` is a defect of this package and keeps its traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class MAEError(Exception):
    """Base of all errors that the user can act on."""


class ConfigError(MAEError, ValueError):
    """A setting is impossible or contradicts another one."""


class DataError(MAEError):
    """Images, labels, shards or a manifest are missing, unreadable or contradict each other."""


class WeightsError(MAEError):
    """Weights are missing, of another architecture, or would change their meaning when loaded."""


class OutputError(MAEError):
    """A file or folder cannot be written: no space, no permission, or it exists already."""


class DivergedError(MAEError):
    """Training produced non-finite numbers and was stopped."""


def did_you_mean(name: str, options: Iterable[str]) -> str:
    """Return `` (did you mean 'x'?)`` for the option nearest to `name`, or an empty string."""
    nearest = difflib.get_close_matches(name, list(options), n=1, cutoff=0.6)
    return f" (did you mean {nearest[0]!r}?)" if nearest else ""


def unknown_name(what: str, name: str, options: Iterable[str]) -> ConfigError:
    """Return the error for a `name` that is none of `options`, with the nearest valid one.

    Args:
        what: What the name stands for, e.g. ``"recipe"``.
        name: The name as the user wrote it.
        options: All valid names.
    """
    known = sorted(options)
    return ConfigError(
        f"unknown {what} {name!r}{did_you_mean(name, known)}\nknown: {', '.join(known)}"
    )
