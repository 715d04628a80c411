"""What is to be packed: files, labels, groups and splits, before any pixel is read.

A source is a folder, a pattern (``imgs/**/*.tif``), a CSV, a text file with one path per line, a
tar or zip archive, or existing shards; several are joined by ``::`` or written with braces.  In a
tar, ``KEY.json`` and ``KEY.cls`` beside ``KEY.png`` are taken as WebDataset takes them; in a
shard directory, the manifest names splits and classes, and its checksums are verified.
"""

from __future__ import annotations

import glob
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from datamodules.guard import IMAGE_SUFFIXES, TEXT_SUFFIXES
from datamodules.locations import expand, is_url
from datamodules.manifest import FILE_NAME, Manifest
from datamodules.packing.archives import ARCHIVE_SUFFIXES, list_archive
from datamodules.packing.folders import Leaf, fixed_part, match_pattern, split_suffix, walk_folder
from datamodules.packing.items import SPLIT_ALIASES, SPLITS, Item, Listing, with_groups
from datamodules.packing.parts import Part, SourceOptions, group_beside
from datamodules.packing.places import Place, StoredPlace
from datamodules.packing.shards import read_samples
from datamodules.packing.tables import list_csv, places_of, read_list
from mae.errors import ConfigError, DataError

_COMPRESSED_SUFFIXES = ("gz", "tgz", "bz2", "tbz2", "xz", "txz", "zst", "7z", "rar")


def list_source(source: Path | str, options: SourceOptions | None = None) -> Listing:
    """List a source with labels and groups, and the splits that the source itself names.

    Args:
        source: See above.
        options: How labels, groups and splits are found.

    Raises:
        DataError: If there are no images, or labels, groups or splits are missing.
        ConfigError: If options do not fit the source.
    """
    options, text = options or SourceOptions(), str(source)
    places = [text] if os.path.lexists(text) else expand(text)
    part = _list_part(places[0], options) if len(places) == 1 else _joined(places, options)
    _check(text, part, options)
    notes = list(part.notes)
    if part.passed_over:
        notes.append(f"passed over other files: {_seen(part.passed_over)}")
    items = part.items
    if options.group_regex is not None:
        items = with_groups(items, options.group_regex)
    if _is_own_group_each(items, options):
        option = "group_regex" if options.group_regex else "group_field"
        value = options.group_regex or options.group_field
        notes.append(f"{option} {value!r} makes every image a group of its own")
    items = sorted(items, key=lambda item: item.name)
    return Listing(tuple(items), tuple(notes), multilabel=part.kinds == {True})


def _list_part(place: str, options: SourceOptions) -> Part:
    if is_url(place):
        raise ConfigError(f"{place} is a URL; `mae pack` reads files on disks: fetch it first")
    path = Path(place)
    if not path.exists():
        if _is_pattern(place):
            return _list_leaves(match_pattern(place), options, looked_in=place)
        raise DataError(f"{place} does not exist; give a folder of images, an archive or a CSV")
    if not path.is_dir():
        return _list_file(path, options)
    if (path / FILE_NAME).is_file():
        return _list_shards(place, options)
    leaves = list(walk_folder(place))
    with_images = any(split_suffix(leaf.name)[1] in IMAGE_SUFFIXES for leaf in leaves)
    return _list_leaves(leaves, options, looked_in=place, archives=not with_images)


def _is_pattern(place: str) -> bool:
    return glob.has_magic(place) and not Path(place).exists()


def _list_file(path: Path, options: SourceOptions) -> Part:
    suffix = split_suffix(path.name)[1]
    if suffix in ARCHIVE_SUFFIXES or suffix in _COMPRESSED_SUFFIXES:
        return _list_archive(str(path), options)
    if suffix in IMAGE_SUFFIXES:
        return _list_leaves([Leaf(str(path), path.name)], options, looked_in=str(path))
    if suffix == "txt":
        names = read_list(path)
        places = places_of(path, names, first_row=1)
        pairs = zip(places, names, strict=True)
        leaves = [Leaf(place.path, Path(name).as_posix()) for place, name in pairs]
        return _list_leaves(leaves, options, looked_in=str(path))
    if options.labels == "folders" or options.split == "folders":
        raise ConfigError(
            f"{path} is a file, so labels and splits come from its columns; leave out "
            f"--labels folders and --split folders, or give a folder"
        )
    separator = options.label_separator if options.labels == "multi" else None
    items, notes = list_csv(path, label_separator=separator)
    if options.group_field is not None:
        items = [
            replace(item, group=group_beside(item.place, options.group_field, where=item.name))
            for item in items
        ]
    is_labelled = any(item.labels is not None for item in items)
    return Part(items, kinds={separator is not None} if is_labelled else set(), notes=notes)


def _list_leaves(
    leaves: Iterable[Leaf], options: SourceOptions, *, looked_in: str, archives: bool = True
) -> Part:
    """Take images as they are; names of an archive's members begin with the archive's own."""
    part = Part()
    for leaf in leaves:
        suffix = split_suffix(leaf.name)[1]
        if archives and suffix in ARCHIVE_SUFFIXES:
            part.join(_list_archive(leaf.path, options), split_suffix(leaf.name)[0])
            continue
        place = StoredPlace.of_file(leaf.path) if suffix in IMAGE_SUFFIXES else None
        if place is None:
            part.passed_over[suffix or "no suffix"] += 1
        else:
            part.add_image(place, leaf.name, options, where=leaf.path)
    return _not_empty(part, looked_in)


def _list_archive(path: str, options: SourceOptions) -> Part:
    """List the images of a tar or zip; what has one name up to the last dot belongs together."""
    members = list_archive(path)
    beside: dict[str, dict[str, Place]] = {}
    for member in members:
        stem, suffix = split_suffix(member.name)
        if suffix in TEXT_SUFFIXES:
            beside.setdefault(stem, {})[suffix] = member.place
    archive, kind = split_suffix(Path(path).name)
    part, in_tar, unused = Part(), kind == "tar", set(beside)
    for member in members:
        stem, suffix = split_suffix(member.name)
        if suffix in IMAGE_SUFFIXES:
            unused.discard(stem)
            part.add_image(
                member.place,
                member.name,
                options,
                where=f"{path}: {member.name}",
                sidecars=beside.get(stem) if in_tar or options.group_field else None,
                archive=archive,
            )
        elif suffix not in TEXT_SUFFIXES:
            part.passed_over[suffix or "no suffix"] += 1
    part.passed_over += Counter(suffix for stem in unused for suffix in beside[stem])
    return _not_empty(part, path)


def _list_shards(directory: str, options: SourceOptions) -> Part:
    manifest, part = Manifest.load(directory), Part()
    for sample in read_samples(manifest):
        part.add_image(
            sample.place,
            sample.name,
            options,
            where=f"{sample.place.path}: {sample.name}",
            sidecars=sample.sidecars,
            classes=manifest.classes,
            split=sample.split,
        )
    return _not_empty(part, directory)


def _joined(places: Sequence[str], options: SourceOptions) -> Part:
    """List several places; names begin below the folder that they have in common."""
    begins = [fixed_part(p) if _is_pattern(p) else p for p in places]
    full = [os.path.normpath(Path(begin).absolute()) for begin in begins]
    root = os.path.commonpath([str(Path(path).parent) for path in full])
    joined = Part()
    for place, path in zip(places, full, strict=True):
        name = os.path.relpath(path, root)
        stem, suffix = split_suffix(name)
        if suffix in (*IMAGE_SUFFIXES, *ARCHIVE_SUFFIXES) and Path(path).is_file():
            joined.join(_list_leaves([Leaf(place, name)], options, looked_in=place))
        else:
            joined.join(_list_part(place, options), name if Path(path).is_dir() else stem)
    return joined


def _not_empty(part: Part, looked_in: str) -> Part:
    if not part.items:
        raise DataError(
            f"{looked_in} holds no images; looked for .{', .'.join(IMAGE_SUFFIXES)} in all its "
            f"folders and saw {_seen(part.passed_over) or 'no files'}"
        )
    return part


def _check(source: str, part: Part, options: SourceOptions) -> None:
    """Refuse what would give half of the images labels, or two images one name."""
    names = Counter(item.name for item in part.items)
    twice = next((name for name, count in names.items() if count > 1), None)
    if twice is not None:
        raise DataError(f"{source} has two images of the name {twice!r}; list each once")
    unlabelled = [item.name for item in part.items if item.labels is None]
    if unlabelled and len(unlabelled) < len(part.items):
        raise DataError(
            f"{len(unlabelled)} of {len(part.items)} images of {source} have no label, first "
            f"{unlabelled[0]!r}; label all or none"
        )
    if len(part.kinds) == 2:
        raise DataError(
            f"some images of {source} have one label and others a list of labels; pack them apart"
        )
    if options.labels == "multi" and part.kinds != {True}:
        raise ConfigError(
            f"--labels multi needs a CSV with a column 'label', or shards whose sidecars have a "
            f"list 'labels'; {source} has neither"
        )
    top = {item.name.split("/")[0].lower() for item in part.items}
    takes_folders = options.labels == "folders" and options.split == "hash"
    if takes_folders and not part.own_names and top <= {*SPLITS, *SPLIT_ALIASES}:
        raise ConfigError(
            f"the folders of {source} are {', '.join(sorted(top))}, which name splits, not "
            f"classes; add --split folders"
        )


def _is_own_group_each(items: Sequence[Item], options: SourceOptions) -> bool:
    if options.group_regex is None and options.group_field is None:
        return False
    return len({item.group for item in items}) == len(items) > 1


def _seen(passed_over: Counter[str]) -> str:
    return ", ".join(f"{count} .{suffix}" for suffix, count in passed_over.most_common(5))
