"""Go through all shards: open each, measure its samples, in any number of processes.

The result is the same however many processes there are: the work is cut into the same blocks, and
they are put together in their order.  Only some shards are under way at a time, so neither indices
nor, of remote shards, files pile up.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from datamodules.inspection.blocks import Measured, blocks_of, measure
from datamodules.manifest import ShardInfo
from datamodules.packing.workers import Team, usable_cpus
from datamodules.shardfiles import ShardFiles
from datamodules.tarindex import TarIndex
from mae.errors import MAEError

_BYTES_WORTH_A_PROCESS = 20_000_000  # decoding these takes about as long as starting one
_OPENING = 0.2  # share of the work that is done once a shard is open


@dataclass(frozen=True, kw_only=True)
class Shard:
    """A shard that is to be looked at.

    Attributes:
        files: Where it lies; it alone.
        split: Name of its split.
        info: What the manifest says of it; None if there is no manifest.
        ignore: Suffixes of members that are passed over.
        is_deep: Whether the index is built anew and the file's digest taken.
    """

    files: ShardFiles
    split: str
    info: ShardInfo | None = None
    ignore: tuple[str, ...] = ()
    is_deep: bool = False

    @property
    def name(self) -> str:
        """Path or URL, for messages."""
        return self.files.name(0)


@dataclass(frozen=True)
class Opened:
    """A shard that was opened, or why it could not be.

    Attributes:
        index: Its index; None if it cannot be used.
        sha256: Digest of the file where it was taken.
        fault: Why it cannot be used.
    """

    index: TarIndex | None
    sha256: str = ""
    fault: str = ""


def not_shown(share: float) -> None:
    """Show no progress."""


def survey(
    shards: Sequence[Shard],
    places_of: Callable[[int, TarIndex], Sequence[int]],
    team: Team,
    *,
    on_progress: Callable[[float], object] = not_shown,
    **options: Any,
) -> Iterator[tuple[Shard, Opened, Measured]]:
    """Open the shards and measure some of their samples.

    Args:
        shards: The shards.
        places_of: Returns the places of the samples to measure in a shard, by its number and index.
        team: Does the work.
        on_progress: Called with the share that is done, in [0, 1].
        options: See `datamodules.inspection.blocks.Block`.

    Yields:
        The shards in order, each with what it is and what was seen of its samples.

    Raises:
        DataError: If a shard goes away meanwhile, or a worker.
    """
    together = 2 * team.size
    for start in range(0, len(shards), together):
        under_way = shards[start : start + together]

        def show(share: float, *, done: int = start, count: int = len(under_way)) -> None:
            on_progress((done + share * count) / len(shards))

        opened: list[Opened] = _run(
            team, open_shard, under_way, lambda share: show(_OPENING * share)
        )
        blocks = [
            block
            for number, found in enumerate(opened)
            if found.index is not None
            for block in blocks_of(
                number,
                under_way[number].files,
                found.index,
                places_of(start + number, found.index),
                **options,
            )
        ]
        measured = [Measured() for _ in under_way]
        of_blocks: list[Measured] = _run(
            team, measure, blocks, lambda share: show(_OPENING + (1 - _OPENING) * share)
        )
        for block, of_block in zip(blocks, of_blocks, strict=True):
            measured[block.shard].merge(of_block)
        show(1)
        yield from zip(under_way, opened, measured, strict=True)


def sensible_workers(asked: int | None, num_bytes: int) -> int:
    """Return how many processes to start.

    Args:
        asked: What the user wants; None takes the processors that are worth it.
        num_bytes: Bytes of the images to decode, about.
    """
    if asked is not None:
        return asked
    return max(1, min(usable_cpus(), num_bytes // _BYTES_WORTH_A_PROCESS))


def open_shard(shard: Shard) -> Opened:
    """Return index and, if asked for, digest of a shard; a fault instead of an error."""
    path: Path | None = None
    try:
        path = shard.files.path(0)
        if shard.info is not None and path.stat().st_size != shard.info.num_bytes:
            return Opened(
                None,
                fault=f"shard {shard.name} has {path.stat().st_size:,} bytes, the manifest says "
                f"{shard.info.num_bytes:,}; copy it again",
            )
        if not shard.is_deep:
            return Opened(shard.files.index(0))
        return Opened(TarIndex.build(path, ignore=shard.ignore), file_sha256(path))
    except MAEError as error:  # of a remote shard, the file that was fetched means nothing
        return Opened(None, fault=str(error).replace(str(path), shard.name))
    except OSError as error:
        return Opened(
            None,
            fault=f"shard {shard.name} cannot be opened ({error.strerror or error}); copy it here "
            f"again",
        )


def file_sha256(path: Path) -> str:
    """Return the digest of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _run(
    team: Team,
    function: Callable[[Any], Any],
    jobs: Sequence[Any],
    on_share: Callable[[float], object],
) -> list[Any]:
    """Return the results in the order of the jobs."""
    results: list[Any] = [None] * len(jobs)
    finished = team.run(partial(_call, function), enumerate(jobs))
    for done, ((number, _), result) in enumerate(finished, 1):
        results[number] = result
        on_share(done / len(jobs))
    return results


def _call(function: Callable[[Any], Any], job: tuple[int, Any]) -> Any:
    return function(job[1])
