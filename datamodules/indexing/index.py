"""Anybody's tars → manifest and indices, without rewriting them.

Every header is walked, every content gets a checksum, every image is decoded and measured.  After
that the tars are read with the guarantees of packed shards.  What they hold stays as it is: images
that cannot be used are counted and listed, duplicates and crossing groups are said aloud.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from datamodules.guard import IMAGE_SUFFIXES, MAX_PIXELS
from datamodules.indexing.labels import Labels, find_labels
from datamodules.indexing.place import IndexPlace, index_place
from datamodules.inspection.blocks import BadSample
from datamodules.inspection.findings import Findings, Seen
from datamodules.inspection.loose import LooseShard
from datamodules.inspection.survey import Shard, not_shown, sensible_workers, survey
from datamodules.locations import is_url
from datamodules.manifest import Manifest, ShardInfo
from datamodules.packing.results import Kind, ShardResult
from datamodules.packing.workers import team_of
from datamodules.shardlist import ShardList, list_shards
from datamodules.shardnames import SplitRule, splits_of
from datamodules.tally import Tally, build_manifest
from datamodules.tarwalk import walk
from mae.errors import ConfigError, DataError

_NUM_FAULTS = 5
_REMOTE_BYTES = 100_000_000
_SUFFIX = re.compile(r"has the suffix '([^']*)'")


@dataclass(frozen=True, kw_only=True)
class IndexSummary:
    """What was indexed.

    Attributes:
        out: Directory of the manifest.
        manifest: It.
        num_bad: Images that cannot be used, by reason.
        notes: Sentences that the user should read.
    """

    out: Path
    manifest: Manifest
    num_bad: dict[str, int]
    notes: tuple[str, ...] = ()


def index_shards(
    source: str,
    out: Path | str | None = None,
    *,
    split: SplitRule = "names",
    split_regex: str | None = None,
    classes: Path | str | None = None,
    ignore: Sequence[str] = (),
    allow_gaps: bool = False,
    max_bad_fraction: float = 0.01,
    max_pixels: int = MAX_PIXELS,
    overwrite: bool = False,
    workers: int | None = 1,
    on_progress: Callable[[float], object] = not_shown,
) -> IndexSummary:
    """Make manifest and indices for tars as they are.

    Equal tars and options give equal bytes, whatever the number of workers.

    Args:
        source: A folder of tars, a list, a pattern …; see `shardlist.list_shards`.
        out: Directory for manifest and indices; beside the tars of a local folder without a value.
        split: How splits are found; see `shardnames.splits_of`.
        split_regex: Expression on the shards' names whose first bracket is the split.
        classes: File with one class name per line, in the order of the class indices.
        ignore: Suffixes of members that are no part of a sample.
        allow_gaps: Pass over missing shards.
        max_bad_fraction: Share of images that may be unusable, in [0, 1).
        max_pixels: Largest height x width of an image.
        overwrite: Replace a manifest that is there.
        workers: Processes; None takes as many as are worth it.
        on_progress: Called with the share that is done, in [0, 1].

    Raises:
        DataError: If shards are missing, damaged or not what they should be, or too many images
            cannot be used.  No manifest is written then.
        OutputError: If `out` cannot be written, or has a manifest.
        ConfigError: If an option is impossible.
    """
    if max_pixels < 1:
        raise ConfigError(f"max_pixels is {max_pixels}; allowed: 1 or more")
    if out is not None and is_url(str(out)):
        raise ConfigError(
            f"{out} is a URL; index into a local directory, then copy its files there"
        )
    if not 0 <= max_bad_fraction < 1:
        raise ConfigError(f"max_bad_fraction is {max_bad_fraction}; allowed: 0 up to below 1")
    suffixes = tuple(sorted({suffix.lower().lstrip(".") for suffix in ignore}))
    names = _read_names(Path(classes)) if classes is not None else None
    listing = list_shards(source, allow_gaps=allow_gaps)
    splits = splits_of(listing.names, split, split_regex)
    directory = _directory(source, out)
    with (
        index_place(directory, listing.locations, overwrite=overwrite) as place,
        team_of(sensible_workers(workers, _num_bytes(listing))) as team,
    ):
        files = [LooseShard(location, suffixes, place.scratch) for location in listing.locations]
        shards = [
            Shard(files=of_shard, split=of_split, ignore=suffixes, is_deep=True)
            for of_shard, of_split in zip(files, splits, strict=True)
        ]
        findings = Findings()
        surveyed = survey(
            shards,
            lambda _, index: range(index.num_samples) if not findings.unusable else (),
            team,
            on_progress=on_progress,
            max_pixels=max_pixels,
        )
        for of_shard, (shard, opened, measured) in zip(files, surveyed, strict=True):
            if opened.index is not None:
                place.keep(opened.index)
            findings.add(shard, opened, measured)
            of_shard.release()
        _refuse_faults(findings, listing, source)
        kind, bad = _usable(findings, max_bad_fraction)
        labels = find_labels(findings, names)
        reasons = Counter(entry.reason for _, entry in bad)
        manifest, notes = build_manifest(
            _tally(findings, kind, labels, [place.path_of(name) for name in listing.locations]),
            classes=labels.classes,
            multilabel=labels.multilabel,
            options={
                "made_by": "mae index",
                "split": split if split_regex is None else split_regex,
                "ignore_suffixes": list(suffixes),
                "max_pixels": max_pixels,
                "bad_images": dict(sorted(reasons.items())),
            },
            source=source,
        )
        place.publish(manifest, [_row(place, seen, entry) for seen, entry in bad])
    return IndexSummary(
        out=place.directory,
        manifest=dataclasses.replace(manifest, root=str(place.directory)),
        num_bad=dict(reasons),
        notes=(
            *listing.notes,
            # Advice for `mae pack`, whose options these are.
            *(note for note in notes if "_fraction" not in note),
            *labels.notes,
            *_notes(findings),
        ),
    )


def _directory(source: str, out: Path | str | None) -> Path:
    if out is not None:
        return Path(out)
    if is_url(source) or not Path(source).is_dir():
        raise ConfigError(
            f"{source} is no folder on this machine, so the manifest has no place of its own; give "
            f"a new directory as OUT"
        )
    return Path(source)


def _num_bytes(listing: ShardList) -> int:
    """Return the bytes of all shards; a guess for remote ones."""
    return sum(
        _REMOTE_BYTES if is_url(location) else Path(location).stat().st_size
        for location in listing.locations
    )


def _read_names(path: Path) -> tuple[str, ...]:
    """Return the class names of a file.

    Raises:
        DataError: If it cannot be read, or a name is empty or stands twice.
    """
    try:
        names = [line.strip() for line in path.read_text(encoding="utf-8-sig").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"classes {path} cannot be read ({error}); give a text file, one name per line"
        ) from error
    twice = [name for name, count in Counter(names).items() if count > 1]
    if not names or "" in names or twice:
        fault = f"has {twice[0]!r} twice" if twice else "has an empty line, or no line at all"
        raise DataError(f"classes {path} {fault}; give one name per line, each once")
    return tuple(names)


def _refuse_faults(findings: Findings, listing: ShardList, source: str) -> None:
    """Refuse shards that cannot be used, and samples that are none, all in one message."""
    faults = [
        *findings.unusable,
        *(fault for seen in findings.shards for fault in (*seen.faults, *seen.measured.faults)),
        *findings.halved(),
    ]
    if faults:
        suffixes = dict.fromkeys(itertools.chain(*map(_SUFFIX.findall, faults)))
        hint = f"\nadd --ignore {','.join(suffixes)} to pass over such members" if suffixes else ""
        more = f"\n… and {len(faults) - _NUM_FAULTS} more" if len(faults) > _NUM_FAULTS else ""
        unusable = len(findings.unusable)
        count = (
            f"{unusable} of {len(listing.locations)} shards cannot be used: " if unusable else ""
        )
        raise DataError(count + "\n".join(faults[:_NUM_FAULTS]) + more + hint)
    if not findings.num_samples:
        raise DataError(
            f"{source} holds no samples; looked for members .{', .'.join(IMAGE_SUFFIXES)} in "
            f"{len(listing.locations)} shards and saw {_members(findings.shards[0])} in the first"
        )


def _members(seen: Seen) -> str:
    """Return the names of some members of a shard, also of those that are passed over."""
    with seen.shard.files.path(0).open("rb") as file:
        names = [m.name for m in itertools.islice(walk(file, where=seen.shard.name), _NUM_FAULTS)]
    return ", ".join(names) or "none"


def _usable(
    findings: Findings, max_bad_fraction: float
) -> tuple[Kind, list[tuple[Seen, BadSample]]]:
    """Return what most images are, and those that cannot be used in a set of this kind.

    Raises:
        DataError: If they are too many.
    """
    kinds = findings.kinds()
    kind = kinds.most_common(1)[0][0] if kinds else None
    bad = list(findings.bad(kind))
    allowed = int(max_bad_fraction * findings.num_samples)
    if kind is None or len(bad) > allowed:
        first = {entry.reason: entry.message for _, entry in reversed(bad)}
        lines = "".join(
            f"\n  {count} x {reason}, e.g. {first[reason]}"
            for reason, count in Counter(entry.reason for _, entry in bad).most_common(3)
        )
        raise DataError(
            f"{len(bad)} of {findings.num_samples} images cannot be used; allowed: {allowed} "
            f"(max_bad_fraction {max_bad_fraction}). Write the shards again without them, or raise "
            f"max_bad_fraction below 1:{lines}"
        )
    return kind, bad


def _tally(findings: Findings, kind: Kind, labels: Labels, paths: Sequence[str]) -> Tally:
    tally = Tally(kind)
    sizes = findings.sizes(kind)
    low, high = sizes.min(axis=0).tolist(), sizes.max(axis=0).tolist()
    for path, seen in zip(paths, findings.shards, strict=True):
        measured = seen.measured
        usable = np.concatenate([np.empty((0, 3), np.int64), *measured.sizes.get(kind, [])])
        tally.add(
            ShardResult(
                info=ShardInfo(
                    path=path,
                    split=seen.shard.split,
                    num_samples=seen.num_samples,
                    num_bytes=seen.num_bytes,
                    sha256=seen.sha256,
                    index_sha256=seen.index_sha256,
                ),
                stats=measured.stats.get(kind),
                left_out=(),  # they stay where they are
                class_counts=labels.counts(measured),
                num_unlabelled=labels.num_unlabelled(seen),
                num_bytes_images=int(seen.image_bytes[usable[:, 0]].sum()),
                num_reencoded=0,
                min_size=(low[0], low[1]),
                max_size=(high[0], high[1]),
            )
        )
    return tally


def _row(place: IndexPlace, seen: Seen, entry: BadSample) -> tuple[str, str, str, str]:
    return (place.path_of(seen.shard.name), entry.key, entry.reason, entry.message)


def _notes(findings: Findings) -> Iterator[str]:
    """Yield what the user should know of keys, duplicates, groups and empty shards."""
    empty = [seen.shard.name for seen in findings.shards if not seen.num_samples]
    if empty:
        yield f"{len(empty)} shards without samples are not listed, first {empty[0]}"
    keys, images = findings.repeated_keys(), findings.repeated_images()
    if keys.within:
        one, other = map(findings.name_of, keys.within_examples[0])
        yield (
            f"{sum(keys.within.values()):,} keys stand in several shards of a split, first {one} "
            f"and {other}; they are different samples"
        )
    for split, count in images.within.items():
        yield f"{count:,} images of {split} have the bytes of another one of {split}"
    if images.across:
        one, other = map(findings.name_of, images.across_examples[0])
        yield (
            f"WARNING: {images.across:,} images stand in more than one split, first {one} and "
            f"{other}; what is measured on them is too good"
        )
    groups = findings.groups()
    shared = Counter(group for of_split in groups.values() for group in of_split)
    crossing = sorted(group for group, count in shared.items() if count > 1)
    if crossing:
        yield (
            f"WARNING: {len(crossing):,} groups stand in more than one split, first "
            f"{crossing[0]!r}; what is measured on them is too good"
        )
