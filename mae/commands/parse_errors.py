"""jsonargparse's complaints in our form: which value, what is allowed, what to do."""

from __future__ import annotations

import re

from mae.errors import ConfigError

_KEY = re.compile(r"(?:Parser key|[Aa]rgument|[Oo]ption) \"?-*([\w.]+)\"?")
_VALUE = re.compile(r"(?:Given|Got) value: (.+)")
_EXPECTED = re.compile(r"Subtypes: [\[(](.+?)[\])]\s*$|Expected an? (.+?)[.]? Got", re.MULTILINE)


def parse_complaint(error: Exception, *, help_command: str) -> ConfigError:
    """Return the error for the user.

    Args:
        error: What jsonargparse raised.
        help_command: Shows all options.
    """
    text = str(error)
    key, value, expected = (pattern.search(text) for pattern in (_KEY, _VALUE, _EXPECTED))
    if not (key and value and expected):
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return ConfigError(f"{' '.join(lines[:2])}\n{help_command} shows all")
    allowed = _plain(expected[1] or expected[2])
    return ConfigError(
        f"{key[1]} is {value[1].strip()!r}; allowed: {allowed}\n{help_command} shows all"
    )


def _plain(types: str) -> str:
    """Turn ``<class 'float'>, <class 'NoneType'>`` into ``float or none``."""
    names = re.sub(r"<class '(\w+)'>", r"\1", types).replace("typing.", "")
    names = re.sub(r"Literal\[(.+?)\]", r"\1", names).replace("NoneType", "none")
    return " or ".join(name.strip() for name in names.split(","))
