"""A shard without a manifest, on this machine's disks or on a server."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from datamodules.locations import is_url
from datamodules.tarindex import TarIndex
from mae.errors import DataError, OutputError


@dataclass(frozen=True)
class LooseShard:
    """A tar; see `datamodules.shardfiles.ShardFiles`.

    Attributes:
        location: Path or URL.
        ignore: Suffixes of members that are passed over.
        scratch: Folder that a remote one is fetched into.
    """

    location: str
    ignore: tuple[str, ...] = ()
    scratch: Path = Path()

    def path(self, shard: int) -> Path:
        """Return the local file; a remote one is fetched first.

        Raises:
            DataError: If it cannot be fetched.
        """
        del shard
        local = self._local
        if is_url(self.location) and not local.exists():
            _fetch(self.location, local)
        return local

    def name(self, shard: int) -> str:
        """Return the path, or the URL without its secrets."""
        del shard
        if not is_url(self.location):
            return self.location
        from datamodules.remote.filesystems import public

        return public(self.location)

    def index(self, shard: int) -> TarIndex:
        """Walk the tar; see `TarIndex.build`."""
        return TarIndex.build(self.path(shard), ignore=self.ignore)

    def seek(self, position: int) -> None:
        """Do nothing."""

    def release(self) -> None:
        """Remove what was fetched."""
        if is_url(self.location):
            self._local.unlink(missing_ok=True)

    @property
    def _local(self) -> Path:
        if not is_url(self.location):
            return Path(self.location)
        return self.scratch / f"{hashlib.sha256(self.location.encode()).hexdigest()}.tar"


def _fetch(url: str, local: Path) -> None:
    """Bring a file of unknown size and digest here, whole.

    # Choice: an attempt that failed begins anew.  Only size and digest would tell whether two
    # halves belong together, and these are what is to be found out.

    Raises:
        DataError: If it cannot be fetched.
        OutputError: If the disk is full or may not be written.
    """
    from datamodules.remote import Patience
    from datamodules.remote.bodies import open_body
    from datamodules.remote.fetch import persist

    patience, part = Patience(), local.with_suffix(".part")

    def attempt() -> None:
        with open_body(url, stall_s=patience.stall_s) as body:
            done = 0
            with _writing(part):
                part.write_bytes(b"")
            for block in body.blocks:
                with _writing(part), part.open("ab") as file:
                    done += file.write(block)
            if body.size not in (None, done):
                raise ConnectionError(f"{done:,} of {body.size:,} bytes came")

    try:
        persist(attempt, url, patience)
    except (DataError, FileNotFoundError) as error:
        raise DataError(f"shard {error}") from error
    with _writing(local):
        part.replace(local)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OutputError(
            f"cannot write {path}: {error.strerror}; free space on that disk, or give another "
            f"directory as OUT"
        ) from error
