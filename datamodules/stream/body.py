"""The bytes of a shard that can only be read from its beginning to its end.

They come from a file, from a web server, or from a command.  The last two are opened by webdataset,
which starts a program: curl, or the shell.  A program that fails is started again; what it had
delivered is read once more, compared and passed over, so nothing is lost and nothing comes twice.

Source: webdataset 1.0.2, ``gopen.py``; curl's manual, "Exit codes".
"""

from __future__ import annotations

import io
import os
import select
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

from datamodules.locations import PIPE, absolute, is_url, shown, split_list
from datamodules.remote.fetch import Patience
from datamodules.tarindex import checksum
from mae.errors import ConfigError, DataError

_SCHEMES = ("http", "https")
_COMPRESSED_NAMES = (".gz", ".tgz", ".bz2", ".xz", ".zst")
_COMPRESSED_BYTES = {
    b"\x1f\x8b": "gzip",
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
}
_CHUNK = 2**20
_BUFFER = 2**18
_RECENT = 1024  # bytes that `walk` reads again when it looks for the trailer
_BEYOND = 2**63 - 1  # the size of a stream, which nobody knows
_PROGRESS = 4 * 2**20  # bytes after which failures are counted from one again
_EXIT_S = 60.0  # for a program that has closed its output
_CURL_HTTP_ERROR = 22
# Choice: a command that fails mostly fails again; curl has asked a busy server 30 times by itself.
_PROGRAM_PATIENCE = Patience(attempts=4)


def names_shards(text: str) -> bool:
    """Return whether a text names shards themselves, and not a directory with a manifest.

    Args:
        text: What the user gave: a directory, its URL, or locations, joined by ``::``.
    """
    parts = [part.partition("?")[0].lower() for part in split_list(text)]
    if any(part.startswith(PIPE) for part in parts):
        return True
    return any(part.endswith((".tar", *_COMPRESSED_NAMES)) for part in parts) and not (
        Path(text).is_dir()
    )


def absolute_shards(text: str) -> str:
    """Return locations, joined by ``::``, that do not depend on the current directory."""
    parts = split_list(text)
    return "::".join(part if part.startswith(PIPE) else absolute(part) for part in parts)


def check_location(location: str, *, allow_pipe: bool) -> None:
    """Refuse what cannot be streamed, before anything is opened.

    Args:
        location: Path, URL, or ``pipe:COMMAND``.
        allow_pipe: Whether commands may run.

    Raises:
        ConfigError: For commands that are not allowed, other servers, compressed tars.
    """
    if location.startswith(PIPE):
        if not allow_pipe:
            raise ConfigError(
                f"{location!r} would run the shell command {location[len(PIPE) :]!r} on this "
                f"machine, once per epoch; allow it with --data.allow_pipe true if you wrote it "
                f"yourself"
            )
        return
    if is_url(location) and location.partition("://")[0].lower() not in _SCHEMES:
        raise ConfigError(
            f"{shown(location)} cannot be streamed; allowed: {', '.join(_SCHEMES)}, paths, and "
            f"{PIPE}COMMAND. `mae index` reads s3:// and gs://, and makes the run exactly resumable"
        )
    if location.partition("?")[0].lower().endswith(_COMPRESSED_NAMES):
        raise ConfigError(
            f"{shown(location)} is compressed by its name; allowed: plain tars, for images are "
            f"compressed already. Decompress it first"
        )


@contextmanager
def open_shard(location: str, *, patience: Patience | None = None) -> Iterator[IO[bytes]]:
    """Open a shard for `datamodules.tarwalk.walk`, which reads it once.

    Args:
        location: Path, URL, or ``pipe:COMMAND``.
        patience: How often a program is started that fails.

    Raises:
        DataError: If it cannot be opened or read to its end, or is compressed.
        ConfigError: If the program is not installed.
    """
    with _opened(location, patience or _PROGRAM_PATIENCE) as stream:
        file = ForwardFile(stream)
        head = file.read(8)
        for magic, name in _COMPRESSED_BYTES.items():
            if head.startswith(magic):
                raise DataError(
                    f"{shown(location)} holds {name} data; allowed: plain tars, for images are "
                    f"compressed already. Decompress it first"
                )
        file.seek(0)
        yield cast("IO[bytes]", file)


class ForwardFile:
    """A stream that can be read forward, and again from a few bytes back.

    Args:
        stream: What is read.
    """

    def __init__(self, stream: IO[bytes]):
        self._stream = stream
        self._recent = b""  # the last bytes that were read
        self._front = 0  # how far the stream was read
        self._place = 0

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to a byte: forward by reading, or back by `_RECENT` bytes at most.

        Returns:
            The place; a huge number for the end, which nobody knows.

        Raises:
            io.UnsupportedOperation: If the byte is gone.
        """
        if whence == os.SEEK_END:
            return _BEYOND
        if self._front - offset > len(self._recent):
            raise io.UnsupportedOperation(f"a stream cannot go back to byte {offset}")
        while self._front < offset and self._advance(min(offset - self._front, _CHUNK)):
            pass
        self._place = offset
        return offset

    def read(self, count: int) -> bytes:
        """Return the next `count` bytes, fewer only at the end."""
        again = self._recent[len(self._recent) - max(self._front - self._place, 0) :][:count]
        self._place += len(again)
        if len(again) == count or self._place != self._front:
            return again
        new = self._advance(count - len(again))
        self._place += len(new)
        return again + new if again else new

    def _advance(self, count: int) -> bytes:
        found = self._stream.read(count)
        self._front += len(found)
        self._recent = (found if len(found) >= _RECENT else self._recent + found)[-_RECENT:]
        return found


@contextmanager
def _opened(location: str, patience: Patience) -> Iterator[IO[bytes]]:
    if location.startswith(PIPE) or is_url(location):
        with io.BufferedReader(ProgramBody(location, patience), _BUFFER) as body:
            yield body
    else:
        with _open_file(location) as file:
            yield file


def _open_file(location: str) -> IO[bytes]:
    try:
        return Path(location).open("rb")
    except OSError as error:
        raise DataError(
            f"shard {location} cannot be opened ({error.strerror}); copy it here again"
        ) from error


class _BrokenError(OSError):
    """A program did not deliver all."""

    def __init__(self, message: str, *, is_final: bool = False):
        super().__init__(message)
        self.is_final = is_final  # asking again is useless


class ProgramBody(io.RawIOBase):
    """What a program delivers: all of it, or an error.

    Args:
        location: URL, which curl is started for, or ``pipe:COMMAND`` for the shell.
        patience: How often it is started, and how long a server may be silent; commands may be
            silent for as long as they want.
    """

    def __init__(self, location: str, patience: Patience):
        super().__init__()
        self.location, self.patience = location, patience
        self._is_command = location.startswith(PIPE)
        self._program: Any = None
        self._done = self._crc = 0
        self._failures = self._reached = 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer, or some of it; return the number of bytes, 0 at the end.

        Raises:
            DataError: If the program fails again and again, or delivers something else than before.
            ConfigError: If it is not installed.
        """
        while True:
            try:
                if self._program is None:
                    self._start()
                count = self._receive(buffer)
                break
            except OSError as error:
                self._fail(error)
        self._crc = checksum(memoryview(buffer)[:count], self._crc)
        self._done += count
        return count

    def close(self) -> None:
        """End the program."""
        self._hang_up()
        super().close()

    def _start(self) -> None:
        """Start the program and pass over what it has delivered before."""
        # The two are called by name: `gopen` would first rewrite the URL by an environment
        # variable, which could make a command of it.
        from webdataset.gopen import gopen_curl, gopen_pipe

        if self._is_command:
            self._program = gopen_pipe(self.location, "rb", 0)
        else:  # brackets are a pattern to curl
            url = self.location.replace("[", "%5B").replace("]", "%5D")
            self._program = gopen_curl(url, "rb", 0)
        crc, left = 0, self._done
        scratch = memoryview(bytearray(min(left, _CHUNK)))
        while left:
            count = self._receive(scratch[: min(left, _CHUNK)])
            if not count:
                raise _BrokenError(f"{self._done - left:,} of {self._done:,} bytes came again")
            crc, left = checksum(scratch[:count], crc), left - count
        if crc != self._crc:
            raise DataError(
                f"{shown(self.location)} was changed while it was read: its first {self._done:,} "
                f"bytes are others after the connection broke than before; start again when it is "
                f"no longer written to"
            )

    def _receive(self, buffer: Any) -> int:
        stream, process = self._program.stream, self._program.proc
        if not self._is_command:
            waiting = select.poll()
            waiting.register(stream, select.POLLIN)  # an end shows in any case
            if not waiting.poll(1000 * self.patience.stall_s):
                raise _BrokenError(f"no byte came for {self.patience.stall_s:g} s")
        count: int = stream.readinto(buffer)
        if count:
            return count
        try:
            status = process.wait(_EXIT_S)
        except subprocess.TimeoutExpired as error:
            raise _BrokenError("its output is closed, but it does not end") from error
        if status:
            is_http = not self._is_command and status == _CURL_HTTP_ERROR
            why = "the server answered with an HTTP error" if is_http else f"exit status {status}"
            raise _BrokenError(why, is_final=is_http)
        return 0

    def _fail(self, error: OSError) -> None:
        """Wait for the next attempt, or give up."""
        self._hang_up()
        if isinstance(error, FileNotFoundError):
            raise ConfigError(
                f"webdataset reads {shown(self.location)} with {error.filename}, which is not "
                f"installed; install it, or run `mae index` on the shards"
            ) from error
        is_new = self._done - self._reached >= _PROGRESS
        self._failures, self._reached = 1 if is_new else self._failures + 1, self._done
        if getattr(error, "is_final", False) or self._failures >= self.patience.attempts:
            raise DataError(
                f"{shown(self.location)} broke off after {self._done:,} bytes, asked "
                f"{self._failures} times ({error}); check "
                f"{'the command' if self._is_command else 'the URL, network and server'}"
            ) from error
        time.sleep(self.patience.pause_s(self.location, self._failures))

    def _hang_up(self) -> None:
        program, self._program = self._program, None
        if program is not None:
            program.stream.close()
            program.proc.kill()  # it would notice the closed pipe at its next byte only
            program.proc.wait()
