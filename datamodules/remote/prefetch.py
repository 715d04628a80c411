"""Fetch shards before they are read, in the order in which the plan needs them.

Threads in the process that owns the position look ahead as far as the cache can hold.  They never
push out what is needed earlier than what they fetch.  Readers, in whatever process, find the shards
in the cache; what is not there yet they wait for or fetch themselves, and see its error then.
"""

from __future__ import annotations

import copy
import itertools
import logging
import threading
import time
from collections.abc import Callable
from types import TracebackType

from datamodules.remote.filesystems import describe, filesystem
from datamodules.remote.shards import CachedShards
from mae.errors import ConfigError, MAEError

_LOG = logging.getLogger("datamodules.remote")
_JOIN_S = 5.0
_AFTER_ERROR_S = 60.0


class _StoppedError(Exception):
    """The prefetcher was stopped in the middle of a shard."""


class Prefetcher:
    """Keeps the cache filled with what is needed next; start and stop it, or use it in a ``with``.

    Args:
        files: The shards and their plan.
        position: Returns the position of the stream that is read next.
        num_threads: Shards that are fetched at once.
        pause_s: Seconds between looks at the position once everything that fits is there.
        reserved_bytes: Room that is left to others, as the shards of an evaluation; at most half of
            the cache counts, and never what is shuffled together.

    Raises:
        ConfigError: If the shards have no plan, there is no thread, or the room is negative.
    """

    def __init__(
        self,
        files: CachedShards,
        *,
        position: Callable[[], int],
        num_threads: int = 2,
        pause_s: float = 0.5,
        reserved_bytes: int = 0,
    ):
        if files.plan is None or num_threads < 1:
            raise ConfigError(
                "shards are fetched ahead in the order of a plan, by 1 thread or more; got "
                f"plan {files.plan} and num_threads {num_threads}"
            )
        self.files, self.plan, self.position = files, copy.copy(files.plan), position
        if reserved_bytes < 0:
            raise ConfigError(f"reserved_bytes is {reserved_bytes}; allowed: 0 or more")
        self.num_threads, self.pause_s = num_threads, pause_s
        bound = files.cache.max_bytes
        self.reserved_bytes = max(0, min(reserved_bytes, bound // 2, bound - files.window_bytes))
        self.errors: dict[int, Exception] = {}  # by shard, the last one; gone once it is fetched
        self._unsaid = threading.Lock()  # taken, for good, by who tells of a defect
        self._again_at: dict[int, float] = {}
        self._stopped = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self) -> Prefetcher:
        """Begin; does nothing if it runs.

        Raises:
            ConfigError: If a library is missing.
        """
        if not self._threads:
            # What threads import while another one forks, the child can never import.
            for wanted in self.files.wanted:
                if wanted is not None:
                    filesystem(wanted.url, stall_s=self.files.cache.patience.stall_s)
            self._stopped = threading.Event()
            self._threads = [
                threading.Thread(
                    target=self._run, args=(self._stopped,), name=f"prefetch-{n}", daemon=True
                )
                for n in range(self.num_threads)
            ]
            for thread in self._threads:
                thread.start()
        return self

    def stop(self) -> None:
        """End; a shard that is half here is kept and gone on with later."""
        self._stopped.set()
        for thread in self._threads:
            thread.join(_JOIN_S)  # one that waits for a silent server ends by itself
        self._threads = []

    def __enter__(self) -> Prefetcher:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def ahead(self, position: int) -> list[int]:
        """Return the shards that are needed next and fit into the cache together, in order.

        Args:
            position: Position of the stream that is read next.
        """
        found: dict[int, int] = {}
        room = self.files.cache.max_bytes - self.reserved_bytes
        # This epoch and the next: each shard, and once more for each lane that cuts one.
        limit = 2 * (len(self.files.shards) + self.plan.lanes)
        for shard in itertools.islice(self.plan.upcoming(position, self.files.lanes), limit):
            wanted = self.files.wanted[shard]
            if wanted is None or shard in found:
                continue
            if wanted.num_bytes > room:
                break
            room -= wanted.num_bytes
            found[shard] = room
        return list(found)

    def _run(self, stopped: threading.Event) -> None:
        files = copy.copy(self.files)  # which other threads do not seek
        while not stopped.is_set():
            position = self.position()
            files.seek(position)
            if not any(self._fetched(files, shard, stopped) for shard in self.ahead(position)):
                stopped.wait(self.pause_s)

    def _fetched(self, files: CachedShards, shard: int, stopped: threading.Event) -> bool:
        """Return whether a shard has come that was not there; note an error."""
        wanted = files.wanted[shard]
        is_later = self._again_at.get(shard, 0.0) > time.monotonic()
        if stopped.is_set() or wanted is None or is_later:
            return False

        def check(*_: object) -> None:
            if stopped.is_set():
                raise _StoppedError

        def pause(seconds: float) -> None:
            stopped.wait(seconds)
            check()

        try:
            if files.cache.holds(wanted):
                return False
            has_come = files.fetch_ahead(shard, on_bytes=check, pause=pause)
        except _StoppedError:
            return False
        except Exception as error:
            if not isinstance(error, MAEError) and self._unsaid.acquire(blocking=False):
                _LOG.warning(
                    "shard %s cannot be fetched ahead (%s: %s); it is tried again every %.0f s, "
                    "and fetched when it is read",
                    files.name(shard),
                    type(error).__name__,
                    describe(error),
                    _AFTER_ERROR_S,
                )
            self.errors[shard] = error
            self._again_at[shard] = time.monotonic() + _AFTER_ERROR_S
            return False
        if has_come:
            self.errors.pop(shard, None)
        return has_come
