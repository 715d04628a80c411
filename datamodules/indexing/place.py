"""The directory that ``mae index`` writes: beside the tars, or one of its own.

Everything is made in a hidden folder inside and put in place at the end, the manifest last: while
there is no manifest there is no shard directory.
"""

from __future__ import annotations

import csv
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from filelock import FileLock, Timeout

from datamodules.ledger import LEDGER_FILE
from datamodules.locations import is_url
from datamodules.manifest import FILE_NAME, Manifest
from datamodules.shardfiles import index_location
from datamodules.tarindex import INDEX_SUFFIX, TarIndex
from mae.errors import OutputError
from mae.files import atomic_write

_SCRATCH = ".index.tmp"


@dataclass(frozen=True)
class IndexPlace:
    """Where an index is made.

    Attributes:
        directory: Where it goes.
        scratch: Hidden folder for what is unfinished.
    """

    directory: Path
    scratch: Path

    def path_of(self, location: str) -> str:
        """Return how the manifest calls a shard: relative where it lies below the directory."""
        if is_url(location) or not Path(location).is_relative_to(self.directory):
            return location
        return Path(location).relative_to(self.directory).as_posix()

    def keep(self, index: TarIndex) -> None:
        """Keep an index until the manifest is written."""
        index.save(self._kept(index.digest))

    def publish(self, manifest: Manifest, bad_rows: Sequence[tuple[str, str, str, str]]) -> None:
        """Put indices, the list of bad images and the manifest in place.

        Args:
            manifest: Whose shards all have an index that was kept.
            bad_rows: Shard, key, reason and message of each image that cannot be used.

        Raises:
            OutputError: If the disk refuses.
        """
        places = {index_location(str(self.directory), info): info for info in manifest.shard_list}
        for place, info in places.items():
            atomic_write(place, partial(shutil.copyfile, self._kept(info.index_sha256)))
        if bad_rows:
            atomic_write(self.directory / LEDGER_FILE, lambda path: _write_rows(path, bad_rows))
        else:
            (self.directory / LEDGER_FILE).unlink(missing_ok=True)
        text = manifest.to_json()
        atomic_write(
            self.directory / FILE_NAME, lambda path: path.write_text(text, encoding="utf-8")
        )
        for old in (self.directory / "indexes").glob(f"*{INDEX_SUFFIX}"):
            if old not in places:
                old.unlink()

    def _kept(self, digest: str) -> Path:
        return self.scratch / f"{digest}{INDEX_SUFFIX}"


@contextmanager
def index_place(
    directory: Path, locations: Sequence[str], *, overwrite: bool
) -> Iterator[IndexPlace]:
    """Yield the place for an index; what is unfinished is removed at the end.

    Args:
        directory: Where it goes; made if it is missing.
        locations: The shards.
        overwrite: Whether a manifest that is there may be replaced.

    Raises:
        OutputError: If there is a manifest, or other people's files, or it cannot be written.
    """
    directory = Path(os.path.abspath(directory))  # noqa: PTH100 (keeps links as they are)
    _check(directory, locations, overwrite=overwrite)
    is_new = not directory.exists()
    try:
        scratch = directory / _SCRATCH
        scratch.mkdir(parents=True, exist_ok=True)
        lock = FileLock(scratch / "lock")
        lock.acquire(timeout=0)
    except Timeout as error:
        raise OutputError(
            f"another process is indexing into {directory}; wait for it, or give another directory "
            f"as OUT"
        ) from error
    except OSError as error:
        raise OutputError(
            f"{directory} cannot be written ({error.strerror}); give another directory as OUT"
        ) from error
    try:
        for old in scratch.glob("*.*"):  # of a process that was killed
            old.unlink()
        yield IndexPlace(directory, scratch)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        lock.release()
        if is_new and not any(directory.iterdir()):
            directory.rmdir()


def _check(directory: Path, locations: Sequence[str], *, overwrite: bool) -> None:
    """Refuse before the first byte is read what would fail after the last."""
    manifest = directory / FILE_NAME
    if manifest.exists() and not overwrite:
        raise OutputError(
            f"{manifest} exists already; add --overwrite to replace it, or give another directory "
            f"as OUT"
        )
    inside = [Path(name) for name in locations if not is_url(name)]
    inside = [path for path in inside if path.is_relative_to(directory)]
    if directory.exists() and not directory.is_dir():
        raise OutputError(f"{directory} is a file; give a directory as OUT")
    others = [path for path in directory.glob("*") if path.name != _SCRATCH]
    if others and not (inside or manifest.exists()):
        raise OutputError(
            f"{directory} holds files, but neither these shards nor a {FILE_NAME}; give a new "
            f"directory as OUT"
        )
    for folder in dict.fromkeys(path.parent for path in inside):
        if not os.access(folder, os.W_OK):
            raise OutputError(
                f"{folder} may not be written, but the index of its shards goes there; give a "
                f"directory outside as OUT"
            )


def _write_rows(path: Path, rows: Iterable[tuple[str, ...]]) -> None:
    with path.open("w", newline="", encoding="utf-8", errors="backslashreplace") as file:
        writer = csv.writer(file)
        writer.writerow(("shard", "key", "reason", "message"))
        writer.writerows(rows)
