"""Random access to the samples of a shard directory.

A sample is read with one ``pread`` at the place that the index gives, so workers share nothing and
no order is imposed.  Shards open on first use in each process; the object pickles without files.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datamodules.manifest import ShardInfo
from datamodules.tarindex import TarIndex, index_path, open_index
from mae.errors import DataError

_MAX_OPEN = 64  # shards kept open per process; a Plan's window is far smaller


@dataclass(frozen=True)
class _OpenShard:
    descriptor: int
    index: TarIndex


class ShardReader:
    """Read samples by (shard, index).

    Args:
        root: The shard directory.
        shards: The shards, numbered by their place.
    """

    def __init__(self, root: Path, shards: Sequence[ShardInfo]):
        self.root = Path(root)
        self.shards = tuple(shards)
        self._open: OrderedDict[int, _OpenShard] = OrderedDict()

    def __getstate__(self) -> dict[str, Any]:
        return {"root": self.root, "shards": self.shards}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["root"], state["shards"])  # type: ignore[misc]

    def read(self, shard: int, index: int) -> tuple[str, dict[str, bytes]]:
        """Return key and members of one sample.

        Args:
            shard: Place of the shard in `shards`.
            index: Place of the sample in the shard.

        Raises:
            DataError: If the shard is missing, differs from its manifest, or ends early.
        """
        opened = self._opened(shard)
        table = opened.index
        first, last = int(table.first[index]), int(table.first[index + 1])
        offsets = table.offsets[first:last].tolist()
        sizes = table.sizes[first:last].tolist()
        begin, end = offsets[0], offsets[-1] + sizes[-1]
        block = os.pread(opened.descriptor, end - begin, begin)
        if len(block) != end - begin:
            raise DataError(
                f"shard {self.path(shard)} gave {len(block):,} bytes for sample {index} at byte "
                f"{begin:,}, {end - begin:,} expected; the file was cut while it was open: copy it "
                f"again"
            )
        members = {
            suffix.decode(): block[offset - begin : offset - begin + size]
            for suffix, offset, size in zip(
                table.suffixes[first:last].tolist(), offsets, sizes, strict=True
            )
        }
        return table.keys[index].decode(), members

    def path(self, shard: int) -> Path:
        """Return the file of a shard."""
        return self.root / self.shards[shard].path

    def close(self) -> None:
        """Close all files; reading opens them again."""
        while self._open:
            os.close(self._open.popitem()[1].descriptor)

    def __del__(self) -> None:
        self.close()

    def _opened(self, shard: int) -> _OpenShard:
        opened = self._open.get(shard)
        if opened is not None:
            self._open.move_to_end(shard)
            return opened
        while len(self._open) >= _MAX_OPEN:
            os.close(self._open.popitem(last=False)[1].descriptor)
        opened = self._verified(shard)
        self._open[shard] = opened
        return opened

    def _verified(self, shard: int) -> _OpenShard:
        """Open a shard and compare file, index and manifest."""
        path, expected = self.path(shard), self.shards[shard]
        try:
            descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        except OSError as error:
            raise DataError(
                f"shard {path} cannot be opened ({error.strerror}); copy it here or pack again"
            ) from error
        try:
            found = os.fstat(descriptor).st_size
            if found != expected.num_bytes:
                raise DataError(
                    f"shard {path} has {found:,} bytes, the manifest says "
                    f"{expected.num_bytes:,}; copy it again"
                )
            index = open_index(path)
            if (index.num_bytes, index.num_samples) != (found, expected.num_samples):
                raise DataError(
                    f"index {index_path(path)} describes {index.num_samples:,} samples in "
                    f"{index.num_bytes:,} bytes, the manifest {expected.num_samples:,} samples in "
                    f"{found:,} bytes; delete the index, it is rebuilt from the shard"
                )
        except BaseException:
            os.close(descriptor)
            raise
        return _OpenShard(descriptor, index)
