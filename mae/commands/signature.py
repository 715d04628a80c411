"""Command lines from function signatures, through jsonargparse.

Positional parameters become positional arguments, keyword-only ones become options; the help text
is the docstring's.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jsonargparse

from mae.errors import ConfigError, did_you_mean


def call_with_arguments(
    function: Callable[..., Any], arguments: Sequence[str], *, prog: str
) -> Any:
    """Parse `arguments` after `function`'s signature and call it.

    Args:
        function: With annotated parameters and a Google-style docstring.
        arguments: Command line after the verb.
        prog: How the command is called, for the help.

    Raises:
        ConfigError: For unknown options, missing or impossible values; names the nearest option.
    """
    parser = jsonargparse.ArgumentParser(
        prog=prog, description=inspect.getdoc(function), exit_on_error=False
    )
    parser.add_function_arguments(function, as_group=False, as_positional=True)
    options = {action for action in parser._option_string_actions if action.startswith("--")}
    for argument in arguments:
        option = argument.partition("=")[0]
        if option.startswith("--") and option not in options:
            raise ConfigError(f"unknown option {option!r} of {prog}{did_you_mean(option, options)}")
    try:
        values = parser.parse_args(list(arguments))
    except (jsonargparse.ArgumentError, TypeError, ValueError) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise ConfigError(
            f"{lines[0]}\n{' '.join(lines[1:2])} ({prog} --help shows all)"
        ) from error
    return function(**values.as_dict())
