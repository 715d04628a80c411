"""What counts as the bytes that were asked for."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from datamodules.remote import bodies
from datamodules.remote.bodies import BrokenBodyError, open_body

from .conftest import BLOCK, Store

pytestmark = pytest.mark.network


@pytest.fixture
def lying(http_store: Store, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Store]:
    """Return a function that makes the server add these headers to its next answers."""
    from . import conftest

    honest = conftest._own

    def lie(status: int, **headers: str) -> Store:
        def answer(request: conftest._Handler) -> conftest.Answer:
            found = honest(request)
            extra = {name.replace("_", "-"): value for name, value in headers.items()}
            return conftest.Answer(status, found.headers | extra, found.body)

        monkeypatch.setattr(conftest, "_own", answer)
        return http_store

    return lie


@pytest.mark.parametrize("start", [0, 1, BLOCK, 3 * BLOCK + 5])
def test_open_body_gives_the_rest_in_blocks(
    store: Store, content: Callable[..., bytes], start: int
) -> None:
    store.put("a.tar", content())
    with open_body(store.url("a.tar"), start=start, stall_s=1) as body:
        blocks = list(body.blocks)
    assert (body.start, body.size) == (start, len(content()))
    assert b"".join(blocks) == content()[start:]
    assert {len(block) for block in blocks[:-1]} == {BLOCK}


@pytest.mark.parametrize("scheme", ["file", "memory"])
def test_open_body_of_a_mounted_or_made_up_disk(
    content: Callable[..., bytes], tmp_path: Path, scheme: str
) -> None:
    import fsspec

    url = f"{scheme}://{tmp_path}/a.tar"
    with fsspec.open(url, "wb") as file:
        file.write(content())
    with open_body(url, start=7, stall_s=1) as body:
        assert b"".join(body.blocks) == content()[7:]


def test_open_body_of_another_version_starts_at_its_beginning(
    store: Store, content: Callable[..., bytes]
) -> None:
    store.put("a.tar", content(1))
    with open_body(store.url("a.tar"), stall_s=1) as old:
        assert old.validator
    store.put("a.tar", content(2))
    for start in (5, len(content()) + 5):
        with open_body(store.url("a.tar"), start=start, validator=old.validator, stall_s=1) as body:
            assert body.start == 0
            assert body.validator not in ("", old.validator)
            assert b"".join(body.blocks) == content(2)


def test_open_body_beyond_the_end_starts_at_the_beginning(
    store: Store, content: Callable[..., bytes]
) -> None:
    store.put("a.tar", content())
    with open_body(store.url("a.tar"), start=len(content()) + 1, stall_s=1) as body:
        assert body.start == 0
        assert b"".join(body.blocks) == content()


def test_open_body_unasked_compression_is_refused(lying: Callable[..., Store]) -> None:
    store = lying(200, Content_Encoding="gzip")
    store.put("a.tar", b"\x1f\x8b")
    with pytest.raises(BrokenBodyError, match="gzip"), open_body(store.url("a.tar"), stall_s=1):
        pass


@pytest.mark.parametrize("place", ["bytes 0-9/10", "bytes */10", "5-9/10", ""])
def test_open_body_other_range_than_asked_is_refused(
    lying: Callable[..., Store], place: str
) -> None:
    store = lying(206, Content_Range=place)
    store.put("a.tar", bytes(10))
    with (
        pytest.raises(BrokenBodyError, match="from 5 on"),
        open_body(store.url("a.tar"), start=5, stall_s=1),
    ):
        pass


def test_open_body_short_range_of_an_object_is_refused(
    s3_store: Store, content: Callable[..., bytes]
) -> None:
    s3_store.put("a.tar", content())
    s3_store.server.faults[:] = ["", "", "", "", "short"]
    with open_body(s3_store.url("a.tar"), stall_s=1) as body:
        first = next(body.blocks)
        with pytest.raises(BrokenBodyError, match=r"65,536 bytes at [\d,]+, 32,768 came"):
            list(body.blocks)
    assert first == content()[:BLOCK]


def test_open_body_slow_bytes_are_handed_over_before_a_block_is_full(
    http_store: Store, content: Callable[..., bytes]
) -> None:
    http_store.put("a.tar", content(num_bytes=BLOCK))
    http_store.server.faults[:] = ["stall"]  # for a minute
    started = time.monotonic()
    with open_body(http_store.url("a.tar"), stall_s=60) as body:
        assert next(body.blocks) == content(num_bytes=BLOCK)[: BLOCK // 2]
    assert time.monotonic() - started < 20


def test_open_body_hangs_up_when_the_reader_has_enough(
    http_store: Store, content: Callable[..., bytes]
) -> None:
    http_store.put("a.tar", content(num_bytes=2**24))
    with open_body(http_store.url("a.tar"), stall_s=1) as body:
        assert next(body.blocks) == content(num_bytes=2**24)[:BLOCK]
    connector = bodies.filesystem(http_store.url("a.tar"), stall_s=1)._session.connector
    assert not connector._acquired
