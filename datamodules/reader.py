"""Random access to the samples of a set of shards.

A member is read with one ``pread`` at the place that the index gives, so workers share nothing and
no order is imposed.  Shards open on first use in each process; the object pickles without files.
What is read is compared with the manifest through the checksums of the index.
"""

from __future__ import annotations

import mmap
import os
import resource
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, get_args

from datamodules.manifest import ShardInfo
from datamodules.shardfiles import ShardFiles
from datamodules.tarindex import TarIndex, checksum
from mae.errors import DataError, unknown_name

Verify = Literal["open", "first", "always"]

_OPEN_ATTEMPTS = 5
_MIN_OPEN = 64  # shards kept open per process, unless the window needs more


class _OpenShard(NamedTuple):
    """An open file, and its index as plain lists, which are read faster than arrays."""

    descriptor: int
    keys: Sequence[str]
    suffixes: Sequence[str]
    first: Sequence[int]
    offsets: Sequence[int]
    sizes: Sequence[int]
    crcs: Sequence[int]


class ShardReader:
    """Read samples by (shard, index).

    Args:
        files: Where the shards lie.
        shards: What the manifest says of them, numbered by their place.
        verify: When contents are compared with their checksums: ``first``, once per member and
            process; ``always``, whenever they are read; ``open``, a whole shard at once when it is
            opened for the first time, and not again.
        max_open: Shards that are kept open; a stream needs as many as are shuffled together.

    Raises:
        ConfigError: If `verify` is none of these.
    """

    def __init__(
        self,
        files: ShardFiles,
        shards: Sequence[ShardInfo],
        *,
        verify: Verify = "first",
        max_open: int = _MIN_OPEN,
    ):
        self._open: OrderedDict[int, _OpenShard] = OrderedDict()
        if verify not in get_args(Verify):
            raise unknown_name("verify", verify, get_args(Verify))
        self.files, self.shards = files, tuple(shards)
        self.verify, self.max_open = verify, max(max_open, _MIN_OPEN)
        self._unread: dict[int, bytearray] = {}  # by shard: a bit per sample that was not checked

    def __getstate__(self) -> dict[str, Any]:
        """Leave files and memory of what was checked behind: each process has its own."""
        return self.__dict__ | {"_open": OrderedDict(), "_unread": {}}

    def read(self, shard: int, index: int) -> tuple[str, dict[str, bytes]]:
        """Return key and members of one sample.

        Args:
            shard: Place of the shard in `shards`.
            index: Place of the sample in the shard.

        Raises:
            DataError: If the shard is missing, or differs from its manifest; names shard and byte.
        """
        opened = self._opened(shard)
        check = self.verify != "open" and self._is_unread(shard, index)
        members = {}
        for i in range(opened.first[index], opened.first[index + 1]):
            # A pread for each member copies less than one for all of them that is cut up.
            content = self._content(opened, shard, i)
            if len(content) != opened.sizes[i]:
                raise DataError(
                    f"shard {self.name(shard)} gave {len(content):,} bytes for sample {index} at "
                    f"byte {opened.offsets[i]:,}, {opened.sizes[i]:,} expected; the file was cut "
                    f"while it was open: copy it again"
                )
            if check:
                self._compare(opened, shard, i, content)
            members[opened.suffixes[i]] = content
        return opened.keys[index], members

    def _content(self, opened: _OpenShard, shard: int, member: int) -> bytes:
        try:
            return os.pread(opened.descriptor, opened.sizes[member], opened.offsets[member])
        except OSError as error:
            raise DataError(
                f"shard {self.name(shard)} cannot be read at byte {opened.offsets[member]:,} "
                f"({error.strerror}); check its disk or network, and go on with --resume"
            ) from error

    def name(self, shard: int) -> str:
        """Return path or URL of a shard."""
        return self.files.name(shard)

    def seek(self, position: int) -> None:
        """Tell which position of the stream is read next."""
        self.files.seek(position)

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
        # A cache that has removed a shard gets its disk space back when the last reader closes it.
        for number in [n for n, o in self._open.items() if not os.fstat(o.descriptor).st_nlink]:
            os.close(self._open.pop(number).descriptor)
        limit = min(self.max_open, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
        while len(self._open) >= limit:  # the one that was not read for longest
            os.close(self._open.popitem(last=False)[1].descriptor)
        opened = self._verified(shard)
        self._open[shard] = opened
        return opened

    def _verified(self, shard: int) -> _OpenShard:
        """Open a shard and compare file, index and manifest."""
        descriptor, expected = self._descriptor(shard), self.shards[shard]
        try:
            found = os.fstat(descriptor).st_size
            if found != expected.num_bytes:
                raise DataError(
                    f"shard {self.name(shard)} has {found:,} bytes, the manifest says "
                    f"{expected.num_bytes:,}; copy it again"
                )
            opened = self._with_index(descriptor, self.files.index(shard), shard)
            if self.verify == "open" and shard not in self._unread:
                self._compare_all(opened, shard)
        except BaseException:
            os.close(descriptor)
            raise
        return opened

    def _descriptor(self, shard: int) -> int:
        attempts = _OPEN_ATTEMPTS
        while True:
            path, attempts = self.files.path(shard), attempts - 1
            try:
                return os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
            except OSError as error:
                if attempts and isinstance(error, FileNotFoundError):
                    continue  # another process may have made room in the cache in between
                raise DataError(
                    f"shard {path} cannot be opened ({error.strerror}); copy it "
                    f"there, or pack or index again"
                ) from error

    def _with_index(self, descriptor: int, index: TarIndex, shard: int) -> _OpenShard:
        expected = self.shards[shard]
        if index.num_samples != expected.num_samples or index.num_bytes != expected.num_bytes:
            raise DataError(
                f"the index of shard {self.name(shard)} has {index.num_samples:,} samples, the "
                f"manifest {expected.num_samples:,}; copy the shard and its manifest again"
            )
        return _OpenShard(
            descriptor,
            index.keys,
            index.suffixes,
            index.first.tolist(),
            index.offsets.tolist(),
            index.sizes.tolist(),
            index.crcs.tolist(),
        )

    def _is_unread(self, shard: int, index: int) -> bool:
        """Return whether a sample is to be checked, and note that it is."""
        if self.verify == "always":
            return True
        bits = self._unread.get(shard)
        if bits is None:
            bits = self._unread[shard] = bytearray(b"\xff") * (
                self.shards[shard].num_samples // 8 + 1
            )
        place, bit = index >> 3, 1 << (index & 7)
        is_unread = bool(bits[place] & bit)
        bits[place] &= ~bit
        return is_unread

    def _compare_all(self, opened: _OpenShard, shard: int) -> None:
        with (
            mmap.mmap(opened.descriptor, 0, prot=mmap.PROT_READ) as content,
            memoryview(content) as view,
        ):
            for i, (offset, size) in enumerate(zip(opened.offsets, opened.sizes, strict=True)):
                with view[offset : offset + size] as member:
                    self._compare(opened, shard, i, member)
        self._unread[shard] = bytearray()

    def _compare(
        self, opened: _OpenShard, shard: int, member: int, content: bytes | memoryview
    ) -> None:
        if checksum(content) != opened.crcs[member]:
            raise DataError(
                f"shard {self.name(shard)}: member .{opened.suffixes[member]} at byte "
                f"{opened.offsets[member]:,} is not what the index says (its checksum differs); "
                f"the shard is damaged: copy it again"
            )
