"""Where shards and their indices lie, and that both are what the manifest says.

The reader asks for local files by the number of a shard.  Here the shards are local already; remote
ones are fetched first, see `datamodules.remote`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from datamodules.locations import cache_folder, is_url, join
from datamodules.manifest import Manifest, ShardInfo
from datamodules.tarindex import INDEX_SUFFIX, TarIndex, index_path, largest_index
from mae.errors import DataError, OutputError

if TYPE_CHECKING:
    from datamodules.remote import ShardCache

CACHE_GIB = 100.0  # of remote shards, unless the user says otherwise


class ShardFiles(Protocol):
    """Where the shards lie; numbers are places in the list of shards."""

    def path(self, shard: int) -> Path:
        """Return the local file of a shard; a remote one is fetched first."""

    def name(self, shard: int) -> str:
        """Return path or URL, for messages."""

    def index(self, shard: int) -> TarIndex:
        """Return the index of a shard, as the manifest has it."""

    def seek(self, position: int) -> None:
        """Tell which position of the stream is read next."""


class LocalShards:
    """Shards on this machine's disks.

    Args:
        manifest: Their manifest.
        shards: Those of one split.
    """

    def __init__(self, manifest: Manifest, shards: Sequence[ShardInfo]):
        self.root, self.shards = manifest.root, tuple(shards)
        self.ignore = manifest.ignored_suffixes

    def path(self, shard: int) -> Path:
        """Return the file of a shard."""
        return Path(self.name(shard))

    def name(self, shard: int) -> str:
        """Return the file of a shard as text."""
        return join(self.root, self.shards[shard].path)

    def index(self, shard: int) -> TarIndex:
        """Return the index of a shard, as the manifest has it.

        Raises:
            DataError: If the shard does not have the contents that the manifest says.
        """
        info = self.shards[shard]
        return matching_index(
            self.path(shard), info, at=index_location(self.root, info), ignore=self.ignore
        )

    def seek(self, position: int) -> None:
        """Do nothing: local shards stay where they are."""


def open_files(
    manifest: Manifest,
    shards: Sequence[ShardInfo],
    *,
    cache: Path | None = None,
    cache_gib: float = CACHE_GIB,
) -> ShardFiles:
    """Return the files of some shards, on this machine's disks or on servers.

    Args:
        manifest: Their manifest.
        shards: Those of one split.
        cache: Folder for remote shards; one in the user's cache without a value.
        cache_gib: Disk that remote shards may take there.
    """
    if not is_remote(manifest, shards):
        return LocalShards(manifest, shards)
    from datamodules.remote import CachedShards

    ignore = manifest.ignored_suffixes
    return CachedShards(manifest.root, shards, open_cache(cache, cache_gib), ignore=ignore)


def is_remote(manifest: Manifest, shards: Sequence[ShardInfo]) -> bool:
    """Return whether some of these shards lie on a server."""
    return any(is_url(manifest.location(shard)) for shard in shards)


def open_cache(directory: Path | None = None, gib: float = CACHE_GIB) -> ShardCache:
    """Return the cache of remote shards.

    Args:
        directory: Its folder; one in the user's cache without a value.
        gib: Disk that it may take.
    """
    from datamodules.remote import ShardCache

    return ShardCache(directory or cache_folder("shards"), max_bytes=int(gib * 2**30))


def index_location(root: str, info: ShardInfo) -> Path:
    """Return where the index of a local shard is kept.

    Args:
        root: Directory of the manifest.
        info: A shard; one that lies elsewhere has its index in a folder beside the manifest.
    """
    path = Path(join(root, info.path))
    if path == Path(root) / info.path and not Path(info.path).is_absolute():
        return index_path(path)
    return Path(root) / "indexes" / f"{info.index_sha256}{INDEX_SUFFIX}"


def matching_index(
    path: Path, info: ShardInfo, *, at: Path, ignore: Collection[str] = ()
) -> TarIndex:
    """Return the index that the manifest means; one that is missing or outdated is built anew.

    Args:
        path: The shard.
        info: What the manifest says of it.
        at: Where its index is kept.
        ignore: See `TarIndex.build`.

    Raises:
        DataError: If the shard itself is not what the manifest says.
    """
    stored = _stored_index(at, info)
    if stored is not None:
        return stored
    index = TarIndex.build(path, ignore=ignore)
    if index.digest != info.index_sha256:
        raise DataError(
            f"shard {path} is not what its manifest says: names, sizes or checksums of its members "
            f"differ ({index.num_samples:,} samples found, {info.num_samples:,} expected); copy it "
            f"again"
        )
    with contextlib.suppress(OutputError):  # a read-only data set: it lives in memory only
        index.save(at)
    return index


def _stored_index(path: Path, info: ShardInfo) -> TarIndex | None:
    if not path.exists():
        return None
    try:
        index = TarIndex.load(path, max_bytes=largest_index(info.num_bytes))
    except DataError:
        return None
    return index if index.digest == info.index_sha256 else None
