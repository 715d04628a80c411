"""Images → shards and manifest.

The bytes of every image are copied as they are, unless smaller ones are asked for.  Each image is
decoded once, to keep broken ones out of training and to measure what the pixels mean.  Which image
goes into which shard is fixed before the first is packed, so any number of workers gives the same
bytes, and the directory appears under its name only when it is complete.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from datamodules.guard import MAX_PIXELS
from datamodules.locations import cache_folder
from datamodules.manifest import FILE_NAME, Manifest
from datamodules.packing.assembly import LEFT_OUT_FILE, Assembly, Progress
from datamodules.packing.duplicates import REASON as DUPLICATE
from datamodules.packing.parts import SourceOptions
from datamodules.packing.reencode import Reencoding
from datamodules.packing.results import LeftOut
from mae.errors import DataError

__all__ = ["LEFT_OUT_FILE", "PackSummary", "cache_root", "pack", "pack_into_cache"]


@dataclass(frozen=True, kw_only=True)
class PackSummary:
    """What was packed.

    Attributes:
        out: The shard directory.
        manifest: Its manifest.
        left_out: Images that were not packed, each with its reason; duplicates among them.
        notes: Sentences that the user should read.
        workers: Who did the work, in words.
        num_kept_shards: Shards that an earlier attempt had finished.
        num_reencoded: Images whose bytes are not those of the file.
    """

    out: Path
    manifest: Manifest
    left_out: tuple[LeftOut, ...] = ()
    notes: tuple[str, ...] = ()
    workers: str = ""
    num_kept_shards: int = 0
    num_reencoded: int = 0

    @property
    def num_duplicates(self) -> int:
        """Images whose bytes were packed already, under another name."""
        return sum(entry.reason == DUPLICATE for entry in self.left_out)


def pack(
    source: Path | str,
    out: Path | str,
    *,
    labels: Literal["none", "folders", "multi"] = "none",
    label_separator: str = "|",
    split: Literal["hash", "folders"] = "hash",
    group_regex: str | None = None,
    group_field: str | None = None,
    val_fraction: float | None = None,
    test_fraction: float | None = None,
    seed: int = 0,
    shard_size: int = 1000,
    duplicates: Literal["drop", "keep"] = "drop",
    max_side: int | None = None,
    quality: int | None = None,
    max_bad_fraction: float = 0.01,
    max_pixels: int = MAX_PIXELS,
    workers: int | None = 1,
    dask: str | None = None,
    on_progress: Progress = lambda *_: None,
) -> PackSummary:
    """Pack images into WebDataset shards.

    Equal files and options give equal bytes.  Killed or interrupted, the same call goes on where it
    was: finished shards wait in ``.OUT.partial`` beside `out`.

    Args:
        source: Folder, pattern, CSV ``path[,label][,group][,split]``, text file with one path per
            line, tar, zip, or existing shards; several joined by ``::`` or written with braces.
        out: Directory to create; must not exist.
        labels: ``folders``: the first folder below the source is the class; ``multi``: an image may
            have several labels, or none.
        label_separator: What stands between several labels in a cell of a CSV.
        split: ``folders``: the topmost folders are ``train``, ``val``, ``test``.
        group_regex: Expression on the path whose first bracket is the group (patient, scene).
        group_field: Field of the JSON sidecar ``KEY.json`` beside ``KEY.png`` that is the group.
        val_fraction: Share of groups (or images) for validation; without a value 0.02, and 0.1
            for labelled images.
        test_fraction: Share for testing; without a value 0, and 0.2 for labelled images.
        seed: Key of the split and of the order of images.
        shard_size: Images per shard.
        duplicates: ``drop``: of images with equal bytes the first by name is packed; ``keep`` does
            not compare them.
        max_side: Longest side in px; larger images are resized, without loss of depth.
        quality: JPEG quality, 1 … 100, in which all images are stored; 8 bit, 1 or 3 channels.
        max_bad_fraction: Share of images that may be left out, in [0, 1).
        max_pixels: Largest height x width of an image.
        workers: Processes; 1 works in this one, None takes as many as there are processors.
        dask: Address of a dask scheduler whose workers do the work; needs the extra ``[cluster]``.
        on_progress: Called with what is being done (``comparing``, ``packing``), the number of
            images done and the number of all.

    Raises:
        DataError: If there is nothing to pack, too much is broken, labels or groups contradict, or
            the disk cannot take the shards.
        ConfigError: If an option is outside its range or does not fit the source.
    """
    return _summary(
        Path(out),
        Assembly(
            source=str(source),
            options=SourceOptions(
                labels=labels,
                label_separator=label_separator,
                split=split,
                group_regex=group_regex,
                group_field=group_field,
            ),
            val_fraction=val_fraction,
            test_fraction=test_fraction,
            seed=seed,
            shard_size=shard_size,
            duplicates=duplicates,
            reencoding=Reencoding(max_side=max_side, quality=quality),
            max_bad_fraction=max_bad_fraction,
            max_pixels=max_pixels,
            workers=workers,
            dask=dask,
            on_progress=on_progress,
        ),
    )


def cache_root() -> Path:
    """Return the folder for packed images."""
    return cache_folder("packed")


def pack_into_cache(
    source: Path | str,
    *,
    labels: Literal["none", "folders", "multi"] = "none",
    split: Literal["hash", "folders"] = "hash",
    group_regex: str | None = None,
    val_fraction: float | None = None,
    test_fraction: float | None = None,
    seed: int = 0,
    cache: Path | None = None,
    workers: int | None = 1,
    on_progress: Progress = lambda *_: None,
    on_packed: Callable[[PackSummary], None] = lambda _: None,
) -> Path:
    """Return a shard directory: `source` itself, or its images packed into the cache.

    The place depends on the files' names, sizes and times and on the options, so changed images are
    packed anew and unchanged ones are found at once.  Processes that want the same images wait for
    the one that packs them.

    Args:
        source: Shard directory, or any source of `datamodules.pack.pack`.
        labels: See `datamodules.pack.pack`, also for the following.
        split: Whether folders name the splits.
        group_regex: Expression for the group.
        val_fraction: Share for validation.
        test_fraction: Share for testing.
        seed: Key of the split.
        cache: Folder for packed images; `cache_root` without a value.
        workers: Processes.
        on_progress: Called while images are packed.
        on_packed: Called if images were packed.

    Raises:
        DataError: See `datamodules.pack.pack`.
        ConfigError: See `datamodules.pack.pack`.
    """
    if (Path(source) / FILE_NAME).is_file():
        return Path(source)
    assembly = Assembly(
        source=str(source),
        options=SourceOptions(labels=labels, split=split, group_regex=group_regex),
        val_fraction=val_fraction,
        test_fraction=test_fraction,
        seed=seed,
        workers=workers,
        on_progress=on_progress,
    )
    name = re.sub(r"[^A-Za-z0-9_-]+", "_", Path(source).absolute().stem)[-40:]
    out = (cache or cache_root()) / f"{name}-{assembly.digest}"
    if (out / FILE_NAME).is_file():
        return out
    try:
        summary = _summary(out, assembly, wait=True)
    except DataError:
        if (out / FILE_NAME).is_file():  # another process was faster with the same images
            return out
        raise
    on_packed(summary)
    return out


def _summary(out: Path, assembly: Assembly, *, wait: bool = False) -> PackSummary:
    outcome = assembly.run(out, wait=wait)
    return PackSummary(
        out=out,
        manifest=Manifest.load(out),
        left_out=outcome.left_out,
        notes=outcome.notes,
        workers=outcome.workers,
        num_kept_shards=outcome.num_kept_shards,
        num_reencoded=outcome.num_reencoded,
    )
