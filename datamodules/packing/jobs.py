"""What a worker is given to do, and how the one who waits learns how far it is.

For each image that is done a worker appends a line to a file, with the reason where it was left
out.  That works alike for threads, processes and machines that share a disk; the same directory
carries the wish to stop.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from datamodules.packing.duplicates import Depth, Digest, digests
from datamodules.packing.items import SPLITS, Item
from datamodules.packing.places import Place
from datamodules.packing.results import LeftOut, ShardResult
from datamodules.packing.shardwriter import ShardRules, write_shard
from datamodules.packing.workers import LostWorkerError
from datamodules.packing.workplace import Workplace
from mae.errors import DataError

CHUNK = 256  # files that one job compares
_PROGRESS = ".progress"


class StoppedError(DataError):
    """A shard was given up because somebody asked for it."""


@dataclass(frozen=True)
class ShardJob:
    """One shard to write: its name without suffix, its split and its images."""

    place: Workplace
    name: str
    split: str
    items: tuple[Item, ...]
    rules: ShardRules


@dataclass(frozen=True)
class CompareJob:
    """Files to take digests of, and their number in the row of all such jobs."""

    number: int
    files: tuple[tuple[Place, str], ...]
    depth: Depth


def shard_jobs(
    place: Workplace, items: Sequence[Item], rules: ShardRules, *, shard_size: int
) -> list[ShardJob]:
    """Return the jobs that write all shards; nothing is read for that.

    Args:
        place: Where they are written.
        items: All images in order, each with its split.
        rules: What holds for every image.
        shard_size: Images per shard.
    """
    jobs = []
    for split in SPLITS:
        members = [item for item in items if item.split == split]
        for number, start in enumerate(range(0, len(members), shard_size)):
            chosen = tuple(members[start : start + shard_size])
            jobs.append(ShardJob(place, f"{split}-{number:06d}", split, chosen, rules))
    return jobs


def compare_jobs(items: Sequence[Item], depth: Depth) -> list[CompareJob]:
    """Return the jobs that take digests of all files, in order."""
    files = [(item.place, item.name) for item in items]
    starts = range(0, len(files), CHUNK)
    return [CompareJob(n, tuple(files[s : s + CHUNK]), depth) for n, s in enumerate(starts)]


def compare(job: CompareJob) -> list[Digest]:
    """Return the digests of a job's files."""
    return digests(job.files, job.depth)


def pack_shard(job: ShardJob) -> ShardResult:
    """Write a shard and the record that it is finished.

    Raises:
        StoppedError: If it was asked for.
        LostWorkerError: If this worker does not see the directory.
        DataError: See `write_shard`.
        OSError: If the disk refuses.
    """
    place = job.place
    if not place.running.is_dir():
        raise LostWorkerError(
            f"the worker on {socket.gethostname()} does not see {place.directory}; sources and "
            f"output must lie on a disk that all machines share, under the same path"
        )
    progress = _progress_path(place.running, job.name)
    with progress.open("w", encoding="utf-8") as file:

        def on_image(left_out: LeftOut | None) -> None:
            file.write("\n" if left_out is None else json.dumps(asdict(left_out)) + "\n")
            file.flush()
            if place.is_stopping:
                raise StoppedError(f"shard {job.name} was given up")

        result = write_shard(
            place.shards / f"{job.name}.tar",
            job.items,
            job.rules,
            split=job.split,
            scratch=place.running,
            on_image=on_image,
        )
    place.record(job.name, result)
    return result


class Watch:
    """Counts the images that are done, in finished shards and in those being written.

    Args:
        place: Where the jobs write.
        jobs: All jobs.
        on_count: Called with the number of images done when it has changed.
    """

    def __init__(
        self, place: Workplace, jobs: Sequence[ShardJob], on_count: Callable[[int], object]
    ):
        self._running = place.running
        self._on_count = on_count
        self._sizes = {job.name: len(job.items) for job in jobs}
        self._left_out: dict[str, list[LeftOut]] = {job.name: [] for job in jobs}
        self._num_done = self._last = 0
        self._counts: dict[str, int] = {}  # of shards being written
        self._offsets: dict[str, int] = {}
        self._finished: set[str] = set()

    @property
    def left_out(self) -> list[LeftOut]:
        """Images left out so far, in the order of the shards."""
        return [entry for entries in self._left_out.values() for entry in entries]

    def finish(self, name: str, result: ShardResult) -> None:
        """Take in a finished shard."""
        self._finished.add(name)
        self._num_done += self._sizes[name]
        self._counts.pop(name, None)
        self._left_out[name] = list(result.left_out)
        _progress_path(self._running, name).unlink(missing_ok=True)
        self._tell()

    def look(self) -> None:
        """Read what the workers have written since the last time."""
        for path in self._running.glob(f"*{_PROGRESS}"):
            name = path.name.removesuffix(_PROGRESS)
            if name in self._sizes and name not in self._finished:
                self._read(name, path)
        self._tell()

    def _read(self, name: str, path: Path) -> None:
        start = self._offsets.get(name, 0)
        with path.open("rb") as file:
            file.seek(start)
            new = file.read()
        whole = new[: new.rfind(b"\n") + 1]  # the last line may be half written
        self._offsets[name] = start + len(whole)
        lines = whole.split(b"\n")[:-1]
        self._counts[name] = self._counts.get(name, 0) + len(lines)
        self._left_out[name] += [LeftOut(**json.loads(line)) for line in lines if line]

    def _tell(self) -> None:
        done = self._num_done + sum(self._counts.values())
        if done != self._last:
            self._last = done
            self._on_count(done)


def _progress_path(running: Path, name: str) -> Path:
    return running / f"{name}{_PROGRESS}"
