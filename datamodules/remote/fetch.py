"""Bring remote files here, whole or not at all.

Connections break, servers are busy, proxies cut bodies.  So everything is asked for again, with
longer and longer pauses; what has arrived is kept and the rest is asked for; and nothing is taken
for whole before its size and digest are what the manifest says.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

from datamodules.remote.bodies import BLOCK, BrokenBodyError, open_body
from datamodules.remote.filesystems import check_directory, describe, final_error, public
from mae.errors import DataError, OutputError

_Answer = TypeVar("_Answer")
OnBytes = Callable[[int, int], object]


def not_shown(done: int, total: int) -> None:
    """Show no progress."""


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How long a server is asked.

    Attributes:
        attempts: Requests for one file that may fail; one that came `BLOCK` bytes or more further
            than all before starts the count again.
        first_pause_s: Pause after the first failure; it doubles with each one.
        longest_pause_s: Longest pause.
        stall_s: Seconds without a byte after which a request has failed.
    """

    attempts: int = 8
    first_pause_s: float = 0.5
    longest_pause_s: float = 30.0
    stall_s: float = 60.0

    def pause_s(self, url: str, failures: int) -> float:
        """Return the pause after a failure, between half and all of its length.

        # Choice: the share depends on URL, process and count, not on a random state: processes
        # that failed together do not come back together, and a run stays repeatable.
        """
        words = hashlib.sha256(f"{url} {os.getpid()} {failures}".encode()).digest()
        share = 0.5 + int.from_bytes(words[:4]) / 2**33
        return min(self.longest_pause_s, self.first_pause_s * 2.0 ** (failures - 1)) * share


def read_bytes(url: str, *, max_bytes: int, patience: Patience | None = None) -> bytes:
    """Return the contents of a small remote file.

    Args:
        url: Where it lies.
        max_bytes: Most bytes that are taken.
        patience: How long the server is asked.

    Raises:
        FileNotFoundError: If it does not exist.
        DataError: If it may not be read, is larger, or the server did not answer.
        ConfigError: If a library is missing, or the URL was joined to one with a query.
    """
    patience = patience or Patience()
    if "/" in urlsplit(url).query:
        check_directory(url)

    def attempt() -> bytes:
        with open_body(url, stall_s=patience.stall_s) as body:
            size, parts = body.size, []
            total = size or 0
            if total <= max_bytes:
                total = 0
                for block in body.blocks:
                    parts.append(block)
                    total += len(block)
                    if total > max_bytes:
                        break
        if total > max_bytes:
            raise DataError(f"{public(url)} has {total:,} bytes or more; allowed: {max_bytes:,}")
        if size is not None and total != size:
            raise BrokenBodyError(f"{total:,} of {size:,} bytes came")
        return b"".join(parts)

    return persist(attempt, url, patience)


def download(
    url: str,
    part: Path,
    *,
    num_bytes: int,
    sha256: str,
    patience: Patience,
    on_bytes: OnBytes = not_shown,
    pause: Callable[[float], object] = time.sleep,
) -> None:
    """Bring a file of known size and digest to `part`, and flush it to the disk.

    What is there already is taken for its beginning; the digest tells whether it was.

    Args:
        url: Where it lies.
        part: Where it goes.  It stays when the server fails and is removed when its contents are
            refused, or the disk fails.
        num_bytes: Its size.
        sha256: Its digest in hexadecimal.
        patience: How long the server is asked.
        on_bytes: Is called with (bytes here, bytes in all); may raise to stop the download.
        pause: Waits for some seconds.

    Raises:
        FileNotFoundError: If it does not exist.
        DataError: If it may not be read, has another size or digest, or the server did not answer.
        OutputError: If the disk is full or may not be written.
    """
    with _Download(url, part, num_bytes, sha256, on_bytes) as running:
        persist(
            lambda: running.attempt(patience.stall_s),
            url,
            patience,
            progress=lambda: running.done,
            pause=pause,
        )
        running.finish()


class _OtherContentsError(BrokenBodyError):
    """What came is not what the manifest says."""


class _Download:
    """The state of one download: the file, and the digest of what it holds."""

    def __init__(
        self,
        url: str,
        part: Path,
        num_bytes: int,
        sha256: str,
        on_bytes: OnBytes,
    ):
        self.url, self.part, self.num_bytes, self.sha256 = url, part, num_bytes, sha256
        self.on_bytes = on_bytes
        self.done, self.validator, self.differed = 0, "", False
        self.digest = hashlib.sha256()

    def __enter__(self) -> _Download:
        try:
            self.file = os.fdopen(os.open(self.part, os.O_RDWR | os.O_CREAT, 0o666), "r+b")
        except OSError as error:
            raise self._cannot_write(error) from error
        while self.done <= self.num_bytes and (block := self.file.read(BLOCK)):
            self.digest.update(block)
            self.done += len(block)
        if self.done > self.num_bytes:
            self._restart()
        return self

    def __exit__(self, *error: object) -> None:
        self.file.close()

    def attempt(self, stall_s: float) -> None:
        """Ask for what is missing.

        Raises:
            DataError: If the file on the server is, twice, not what the manifest says.
            Exception: See `open_body`.
        """
        try:
            if self.done < self.num_bytes:
                self._read(stall_s)
            if self.digest.hexdigest() != self.sha256:
                raise _OtherContentsError(
                    f"SHA-256 {self.digest.hexdigest()}, the manifest says {self.sha256}"
                )
        except _OtherContentsError as error:
            self._restart()
            # Choice: once more, whole: the bytes may have been spoiled on the way, or what lay
            # here was the beginning of another version.
            if self.differed:
                self.part.unlink(missing_ok=True)
                raise DataError(
                    f"{public(self.url)} is not the shard that the manifest means: {error}; it "
                    f"was fetched twice and nothing was kept. Copy shards and manifest to the "
                    f"server again"
                ) from error
            self.differed = True
            raise

    def _read(self, stall_s: float) -> None:
        with open_body(
            self.url, start=self.done, validator=self.validator, stall_s=stall_s
        ) as body:
            if body.size is not None and body.size != self.num_bytes:
                raise _OtherContentsError(
                    f"{body.size:,} bytes, the manifest says {self.num_bytes:,}"
                )
            if body.start != self.done or (self.validator and body.validator != self.validator):
                self._restart()
            if body.start != self.done:
                raise BrokenBodyError("the file was changed while it was read")
            self.validator = body.validator
            for block in body.blocks:
                self._add(block)
        if self.done < self.num_bytes:
            raise BrokenBodyError(f"the body ended after {self.done:,} of {self.num_bytes:,} bytes")

    def _add(self, block: bytes) -> None:
        if self.done + len(block) > self.num_bytes:
            raise _OtherContentsError(
                f"{self.done + len(block):,} bytes or more, the manifest says {self.num_bytes:,}"
            )
        left = memoryview(block)
        try:
            while left:
                left = left[self.file.write(left) :]
        except OSError as error:
            raise self._cannot_write(error) from error
        self.digest.update(block)
        self.done += len(block)
        self.on_bytes(self.done, self.num_bytes)

    def _restart(self) -> None:
        self.file.seek(0)
        self.file.truncate()
        self.done, self.validator, self.digest = 0, "", hashlib.sha256()

    def finish(self) -> None:
        """Flush the file to the disk."""
        try:
            os.fsync(self.file.fileno())
        except OSError as error:
            raise self._cannot_write(error) from error

    def _cannot_write(self, error: OSError) -> OutputError:
        self.part.unlink(missing_ok=True)
        return OutputError(
            f"cannot write {self.num_bytes:,} bytes of {public(self.url)} to {self.part.parent} "
            f"({error.strerror}); free space on that disk, choose another cache folder, or lower "
            f"the cache's bound"
        )


def persist(
    attempt: Callable[[], _Answer],
    url: str,
    patience: Patience,
    *,
    progress: Callable[[], int] | None = None,
    pause: Callable[[float], object] = time.sleep,
) -> _Answer:
    """Return the answer of the first attempt that succeeds.

    Args:
        attempt: Asks once.
        url: What is asked for.
        patience: How often, and with which pauses.
        progress: Bytes that have arrived and are kept; without it each attempt begins anew.
        pause: Waits for some seconds.

    Raises:
        FileNotFoundError: If it does not exist.
        DataError: If it may not be read, or the server did not answer.
    """
    failures = asked = reached = 0
    while True:
        asked += 1
        try:
            return attempt()
        except (DataError, OutputError):
            raise
        except Exception as error:
            final = final_error(error, url)
            if final is error:
                raise
            if final is not None:
                raise final from error
            # What a server without ranges sends again is no progress, wherever it breaks.
            done = progress() if progress is not None else 0
            failures = 1 if done - reached >= BLOCK else failures + 1
            reached = max(reached, done)
            if failures >= patience.attempts:
                kept = "" if progress is None else "; what has arrived is kept"
                raise DataError(
                    f"{public(url)} could not be read, asked {asked} times; the last answer: "
                    f"{describe(error)}. Check the network and the server, then run again{kept}"
                ) from error
        pause(patience.pause_s(url, failures))
