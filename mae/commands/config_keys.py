"""Command lines and configurations of the training verbs, as dotted keys.

A verb reads a few options itself; everything else is a ``--key value`` flag for Lightning's parser.
Unknown keys are looked for here, before that parser, because its own message names no near one.
"""

from __future__ import annotations

import argparse
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from mae.errors import ConfigError, did_you_mean
from mae.recipe import find_recipe

# What the lr schedule, the masks and the order of a run depend on.
_KEPT = ("model.", "seed_everything", "data.steps", "data.samples", "data.epochs")


def own_options(parser: argparse.ArgumentParser) -> set[str]:
    """Return the options that `parser` knows, with their dashes."""
    words = parser.format_usage().replace("[", " ").replace("]", " ").split()
    return {word for word in words if word.startswith("--")} | {"--help"}


def split_arguments(arguments: Sequence[str], own: Collection[str]) -> tuple[list[str], list[str]]:
    """Part a command line into what the verb reads itself and Lightning's ``--key value`` flags.

    Args:
        arguments: Command line after the verb.
        own: The verb's own options, with their dashes.
    """
    mine: list[str] = []
    flags: list[str] = []
    rest = deque(arguments)
    while rest:
        argument = rest.popleft()
        option, equals, _ = argument.partition("=")
        is_option = option.startswith("--")
        target = flags if is_option and option not in own else mine
        target.append(argument)
        has_value = is_option and not equals and option != "--help"
        if has_value and rest and not rest[0].startswith("--"):
            target.append(rest.popleft())
    return mine, flags


def config_files(own: Path, *, recipe: str | None, further: Sequence[str]) -> list[str]:
    """Return the ``--config`` arguments of a run, the ones that win last.

    Args:
        own: The run's configuration; where it exists it stands in the recipe's place.
        recipe: Name or file of the recipe.
        further: Files that the user laid over it.

    Raises:
        ConfigError: If there is neither a run nor a recipe of that name.
    """
    if not own.is_file() and not recipe:
        raise ConfigError("name a recipe (mae recipes list), or a run with --resume")
    base = own if own.is_file() else find_recipe(recipe or "")
    return [part for path in (base, *further) for part in ("--config", str(path))]


def copy_without(source: Path, target: Path, keys: Collection[str]) -> list[str]:
    """Copy a configuration without some keys; return those that it had.

    Args:
        source: YAML file.
        target: File to write.
        keys: Dotted names of two parts.

    Raises:
        ConfigError: If the file cannot be read.
    """
    content = _content(source)
    found = [key for key in sorted(keys) if key in _flat(content)]
    for key in found:
        group, name = key.split(".")
        del content[group][name]
    target.write_text(yaml.safe_dump(content), encoding="utf-8")
    return found


def is_given(key: str, args: Sequence[str]) -> bool:
    """Whether a flag or a file of `args` sets `key`."""
    files = [args[place + 1] for place, argument in enumerate(args) if argument == "--config"]
    return any(argument.partition("=")[0] == f"--{key}" for argument in args) or any(
        key in _keys_of_file(Path(path)) for path in files
    )


def refuse_unknown_keys(
    args: Sequence[str], *, known: Iterable[str], suggested: Iterable[str] = ()
) -> None:
    """Check flags and files for keys that nothing reads.

    Args:
        args: Command line as for `TrainingCLI`.
        known: All keys, dotted, groups included.
        suggested: Options with dashes that a flag may have been meant to be.

    Raises:
        ConfigError: Names the first unknown key, where it stands, and the nearest valid one.
    """
    names = set(known) | {"config"}
    for position, argument in enumerate(args):
        if not argument.startswith("--"):
            continue
        key, _, value = argument[2:].partition("=")
        if key == "config":
            path = value or args[position + 1]
            for found in _keys_of_file(Path(path)):
                _refuse_unknown(found, names, where=path)
        else:
            options = [option.removeprefix("--") for option in suggested]
            _refuse_unknown(key, names, where="the command line", suggested=options)


def _refuse_unknown(
    key: str, names: set[str], *, where: str, suggested: Iterable[str] = ()
) -> None:
    parents = {key.rsplit(".", depth)[0] for depth in range(key.count(".") + 1)}
    free_form = {"trainer.logger", "trainer.callbacks", "trainer.strategy", "trainer.plugins"}
    if key in names or parents & free_form:
        return
    raise ConfigError(
        f"unknown key {key!r} in {where}{did_you_mean(key, names.union(suggested))}\n"
        f"mae recipes show NAME explains the keys of a recipe"
    )


def _keys_of_file(path: Path) -> Iterable[str]:
    """Return the dotted keys of a YAML file."""
    return _flat(_content(path))


def _content(path: Path) -> dict[str, Any]:
    """Return what stands in a YAML file."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise ConfigError(f"cannot read the configuration {path}: {error}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path} is not a mapping of keys to values; see mae recipes show")
    return content


def refuse_lone_reset(options: argparse.Namespace) -> None:
    """Refuse ``--data-reset`` where nothing is resumed.

    Raises:
        ConfigError: Says where the option belongs.
    """
    if options.data_reset and not options.resume:
        raise ConfigError(
            "--data-reset lets a resumed run go on with other data; give --resume RUN with it, or "
            "leave it away"
        )


def report_changes(before: str, after: str, *, data_reset: bool = False) -> None:
    """Say what a resumed run does differently; refuse what would make it another run.

    Args:
        before: YAML of the run so far.
        after: YAML it would go on with.
        data_reset: Whether order and data, and so the seed, may change.

    Raises:
        ConfigError: If a key below ``model:``, the seed or the length changed; names both values.
    """
    old, new = _flat(yaml.safe_load(before)), _flat(yaml.safe_load(after))
    changes = {
        key: f"{key}: {old.get(key)!r} so far, {new.get(key)!r} now"
        for key in sorted(old.keys() | new.keys())
        if old.get(key) != new.get(key) and not isinstance(old.get(key, new.get(key)), Mapping)
    }
    kept = tuple(key for key in _KEPT if not (data_reset and key == "seed_everything"))
    refused = [text for key, text in changes.items() if key.startswith(kept)]
    if refused:
        raise ConfigError(
            f"a resumed run keeps its model, optimisation, seed and length; {'; '.join(refused)}; "
            f"resume without the change, or start a new run with --init-weights"
        )
    for text in changes.values():
        print(f"changed on resume: {text}")


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a nested mapping as dotted keys; groups stand in it as well."""
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        flat[f"{prefix}{name}"] = value
        if isinstance(value, Mapping):
            flat.update(_flat(value, f"{prefix}{name}."))
    return flat
