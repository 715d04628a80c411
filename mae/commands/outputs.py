"""Files that a command writes at its end."""

from __future__ import annotations

import os
from pathlib import Path

from mae.errors import OutputError

_PARTS_OF_SHARDS = ("manifest.json", ".tar", ".idx.safetensors", "left_out.csv", "bad_images.csv")


def check_writable(path: Path) -> None:
    """Refuse before minutes are spent.

    Args:
        path: File that is to be written; folders that are missing will be made.

    Raises:
        OutputError: If it cannot be written, or is a part of a shard directory.
    """
    if path.exists() and path.name.endswith(_PARTS_OF_SHARDS):
        raise OutputError(
            f"{path} belongs to a shard directory and is not overwritten; name another file"
        )
    folder = path.absolute().parent
    while not folder.exists():
        folder = folder.parent
    if path.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        raise OutputError(f"{path} cannot be written; name a file in a folder of your own")
