"""One image before it is read: where it lies, what it is called, its labels, group and split.

Where nothing names the split, a keyed hash of the group, or else of the name, decides: an image
keeps its split when others are added.  The seed is the key (the salt) of the hash.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from datamodules.packing.places import Place
from mae.errors import ConfigError, DataError, unknown_name

SPLITS = ("train", "val", "test")
SPLIT_ALIASES = {"training": "train", "valid": "val", "validation": "val", "dev": "val"}


@dataclass(frozen=True, slots=True)
class Item:
    """One image.

    Attributes:
        place: Where its bytes lie.
        name: Name inside the source, the same on every machine; no two items share it.
        labels: Class names: one, or any number where the source has several labels; None where it
            has no labels at all.
        group: Patient, scene, site …
        split: ``train``, ``val`` or ``test`` where the source names it, otherwise empty.
    """

    place: Place
    name: str
    labels: tuple[str, ...] | None = None
    group: str | None = None
    split: str = ""


@dataclass(frozen=True)
class Listing:
    """All images of a source, sorted by name.

    Attributes:
        items: The images.
        notes: Sentences about what was passed over.
        multilabel: Whether an image may have several labels, or none.
    """

    items: tuple[Item, ...]
    notes: tuple[str, ...] = field(default=())
    multilabel: bool = False

    @property
    def is_labelled(self) -> bool:
        """Whether the images have labels."""
        return any(item.labels is not None for item in self.items)


def split_name(name: str, *, where: str) -> str:
    """Return the split that a folder or a cell names.

    Raises:
        DataError: If it names none.
    """
    found = SPLIT_ALIASES.get(name.lower(), name.lower())
    if found not in SPLITS:
        raise DataError(f"{where}: {unknown_name('split', name, SPLITS)}")
    return found


def with_groups(items: Sequence[Item], group_regex: str) -> list[Item]:
    """Return the items with the group that an expression finds in their names.

    Args:
        items: The images.
        group_regex: Its first bracket, or else the whole match, is the group.

    Raises:
        DataError: If it does not match every name.
        ConfigError: If it is no expression.
    """
    try:
        pattern = re.compile(group_regex)
    except re.error as error:
        raise ConfigError(f"group_regex {group_regex!r} is no expression: {error}") from error
    grouped = []
    for item in items:
        found = pattern.search(item.name)
        group = found and (found.group(1) if pattern.groups else found.group())
        if not group:
            raise DataError(
                f"group_regex {group_regex!r} finds no group in {item.name!r}; it must match every "
                f"path, or patients could stand in two splits"
            )
        grouped.append(replace(item, group=group))
    return grouped


def assign_splits(
    items: Iterable[Item], *, val_fraction: float, test_fraction: float, seed: int
) -> list[Item]:
    """Give every item a split: its own where the source names one, otherwise by keyed hash.

    Args:
        items: Listed images.
        val_fraction: Share of groups (or images) for validation, in [0, 1).
        test_fraction: Share for testing, in [0, 1).
        seed: Key of the hash.

    Raises:
        DataError: If a group stands in two splits.
        ConfigError: If the fractions leave nothing for training.
    """
    if val_fraction < 0 or test_fraction < 0 or val_fraction + test_fraction >= 1:
        raise ConfigError(
            f"val_fraction {val_fraction} and test_fraction {test_fraction} must be >= 0 and "
            f"together below 1, so that something remains for training"
        )
    fractions = (val_fraction, test_fraction)
    placed = [i if i.split else replace(i, split=_drawn(i, fractions, seed)) for i in items]
    _check_groups(placed)
    return placed


def shuffled(items: Iterable[Item], *, seed: int) -> list[Item]:
    """Return the items in the order of a keyed hash of their names.

    # Choice: neighbours in a folder (one class, one patient, one scene) would fill whole shards,
    # and a window of shards would then hold few classes.
    """
    return sorted(items, key=lambda item: _digest(item.name, seed, "order"))


def class_names(items: Iterable[Item]) -> tuple[str, ...] | None:
    """Return the sorted class names, numbers by value; None if nothing is labelled."""
    names = {name for item in items for name in item.labels or ()}
    if not names:
        return None
    if all(re.fullmatch(r"-?\d{1,18}", name) for name in names):
        return tuple(sorted(names, key=lambda name: (int(name), name)))
    return tuple(sorted(names))


def _drawn(item: Item, fractions: tuple[float, float], seed: int) -> str:
    """Draw val and test by the hash of the group, or of the name where there is none."""
    unit = item.name if item.group is None else item.group
    share = int.from_bytes(_digest(unit, seed, "split")) / 2**64
    val, test = fractions
    return "val" if share < val else "test" if share < val + test else "train"


def _check_groups(items: Sequence[Item]) -> None:
    split_of: dict[str, Item] = {}
    for item in items:
        if item.group is None:
            continue
        first = split_of.setdefault(item.group, item)
        if first.split != item.split:
            raise DataError(
                f"group {item.group!r} stands in two splits: {first.name!r} in {first.split} and "
                f"{item.name!r} in {item.split}; give each group one split"
            )


def _digest(text: str, seed: int, purpose: str) -> bytes:
    key = f"{seed}:{purpose}".encode()
    return hashlib.blake2b(text.encode("utf-8", "surrogateescape"), key=key, digest_size=8).digest()
