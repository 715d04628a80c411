"""``mae index``: a manifest for anybody's tars, which stay as they are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from datamodules.guard import MAX_PIXELS
from mae.commands.progress import share_bar

if TYPE_CHECKING:
    from datamodules.indexing import IndexSummary


def index(
    source: str,
    out: str | None = None,
    *,
    split: Literal["names", "train", "val", "test"] = "names",
    split_regex: str | None = None,
    classes: str | None = None,
    ignore: str = "",
    allow_gaps: bool = False,
    max_bad_fraction: float = 0.01,
    max_pixels: int = MAX_PIXELS,
    workers: int | None = None,
    overwrite: bool = False,
) -> None:
    """Make a manifest for tars in WebDataset format, without rewriting them.

    Args:
        source: Folder of tars, brace list, pattern, several of these joined by '::', text file with
            one of them per line, or URLs.
        out: Directory to create; without it the manifest goes beside the tars of a local folder.
        split: 'names' takes train, val or test from the names of files or folders; otherwise one
            split for all.
        split_regex: Expression on the path whose first bracket is the split.
        classes: File with the names of the classes, one per line; numbers without it.
        ignore: Suffixes of members that are no part of a sample, as txt,npy.
        allow_gaps: Pass over missing shards.
        max_bad_fraction: Share of images that may be unusable.
        max_pixels: Largest height x width of an image.
        workers: Processes; as many processors as are worth it without a value.
        overwrite: Replace a manifest that is there.

    Raises:
        MAEError: If the tars cannot be used as they are; no manifest is written then.
    """
    from datamodules.indexing import index_shards

    with share_bar("indexing") as on_progress:
        summary = index_shards(
            source,
            out,
            split=split,
            split_regex=split_regex,
            classes=classes,
            ignore=tuple(filter(None, ignore.split(","))),
            allow_gaps=allow_gaps,
            max_bad_fraction=max_bad_fraction,
            max_pixels=max_pixels,
            overwrite=overwrite,
            workers=workers,
            on_progress=on_progress,
        )
    print(*_describe(summary), sep="\n")


def _describe(summary: IndexSummary) -> Iterator[str]:
    """Yield the lines that say what was found."""
    manifest, spec = summary.manifest, summary.manifest.spec
    num_samples = sum(shard.num_samples for shard in manifest.shard_list)
    yield f"{summary.out}: {num_samples:,} samples in {len(manifest.shard_list):,} shards"
    for split in manifest.splits:
        shards = manifest.shards(split)
        names = shards[0].path if len(shards) == 1 else f"{shards[0].path} … {shards[-1].path}"
        yield f"{split}: {manifest.num_samples(split):,} samples in {len(shards):,} shards, {names}"
    low, high = manifest.min_size, manifest.max_size
    size = f"{low[0]} x {low[1]}" + (f" … {high[0]} x {high[1]}" if low != high else "")
    yield f"pixels: {size}, {spec.num_channels} x {spec.dtype} ({', '.join(spec.channels)})"
    yield f"mean {_numbers(spec.mean)}, std {_numbers(spec.std)}"
    for split, counts in manifest.class_counts.items():
        yield f"labels in {split}: " + ", ".join(f"{name} {n:,}" for name, n in counts.items())
    if summary.num_bad:
        reasons = ", ".join(f"{count} x {reason}" for reason, count in summary.num_bad.items())
        yield (
            f"images that cannot be used stay in the shards: {reasons}; listed in "
            f"{summary.out / 'bad_images.csv'}"
        )
    if "val" not in manifest.splits:
        yield "note: no val split; pretraining will have no loss on fixed masks"
    yield from (f"note: {note}" for note in summary.notes)
    verb = "probe RUN" if manifest.classes else "pretrain RECIPE"
    yield f"next: mae {verb} --data {summary.out}"


def _numbers(values: tuple[float, ...]) -> str:
    return " ".join(f"{value:.4g}" for value in values)
