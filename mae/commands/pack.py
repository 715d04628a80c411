"""``mae pack``: images → WebDataset shards and a manifest."""

from __future__ import annotations

from typing import Literal

from datamodules.guard import MAX_PIXELS
from mae.commands.packing import describe, next_command, packing_bar


def pack(
    source: str,
    out: str,
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
    workers: int | None = None,
    dask: str | None = None,
) -> None:
    """Pack JPEG, PNG and TIFF images into shards, byte by byte unless smaller ones are asked for.

    Killed or interrupted, the same command goes on where it was.

    Args:
        source: Folder of images, pattern in quotes ('imgs/**/*.tif'), CSV
            ``path[,label][,group][,split]``, .txt with one path per line, .tar, .zip, or existing
            shards; several joined by '::' or written with braces.
        out: Directory to create; must not exist.
        labels: 'folders' takes the first folder below the source as the class; a CSV has its
            column; 'multi' allows several labels per image, or none.
        label_separator: What stands between several labels in a cell of a CSV.
        split: 'folders' takes the topmost folders as train, val, test; a CSV has its column.
        group_regex: Expression on the path whose first bracket is the patient, scene or site; a
            group never stands in two splits.
        group_field: Field of the JSON file of the same name beside each image that is the group.
        val_fraction: Share for validation; without a value 0.02, or 0.1 with labels.
        test_fraction: Share for testing; without a value 0, or 0.2 with labels.
        seed: Key of the split and of the order.
        shard_size: Images per shard.
        duplicates: 'drop' packs only one of several files with equal bytes; 'keep' does not
            compare them.
        max_side: Longest side in px that is stored; larger images are resized, keeping their depth.
        quality: JPEG quality, 1 to 100, in which all images are stored; without a value nothing is
            lost.
        max_bad_fraction: Share of unusable images that may be left out.
        max_pixels: Largest height x width of an image.
        workers: Processes; without a value as many as there are processors, where that pays.
        dask: Address of a dask scheduler, as tcp://host:8786, whose workers do the work.

    Raises:
        MAEError: If the images cannot be packed.
    """
    from datamodules.pack import pack as pack_images

    with packing_bar() as on_progress:
        summary = pack_images(
            source,
            out,
            labels=labels,
            label_separator=label_separator,
            split=split,
            group_regex=group_regex,
            group_field=group_field,
            val_fraction=val_fraction,
            test_fraction=test_fraction,
            seed=seed,
            shard_size=shard_size,
            duplicates=duplicates,
            max_side=max_side,
            quality=quality,
            max_bad_fraction=max_bad_fraction,
            max_pixels=max_pixels,
            workers=workers,
            dask=dask,
            on_progress=on_progress,
        )
    print(*describe(summary), next_command(summary), sep="\n")
