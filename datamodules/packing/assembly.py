"""From a source and options to a shard directory: the steps in their order."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import PIL
import tifffile

from datamodules.guard import MAX_PIXELS
from datamodules.manifest import FILE_NAME, VERSION
from datamodules.packing.duplicates import Depth, Digest, drop_duplicates, find_equal
from datamodules.packing.items import Item, Listing, assign_splits, class_names, shuffled
from datamodules.packing.jobs import (
    ShardJob,
    Watch,
    compare,
    compare_jobs,
    pack_shard,
    shard_jobs,
)
from datamodules.packing.parts import SourceOptions
from datamodules.packing.reencode import Reencoding
from datamodules.packing.results import LeftOut, ShardResult
from datamodules.packing.shardwriter import ShardRules
from datamodules.packing.sources import list_source
from datamodules.packing.voting import most_common_kind
from datamodules.packing.workers import Team, UnfinishedError, sensible_workers, team_of
from datamodules.packing.workplace import Workplace, partial_root, refuse_existing, workplace
from datamodules.tally import Tally, build_manifest
from mae.errors import ConfigError, DataError
from mae.files import atomic_write

LEFT_OUT_FILE = "left_out.csv"
Progress = Callable[[str, int, int], object]

_DEFAULT_FRACTIONS = {False: (0.02, 0.0), True: (0.1, 0.2)}  # by "is labelled"
_HEADER_BYTES = 3072  # headers and sidecar of a sample


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What was done, beside the manifest; see `datamodules.pack.PackSummary`."""

    left_out: tuple[LeftOut, ...]
    notes: tuple[str, ...]
    workers: str
    num_kept_shards: int
    num_reencoded: int


@dataclass(frozen=True, kw_only=True)
class Assembly:
    """A source and how it is to be packed; see `datamodules.pack.pack` for the fields.

    Raises:
        ConfigError: If an option is outside its range.
    """

    source: str
    options: SourceOptions
    val_fraction: float | None = None
    test_fraction: float | None = None
    seed: int = 0
    shard_size: int = 1000
    duplicates: Literal["drop", "keep"] = "drop"
    reencoding: Reencoding = field(default_factory=Reencoding)
    max_bad_fraction: float = 0.01
    max_pixels: int = MAX_PIXELS
    workers: int | None = 1
    dask: str | None = None
    on_progress: Progress = lambda *_: None

    def __post_init__(self) -> None:
        if self.shard_size < 1:
            raise ConfigError(f"shard_size is {self.shard_size}; allowed: 1 or more images")
        if self.max_pixels < 1:
            raise ConfigError(f"max_pixels is {self.max_pixels}; allowed: 1 or more")
        if not 0 <= self.max_bad_fraction < 1:
            raise ConfigError(
                f"max_bad_fraction is {self.max_bad_fraction}; allowed: 0 up to below 1"
            )
        if self.workers is not None and self.workers < 1:
            raise ConfigError(f"workers is {self.workers}; allowed: 1 or more")
        if self.dask is not None and self.workers not in (None, 1):
            raise ConfigError("workers and dask are both given; the dask cluster has its own")

    @cached_property
    def listing(self) -> Listing:
        """Return the images of the source."""
        return list_source(self.source, self.options)

    @cached_property
    def placed(self) -> list[Item]:
        """Return all images, each with its split."""
        return assign_splits(self.listing.items, seed=self.seed, **self._drawing)

    @property
    def _drawing(self) -> dict[str, float]:
        val, test = _DEFAULT_FRACTIONS[self.listing.is_labelled]
        return {
            "val_fraction": val if self.val_fraction is None else self.val_fraction,
            "test_fraction": test if self.test_fraction is None else self.test_fraction,
        }

    @property
    def shaping(self) -> dict[str, Any]:
        """Return the options that shape the shards, as the manifest keeps them."""
        return {
            **asdict(self.options),
            **self._drawing,
            "seed": self.seed,
            "shard_size": self.shard_size,
            "duplicates": self.duplicates,
            **asdict(self.reencoding),
            "max_pixels": self.max_pixels,
        }

    @cached_property
    def digest(self) -> str:
        """Return a digest of everything that shapes the shards, contents only by size and time."""
        encoders = [PIL.__version__, tifffile.__version__] if self.reencoding.is_asked else []
        found = hashlib.sha256(json.dumps([VERSION, self.shaping, encoders]).encode())
        for item in self.placed:
            fields = [item.name, *item.place.identity, item.labels, item.group, item.split]
            found.update(json.dumps(fields).encode())
        return found.hexdigest()[:16]

    def run(self, out: Path, *, wait: bool = False) -> Outcome:
        """Pack into `out`.

        Args:
            out: Directory to create.
            wait: Wait for another process that packs there, instead of refusing.

        Raises:
            DataError: See `datamodules.pack.pack`.
            ConfigError: If options do not fit the source.
        """
        refuse_existing(out)
        num_images = len(self.placed)
        if not self.reencoding.is_asked:  # nobody knows how small images will be
            _check_space(out, self.placed)
        workers = sensible_workers(
            num_images=num_images, num_jobs=-(-num_images // self.shard_size), asked=self.workers
        )
        plan = {"source": self.source, "num_images": num_images, "options": self.shaping}
        with ExitStack() as early:  # a scheduler that does not answer must not cost finished shards
            team = early.enter_context(team_of(workers, dask=self.dask))
            with workplace(out, self.digest, plan, wait=wait) as (place, notes), early.pop_all():
                try:
                    return self._assemble(place, team, [*self.listing.notes, *notes])
                except BaseException:
                    with suppress(OSError):
                        place.stop()
                    raise

    def _assemble(self, place: Workplace, team: Team, notes: list[str]) -> Outcome:
        dropped = self._duplicates(place, team)
        names = {entry.name for entry in dropped}
        items = shuffled((i for i in self.placed if i.name not in names), seed=self.seed)
        rules = self._rules(items)
        jobs = shard_jobs(place, items, rules, shard_size=self.shard_size)
        kept = {job.name: result for job in jobs if (result := place.finished(job.name))}
        results = self._write(place, team, jobs, kept)
        tally = Tally(kind=rules.kind, left_out=dropped)
        for job in jobs:
            tally.add(results[job.name])
        manifest, more = build_manifest(
            tally,
            classes=rules.classes,
            multilabel=rules.multilabel,
            options=self.shaping,
            source=self.source,
        )
        _write_text(place.shards / FILE_NAME, manifest.to_json())
        _write_left_out(place.shards, tally.left_out)
        num_reencoded = sum(result.num_reencoded for result in tally.results)
        if self.reencoding.is_asked:
            asked = ", ".join(f"{k} {v}" for k, v in asdict(self.reencoding).items() if v)
            more.append(f"re-encoded {num_reencoded:,} of {len(items):,} images ({asked})")
        return Outcome(
            left_out=tuple(tally.left_out),
            notes=(*notes, *more),
            workers=team.words,
            num_kept_shards=len(kept),
            num_reencoded=num_reencoded,
        )

    def _duplicates(self, place: Workplace, team: Team) -> list[LeftOut]:
        """Return which images are not packed because equal bytes are."""
        if self.duplicates == "keep":
            return []
        stored = place.read("duplicates.json")
        if stored is not None:
            return [LeftOut(**entry) for entry in stored]
        drawn = {i.name for i in self.listing.items if not i.split and i.group is None}

        def look(items: Sequence[Item], depth: Depth) -> list[Digest]:
            found: dict[int, list[Digest]] = {}
            with closing(team.run(compare, compare_jobs(items, depth))) as finished:
                for job, digests in finished:
                    found[job.number] = digests
                    self.on_progress("comparing", sum(map(len, found.values())), len(items))
            return [digest for number in sorted(found) for digest in found[number]]

        sets = find_equal(self.placed, look)
        dropped = drop_duplicates(sets, is_drawn=lambda item: item.name in drawn)
        place.write("duplicates.json", [asdict(entry) for entry in dropped])
        return dropped

    def _rules(self, items: Sequence[Item]) -> ShardRules:
        kind, left_out = most_common_kind(
            items,
            max_pixels=self.max_pixels,
            max_bad=int(self.max_bad_fraction * len(items)),
        )
        self._check_bad(left_out, len(items))
        if kind is None:
            raise DataError(f"none of the {len(items)} images of {self.source} can be read")
        is_photo = kind.dtype == "uint8" and kind.num_channels in (1, 3)
        if self.reencoding.quality is not None and not is_photo:
            raise ConfigError(
                f"quality is given, but the images are {kind}; a JPEG holds 1 or 3 x uint8. Leave "
                f"quality out: without it nothing is lost"
            )
        classes = class_names(items)
        if classes is None and self.listing.is_labelled:
            raise DataError(f"the labels of {self.source} are empty for all {len(items)} images")
        return ShardRules(
            kind=kind,
            classes=classes,
            multilabel=self.listing.multilabel,
            max_pixels=self.max_pixels,
            reencoding=self.reencoding,
        )

    def _write(
        self,
        place: Workplace,
        team: Team,
        jobs: Sequence[ShardJob],
        kept: Mapping[str, ShardResult],
    ) -> dict[str, ShardResult]:
        total, results = sum(len(job.items) for job in jobs), dict(kept)
        watch = Watch(place, jobs, lambda done: self.on_progress("packing", done, total))

        def look() -> None:
            watch.look()
            self._check_bad(watch.left_out, total)

        for name, result in kept.items():
            watch.finish(name, result)
        waiting = [job for job in jobs if job.name not in kept]
        with closing(team.run(pack_shard, waiting, poll=look)) as finished:
            for job, result in finished:
                results[job.name] = result
                watch.finish(job.name, result)
                self._check_bad(watch.left_out, total)
        return results

    def _check_bad(self, left_out: Sequence[LeftOut], num_images: int) -> None:
        allowed = int(self.max_bad_fraction * num_images)
        if len(left_out) <= allowed:
            return
        first = {entry.reason: entry.message for entry in reversed(left_out)}
        lines = "".join(
            f"\n  {count} x {reason}, e.g. {first[reason]}"
            for reason, count in Counter(entry.reason for entry in left_out).most_common(3)
        )
        raise UnfinishedError(
            f"at least {len(left_out)} of {num_images} images cannot be packed; allowed: "
            f"{allowed} (max_bad_fraction {self.max_bad_fraction}). Repair or remove them, or "
            f"raise max_bad_fraction below 1:{lines}"
        )


def _check_space(out: Path, items: Sequence[Item]) -> None:
    """Refuse before the first byte where the disk is too small."""
    needed = sum(item.place.num_bytes + _HEADER_BYTES for item in items)
    needed -= sum(path.stat().st_size for path in partial_root(out).glob("*/shards/*.tar"))
    existing = next(p for p in (out.absolute(), *out.absolute().parents) if p.exists())
    free = shutil.disk_usage(existing).free
    if needed > free:
        raise DataError(
            f"packing needs about {needed / 1e9:.2f} GB, but {existing} has {free / 1e9:.2f} GB "
            f"free; free space or give another directory"
        )


def _write_left_out(directory: Path, left_out: Sequence[LeftOut]) -> None:
    if not left_out:
        return
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(("path", "reason", "message"))
    writer.writerows((entry.name, entry.reason, entry.message) for entry in left_out)
    _write_text(directory / LEFT_OUT_FILE, text.getvalue())


def _write_text(path: Path, text: str) -> None:
    """Write a file in one step; names that are no UTF-8 get a question mark."""
    data = text.encode("utf-8", "replace")
    atomic_write(path, lambda partial: partial.write_bytes(data))
