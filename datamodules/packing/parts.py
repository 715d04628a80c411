"""A part of a source while it is listed: images by name, and what was passed over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from datamodules.packing.folders import folder_facts, split_suffix
from datamodules.packing.items import Item
from datamodules.packing.places import Place, StoredPlace
from datamodules.packing.sidecars import Facts, group_of, read_facts, read_json
from mae.errors import ConfigError, DataError

_NOTHING = Facts()


@dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """How labels, groups and splits are found; see `datamodules.pack.pack`.

    Raises:
        ConfigError: If they contradict each other.
    """

    labels: Literal["none", "folders", "multi"] = "none"
    label_separator: str = "|"
    split: Literal["hash", "folders"] = "hash"
    group_regex: str | None = None
    group_field: str | None = None

    def __post_init__(self) -> None:
        if self.group_regex is not None and self.group_field is not None:
            raise ConfigError(
                "group_regex and group_field are both given; a group comes from one of them"
            )
        if self.labels == "multi" and not self.label_separator.strip():
            raise ConfigError("label_separator is empty; give what stands between labels, as '|'")


@dataclass
class Part:
    """Images of one part of a source.

    Attributes:
        items: The images; names are unique.
        own_names: Names that come from sidecars and are kept when parts are joined.
        kinds: Whether labels are lists: True or False, both where sidecars differ.
        passed_over: Other files, counted by suffix.
        notes: Sentences for the user.
    """

    items: list[Item] = field(default_factory=list)
    own_names: set[str] = field(default_factory=set)
    kinds: set[bool] = field(default_factory=set)
    passed_over: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)

    def add_image(
        self,
        place: Place,
        name: str,
        options: SourceOptions,
        *,
        where: str,
        sidecars: Mapping[str, Place] | None = None,
        classes: tuple[str, ...] | None = None,
        split: str = "",
        archive: str = "",
    ) -> None:
        """Take in one image of a folder or archive.

        Args:
            place: Where its bytes lie.
            name: Its name, relative to the part.
            options: How labels, groups and splits are found.
            where: The image for messages.
            sidecars: ``KEY.json`` and ``KEY.cls`` that belong to it.
            classes: What the numbers in ``KEY.cls`` stand for.
            split: The split that a manifest names.
            archive: Name of its archive without suffix.

        Raises:
            DataError: If label, group or split cannot be found.
        """
        facts = read_facts(sidecars, what=where, classes=classes) if sidecars else _NOTHING
        of_folder, folder = folder_facts(name, split=options.split, where=where, archive=archive)
        labels, has_list = facts.labels, facts.has_list
        if options.labels == "folders" and (folder or labels is None):
            labels, has_list = (folder or archive,), False
            if not labels[0]:
                raise DataError(
                    f"{where} lies in no class folder, so it has no label; move it into one, or "
                    f"pack without --labels folders"
                )
        group = facts.group
        if options.group_field is not None:
            found = sidecars["json"] if sidecars and "json" in sidecars else None
            group = group_beside(place, options.group_field, where=where, sidecar=found)
        if facts.source is not None and facts.source not in self.own_names:
            name = facts.source
            self.own_names.add(name)
        if labels is not None:
            self.kinds.add(has_list)
        self.items.append(Item(place, name, labels, group, of_folder or split or facts.split))

    def join(self, other: Part, prefix: str = "") -> None:
        """Take in another part; its names get a prefix, but those that are its own and free."""
        for item in other.items:
            if item.name in other.own_names and item.name not in self.own_names:
                self.own_names.add(item.name)
                self.items.append(item)
            else:
                self.items.append(
                    replace(item, name=f"{prefix}/{item.name}" if prefix else item.name)
                )
        self.kinds |= other.kinds
        self.passed_over += other.passed_over
        self.notes += other.notes


def group_beside(
    place: Place, group_field: str, *, where: str, sidecar: Place | None = None
) -> str:
    """Return the group that the JSON sidecar of an image names.

    Args:
        place: The image; its sidecar is the file of the same name with the suffix ``.json``,
        group_field: Field of the sidecar.
        where: The image for messages.
        sidecar: unless it lies here.

    Raises:
        DataError: If there is no sidecar or no such field.
    """
    if sidecar is None:
        path = f"{split_suffix(place.path)[0]}.json"
        sidecar = StoredPlace.of_file(path) if Path(path).is_file() else None
    if sidecar is None:
        raise DataError(
            f"{where} has no JSON sidecar, so --group_field {group_field} finds no group; put a "
            f"file of the same name with the suffix .json beside every image"
        )
    return group_of(read_json(sidecar, what=where), group_field, what=where)
