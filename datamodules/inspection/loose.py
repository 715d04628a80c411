"""A shard without a manifest, on this machine's disks or on a server."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO

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


def _write(file: IO[bytes], block: bytes) -> None:
    try:
        file.write(block)
    except OSError as error:
        raise OutputError(
            f"cannot write {file.name}: {error.strerror}; free space on that disk, or give another "
            f"directory as OUT"
        ) from error


def _fetch(url: str, local: Path) -> None:
    """Bring a file of unknown size and digest here, whole.

    # Choice: an attempt that failed begins anew.  Only size and digest would tell whether two
    # halves belong together, and these are what is to be found out.
    """
    from datamodules.remote import Patience
    from datamodules.remote.bodies import open_body
    from datamodules.remote.filesystems import describe, final_error, public

    patience, part = Patience(), local.with_suffix(".part")
    for failures in range(1, patience.attempts + 1):
        try:
            with open_body(url, stall_s=patience.stall_s) as body, part.open("wb") as file:
                for block in body.blocks:
                    _write(file, block)
                if body.size not in (None, file.tell()):
                    raise ConnectionError(f"{file.tell():,} of {body.size:,} bytes came")
            part.replace(local)
        except OutputError:
            raise
        except Exception as error:
            final = final_error(error, url)
            if final is error:
                raise
            if final is not None:
                raise DataError(f"shard {final}") from error
            if failures == patience.attempts:
                raise DataError(
                    f"shard {public(url)} could not be read, asked {failures} times; the last "
                    f"answer: {describe(error)}. Check the network and the server, then run again"
                ) from error
            time.sleep(patience.pause_s(url, failures))
        else:
            return
