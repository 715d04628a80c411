"""Packing as the verbs show it: a progress bar, then what was packed and what was not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from mae.errors import DataError

if TYPE_CHECKING:
    from datamodules.labeled import LabeledShards
    from datamodules.pack import PackSummary


@contextmanager
def packing_bar() -> Iterator[Callable[[str, int, int], None]]:
    """Show bars on a terminal; yields what to call with (stage, images done, images in all)."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TaskID,
        TextColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        tasks: dict[str, TaskID] = {"listing": bar.add_task("listing", total=None)}

        def show(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                for task in tasks.values():
                    bar.update(task, visible=False)
                tasks[stage] = bar.add_task(stage, total=total)
            bar.update(tasks[stage], completed=done, total=total)

        yield show


def packed(source: str, *, labels: Literal["none", "folders"] = "none") -> str:
    """Return the shards of `source`: itself, or its images packed into the cache, said aloud.

    Args:
        source: Shard directory or its URL, or anything that `mae pack` takes.
        labels: Whether the folders are classes; a CSV says so itself.

    Raises:
        MAEError: If the images cannot be packed.
    """
    from datamodules.locations import absolute, is_url
    from datamodules.pack import pack_into_cache

    if is_url(source):
        return source
    said: list[str] = []
    with packing_bar() as on_progress:
        shards = pack_into_cache(
            source,
            labels=labels,
            workers=None,
            on_progress=on_progress,
            on_packed=lambda summary: said.extend(describe(summary)),
        )
    if not said and shards != Path(source):
        said.append(f"the images of {source} were packed before, in {shards}")
    if said:
        print(*said, sep="\n")
    return absolute(str(shards))


def packed_labels(source: str) -> str:
    """Return labelled shards of a shard directory, a folder or archive of class folders, or a CSV.

    Raises:
        MAEError: If the images cannot be packed.
    """
    is_table = Path(source).is_file() and Path(source).suffix.lower() not in (".tar", ".zip")
    return packed(source, labels="none" if is_table else "folders")


def require_single_labels(shards: LabeledShards, verb: str) -> None:
    """Refuse images with several labels each.

    Raises:
        DataError: Names the verb and what it reads.
    """
    if shards.multilabel:
        raise DataError(
            f"{shards.source} has several labels per image, and {verb} reads one class per image "
            f"so far; pack a CSV with one label each, for example one finding against the rest"
        )


def describe(summary: PackSummary) -> list[str]:
    """Return the lines that say what was packed and what was not."""
    manifest, spec = summary.manifest, summary.manifest.spec
    counts = ", ".join(f"{manifest.num_samples(split):,} {split}" for split in manifest.splits)
    low, high = manifest.min_size, manifest.max_size
    size = f"{low[0]} x {low[1]}" + (f" … {high[0]} x {high[1]}" if low != high else "")
    lines = [
        f"{summary.out}: {counts} in {len(manifest.shard_list)} shards, "
        f"{manifest.num_bytes_images / 1e6:,.1f} MB",
        f"pixels: {size}, {spec.num_channels} x {spec.dtype} ({', '.join(spec.channels)})",
        f"mean {_numbers(spec.mean)}, std {_numbers(spec.std)}",
    ]
    for split, of_split in manifest.class_counts.items():
        named = ", ".join(f"{name} {count:,}" for name, count in of_split.items())
        lines.append(f"labels in {split}: {named}")
    if summary.left_out:
        reasons = ", ".join(f"{count} x {reason}" for reason, count in manifest.left_out.items())
        lines.append(f"left out: {reasons}; listed with reasons in {summary.out / 'left_out.csv'}")
    if "val" not in manifest.splits:
        lines.append("note: no val split; pretraining will have no loss on fixed masks")
    lines += [f"note: {note}" for note in summary.notes]
    kept = summary.num_kept_shards
    lines.append(
        f"packed {summary.workers}"
        + (f"; {kept:,} shards were kept from an earlier attempt" if kept else "")
    )
    return lines


def next_command(summary: PackSummary) -> str:
    """Return the line that says what to do with the shards."""
    verb = "probe RUN" if summary.manifest.classes else "pretrain RECIPE"
    return f"next: mae {verb} --data {summary.out}"


def _numbers(values: tuple[float, ...]) -> str:
    return " ".join(f"{value:.4g}" for value in values)
