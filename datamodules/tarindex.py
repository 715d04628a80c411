"""Where every member of a tar shard lies, so that samples can be read in any order.

The index is built once by walking the tar and stored beside it, with a checksum of each content.
Its digest stands in the manifest: an index that was changed, or was rebuilt from a changed shard,
is found out.  It is stored as safetensors, which can neither run code nor inflate.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Any

import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray

from datamodules.guard import SampleKeys, check_member, split_member
from datamodules.tarwalk import Member, walk
from mae.errors import DataError
from mae.files import atomic_write

try:
    from isal.isal_zlib import crc32  # some twenty times faster than zlib's
except ImportError:  # no wheel for this platform
    from zlib import crc32

_CHUNK = 2**20
INDEX_SUFFIX = ".idx.safetensors"
_ARRAYS = {
    "keys": np.uint8,
    "key_ends": np.int64,
    "first": np.int64,
    "suffixes": np.uint8,
    "suffix_ends": np.int64,
    "offsets": np.int64,
    "sizes": np.int64,
    "crcs": np.uint32,
    "num_bytes": np.int64,
}


def checksum(data: bytes | memoryview, start: int = 0) -> int:
    """Return the CRC-32 of `data`, going on from `start`."""
    return int(crc32(data, start))


@dataclass(frozen=True, eq=False)
class TarIndex:
    """Members of one shard, sample by sample.

    Attributes:
        keys: Keys of the samples, in order.
        first: ``(samples + 1,)``; sample i has the members ``first[i] … first[i + 1] - 1``.
        suffixes: Suffixes of the members, in order.
        offsets: ``(members,)`` byte at which each member's content begins.
        sizes: ``(members,)`` bytes of each member's content.
        crcs: ``(members,)`` CRC-32 of each member's content.
        num_bytes: Size of the tar file.
    """

    keys: tuple[str, ...]
    first: NDArray[np.int64]
    suffixes: tuple[str, ...]
    offsets: NDArray[np.int64]
    sizes: NDArray[np.int64]
    crcs: NDArray[np.uint32]
    num_bytes: int

    @property
    def num_samples(self) -> int:
        """Number of samples."""
        return len(self.keys)

    @cached_property
    def digest(self) -> str:
        """SHA-256 over all of it; equal shards have equal digests."""
        found = hashlib.sha256()
        for name, array in self._arrays().items():
            found.update(f"{name}:{len(array)};".encode())
            found.update(array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes())
        return found.hexdigest()

    @classmethod
    def build(cls, path: Path, *, ignore: Collection[str] = ()) -> TarIndex:
        """Walk a tar: every header, every content once, the trailer.

        Args:
            path: The tar.
            ignore: Suffixes of members that are passed over instead of refused.

        Raises:
            DataError: If the tar is cut or damaged, holds a member that is not allowed, the members
                of a sample are not adjacent, or it has several images; names shard and byte.
        """
        building = _Building(str(path), frozenset(ignore))
        try:
            with path.open("rb") as file:
                for member in walk(file, where=str(path)):
                    building.add(member, file)
                num_bytes = os.fstat(file.fileno()).st_size
        except OSError as error:
            raise DataError(
                f"shard {path} cannot be read ({error.strerror or error}); copy it here again"
            ) from error
        return building.finish(num_bytes)

    def save(self, path: Path) -> None:
        """Write the index atomically; equal indices give equal bytes.

        Raises:
            OutputError: If the disk refuses.
        """
        atomic_write(path, lambda file: safetensors.numpy.save_file(self._arrays(), file))

    @classmethod
    def load(cls, path: Path, *, max_bytes: int | None = None) -> TarIndex:
        """Read a stored index.

        Args:
            path: The file.
            max_bytes: Largest size that it can have; see `largest_index`.

        Raises:
            DataError: If the file is no index.
        """
        try:
            if max_bytes is not None and path.stat().st_size > max_bytes:
                raise ValueError(f"it has more than {max_bytes:,} bytes")
            stored = safetensors.numpy.load_file(path)
            return cls._from_arrays(stored)
        except (ValueError, LookupError, OSError, safetensors.SafetensorError) as error:
            raise DataError(
                f"index {path} cannot be read ({error}); delete it, it is rebuilt from the shard"
            ) from error

    @classmethod
    def _from_arrays(cls, stored: dict[str, NDArray[Any]]) -> TarIndex:
        kinds = {name: array.dtype for name, array in stored.items()}
        if kinds != _ARRAYS or any(array.ndim != 1 for array in stored.values()):
            raise ValueError("not the arrays of an index")
        keys = _texts(stored["keys"], stored["key_ends"])
        suffixes = _texts(stored["suffixes"], stored["suffix_ends"])
        first, num_members = stored["first"], len(suffixes)
        lengths = {len(stored[name]) for name in ("offsets", "sizes", "crcs")}
        lengths.add(num_members * len(stored["num_bytes"]))
        in_order = len(first) == len(keys) + 1 and bool((np.diff(first) > 0).all())
        if lengths != {num_members} or not in_order or (first[0], first[-1]) != (0, num_members):
            raise ValueError("its arrays do not fit each other")
        return cls(
            keys=keys,
            first=first,
            suffixes=suffixes,
            offsets=stored["offsets"],
            sizes=stored["sizes"],
            crcs=stored["crcs"],
            num_bytes=int(stored["num_bytes"][0]),
        )

    def _arrays(self) -> dict[str, NDArray[Any]]:
        keys, suffixes = _joined(self.keys), _joined(self.suffixes)
        return {
            "keys": keys[0],
            "key_ends": keys[1],
            "first": self.first,
            "suffixes": suffixes[0],
            "suffix_ends": suffixes[1],
            "offsets": self.offsets,
            "sizes": self.sizes,
            "crcs": self.crcs,
            "num_bytes": np.array([self.num_bytes], dtype=np.int64),
        }


class _Building:
    """An index that grows member by member."""

    def __init__(self, path: str, ignore: Collection[str]):
        self.path, self.ignore = path, ignore
        self.keys: list[str] = []
        self.samples = SampleKeys()
        self.first: list[int] = []
        self.members: list[tuple[str, int, int, int]] = []

    def add(self, member: Member, file: IO[bytes]) -> None:
        where = f"{self.path} at byte {member.header}"
        key, suffix = split_member(member.name, where=where)
        if suffix in self.ignore:
            return
        check_member(member.name, suffix, member.size, where=where)
        if self.samples.add(key, suffix, where=where):
            self.keys.append(key)
            self.first.append(len(self.members))
        self.members.append((suffix, member.offset, member.size, _crc_of(file, member, where)))

    def finish(self, num_bytes: int) -> TarIndex:
        return TarIndex(
            keys=tuple(self.keys),
            first=np.array([*self.first, len(self.members)], dtype=np.int64),
            suffixes=tuple(suffix for suffix, _, _, _ in self.members),
            offsets=np.array([m[1] for m in self.members], dtype=np.int64),
            sizes=np.array([m[2] for m in self.members], dtype=np.int64),
            crcs=np.array([m[3] for m in self.members], dtype=np.uint32),
            num_bytes=num_bytes,
        )


def largest_index(num_bytes: int) -> int:
    """Return how many bytes the index of a shard can have.

    A member takes some 50 bytes and its name in the index, and a header of 512 bytes, which has
    room for the name, in the shard.

    Args:
        num_bytes: Size of the shard.
    """
    return num_bytes + 2**16


def index_path(shard: Path) -> Path:
    """Return the index file that belongs to a shard."""
    return shard.with_name(shard.name.removesuffix(".tar") + INDEX_SUFFIX)


def _crc_of(file: IO[bytes], member: Member, where: str) -> int:
    file.seek(member.offset)
    found, left = 0, member.size
    while left:
        chunk = file.read(min(left, _CHUNK))
        if not chunk:
            raise DataError(f"{where}: the shard was cut while it was read; copy it again")
        found, left = checksum(chunk, found), left - len(chunk)
    return found


def _joined(texts: Sequence[str]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return texts as UTF-8 in one array, and where each of them ends."""
    encoded = [text.encode() for text in texts]
    ends = np.cumsum([len(text) for text in encoded], dtype=np.int64)
    return np.frombuffer(b"".join(encoded), dtype=np.uint8), ends


def _texts(joined: NDArray[np.uint8], ends: NDArray[np.int64]) -> tuple[str, ...]:
    starts = [0, *ends.tolist()][:-1]
    data = joined.tobytes()
    if (len(ends) and int(ends[-1]) != len(data)) or (np.diff(ends, prepend=0) < 0).any():
        raise ValueError("its names do not fit each other")
    return tuple(data[start:end].decode() for start, end in zip(starts, ends.tolist(), strict=True))
