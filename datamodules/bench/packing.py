"""Packing with re-encoding, by one writer and by two."""

from __future__ import annotations

import os
import shutil
from itertools import count
from pathlib import Path

from datamodules.bench.images import ImageSet
from datamodules.bench.timing import Run
from datamodules.pack import pack

_QUALITY = 90
_SHARD_SIZE = 4  # small enough that both writers end at about the same time

ONE_WRITER = "pack with re-encoding, 1 writer"
TWO_WRITERS = "pack with re-encoding, 2 writers"


def packing_cases(images: ImageSet, scratch: Path, *, copies: int) -> dict[str, Run]:
    """Return packing by one and by two writers, by name.

    Args:
        images: Their files are packed.
        scratch: Folder to write into.
        copies: How often each file is packed; starting a process takes a second, so a short run
            would measure that.
    """
    source = scratch / "source"
    for number in range(copies):
        folder = source / f"{number:02d}"
        folder.mkdir(parents=True)
        for path in sorted(Path(images.files).iterdir()):
            os.link(path, folder / path.name)
    numbers = count()

    def packing(workers: int) -> Run:
        def run() -> int:
            out = scratch / f"packed{next(numbers)}"
            summary = pack(
                source,
                out,
                val_fraction=0,
                shard_size=_SHARD_SIZE,
                duplicates="keep",
                quality=_QUALITY,
                workers=workers,
            )
            shutil.rmtree(out)
            return summary.manifest.num_samples("train")

        return run

    return {ONE_WRITER: packing(1), TWO_WRITERS: packing(2)}
