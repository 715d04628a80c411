"""Where every member of a tar shard lies, so that samples can be read in any order.

The index is built once by walking the tar's headers and stored beside the shard as a plain
``.npz``.  A tar that is cut at a header boundary or has a damaged header ends early without an
error in most readers; here the trailer must follow directly after the last member.
"""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from datamodules.guard import check_member
from mae.errors import DataError

_BLOCK = 512
_TRAILER = 2 * _BLOCK  # POSIX.1-2017 ustar: two blocks of zeros end the archive


@dataclass(frozen=True)
class TarIndex:
    """Members of one shard, sample by sample.

    Attributes:
        keys: ``(samples,)`` byte strings.
        first: ``(samples + 1,)``; sample i has the members ``first[i] … first[i + 1] - 1``.
        suffixes: ``(members,)`` byte strings.
        offsets: ``(members,)`` position of each member's content in bytes.
        sizes: ``(members,)`` bytes of each member's content.
        num_bytes: Size of the tar file.
    """

    keys: NDArray[Any]
    first: NDArray[np.int64]
    suffixes: NDArray[Any]
    offsets: NDArray[np.int64]
    sizes: NDArray[np.int64]
    num_bytes: int

    @property
    def num_samples(self) -> int:
        """Number of samples."""
        return len(self.keys)

    @classmethod
    def build(cls, path: Path) -> TarIndex:
        """Walk the headers of a tar.

        Raises:
            DataError: If the tar is cut or damaged, holds a member that is not allowed, or the
                members of a sample are not adjacent; the message names shard and offset.
        """
        keys: list[str] = []
        first: list[int] = []
        members: list[tuple[str, int, int]] = []
        seen: set[str] = set()
        with path.open("rb") as file:
            for name, suffix, offset, size in _walk(path, file):
                if not keys or keys[-1] != name:
                    if name in seen:
                        raise DataError(
                            f"{path}: members of sample {name!r} are not adjacent or the key "
                            f"stands twice; repack the shard"
                        )
                    seen.add(name)
                    keys.append(name)
                    first.append(len(members))
                elif suffix in {s for s, _, _ in members[first[-1] :]}:
                    raise DataError(f"{path}: sample {name!r} has two members .{suffix}; repack")
                members.append((suffix, offset, size))
        return cls(
            keys=np.array([key.encode() for key in keys], dtype=np.bytes_),
            first=np.array([*first, len(members)], dtype=np.int64),
            suffixes=np.array([m[0].encode() for m in members], dtype=np.bytes_),
            offsets=np.array([m[1] for m in members], dtype=np.int64),
            sizes=np.array([m[2] for m in members], dtype=np.int64),
            num_bytes=path.stat().st_size,
        )

    def save(self, path: Path) -> None:
        """Write the index atomically; equal indices give equal bytes."""
        partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
        with partial.open("wb") as file:
            np.savez(
                file,
                keys=self.keys,
                first=self.first,
                suffixes=self.suffixes,
                offsets=self.offsets,
                sizes=self.sizes,
                num_bytes=np.int64(self.num_bytes),
            )
        partial.replace(path)

    @classmethod
    def load(cls, path: Path) -> TarIndex:
        """Read a stored index.

        Raises:
            DataError: If the file is no index.
        """
        try:
            with np.load(path, allow_pickle=False) as stored:
                fields = {name: stored[name] for name in stored.files}
            return cls(**{**fields, "num_bytes": int(fields["num_bytes"])})
        except (ValueError, KeyError, TypeError, OSError, EOFError) as error:
            raise DataError(
                f"index {path} cannot be read ({error}); delete it, it is rebuilt from the shard"
            ) from error


def index_path(shard: Path) -> Path:
    """Return the index file that belongs to a shard."""
    return shard.with_suffix(".idx.npz")


def open_index(shard: Path) -> TarIndex:
    """Load the index beside a shard, or build it and try to leave it there.

    Raises:
        DataError: See `TarIndex.build` and `TarIndex.load`.
    """
    path = index_path(shard)
    if path.exists():
        return TarIndex.load(path)
    index = TarIndex.build(shard)
    try:
        index.save(path)
    except OSError:  # a read-only data set: the index lives in memory only
        path.with_name(f"{path.name}.{os.getpid()}.partial").unlink(missing_ok=True)
    return index


def _walk(path: Path, file: IO[bytes]) -> Iterator[tuple[str, str, int, int]]:
    """Yield key, suffix, offset and size of each member, then check the trailer."""
    end = 0
    try:
        with tarfile.open(fileobj=file, mode="r:") as tar:
            for member in tar:
                where = f"{path} at byte {member.offset}"
                key, suffix = check_member(
                    member.name, member.size, is_file=member.isreg(), where=where
                )
                yield key, suffix, member.offset_data, member.size
                end = member.offset_data + -(-member.size // _BLOCK) * _BLOCK
    except (tarfile.TarError, OSError, ValueError) as error:
        raise DataError(f"{path}: damaged after byte {end} ({error}); copy it again") from error
    file.seek(end)
    trailer = file.read(_TRAILER)
    if trailer != bytes(_TRAILER):
        raise DataError(
            f"{path}: at byte {end} the end of the archive should stand, but there are "
            f"{len(trailer)} other bytes or none; the shard is cut or damaged: copy it again"
        )
