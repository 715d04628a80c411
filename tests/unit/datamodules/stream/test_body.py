"""Files, servers and commands deliver all of a shard, or an error that names it."""

from __future__ import annotations

import gzip
import io
import os
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import numpy as np
import pytest

from datamodules.remote.fetch import Patience
from datamodules.stream.body import (
    ForwardFile,
    ProgramBody,
    absolute_shards,
    check_location,
    names_shards,
    open_shard,
    shown,
)
from mae.errors import ConfigError, DataError

CONTENT = np.random.default_rng(0).integers(0, 256, 300_000, dtype=np.uint8).tobytes()
HASTY = Patience(attempts=3, first_pause_s=0.01, stall_s=0.5)

Answer = Callable[[BaseHTTPRequestHandler], None]


def whole(request: BaseHTTPRequestHandler, content: bytes = CONTENT) -> None:
    request.send_response(200)
    request.send_header("Content-Length", str(len(content)))
    request.end_headers()
    request.wfile.write(content)


def broken(request: BaseHTTPRequestHandler, content: bytes = CONTENT) -> None:
    """Promise all and hang up after two thirds."""
    request.send_response(200)
    request.send_header("Content-Length", str(len(content)))
    request.end_headers()
    request.wfile.write(content[: len(content) * 2 // 3])


def changed(request: BaseHTTPRequestHandler) -> None:
    whole(request, CONTENT[:1000] + b"?" + CONTENT[1001:])


def silent(request: BaseHTTPRequestHandler) -> None:
    broken(request)
    request.wfile.flush()
    time.sleep(20)


def missing(request: BaseHTTPRequestHandler) -> None:
    request.send_error(404)


@pytest.fixture
def serve() -> Iterator[Callable[..., str]]:
    """Return a function that starts a server with these answers; the last one repeats."""
    servers: list[ThreadingHTTPServer] = []

    def start(*answers: Answer) -> str:
        left = list(answers)

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                answer = left.pop(0) if len(left) > 1 else left[0]
                answer(self)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        servers.append(server)
        Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        return f"http://127.0.0.1:{server.server_address[1]}/shard.tar"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def read(location: str) -> bytes:
    with io.BufferedReader(ProgramBody(location, HASTY)) as body:
        return body.read()


@pytest.mark.network
@pytest.mark.parametrize(
    "answers", [(whole,), (broken, whole), (broken, broken, whole), (silent, whole)]
)
def test_program_body_interrupted_delivers_each_byte_once(
    serve: Callable[..., str], answers: tuple[Answer, ...]
) -> None:
    began = time.monotonic()
    assert read(serve(*answers)) == CONTENT
    assert time.monotonic() - began < 15  # nobody waits for a silent server


@pytest.mark.network
@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ((broken,), r"broke off after 200,000 bytes, asked 3 times \(exit status 18\)"),
        ((broken, changed), "was changed while it was read"),
        ((missing,), r"broke off after 0 bytes, asked 1 times \(.*HTTP error"),
    ],
)
def test_program_body_that_never_ends_well_is_an_error(
    serve: Callable[..., str], answers: tuple[Answer, ...], words: str
) -> None:
    url = serve(*answers)
    with pytest.raises(DataError, match=words) as caught:
        read(f"{url}?token=secret")
    assert url in str(caught.value)
    assert "secret" not in str(caught.value)


def test_program_body_nobody_listens_is_an_error() -> None:
    with pytest.raises(DataError, match=r"127\.0\.0\.1:9/.*exit status 7"):
        read("http://127.0.0.1:9/shard.tar")


def test_program_body_command_that_fails_once_is_run_again(tmp_path: Path) -> None:
    (tmp_path / "content").write_bytes(CONTENT)
    command = (
        f"if [ -e {tmp_path}/failed ]; then cat {tmp_path}/content; "
        f"else touch {tmp_path}/failed; head -c 123457 {tmp_path}/content; exit 3; fi"
    )
    assert read(f"pipe:{command}") == CONTENT


def test_program_body_command_that_fails_always_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"after 2 bytes, asked 3 times.*status 3.*comm"):
        read(f"pipe:printf ab; echo >> {tmp_path}/runs; exit 3")
    assert len((tmp_path / "runs").read_text().splitlines()) == 3


def test_program_body_closed_early_ends_the_program(tmp_path: Path) -> None:
    body = ProgramBody(f"pipe:echo $$ > {tmp_path}/pid; exec cat /dev/zero", HASTY)
    assert body.readinto(bytearray(10)) == 10
    body.close()
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_program_body_rewriting_variable_runs_no_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GOPEN_REWRITE", f"http://=pipe:touch {tmp_path}/canary;#")
    with pytest.raises(DataError, match="exit status 7"):
        read("http://127.0.0.1:9/shard.tar")
    assert not (tmp_path / "canary").exists()


def test_program_body_without_curl_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ConfigError, match="curl, which is not installed"):
        read("http://127.0.0.1:9/shard.tar")


def test_forward_file_equals_a_seekable_one() -> None:
    plain, forward = io.BytesIO(CONTENT), ForwardFile(io.BytesIO(CONTENT))
    random = np.random.default_rng(1)
    for _ in range(200):
        back = int(random.integers(0, min(plain.tell(), 1024) + 1))
        step = int(random.integers(-back, 3000))
        assert forward.seek(plain.tell() + step) == plain.seek(plain.tell() + step)
        count = int(random.choice([0, 1, 512, 1024, 5000]))
        assert forward.read(count) == plain.read(count)


def test_forward_file_beyond_the_end_is_empty_and_gone_bytes_are_refused() -> None:
    forward = ForwardFile(io.BytesIO(CONTENT))
    forward.seek(len(CONTENT) + 10)
    assert forward.read(5) == b""
    with pytest.raises(io.UnsupportedOperation):
        forward.seek(0)


@pytest.mark.parametrize(
    ("location", "words"),
    [
        ("pipe:cat x.tar", r"would run the shell command 'cat x\.tar'.*--data\.allow_pipe true"),
        ("s3://bucket/x.tar", "allowed: http, https.*mae index"),
        ("https://host/x.tar.gz?key=secret", "compressed"),
        ("x.tgz", "compressed"),
    ],
)
def test_check_location_what_cannot_be_streamed_is_refused(location: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        check_location(location, allow_pipe=False)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "location", ["a.tar", "https://host/a.tar", "http://host/a?b=c", "pipe:gunzip < a.tar.gz"]
)
def test_check_location_allowed_passes(location: str) -> None:
    check_location(location, allow_pipe=True)


def test_open_shard_compressed_by_content_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    path.write_bytes(gzip.compress(CONTENT))
    with pytest.raises(DataError, match=r"x\.tar holds gzip data"), open_shard(str(path)):
        pass


def test_open_shard_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be opened"), open_shard(f"{tmp_path}/x.tar"):
        pass


def test_shown_hides_what_opens_a_url() -> None:
    assert shown("https://me:secret@host/a.tar?key=secret") == "https://host/a.tar?…"
    assert shown("/data/a.tar") == "/data/a.tar"


def test_names_shards_tells_shards_from_directories(tmp_path: Path) -> None:
    (tmp_path / "folder.tar").mkdir()
    for text in ("a.tar", "x-{0..9}.tar", "https://h/a.TAR?b=c.d", "a.tar::b", "pipe:x", "a.tgz"):
        assert names_shards(text), text
    for text in ("shards", "https://host/shards", "s3://bucket/x?y=.tar", f"{tmp_path}/folder.tar"):
        assert not names_shards(text), text


def test_absolute_shards_makes_local_paths_alone_absolute(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert absolute_shards("a{0..3}.tar::/b.tar::https://h/c.tar") == (
        f"{tmp_path}/a{{0..3}}.tar::/b.tar::https://h/c.tar"
    )
    assert absolute_shards("pipe:cat a.tar") == "pipe:cat a.tar"
