"""Command lines from function signatures, through jsonargparse.

Positional parameters become positional arguments, keyword-only ones become options, spelled with
underscores or dashes; the help text is the docstring's.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any, get_type_hints

import jsonargparse

from mae.commands.parse_errors import parse_complaint
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
    text = inspect.getdoc(function) or ""
    description = text.partition("\n\nArgs:")[0]  # each option has its own line of help
    parser = jsonargparse.ArgumentParser(prog=prog, description=description, exit_on_error=False)
    optional = _optional_positionals(function)
    parser.add_function_arguments(
        function, as_group=False, as_positional=True, skip={name for name, _, _ in optional}
    )
    for name, kind, default in optional:  # jsonargparse itself would make options of them
        line = re.search(rf"^ *{name}: (.+)$", text, re.MULTILINE)
        parser.add_argument(
            name, nargs="?", type=kind, default=default, help=line[1] if line else None
        )
    options = {action for action in parser._option_string_actions if action.startswith("--")}
    arguments = _with_values([_with_underscores(argument) for argument in arguments], function)
    for argument in arguments:
        option = argument.partition("=")[0]
        if option.startswith("--") and option not in options:
            raise ConfigError(
                f"unknown option {option!r} of {prog}{did_you_mean(option, options)}\n"
                f"{prog} --help shows all"
            )
    try:
        values = parser.parse_args(arguments)
    except (jsonargparse.ArgumentError, TypeError, ValueError) as error:
        raise parse_complaint(error, help_command=f"{prog} --help") from error
    return function(**values.as_dict())


def _optional_positionals(function: Callable[..., Any]) -> list[tuple[str, Any, Any]]:
    """Return name, type and default of the positional parameters that may be left out."""
    found = [
        parameter
        for parameter in inspect.signature(function).parameters.values()
        if parameter.kind is parameter.POSITIONAL_OR_KEYWORD
        and parameter.default is not parameter.empty
    ]
    hints = get_type_hints(function) if found else {}
    return [(parameter.name, hints[parameter.name], parameter.default) for parameter in found]


def _with_values(arguments: Sequence[str], function: Callable[..., Any]) -> list[str]:
    """Let ``--overwrite`` alone stand for ``--overwrite true``."""
    switches = {
        f"--{name}"
        for name, parameter in inspect.signature(function).parameters.items()
        if isinstance(parameter.default, bool)
    }
    found: list[str] = []
    for argument, following in zip(arguments, [*arguments, "--"][1:], strict=True):
        is_bare = argument in switches and following.startswith("--")
        found.append(f"{argument}=true" if is_bare else argument)
    return found


def _with_underscores(argument: str) -> str:
    """Let ``--val-fraction`` stand for ``--val_fraction``; leave values alone."""
    if not argument.startswith("--"):
        return argument
    option, equals, value = argument[2:].partition("=")
    return f"--{option.replace('-', '_')}{equals}{value}"
