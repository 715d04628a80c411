"""Remote shards as the reader wants them: local files.

A shard is fetched into the cache when it is asked for, with its index where one lies on the server.
The plan says which shards may go when room is needed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from datamodules.locations import is_url, join
from datamodules.manifest import ShardInfo
from datamodules.plan import Plan
from datamodules.remote.cache import ShardCache, Wanted
from datamodules.remote.fetch import OnBytes, read_bytes
from datamodules.remote.filesystems import check_directory, has_query, public
from datamodules.shardfiles import index_location, matching_index
from datamodules.tarindex import INDEX_SUFFIX, TarIndex, index_path
from mae.errors import ConfigError, DataError
from mae.files import atomic_write

_INDEX_ATTEMPTS = 2  # an index that does not come is built from the shard
_MIN_INDEX_BYTES = 2**20  # else an index is smaller than its shard, which has 512 bytes a member


class CachedShards:
    """Shards of one split, of which some or all lie on servers.

    It pickles, and works in processes that were forked or spawned.  What a process does not find in
    the cache it fetches itself; a `Prefetcher` makes that rare.

    Args:
        root: Directory or URL of the manifest.
        shards: The shards, numbered by their place.
        cache: Where remote ones are kept.
        plan: In which order they are read; without one, those that were not used for longest go
            first.
        lanes: Lanes of the plan that this machine reads; all without a value.
        lag: Positions by which other processes of this machine may be behind the one that was
            sought last; what they may still need is kept.
        ignore: Suffixes of members that are passed over, see `TarIndex.build`.
        protected: Shards of a stream that goes on after these were read, in the same cache.  When
            room is needed, those go that the stream needs last, after these here if they have no
            plan.

    Raises:
        ConfigError: If the cache cannot hold the shards that are shuffled together, or the root has
            a query.
    """

    def __init__(
        self,
        root: str,
        shards: Sequence[ShardInfo],
        cache: ShardCache,
        *,
        plan: Plan | None = None,
        lanes: Collection[int] | None = None,
        lag: int = 0,
        ignore: Collection[str] = (),
        protected: CachedShards | None = None,
    ):
        if is_url(root) and any(join(root, shard.path) != shard.path for shard in shards):
            check_directory(root)
        self.root, self.shards, self.cache = root, tuple(shards), cache
        self.protected = protected
        self.plan, self.lanes, self.lag, self.ignore = plan, lanes, lag, tuple(ignore)
        self.position = 0
        self.locations = tuple(join(root, shard.path) for shard in self.shards)
        self.wanted = tuple(
            Wanted(url=location, num_bytes=shard.num_bytes, sha256=shard.sha256)
            if is_url(location)
            else None
            for location, shard in zip(self.locations, self.shards, strict=True)
        )
        self.names = tuple(  # without the secrets of URLs
            location if wanted is None else public(location)
            for location, wanted in zip(self.locations, self.wanted, strict=True)
        )
        self.window_bytes = 0 if plan is None else self._window_bytes(plan)

    def path(self, shard: int) -> Path:
        """Return the local file of a shard; a remote one is fetched first.

        It may be removed when others need room: open it at once, and ask again if it is gone.

        Raises:
            DataError: If it cannot be fetched, or is not what the manifest says.
            ConfigError: If it is larger than the cache may be, or a library is missing.
            OutputError: If the cache cannot be written.
        """
        wanted = self.wanted[shard]
        if wanted is None:
            return Path(self.locations[shard])
        with self._named(shard):
            return self.cache.get(wanted, next_uses=self.next_uses)

    def name(self, shard: int) -> str:
        """Return path or URL of a shard, without its secrets."""
        return self.names[shard]

    def index(self, shard: int) -> TarIndex:
        """Return the index of a shard, as the manifest has it.

        One that lies beside the remote shard or the manifest is fetched; else it is built.

        Raises:
            MAEError: See `path`.
            DataError: If the shard does not have the contents that the manifest says.
        """
        info, wanted = self.shards[shard], self.wanted[shard]
        if wanted is None:
            at = index_location(str(self.cache.directory) if is_url(self.root) else self.root, info)
            return matching_index(Path(self.locations[shard]), info, at=at, ignore=self.ignore)
        with contextlib.suppress(DataError):  # it mostly is here, and needs no lock
            index = TarIndex.load(index_path(self.cache.path(wanted.key)))
            if index.digest == info.index_sha256:
                return index
        with self._named(shard):
            while True:
                self.cache.get(wanted, next_uses=self.next_uses)
                with self.cache.locked(wanted.key):  # nobody removes it meanwhile
                    if self.cache.holds(wanted):
                        return self._index_here(shard, self.cache.path(wanted.key))

    def seek(self, position: int) -> None:
        """Tell which position of the stream is read next; of the protected one, if there is one."""
        self.position = position
        if self.protected is not None:
            self.protected.seek(position)

    def fetch_ahead(
        self,
        shard: int,
        *,
        on_bytes: OnBytes,
        pause: Callable[[float], object],
    ) -> bool:
        """Fetch a shard and its index if that costs nothing that is needed before it.

        Args:
            shard: Its number.
            on_bytes: Is called with (bytes here, bytes in all); may raise to stop.
            pause: Waits for some seconds between attempts.

        Returns:
            Whether the shard is here now.

        Raises:
            MAEError: See `path`.
        """
        wanted = self.wanted[shard]
        if wanted is None:
            return True
        with self._named(shard):
            if not self.cache.fetch_ahead(
                wanted, next_uses=self.next_uses, on_bytes=on_bytes, pause=pause
            ):
                return False
            if not index_path(self.cache.path(wanted.key)).exists():
                self.index(shard)
        return True

    def next_uses(self) -> Mapping[str, int]:
        """Return the position at which each remote shard of the plan is read next, by its key.

        What is protected counts too.
        """
        others = {} if self.protected is None else self.protected.next_uses()
        if self.plan is None:
            return others
        uses = self.plan.next_uses(max(0, self.position - self.lag), self.lanes).tolist()
        own = {
            wanted.key: use
            for wanted, use in zip(self.wanted, uses, strict=True)
            if wanted is not None
        }
        return own | dict(others)

    def _index_here(self, shard: int, path: Path) -> TarIndex:
        """Return the index of a shard in the cache, whose lock is held."""
        info, at = self.shards[shard], index_path(path)
        if not at.exists():
            found = self._remote_index(shard)
            if found is not None:
                atomic_write(at, lambda file: file.write_bytes(found))
        return matching_index(path, info, at=at, ignore=self.ignore)

    def _remote_index(self, shard: int) -> bytes | None:
        info, location = self.shards[shard], self.locations[shard]
        beside = location.removesuffix(".tar") + INDEX_SUFFIX
        central = join(self.root, f"indexes/{info.index_sha256}{INDEX_SUFFIX}")
        # `mae pack` puts an index beside its shard; `mae index` leaves the shards' folder alone.
        is_below_root = location != info.path
        max_bytes = max(info.num_bytes, _MIN_INDEX_BYTES)
        patience = replace(self.cache.patience, attempts=_INDEX_ATTEMPTS)
        for place in (beside, central) if is_below_root else (central, beside):
            if has_query(place):  # the name that was joined became part of it
                continue
            with contextlib.suppress(OSError, DataError):
                if not is_url(place):
                    return Path(place).read_bytes()
                return read_bytes(place, max_bytes=max_bytes, patience=patience)
        return None

    @contextlib.contextmanager
    def _named(self, shard: int) -> Iterator[None]:
        """Let errors name the remote shard, not only the file in the cache."""
        name = self.name(shard)
        try:
            yield
        except FileNotFoundError as error:
            raise DataError(
                f"shard {name} does not exist, but the manifest lists it; copy it there, or pack "
                f"again"
            ) from error
        except DataError as error:
            if name in str(error):
                raise
            raise DataError(f"shard {name}, in the cache: {error}") from error

    def _window_bytes(self, plan: Plan) -> int:
        """Return the most bytes that are shuffled together, which the cache can hold."""
        num_lanes = plan.lanes if self.lanes is None else len(self.lanes)
        together = num_lanes * plan.window
        sizes = sorted((w.num_bytes for w in self.wanted if w is not None), reverse=True)
        needed = sum(sizes[:together])
        if needed > self.cache.max_bytes:
            raise ConfigError(
                f"the cache {self.cache.directory} may hold {self.cache.max_bytes:,} bytes, but "
                f"{min(together, len(sizes))} shards are shuffled together, up to {needed:,} "
                f"bytes; raise the cache's bound to that or more, or lower the window "
                f"({plan.window})"
            )
        return needed
