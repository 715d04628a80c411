"""``mae pack``: images → WebDataset shards and a manifest."""

from __future__ import annotations

from typing import Literal

from mae.commands.packing import describe, next_command, packing_bar


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
    from datamodules.pack import pack as pack_images

    with packing_bar() as on_image:
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
            on_image=on_image,
        )
    print(*describe(summary), next_command(summary), sep="\n")
