"""``mae pack``: images → WebDataset shards and a manifest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from datamodules.pack import PackSummary


def pack(
    source: str,
    out: str,
    *,
    labels: Literal["none", "folders"] = "none",
    split: Literal["hash", "folders"] = "hash",
    group_regex: str | None = None,
    val_fraction: float | None = None,
    test_fraction: float | None = None,
    seed: int = 0,
    shard_size: int = 1000,
    max_bad_fraction: float = 0.01,
    max_pixels: int = 100_000_000,
) -> None:
    """Pack JPEG, PNG and TIFF images into shards, byte by byte.

    Args:
        source: Folder of images, or a CSV ``path[,label][,group][,split]`` with paths relative to
            it.
        out: Directory to create; must not exist.
        labels: 'folders' takes the first folder below the source as the class; a CSV has its
            column.
        split: 'folders' takes the topmost folders as train, val, test; a CSV has its column.
        group_regex: Expression on the path whose first bracket is the patient, scene or site; a
            group never stands in two splits.
        val_fraction: Share for validation; without a value 0.02, or 0.1 with labels.
        test_fraction: Share for testing; without a value 0, or 0.2 with labels.
        seed: Key of the split and of the order.
        shard_size: Images per shard.
        max_bad_fraction: Share of unusable images that may be left out.
        max_pixels: Largest height x width of an image.

    Raises:
        MAEError: If the images cannot be packed; nothing is left behind then.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    from datamodules.pack import pack as pack_images

    columns = ("packing", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("packing", total=None)
        summary = pack_images(
            source,
            out,
            labels=labels,
            split=split,
            group_regex=group_regex,
            val_fraction=val_fraction,
            test_fraction=test_fraction,
            seed=seed,
            shard_size=shard_size,
            max_bad_fraction=max_bad_fraction,
            max_pixels=max_pixels,
            on_image=lambda done, total: bar.update(task, completed=done, total=total),
        )
    print("\n".join(describe(summary)))


def describe(summary: PackSummary) -> list[str]:
    """Return the lines that say what was packed, what was not, and what to do next."""
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
    lines += [f"note: {note}" for note in summary.notes]
    verb = "probe RUN" if manifest.classes else "pretrain RECIPE"
    return [*lines, f"next: mae {verb} --data {summary.out}"]


def _numbers(values: tuple[float, ...]) -> str:
    return " ".join(f"{value:.4g}" for value in values)
