"""The hidden directory beside OUT in which shards are made, and which survives a crash.

::

    .OUT.partial/
    ├── lock                 one packer at a time
    └── DIGEST/              of everything that shapes the shards: files, sizes, times, options
        ├── plan.json        the same in words
        ├── duplicates.json  equal files, which took reading to find
        ├── done/            one record per finished shard, written after the shard is on the disk
        ├── running/         unfinished tars, and one line per image that is done
        └── shards/          becomes OUT at the end, in one step

The same command finds its directory again and keeps what is done; another source or other options
have another digest and begin anew.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from datamodules.packing.results import ShardResult
from datamodules.packing.workers import UnfinishedError
from datamodules.tarindex import index_path
from mae.errors import DataError, MAEError, OutputError
from mae.files import atomic_write


@dataclass(frozen=True)
class Workplace:
    """Directory of one attempt, ``.OUT.partial/DIGEST``."""

    directory: Path

    @property
    def shards(self) -> Path:
        """What becomes OUT."""
        return self.directory / "shards"

    @property
    def running(self) -> Path:
        """Unfinished tars and progress."""
        return self.directory / "running"

    @property
    def done(self) -> Path:
        """Records of finished shards."""
        return self.directory / "done"

    @property
    def is_stopping(self) -> bool:
        """Whether whoever writes a shard shall leave off."""
        return (self.running / "stop").exists()

    def stop(self) -> None:
        """Ask whoever writes a shard, on whatever machine, to leave off."""
        (self.running / "stop").touch()

    def record(self, name: str, result: ShardResult) -> None:
        """Write down that a shard is finished.

        Args:
            name: Name of the shard without suffix.
            result: What came out.
        """
        self.write(f"done/{name}.json", result.to_dict())

    def finished(self, name: str) -> ShardResult | None:
        """Return what came out of a shard that is finished; None if it is not, or not any more."""
        fields = self.read(f"done/{name}.json")
        try:
            result = None if fields is None else ShardResult.from_dict(fields)
        except (KeyError, TypeError, ValueError):
            return None
        if result is None or not result.info.num_samples:
            return result
        path = self.shards / result.info.path
        is_there = path.is_file() and path.stat().st_size == result.info.num_bytes
        return result if is_there and index_path(path).is_file() else None

    def write(self, name: str, content: object) -> None:
        """Write a JSON file in one step."""
        text = json.dumps(content)
        atomic_write(self.directory / name, lambda path: path.write_text(text, encoding="utf-8"))

    def read(self, name: str) -> Any:
        """Return the content of a JSON file; None if there is none."""
        try:
            return json.loads((self.directory / name).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None

    def count_done(self) -> int:
        """Return the number of finished shards."""
        return sum(1 for _ in self.done.glob("*.json"))


@contextmanager
def workplace(
    out: Path, digest: str, plan: Mapping[str, Any], *, wait: bool = False
) -> Iterator[tuple[Workplace, list[str]]]:
    """Yield the directory of an attempt, which becomes `out` when the block ends well.

    Finished shards are kept if the block ends by an interrupt, a full disk, a lost worker or too
    many bad images; after an error that would come again whatever the user does, nothing is left.

    Args:
        out: Directory to create.
        digest: Digest of everything that shapes the shards.
        plan: The same in words, for whoever looks.
        wait: Wait for another process that packs into `out`, instead of refusing.

    Yields:
        The directory, and a note if an attempt with another digest was thrown away.

    Raises:
        DataError: If `out` exists, another process packs into it, or the disk refuses.
        KeyboardInterrupt: With a sentence about what was kept.
    """
    above = partial_root(out)
    with _locked(out, above, wait=wait):
        place = Workplace(above / digest)
        try:
            yield place, _prepare(above, place, plan)
            _publish(place, out)
        except BaseException as error:
            kept = _clean_up(above, place, error)
            if isinstance(error, KeyboardInterrupt):
                raise KeyboardInterrupt(f"packing was interrupted; {kept}") from None
            if isinstance(error, UnfinishedError):
                raise UnfinishedError(f"{error}\n{kept}") from error
            if isinstance(error, OutputError | OSError):
                raise DataError(_cannot_write(out, error, kept)) from error
            raise
        shutil.rmtree(above, ignore_errors=True)


@contextmanager
def _locked(out: Path, above: Path, *, wait: bool) -> Iterator[None]:
    """Hold the lock of `out`, which must not exist."""
    while True:
        refuse_existing(out)
        try:
            above.mkdir(parents=True, exist_ok=True)
            lock = FileLock(above / "lock", timeout=-1 if wait else 0)
            lock.acquire()
        except Timeout as error:
            raise DataError(
                f"another process is packing into {out}; wait for it, or give another directory"
            ) from error
        except FileNotFoundError:
            continue  # whoever held it has just finished and taken the directory away
        except OSError as error:
            raise DataError(_cannot_write(out, error, "nothing was kept")) from error
        if (above / "lock").exists():
            break
        lock.release()
    try:
        if out.exists():  # it was finished while we waited for the lock
            shutil.rmtree(above, ignore_errors=True)
        refuse_existing(out)
        yield
    finally:
        lock.release()


def partial_root(out: Path) -> Path:
    """Return the hidden directory beside `out`."""
    return out.absolute().with_name(f".{out.absolute().name}.partial")


def refuse_existing(out: Path) -> None:
    """Refuse a directory that exists.

    Raises:
        DataError: If it does.
    """
    if out.exists():
        raise DataError(
            f"{out} exists already and is not overwritten; give another directory or remove it"
        )


def _prepare(above: Path, place: Workplace, plan: Mapping[str, Any]) -> list[str]:
    """Make or tidy the directory and remove those of other plans, which is said."""
    others = [path for path in above.iterdir() if path.is_dir() and path != place.directory]
    for other in others:
        shutil.rmtree(other)
    for directory in (place.shards, place.done):
        directory.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(place.running, ignore_errors=True)
    place.running.mkdir()
    for unfinished in place.shards.glob(".*"):
        unfinished.unlink()
    place.write("plan.json", dict(plan))
    if not others:
        return []
    return ["an earlier attempt, of other files or with other options, was thrown away"]


def _publish(place: Workplace, out: Path) -> None:
    for directory in (place.shards, out.parent):
        _sync(directory)
    place.shards.rename(out)
    _sync(out.parent)


def _clean_up(above: Path, place: Workplace, error: BaseException) -> str:
    """Remove what is of no use, and say what was kept."""
    would_recur = isinstance(error, MAEError) and not isinstance(
        error, UnfinishedError | OutputError
    )
    num_done = 0 if would_recur else place.count_done()
    if not num_done:
        shutil.rmtree(above, ignore_errors=True)
        return "nothing was kept"
    shutil.rmtree(place.running, ignore_errors=True)
    return (
        f"{num_done} finished shards are kept in {above}, and the same command goes on there; "
        f"delete it if you do not want that"
    )


def _cannot_write(out: Path, error: Exception, kept: str) -> str:
    why = getattr(error.__cause__ or error, "strerror", None) or error
    return (
        f"cannot write {out}: {why}; {kept}. Free space, or give a directory that you may write to"
    )


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
