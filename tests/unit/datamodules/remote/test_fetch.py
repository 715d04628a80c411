"""What is fetched equals what lies there, whatever happens on the way."""

from __future__ import annotations

import functools
import hashlib
import itertools
import multiprocessing
import resource
import threading
from collections.abc import Callable
from dataclasses import replace
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datamodules.remote import fetch
from datamodules.remote.fetch import Patience, download
from mae.errors import DataError, OutputError

from .conftest import BLOCK, PATIENCE, Store

pytestmark = pytest.mark.network


def fetched(store: Store, name: str, expected: bytes, part: Path, **options: Any) -> bytes:
    download(
        store.url(name),
        part,
        num_bytes=len(expected),
        sha256=hashlib.sha256(expected).hexdigest(),
        **{"patience": PATIENCE, **options},
    )
    return part.read_bytes()


@pytest.mark.parametrize(
    "faults",
    [
        [],
        ["503", "429", "500"],
        ["reset"],
        ["cut", "cut"],
        ["slow"],
        ["stall"],
        ["flip"],
        ["reset", "503", "cut", "reset", "slow"],
    ],
    ids="+".join,
)
def test_download_through_faults_equals_the_bytes(
    store: Store, content: Callable[..., bytes], tmp_path: Path, faults: list[str]
) -> None:
    store.put("a.tar", content())
    store.server.faults[:] = faults
    assert fetched(store, "a.tar", content(), tmp_path / "part") == content()
    assert store.server.faults == []


@pytest.mark.parametrize("fault", ["unsized", "short"])
def test_download_body_without_its_true_length_is_not_taken_for_whole(
    http_store: Store, content: Callable[..., bytes], tmp_path: Path, fault: str
) -> None:
    http_store.put("a.tar", content())
    http_store.server.faults[:] = [fault]
    assert fetched(http_store, "a.tar", content(), tmp_path / "part") == content()
    half = len(content()) // 2
    begins = [seen.begin for seen in http_store.server.seen]
    assert begins == ([0, half] if fault == "unsized" else [0, 0])


def test_download_broken_body_goes_on_where_it_ended(
    http_store: Store, content: Callable[..., bytes], tmp_path: Path
) -> None:
    whole = content(num_bytes=2**24)
    http_store.put("a.tar", whole)
    http_store.server.faults[:] = ["cut"]
    fetched(http_store, "a.tar", whole, tmp_path / "part")
    (first, second) = [seen.begin for seen in http_store.server.seen]
    assert first == 0
    assert 2**23 - 5 * 2**19 <= second <= 2**23  # aiohttp gives up what it has not handed over


def test_download_broken_range_goes_on_with_it(
    s3_store: Store, content: Callable[..., bytes], tmp_path: Path
) -> None:
    s3_store.put("a.tar", content())
    s3_store.server.faults[:] = ["", "", "", "", "", "cut"]
    fetched(s3_store, "a.tar", content(), tmp_path / "part")
    begins = [seen.begin for seen in s3_store.server.seen]
    assert sorted(set(begins)) == list(range(0, len(content()), BLOCK))
    assert 10 < len(begins) <= 10 + 4  # those that were under way together


@pytest.mark.parametrize("fault", ["", "cut"])
def test_download_server_without_ranges_starts_again(
    http_store: Store, content: Callable[..., bytes], tmp_path: Path, fault: str
) -> None:
    http_store.put("a.tar", content())
    http_store.server.faults[:] = [fault or "reset", "whole"]
    assert fetched(http_store, "a.tar", content(), tmp_path / "part") == content()


def test_download_from_the_standard_librarys_server(
    content: Callable[..., bytes], tmp_path: Path
) -> None:
    """It knows neither ranges nor tags."""
    (tmp_path / "served").mkdir()
    (tmp_path / "served" / "a.tar").write_bytes(content())
    (tmp_path / "part").write_bytes(content()[:100_000])

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Say nothing."""

    handler = functools.partial(Handler, directory=tmp_path / "served")
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        store = Store(None, f"http://127.0.0.1:{server.server_port}", lambda *_: None)  # type: ignore[arg-type]
        assert fetched(store, "a.tar", content(), tmp_path / "part") == content()
        server.shutdown()


def test_download_file_changed_between_attempts_starts_again(
    store: Store, content: Callable[..., bytes], tmp_path: Path
) -> None:
    is_s3 = store.root.startswith("s3")
    num_bytes = 9 * BLOCK + 321 if is_s3 else 2**23
    old, new = content(1, num_bytes), content(2, num_bytes)
    store.put("a.tar", old)
    store.server.faults[:] = ["", "", "", "", "cut"] if is_s3 else ["cut"]
    got = fetched(store, "a.tar", new, tmp_path / "part", pause=lambda _: store.put("a.tar", new))
    assert got == new
    # If-Range makes a web server send the whole new file; an object store's tag is compared first.
    # Splicing old and new would have shown in the digest, and cost one more download.
    assert [seen.begin for seen in store.server.seen].count(0) == (2 if is_s3 else 1)
    assert len(store.server.seen) <= (8 + 10 if is_s3 else 2)


def test_download_other_contents_names_both_digests_and_leaves_nothing(
    store: Store, content: Callable[..., bytes], tmp_path: Path
) -> None:
    store.put("a.tar", content(1))
    digests = [hashlib.sha256(content(n)).hexdigest() for n in (1, 2)]
    with pytest.raises(DataError, match=rf"a\.tar.*{digests[0]}.*{digests[1]}"):
        fetched(store, "a.tar", content(2), tmp_path / "part")
    assert list(tmp_path.iterdir()) == []


def test_download_other_size_names_both_and_leaves_nothing(
    store: Store, content: Callable[..., bytes], tmp_path: Path
) -> None:
    store.put("a.tar", content()[:-1])
    with pytest.raises(DataError, match=r"a\.tar.*590,144 bytes.*590,145"):
        fetched(store, "a.tar", content(), tmp_path / "part")
    assert list(tmp_path.iterdir()) == []


def test_download_endless_body_is_stopped(
    http_store: Store, content: Callable[..., bytes], tmp_path: Path
) -> None:
    http_store.put("a.tar", content(num_bytes=2**22))
    http_store.server.always = "unsized"  # half of it, and the client is not told how much
    sizes: list[int] = []
    with pytest.raises(DataError, match="or more"):
        fetched(
            http_store,
            "a.tar",
            content(num_bytes=2**18),
            tmp_path / "part",
            on_bytes=lambda done, total: sizes.append(done),
        )
    assert max(sizes) <= 2**18


def test_download_gives_up_and_says_how_often(
    store: Store, content: Callable[..., bytes], tmp_path: Path
) -> None:
    store.put("a.tar", content())
    store.server.always = "503"
    pauses: list[float] = []
    with pytest.raises(
        DataError, match=r"d/a\.tar .*asked 5 times.*503.*what has arrived is kept$"
    ):
        fetched(store, "a.tar", content(), tmp_path / "part", pause=pauses.append)
    assert len(pauses) == 4


@pytest.mark.parametrize(("gain", "most"), [(BLOCK, 50), (BLOCK - 1, PATIENCE.attempts)])
def test_persist_attempts_that_bring_a_block_do_not_count(gain: int, most: int) -> None:
    state = {"asked": 0, "done": 0}

    def attempt() -> str:
        state["asked"] += 1
        state["done"] += gain
        if state["asked"] < 50:
            raise ConnectionResetError
        return "whole"

    def persist() -> str:
        return fetch.persist(
            attempt, "http://host/a", PATIENCE, progress=lambda: state["done"], pause=lambda _: None
        )

    if most == 50:
        assert persist() == "whole"
    else:
        with pytest.raises(DataError, match=f"asked {most} times"):
            persist()
    assert state["asked"] == most


def test_persist_what_is_sent_again_is_no_progress() -> None:
    """A server without ranges, whose bodies break early and late in turns."""
    places = itertools.cycle([8 * BLOCK, 2 * BLOCK])
    state = {"asked": 0, "done": 0}

    def attempt() -> str:
        state["asked"] += 1
        state["done"] = next(places)
        if state["asked"] == 100:
            return "for ever"
        raise ConnectionResetError

    with pytest.raises(DataError, match=f"asked {PATIENCE.attempts} times"):
        fetch.persist(
            attempt, "http://host/a", PATIENCE, progress=lambda: state["done"], pause=lambda _: None
        )


@pytest.mark.parametrize("before", ["its beginning", "all of it", "another file", "too much"])
def test_download_uses_what_a_killed_process_left(
    store: Store, content: Callable[..., bytes], tmp_path: Path, before: str
) -> None:
    whole = content()
    left = {
        "its beginning": whole[: 7 * BLOCK],
        "all of it": whole,
        "another file": content(1)[: 7 * BLOCK],
        "too much": whole + b"1",
    }[before]
    store.put("a.tar", whole)
    (tmp_path / "part").write_bytes(left)
    assert fetched(store, "a.tar", whole, tmp_path / "part") == whole
    begins = sorted(seen.begin for seen in store.server.seen)
    if before == "all of it":
        assert begins == []
    else:
        assert begins[0] == (7 * BLOCK if before == "its beginning" else 0)


def test_download_tells_its_progress(
    store: Store, content: Callable[..., bytes], tmp_path: Path
) -> None:
    store.put("a.tar", content())
    told: list[tuple[int, int]] = []
    fetched(store, "a.tar", content(), tmp_path / "part", on_bytes=lambda *n: told.append(n))
    assert told == sorted(told)
    assert len(told) == 10
    assert told[-1] == (len(content()), len(content()))


def _on_a_full_disk(url: str, whole: bytes, part: Path, answers: Any) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    try:
        download(
            url,
            part,
            num_bytes=len(whole),
            sha256=hashlib.sha256(whole).hexdigest(),
            patience=PATIENCE,
        )
    except OutputError as error:
        answers.put((str(error), part.exists()))


def test_download_full_disk_says_what_to_do_and_is_not_tried_again(
    http_store: Store, content: Callable[..., bytes], tmp_path: Path
) -> None:
    http_store.put("a.tar", content())
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    arguments = (http_store.url("a.tar"), content(), tmp_path / "part", answers)
    process = context.Process(target=_on_a_full_disk, args=arguments)
    process.start()
    message, is_there = answers.get()
    process.join()
    answers.close()
    assert "590,145 bytes" in message
    assert "free space" in message
    assert not is_there
    assert len(http_store.server.seen) == 1


@given(failures=st.integers(1, 60), first=st.floats(0.001, 5), longest=st.floats(5, 100))
def test_pause_doubles_up_to_the_longest(failures: int, first: float, longest: float) -> None:
    patience = replace(Patience(), first_pause_s=first, longest_pause_s=longest)
    full = min(longest, first * 2.0 ** (failures - 1))
    assert full / 2 <= patience.pause_s("http://a/b", failures) <= full
    assert patience.pause_s("http://a/b", failures) == patience.pause_s("http://a/b", failures)
