"""Images → shards and manifest.

The bytes of every image are copied as they are.  Each image is decoded once, to keep broken ones
out of training and to measure what the pixels mean.  Which image goes into which shard is fixed
before the first is read, and the directory appears under its name only when it is complete.
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from datamodules.guard import MAX_PIXELS
from datamodules.manifest import FILE_NAME, Manifest
from datamodules.shardwriter import Kind, LeftOut, most_common_kind, write_shard
from datamodules.sources import SPLITS, Item, assign_splits, class_names, list_source, shuffled
from datamodules.tally import Tally, build_manifest
from mae.errors import ConfigError, DataError

LEFT_OUT_FILE = "left_out.csv"
_DEFAULT_FRACTIONS = {False: (0.02, 0.0), True: (0.1, 0.2)}  # by "is labelled"


@dataclass(frozen=True, kw_only=True)
class PackSummary:
    """What was packed.

    Attributes:
        out: The shard directory.
        manifest: Its manifest.
        left_out: Images that were not packed, each with its reason.
        notes: Sentences that the user should read.
    """

    out: Path
    manifest: Manifest
    left_out: tuple[LeftOut, ...] = ()
    notes: tuple[str, ...] = ()


def pack(
    source: Path | str,
    out: Path | str,
    *,
    labels: Literal["none", "folders"] = "none",
    split: Literal["hash", "folders"] = "hash",
    group_regex: str | None = None,
    val_fraction: float | None = None,
    test_fraction: float | None = None,
    seed: int = 0,
    shard_size: int = 1000,
    max_bad_fraction: float = 0.01,
    max_pixels: int = MAX_PIXELS,
    on_image: Callable[[int, int], None] | None = None,
) -> PackSummary:
    """Pack a folder or CSV of images into WebDataset shards.

    Equal files and options give equal bytes.  See `datamodules.sources` for the CSV's columns.

    Args:
        source: Folder of images, nested as you like, or a CSV ``path[,label][,group][,split]``.
        out: Directory to create; must not exist.
        labels: ``folders``: the first folder below the source is the class.
        split: ``folders``: the topmost folders are ``train``, ``val``, ``test``.
        group_regex: Expression on the path whose first bracket is the group (patient, scene).
        val_fraction: Share of groups (or images) for validation; without a value 0.02, and 0.1
            for labelled images.
        test_fraction: Share for testing; without a value 0, and 0.2 for labelled images.
        seed: Key of the split and of the order of images.
        shard_size: Images per shard.
        max_bad_fraction: Share of images that may be left out, in [0, 1).
        max_pixels: Largest height x width of an image.
        on_image: Called after each image with the number done and the number of all.

    Raises:
        DataError: If there is nothing to pack, too much is broken, labels or groups contradict, or
            the disk cannot take the shards.  Nothing is left behind.
        ConfigError: If an option is outside its range or does not fit the source.
    """
    source, out = Path(source), Path(out)
    _check_options(out, shard_size=shard_size, max_bad_fraction=max_bad_fraction)
    listing = list_source(source, labels=labels, split=split, group_regex=group_regex)
    labelled = any(item.label is not None for item in listing.items)
    default_val, default_test = _DEFAULT_FRACTIONS[labelled]
    drawing = {
        "val_fraction": default_val if val_fraction is None else val_fraction,
        "test_fraction": default_test if test_fraction is None else test_fraction,
    }
    items = shuffled(assign_splits(listing.items, seed=seed, **drawing), seed=seed)
    _check_space(out, items)
    with _atomic_directory(out) as partial:
        tally = _write_all(
            partial,
            items,
            shard_size=shard_size,
            max_bad_fraction=max_bad_fraction,
            max_pixels=max_pixels,
            on_image=on_image,
        )
        options = {
            "labels": labels,
            "split": split,
            "group_regex": group_regex,
            **drawing,
            "seed": seed,
            "shard_size": shard_size,
            "max_pixels": max_pixels,
        }
        manifest, notes = build_manifest(
            tally, classes=class_names(items), options=options, source=source
        )
        (partial / FILE_NAME).write_text(manifest.to_json(), encoding="utf-8")
        _write_left_out(partial, tally.left_out)
    return PackSummary(
        out=out,
        manifest=Manifest.load(out),
        left_out=tuple(tally.left_out),
        notes=(*listing.notes, *notes),
    )


def _check_options(out: Path, *, shard_size: int, max_bad_fraction: float) -> None:
    if shard_size < 1:
        raise ConfigError(f"shard_size is {shard_size}; allowed: 1 or more images per shard")
    if not 0 <= max_bad_fraction < 1:
        raise ConfigError(f"max_bad_fraction is {max_bad_fraction}; allowed: 0 up to below 1")
    if out.exists():
        raise DataError(
            f"{out} exists already and is not overwritten; give another directory or remove it"
        )


def _check_space(out: Path, items: Sequence[Item]) -> None:
    """Refuse before the first byte where the disk is too small; headers take about 3 kB each."""
    needed = sum(item.path.stat().st_size + 3072 for item in items if item.path.exists())
    existing = next(p for p in (out.absolute(), *out.absolute().parents) if p.exists())
    free = shutil.disk_usage(existing).free
    if needed > free:
        raise DataError(
            f"packing needs about {needed / 1e9:.2f} GB, but {existing} has {free / 1e9:.2f} GB "
            f"free; free space or give another directory"
        )


@contextmanager
def _atomic_directory(out: Path) -> Iterator[Path]:
    """Yield a directory beside `out` that becomes `out` on success and vanishes on failure."""
    partial = out.with_name(f".{out.name}.partial-{os.getpid()}")
    try:
        partial.mkdir(parents=True)
        yield partial
        partial.rename(out)
    except OSError as error:
        raise DataError(
            f"cannot write {out}: {error.strerror or error}; nothing was kept. Free space, or give "
            f"a directory that you may write to"
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _write_all(
    directory: Path,
    items: Sequence[Item],
    *,
    shard_size: int,
    max_bad_fraction: float,
    max_pixels: int,
    on_image: Callable[[int, int], None] | None,
) -> Tally:
    tally, done = Tally(), 0
    classes = class_names(items)
    class_index = None if classes is None else {name: i for i, name in enumerate(classes)}
    kind = most_common_kind(items, max_pixels=max_pixels)

    def count() -> None:
        nonlocal done
        done += 1
        if on_image is not None:
            on_image(done, len(items))

    for path, split, members in _jobs(directory, items, shard_size):
        tally.add(
            write_shard(
                path,
                members,
                split=split,
                class_index=class_index,
                kind=kind,
                max_pixels=max_pixels,
                on_image=count,
            )
        )
        _check_bad(tally.left_out, len(items), max_bad_fraction, kind)
    return tally


def _jobs(
    directory: Path, items: Sequence[Item], shard_size: int
) -> Iterator[tuple[Path, str, Sequence[Item]]]:
    for split in SPLITS:
        members = [item for item in items if item.split == split]
        for number, start in enumerate(range(0, len(members), shard_size)):
            path = directory / f"{split}-{number:06d}.tar"
            yield path, split, members[start : start + shard_size]


def _check_bad(
    left_out: Sequence[LeftOut], num_images: int, max_bad_fraction: float, kind: Kind | None
) -> None:
    if kind is not None and len(left_out) <= max_bad_fraction * num_images:
        return
    first = {entry.reason: entry.message for entry in reversed(left_out)}
    lines = "".join(
        f"\n  {count} x {reason}, e.g. {first[reason]}"
        for reason, count in Counter(entry.reason for entry in left_out).most_common(3)
    )
    raise DataError(
        f"at least {len(left_out)} of {num_images} images cannot be packed; allowed: "
        f"{int(max_bad_fraction * num_images)} (max_bad_fraction {max_bad_fraction}). Repair or "
        f"remove them, or raise max_bad_fraction below 1:{lines}"
    )


def _write_left_out(directory: Path, left_out: Sequence[LeftOut]) -> None:
    if not left_out:
        return
    with (directory / LEFT_OUT_FILE).open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("path", "reason", "message"))
        writer.writerows(
            (e.name.encode("utf-8", "replace").decode(), e.reason, e.message) for e in left_out
        )


def cache_root() -> Path:
    """Return the folder for packed images: ``$XDG_CACHE_HOME`` or ``~/.cache``, then our name."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "domain-mae" / "packed"


def pack_into_cache(
    source: Path | str,
    *,
    labels: Literal["none", "folders"] = "none",
    split: Literal["hash", "folders"] = "hash",
    group_regex: str | None = None,
    val_fraction: float | None = None,
    test_fraction: float | None = None,
    seed: int = 0,
    cache: Path | None = None,
    on_image: Callable[[int, int], None] | None = None,
    on_packed: Callable[[PackSummary], None] = lambda _: None,
) -> Path:
    """Return a shard directory: `source` itself, or its images packed into the cache.

    The place depends on the files' names, sizes and times and on the options, so changed images are
    packed anew and unchanged ones are found at once.

    Args:
        source: Shard directory, folder of images, or CSV.
        labels: See `datamodules.pack.pack`, also for the following.
        split: Whether folders name the splits.
        group_regex: Expression for the group.
        val_fraction: Share for validation.
        test_fraction: Share for testing.
        seed: Key of the split.
        cache: Folder for packed images; `cache_root` without a value.
        on_image: Called after each image.
        on_packed: Called if images were packed.

    Raises:
        DataError: See `datamodules.pack.pack`.
        ConfigError: See `datamodules.pack.pack`.
    """
    source = Path(source)
    if (source / FILE_NAME).is_file():
        return source
    listing = list_source(source, labels=labels, split=split, group_regex=group_regex)
    stats = [(item.name, item.path.stat()) for item in listing.items]
    files = [(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats]
    known = [(item.label, item.group, item.split) for item in listing.items]
    options = [str(source.resolve()), labels, split, group_regex, val_fraction, test_fraction, seed]
    digest = hashlib.sha256(json.dumps([files, known, options]).encode()).hexdigest()[:16]
    out = (cache or cache_root()) / f"{source.resolve().stem}-{digest}"
    if (out / FILE_NAME).is_file():
        return out
    try:
        summary = pack(
            source,
            out,
            labels=labels,
            split=split,
            group_regex=group_regex,
            val_fraction=val_fraction,
            test_fraction=test_fraction,
            seed=seed,
            on_image=on_image,
        )
    except DataError:
        if (out / FILE_NAME).is_file():  # another process was faster with the same images
            return out
        raise
    on_packed(summary)
    return out
