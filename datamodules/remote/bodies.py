"""The bytes of one remote file from a given place on, block by block.

A web server is asked for one body, which is read as it comes: many ignore ranges, and fsspec's own
reader would then hold the whole file in memory.  An object store is asked for ranges, a few at a
time, which is faster there and bounds what a broken connection loses.

Source: RFC 9110 §13.1.5 (If-Range), §14 (range requests).
"""

from __future__ import annotations

import asyncio
import importlib
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from datamodules.remote.filesystems import filesystem

BLOCK = 4 * 2**20  # bytes
_BLOCK_S = 0.5  # a slow server's bytes are handed over at least so often
_BUFFER = 2**20  # bytes that may arrive while a block is hashed and written
_AT_ONCE = 4  # ranges of an object store under way together
_CONTENT_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")


class BrokenBodyError(OSError):
    """A server answered with something other than the bytes that were asked for."""


@dataclass(frozen=True)
class Body:
    """An answer that is being read.

    Attributes:
        start: Place of the first byte; 0 if the server does not go on where it was asked to.
        size: Bytes of the whole file, where the server says so.
        validator: What tells this version of the file from another; empty if unknown.
        blocks: The bytes.  What arrived before an error is yielded before it is raised.
    """

    start: int
    size: int | None
    validator: str
    blocks: Iterator[bytes]


@contextmanager
def open_body(url: str, *, start: int = 0, validator: str = "", stall_s: float) -> Iterator[Body]:
    """Ask for a file from byte `start` on.

    Args:
        url: Where it lies.
        start: First byte that is wanted.
        validator: That of the version whose first bytes are there; another one starts at byte 0.
        stall_s: Seconds without a byte after which the request has failed.

    Raises:
        Exception: Whatever the filesystem raises; see `filesystems.kind_of`.
    """
    files = filesystem(url, stall_s=stall_s)
    if "http" not in files.protocol:
        yield _object_body(files, url, start, validator)
        return
    sync = importlib.import_module("fsspec.asyn").sync
    response = sync(files.loop, _request, files, url, start, validator)
    try:
        yield _http_body(files, response, start)
    finally:
        sync(files.loop, _hang_up, response)


async def _request(files: Any, url: str, start: int, validator: str) -> Any:
    session = await files.set_session()
    options = dict(files.kwargs)
    headers = {"Accept-Encoding": "identity", **options.pop("headers", {})}
    if start:
        headers["Range"] = f"bytes={start}-"
        if validator:
            headers["If-Range"] = validator
    options.setdefault("read_bufsize", _BUFFER)
    response = await session.get(files.encode_url(url), headers=headers, **options)
    if response.status == 416 and start:  # the file ends before `start`, so it is another one
        response.close()
        return await _request(files, url, 0, "")
    try:
        response.raise_for_status()
    except BaseException:
        response.close()
        raise
    return response


async def _hang_up(response: Any) -> None:
    response.close()


def _http_body(files: Any, response: Any, start: int) -> Body:
    headers = response.headers
    encoding = headers.get("Content-Encoding", "identity")
    if encoding not in ("", "identity"):
        raise BrokenBodyError(f"the server compressed the file ({encoding}), unasked")
    size: int | None
    if response.status == 206:
        found = _CONTENT_RANGE.fullmatch(headers.get("Content-Range", ""))
        if found is None or int(found[1]) != start:
            raise BrokenBodyError(
                f"asked for bytes from {start:,} on, the server sent Content-Range "
                f"{headers.get('Content-Range')!r}"
            )
        size = None if found[2] == "*" else int(found[2])
    else:
        start, size = 0, response.content_length
    tag = headers.get("ETag", "")
    validator = tag if tag.startswith('"') else headers.get("Last-Modified", "")
    return Body(start, size, validator, _http_blocks(files, response))


def _http_blocks(files: Any, response: Any) -> Iterator[bytes]:
    sync = importlib.import_module("fsspec.asyn").sync
    has_ended = False
    while not has_ended:
        block, error = bytearray(), None
        try:
            has_ended = sync(files.loop, _fill, response.content, block)
        except Exception as caught:
            error = caught
        if block:
            yield bytes(block)
        if error is not None:
            raise error


async def _fill(content: Any, block: bytearray) -> bool:
    """Add what arrives to `block` until it is full or enough time has passed.

    Returns:
        Whether the body has ended.
    """
    end = time.monotonic() + _BLOCK_S
    while len(block) < BLOCK:
        reading = content.read(BLOCK - len(block))
        try:
            # The first bytes are waited for as long as the connection lasts.
            chunk = await (asyncio.wait_for(reading, end - time.monotonic()) if block else reading)
        except TimeoutError:
            if time.monotonic() < end:
                raise  # the connection's own
            return False
        if not chunk:
            return True
        block += chunk
    return False


def _object_body(files: Any, url: str, start: int, validator: str) -> Body:
    path = files._strip_protocol(url)
    info = files.info(path)
    if info["type"] != "file":
        raise FileNotFoundError(url)
    found = str(next((info[name] for name in ("ETag", "etag", "mtime") if name in info), ""))
    size = int(info["size"])
    if (validator and found != validator) or start > size:
        start = 0
    return Body(start, size, found, _object_blocks(files, path, start, size))


def _object_blocks(files: Any, path: str, start: int, size: int) -> Iterator[bytes]:
    begins = range(start, size, BLOCK)
    for first in range(0, len(begins), _AT_ONCE):
        these = list(begins[first : first + _AT_ONCE])
        ends = [min(begin + BLOCK, size) for begin in these]
        for block, begin, end in zip(
            files.cat_ranges([path] * len(these), these, ends), these, ends, strict=True
        ):
            if isinstance(block, Exception):
                raise block
            if len(block) != end - begin:
                raise BrokenBodyError(
                    f"asked for {end - begin:,} bytes at {begin:,}, {len(block):,} came"
                )
            yield block
