"""``mae inspect``: what is in shards, and whether they are what their manifest says."""

from __future__ import annotations

import sys
from pathlib import Path

from mae.commands.outputs import check_writable
from mae.commands.progress import share_bar
from mae.errors import ConfigError, DataError

_NUM_NAMED = 10


def inspect(
    shards: str,
    *,
    deep: bool = False,
    images: int = 512,
    sheet: str | None = None,
    sheet_images: int = 48,
    json: str | None = None,
    ignore: str = "",
    workers: int | None = None,
    max_pixels: int = 100_000_000,
    shard_cache: str | None = None,
    shard_cache_gib: float = 100.0,
) -> None:
    """Show what is in shards, and compare them with their manifest.

    Args:
        shards: Directory or URL with a manifest; or a tar, a folder of tars, a pattern or a brace
            list without one.
        deep: Read every byte, compare every checksum, decode every image.
        images: How many images are decoded otherwise, equally many of each shard.
        sheet: Picture to write, ending in .png, with images of all shards.
        sheet_images: How many images are on it.
        json: File to write with all numbers, the complete lists and the histograms.
        ignore: Suffixes of members to pass over, as txt,npy; a manifest has its own.
        workers: Processes; as many processors as are worth it without a value.
        max_pixels: Largest height x width of an image.
        shard_cache: Folder for remote shards; one in the user's cache without a value.
        shard_cache_gib: Disk that remote shards may take there.

    Raises:
        MAEError: If the shards differ from their manifest, images cannot be used, or what is asked
            for cannot be written.
    """
    from datamodules.inspection.look import inspect_shards
    from datamodules.inspection.numbers import numbers_of
    from datamodules.inspection.words import lines
    from mae.files import atomic_write

    if sheet is not None and not sheet.endswith(".png"):
        raise ConfigError(f"sheet is {sheet!r}; give a file that ends in .png")
    if sheet_images < 1:
        raise ConfigError(f"sheet_images is {sheet_images}; allowed: 1 or more")
    for output in (sheet, json):
        if output is not None:
            check_writable(Path(output))
    with share_bar("inspecting") as on_progress:
        inspection = inspect_shards(
            shards,
            deep=deep,
            num_images=images,
            num_sheet=sheet_images if sheet is not None else 0,
            ignore=tuple(filter(None, ignore.split(","))),
            max_pixels=max_pixels,
            cache=None if shard_cache is None else Path(shard_cache),
            cache_gib=shard_cache_gib,
            workers=workers,
            on_progress=on_progress,
        )
    numbers = numbers_of(inspection)
    is_unicode = (sys.stdout.encoding or "").lower().startswith("utf")
    said = "\n".join(lines(numbers, is_unicode=is_unicode))
    print(said if is_unicode else said.replace("…", "...").encode("ascii", "replace").decode())
    if json is not None:
        text = _json(numbers)
        atomic_write(Path(json), lambda path: path.write_text(text, encoding="utf-8"))
        print(f"numbers: {json}")
    if sheet is not None:
        from datamodules.inspection.sheet import contact_sheet

        picture = contact_sheet(inspection)
        atomic_write(Path(sheet), lambda path: path.write_bytes(picture))
        print(f"picture: {sheet}")
    if inspection.problems:
        raise DataError(_listed(inspection.problems))


def _json(numbers: dict[str, object]) -> str:
    import json

    return json.dumps(numbers, indent=1) + "\n"


def _listed(problems: tuple[str, ...]) -> str:
    more = len(problems) - _NUM_NAMED
    return "\n".join(
        [
            f"{len(problems):,} problems:",
            *(f"  {problem}" for problem in problems[:_NUM_NAMED]),
            *([f"  … and {more:,} more; --json has all"] if more > 0 else []),
        ]
    )
