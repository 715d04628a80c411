"""What the names of shards say: which numbers are missing, and which split a shard belongs to."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Literal, get_args

from datamodules.packing.items import SPLIT_ALIASES, SPLITS, split_name
from mae.errors import ConfigError, DataError, unknown_name

SplitRule = Literal["names", "train", "val", "test"]

_SUFFIX = ".tar"
_NUM_NAMED = 5
_LAST_NUMBER = re.compile(r"^(.*?)(\d+)(\D*)$")
_NUMBER_OF_TOTAL = re.compile(r"^(.*?)(\d+)(-of-)(\d+)(\D*)$")


def splits_of(names: Sequence[str], rule: SplitRule, regex: str | None = None) -> list[str]:
    """Return the split of each shard.

    Args:
        names: Names of the shards, with folders.
        rule: ``names`` goes by words of the file's name, or else of its folders, the inner ones
            first, and takes ``train`` where no shard's name says anything; ``train``, ``val`` and
            ``test`` stand for all shards.
        regex: Expression on the name instead; its first bracket, or else the whole match, is the
            split.

    Raises:
        DataError: If some names say a split and others do not, or one says two.
        ConfigError: If the rule is unknown, or the expression is none.
    """
    if regex is not None:
        if rule != "names":
            raise ConfigError(f"split is {rule} and split_regex {regex!r}; give one of them")
        return [_matched_split(name, regex) for name in names]
    if rule not in get_args(SplitRule):
        raise unknown_name("split", rule, get_args(SplitRule))
    if rule != "names":
        return [rule] * len(names)
    found = [_named_splits(name) for name in names]
    silent = [name for name, splits in zip(names, found, strict=True) if not splits]
    if len(silent) == len(names):
        return ["train"] * len(names)
    double = [name for name, splits in zip(names, found, strict=True) if len(splits) > 1]
    if silent or double:
        fault = f"{some(silent)} say none" if silent else f"{some(double)} say two"
        raise DataError(
            f"names of shards say which split they belong to ({', '.join(SPLITS)}), but {fault}; "
            f"add --split train for all, or --split_regex with the split in brackets"
        )
    return [split for splits in found for split in splits]


def gaps(names: Sequence[str]) -> Iterator[str]:
    """Yield a phrase for each series of numbered names with holes in it."""
    for pattern, numbers, total in _series(names):
        ends = [*sorted(numbers), max(total or 0, max(numbers) + 1)]
        starts = [-1 if total is not None else min(numbers) - 1, *sorted(numbers)]
        holes = [(a + 1, b - 1) for a, b in zip(starts, ends, strict=True) if b - a > 1]
        count = sum(last - first + 1 for first, last in holes)
        # Choice: names that are mostly holes are dates or identifiers, no numbering.
        if holes and (total is not None or count <= len(numbers)):
            ranges = [str(a) if a == b else f"{a}-{b}" for a, b in holes]
            yield f"{pattern} lacks {count:,}: {some(ranges)}"


def late_starts(names: Sequence[str]) -> list[str]:
    """Return a phrase for each series that begins neither at 0 nor at 1."""
    return [
        f"{pattern} begins at number {min(numbers)}"
        for pattern, numbers, total in _series(names)
        if total is None and min(numbers) > 1 and max(numbers) - min(numbers) < 2 * len(numbers)
    ]


def _series(names: Sequence[str]) -> list[tuple[str, set[int], int | None]]:
    """Return pattern, numbers, and the declared total, of names that differ in one number."""
    series: dict[tuple[str, int | None], set[int]] = {}
    key: tuple[str, int | None]
    for name in names:
        stem = name.removesuffix(_SUFFIX)
        found = _NUMBER_OF_TOTAL.match(stem)
        if found:
            before, number, of, total, after = found.groups()
            key = (f"{before}N{of}{total}{after}", int(total))
        else:
            found = _LAST_NUMBER.match(stem)
            if not found:
                continue
            before, number, after = found.groups()
            key = (f"{before}N{after}", None)
        series.setdefault(key, set()).add(int(number))
    return [
        (pattern + _SUFFIX, numbers, total)
        for (pattern, total), numbers in series.items()
        if len(numbers) > 1 or total is not None
    ]


def _named_splits(name: str) -> set[str]:
    for part in reversed(name.removesuffix(_SUFFIX).split("/")):
        words = (word.rstrip("0123456789") for word in re.split(r"[^a-z0-9]+", part.lower()))
        found = {SPLIT_ALIASES.get(word, word) for word in words} & set(SPLITS)
        if found:
            return found
    return set()


def _matched_split(name: str, regex: str) -> str:
    try:
        pattern = re.compile(regex)
    except re.error as error:
        raise ConfigError(f"split_regex {regex!r} is no expression: {error}") from error
    found = pattern.search(name)
    split = found and (found.group(1) if pattern.groups else found.group())
    if not split:
        raise DataError(
            f"split_regex {regex!r} finds no split in {name!r}; it must match all names"
        )
    return split_name(split, where=name)


def some(names: Sequence[str]) -> str:
    """Return some names, and how many there are."""
    more = f" … ({len(names)} in all)" if len(names) > _NUM_NAMED else ""
    return ", ".join(names[:_NUM_NAMED]) + more
