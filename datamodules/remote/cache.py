"""Whole shards on a local disk, shared by all processes of this machine.

A shard lies under the digest of its full URL, so equal names in two folders never meet.  Only
verified files get that name.  Beside it lie ``.sha256``, what it was verified against (``sha256sum
-c`` reads it), and the shard's index.  The bound counts shards, also those that are still coming;
indexes come on top, about a hundredth.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from datamodules.remote.fetch import OnBytes, Patience, download, not_shown
from datamodules.remote.filesystems import public
from datamodules.tarindex import index_path
from mae.errors import ConfigError, OutputError
from mae.files import atomic_write

NextUses = Callable[[], Mapping[str, int]]

_POLL_S = 0.05
_NEVER = 2**63 - 1
_OLD_S = 86_400
_NAME = re.compile(
    r"(?P<key>[0-9a-f]{64})\.(?P<kind>tar|sha256|(?P<reserved>\d+)\.[0-9a-f]{16}\.part)"
)


def key_of(url: str) -> str:
    """Return the name under which a URL is kept."""
    return hashlib.sha256(url.encode()).hexdigest()


def _no_plan() -> Mapping[str, int]:
    return {}


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A shard that is to be in the cache.

    Attributes:
        url: Where it comes from.
        num_bytes: Its size.
        sha256: Its digest.
    """

    url: str
    num_bytes: int
    sha256: str
    key: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", key_of(self.url))

    @property
    def part(self) -> str:
        """Name of the file while it comes; it tells others how much room it takes."""
        return f"{self.key}.{self.num_bytes}.{self.sha256[:16]}.part"


class ShardCache:
    """A directory of shards with a bound.

    Args:
        directory: Where they lie; made if it is missing.  Other data sets may share it.
        max_bytes: Most bytes of shards in it.  Room is made by removing shards of other data sets,
            longest unused first, then those that the plan needs last.
        patience: How long servers are asked.
    """

    def __init__(self, directory: str | Path, *, max_bytes: int, patience: Patience | None = None):
        self.directory = Path(directory).expanduser().absolute()
        self.max_bytes = max_bytes
        self.patience = patience or Patience()
        self._verified: dict[str, tuple[int, int, str]] = {}  # by key: inode, mtime, digest

    def __getstate__(self) -> dict[str, Any]:
        """Leave behind what is only remembered: each process looks for itself."""
        return self.__dict__ | {"_verified": {}}

    def path(self, key: str) -> Path:
        """Return where a shard lies once it is here."""
        return self.directory / f"{key}.tar"

    def _record(self, key: str) -> Path:
        """Return the file that says what a shard was verified against, touched at each use."""
        return self.directory / f"{key}.sha256"

    def holds(self, wanted: Wanted) -> bool:
        """Return whether a shard is here, whole; what is here of another version is not it."""
        path = self.path(wanted.key)
        try:
            found = path.stat()
            if found.st_size != wanted.num_bytes:
                return False
            inode, time_ns, digest = self._verified.get(wanted.key, (0, 0, ""))
            if (inode, time_ns) != (found.st_ino, found.st_mtime_ns):
                digest = self._record(wanted.key).read_text(encoding="ascii").partition(" ")[0]
                self._verified[wanted.key] = (found.st_ino, found.st_mtime_ns, digest)
            return digest == wanted.sha256
        except (OSError, ValueError):  # gone, or rubbish
            return False

    def get(
        self,
        wanted: Wanted,
        *,
        next_uses: NextUses = _no_plan,
        on_bytes: OnBytes = not_shown,
    ) -> Path:
        """Return the local file of a shard; fetch it if it is not here.

        The file may be removed again as soon as others need room: open it at once, and come back
        if it is gone.  An open file stays readable.

        Args:
            wanted: The shard.
            next_uses: Returns the position at which each shard of the plan is read next, by
                `key_of` its URL; called only when room is needed.
            on_bytes: Is called with (bytes here, bytes in all) while it comes.

        Raises:
            FileNotFoundError: If the server does not have it.
            DataError: If it cannot be fetched or is not what the manifest says.
            ConfigError: If it is larger than the bound.
            OutputError: If the disk is full or the directory cannot be written.
        """
        if not self.holds(wanted):
            with self.locked(wanted.key):
                if not self.holds(wanted):
                    while not self._has_room(wanted, next_uses(), before=-1):
                        time.sleep(_POLL_S)  # what fills the cache is still coming
                    self._fetch(wanted, on_bytes, time.sleep)
        with contextlib.suppress(OSError):  # gone already, or another user's
            now = time.time_ns()  # finer than the kernel's own
            os.utime(self._record(wanted.key), ns=(now, now))
        return self.path(wanted.key)

    def fetch_ahead(
        self,
        wanted: Wanted,
        *,
        next_uses: NextUses,
        on_bytes: OnBytes = not_shown,
        pause: Callable[[float], object] = time.sleep,
    ) -> bool:
        """Fetch a shard that is needed later, if that costs nothing that is needed before it.

        Args:
            wanted: The shard.
            next_uses: See `get`.
            on_bytes: See `get`; may raise to stop.
            pause: Waits for some seconds between attempts.

        Returns:
            Whether the shard is here now.  False also if another process is fetching it.

        Raises:
            MAEError: See `get`.
            FileNotFoundError: See `get`.
        """
        try:
            with self.locked(wanted.key, timeout_s=0):
                if not self.holds(wanted):
                    uses = next_uses()
                    if not self._has_room(wanted, uses, before=uses.get(wanted.key, _NEVER)):
                        return False
                    self._fetch(wanted, on_bytes, pause)
                return True
        except Timeout:
            return False

    @contextmanager
    def locked(self, key: str, *, timeout_s: float = -1) -> Iterator[None]:
        """Keep other processes from fetching or removing a shard.

        Args:
            key: The shard's `key_of`.
            timeout_s: Seconds to wait for others; for ever if negative.

        Raises:
            filelock.Timeout: If others hold it for longer.
            OutputError: If the directory cannot be written.
        """
        folder = self.directory / "locks"
        with self._writing():
            folder.mkdir(parents=True, exist_ok=True)
            lock = FileLock(folder / f"{key}.lock")
            lock.acquire(timeout=timeout_s, poll_interval=_POLL_S)
        try:
            yield
        finally:
            lock.release()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Say what to do when the directory cannot be written."""
        try:
            yield
        except Timeout:  # an OSError too
            raise
        except OSError as error:
            raise OutputError(
                f"the cache {self.directory} cannot be written ({error}); free space on that "
                f"disk, or choose another cache folder"
            ) from error

    def _fetch(
        self,
        wanted: Wanted,
        on_bytes: OnBytes,
        pause: Callable[[float], object],
    ) -> None:
        """Download into the room that was made, verify, and give the final name."""
        part, final = self.directory / wanted.part, self.path(wanted.key)
        download(
            wanted.url,
            part,
            num_bytes=wanted.num_bytes,
            sha256=wanted.sha256,
            patience=self.patience,
            on_bytes=on_bytes,
            pause=pause,
        )
        atomic_write(
            self._record(wanted.key),
            lambda file: file.write_text(f"{wanted.sha256}  {final.name}\n", encoding="ascii"),
        )
        with self._writing():
            part.rename(final)
            folder = os.open(self.directory, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)

    def _has_room(self, wanted: Wanted, uses: Mapping[str, int], *, before: int) -> bool:
        """Make room for a shard and reserve it by its ``.part``; False if there is none yet.

        Args:
            wanted: The shard; its lock is held.
            uses: Position at which each shard is read next.
            before: What is read at or before this position stays.
        """
        if wanted.num_bytes > self.max_bytes:
            raise ConfigError(
                f"shard {public(wanted.url)} has {wanted.num_bytes:,} bytes, the cache "
                f"{self.directory} may hold {self.max_bytes:,}; raise its bound, or pack smaller "
                f"shards"
            )
        with self.locked("all"), self._writing():
            self._remove(wanted.key, keep=wanted.part)  # another version, or half of one
            held = self._held(besides=wanted.key)
            excess = sum(entry.num_bytes for entry in held) + wanted.num_bytes - self.max_bytes
            may_go = [e for e in held if e.is_part or uses.get(e.key, _NEVER) > before]
            if excess > sum(entry.num_bytes for entry in may_go):
                return False
            for entry in sorted(may_go, key=lambda entry: entry.order(uses), reverse=True):
                if excess > 0:
                    excess -= self._evicted(entry)
            if excess > 0:
                return False
            (self.directory / wanted.part).touch()
            return True

    def _held(self, *, besides: str) -> list[_Held]:
        """Return the other shards, and those that are coming; remove what killed writers left."""
        found, used_ns = [], {}
        with os.scandir(self.directory) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    match, status = _NAME.fullmatch(entry.name), entry.stat()
                    if match is None:
                        if entry.name.endswith(".tmp") and status.st_mtime < time.time() - _OLD_S:
                            Path(entry.path).unlink()
                    elif match["kind"] == "sha256":
                        used_ns[match["key"]] = status.st_mtime_ns
                    elif match["key"] != besides:
                        size = int(match["reserved"] or status.st_size)
                        found.append(_Held(match["key"], match["kind"] != "tar", size))
        return [replace(held, used_ns=used_ns.get(held.key, 0)) for held in found]

    def _evicted(self, entry: _Held) -> int:
        """Remove a shard unless it is being fetched or indexed; return the bytes won."""
        try:
            with self.locked(entry.key, timeout_s=0):
                self._remove(entry.key, keep="")
                return entry.num_bytes
        except Timeout:
            return 0

    def _remove(self, key: str, *, keep: str) -> None:
        """Remove all files of a shard but one; its lock is held."""
        final = self.path(key)
        for path in (final, self._record(key), index_path(final)):
            path.unlink(missing_ok=True)
        for path in self.directory.glob(f"{key}.*.part"):
            if path.name != keep:
                path.unlink(missing_ok=True)


@dataclass(frozen=True)
class _Held:
    """A shard in the cache, or one that is coming or was left behind half."""

    key: str
    is_part: bool
    num_bytes: int
    used_ns: int = 0

    def order(self, uses: Mapping[str, int]) -> tuple[int, int, int]:
        """Return what is largest for the one that goes first."""
        return (int(self.is_part), uses.get(self.key, _NEVER), -self.used_ns)
