"""Real servers on loopback that can be told to fail: HTTP, and moto's S3 behind a proxy."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import io
import re
import socket
import struct
import tarfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from datamodules.manifest import ShardInfo
from datamodules.remote import Patience, bodies, fetch
from datamodules.remote.cache import Wanted
from datamodules.tarindex import INDEX_SUFFIX, TarIndex, index_path

pytest.importorskip("s3fs", reason="needs the extra: pip install 'domain-mae[remote]'")

BLOCK = 2**16
_SIGNED = {"Authorization": "AWS4-HMAC-SHA256 Credential=x/20260101/us-east-1/s3/aws4_request"}
PATIENCE = Patience(attempts=5, first_pause_s=0.005, longest_pause_s=0.02, stall_s=0.4)
SECRET = {"AWS_ACCESS_KEY_ID": "tester", "AWS_SECRET_ACCESS_KEY": "hidden-words"}


class Seen(NamedTuple):
    """A request for contents, as the server saw it."""

    path: str
    begin: int  # of its range


class Answer(NamedTuple):
    """What a server without faults would send."""

    status: int
    headers: dict[str, str]
    body: bytes


@dataclass
class Server(ThreadingHTTPServer):
    """Serves `files`, or what `upstream` answers; the next answers to GET go through `faults`.

    Faults: a status; or, in the middle of the body, ``reset``, ``cut`` (closed in order), ``stall``
    and ``slow``; or another body: ``flip`` (one bit), ``short`` (its length is told), ``unsized``
    (it is not told, half comes); or ``whole``, a range is ignored.
    """

    upstream: tuple[str, int] | None = None
    files: dict[str, bytes] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    always: str = ""
    seen: list[Seen] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)  # all requests, also for what something is
    silent: threading.Event = field(default_factory=threading.Event)
    daemon_threads = True
    block_on_close = False

    def __post_init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    __hash__ = object.__hash__

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def reset(self) -> None:
        self.files.clear()
        self.faults.clear()
        self.seen.clear()
        self.asked.clear()
        self.always = ""

    def handle_error(self, *_: object) -> None:
        """Say nothing of clients that hang up."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Server

    def do_GET(self) -> None:
        server = self.server
        content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        server.asked.append(f"{self.command} {self.path}")
        fault = ""
        if self.command == "GET" and "list-type" not in self.path:
            begin = re.match(r"bytes=(\d+)-", self.headers.get("Range", ""))
            server.seen.append(Seen(self.path, int(begin[1]) if begin else 0))
            fault = server.faults.pop(0) if server.faults else server.always
        if fault == "whole":
            del self.headers["Range"]
        answer = _forwarded(self, content) if server.upstream else _own(self)
        if fault.isdigit():
            answer = Answer(int(fault), {}, b"")
        self._send(answer, fault if answer.status < 300 else "")

    do_HEAD = do_PUT = do_POST = do_GET  # noqa: N815

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def _send(self, answer: Answer, fault: str) -> None:
        body, half = answer.body, len(answer.body) // 2
        length: int | None = len(body)
        if fault == "flip":
            body = body[:half] + bytes([body[half] ^ 1]) + body[half + 1 :]
        if fault in ("short", "unsized"):
            body, length = body[:half], half if fault == "short" else None
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        if self.command == "HEAD":
            self.send_header("Content-Length", answer.headers.get("X-Size", str(length)))
        elif length is not None:
            self.send_header("Content-Length", str(length))
        self.end_headers()
        if self.command == "HEAD":
            return
        if fault in ("reset", "cut", "stall", "slow"):
            self.wfile.write(body[:half])
            self.wfile.flush()
        if fault == "slow":
            for begin in range(half, len(body), max(half // 8, 1)):
                self.server.silent.wait(0.02)
                self.wfile.write(body[begin : begin + max(half // 8, 1)])
        elif fault == "stall":
            self.server.silent.wait(60)
        elif fault == "reset":  # no last packet but an RST
            linger = struct.pack("ii", 1, 0)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self.connection.close()
        elif fault != "cut":
            self.wfile.write(body)
        self.close_connection = fault != "" or self.close_connection


def _own(request: _Handler) -> Answer:
    """Answer from the server's files, with ranges and If-Range."""
    body = request.server.files.get(request.path)
    if body is None:
        return Answer(404, {}, b"")
    tag = f'"{hashlib.sha256(body).hexdigest()[:16]}"'
    asked = re.fullmatch(r"bytes=(\d+)-(\d*)", request.headers.get("Range", ""))
    if asked is None or request.headers.get("If-Range", tag) != tag:
        return Answer(200, {"ETag": tag}, body)
    begin = int(asked[1])
    if begin >= len(body):
        return Answer(416, {"Content-Range": f"bytes */{len(body)}"}, b"")
    place = f"bytes {begin}-{len(body) - 1}/{len(body)}"
    return Answer(206, {"ETag": tag, "Content-Range": place}, body[begin:])


def _forwarded(request: _Handler, content: bytes) -> Answer:
    assert request.server.upstream is not None
    with contextlib.closing(http.client.HTTPConnection(*request.server.upstream)) as connection:
        connection.request(request.command, request.path, content, dict(request.headers))
        response = connection.getresponse()
        body = response.read()
    dropped = ("content-length", "connection", "transfer-encoding", "date", "server")
    headers = {k: v for k, v in response.getheaders() if k.lower() not in dropped}
    if request.command == "HEAD":
        headers["X-Size"] = response.getheader("Content-Length", "0")
    return Answer(response.status, headers, body)


@pytest.fixture(scope="session")
def _http() -> Iterator[Server]:
    with Server() as server:
        yield server
        server.silent.set()
        server.shutdown()


@pytest.fixture(scope="session")
def _moto() -> Iterator[Server]:
    """Start moto, and the proxy in front of it."""
    server_module = pytest.importorskip("moto.server")
    moto = server_module.ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    moto.start()
    with Server(upstream=moto.get_host_and_port()) as proxy:
        yield proxy
        proxy.silent.set()
        proxy.shutdown()
    moto.stop()
    moto._server.server_close()  # which moto leaves to the garbage collector


@dataclass(frozen=True)
class Store:
    """A server with a folder of files."""

    server: Server
    root: str
    put: Callable[[str, bytes], None]

    def url(self, name: str) -> str:
        return f"{self.root}/{name}"

    def wanted(self, name: str, content: bytes) -> Wanted:
        """Put a file there and return what a manifest would say of it."""
        self.put(name, content)
        return Wanted(
            url=self.url(name),
            num_bytes=len(content),
            sha256=hashlib.sha256(content).hexdigest(),
        )


@pytest.fixture
def http_store(_http: Server) -> Iterator[Store]:
    yield Store(
        _http, f"{_http.address}/d", lambda name, data: _http.files.update({f"/d/{name}": data})
    )
    _http.reset()


@pytest.fixture
def s3_store(_moto: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    import fsspec

    endpoint = {"endpoint_url": _moto.address}
    monkeypatch.setitem(fsspec.config.conf, "s3", endpoint)
    monkeypatch.setenv("FSSPEC_S3_ENDPOINT_URL", _moto.address)  # for processes that are spawned
    for name, value in SECRET.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    _direct(_moto, "POST", "/moto-api/reset")
    _direct(_moto, "PUT", "/bucket")

    def put(name: str, data: bytes) -> None:
        _direct(_moto, "PUT", f"/bucket/d/{name}", data)

    yield Store(_moto, "s3://bucket/d", put)
    _moto.reset()


def _direct(proxy: Server, method: str, path: str, content: bytes = b"") -> None:
    assert proxy.upstream is not None
    with contextlib.closing(http.client.HTTPConnection(*proxy.upstream)) as connection:
        connection.request(method, path, content, _SIGNED)
        assert connection.getresponse().status == 200


@pytest.fixture(params=["http", "s3"])
def store(request: pytest.FixtureRequest) -> Store:
    """Return each kind of server in turn."""
    found: Store = request.getfixturevalue(f"{request.param}_store")
    return found


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a small file be many blocks."""
    monkeypatch.setattr(bodies, "BLOCK", BLOCK)
    monkeypatch.setattr(fetch, "BLOCK", BLOCK)
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def content() -> Callable[..., bytes]:
    """Return a function that makes bytes that depend on a number alone."""

    def make(number: int = 0, num_bytes: int = 9 * BLOCK + 321) -> bytes:
        return np.random.default_rng(number).bytes(num_bytes)

    return make


@dataclass(frozen=True)
class ShardSet:
    """Tar shards on this disk: what a remote copy must equal."""

    folder: Path
    infos: tuple[ShardInfo, ...]

    def bytes(self, number: int) -> bytes:
        return (self.folder / self.infos[number].path).read_bytes()

    def samples(self, number: int) -> list[tuple[str, dict[str, bytes]]]:
        """Read a shard by the standard library."""
        found: dict[str, dict[str, bytes]] = {}
        with tarfile.open(self.folder / self.infos[number].path) as tar:
            for member in tar:
                key, suffix = member.name.split(".")
                content = tar.extractfile(member)
                assert content is not None
                found.setdefault(key, {})[suffix] = content.read()
        return list(found.items())

    def upload(self, store: Store, *, indexes: str = "") -> None:
        """Put the shards on a server, and their indexes ``beside`` them or in ``indexes``."""
        for number, info in enumerate(self.infos):
            store.put(info.path, self.bytes(number))
            index = index_path(self.folder / info.path)
            central = f"indexes/{info.index_sha256}{INDEX_SUFFIX}"
            if indexes:
                name = index.name if indexes == "beside" else central
                store.put(name, index.read_bytes())


@pytest.fixture
def shard_set(tmp_path: Path) -> Callable[..., ShardSet]:
    """Return a function that writes `count` shards of a few samples each."""

    def make(count: int, *, num_samples: int = 5) -> ShardSet:
        folder = tmp_path / "local"
        folder.mkdir()
        infos = []
        for number in range(count):
            path = folder / f"train-{number:06d}.tar"
            random = np.random.default_rng(number)
            with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
                for sample in range(num_samples):
                    for suffix in ("png", "json"):
                        content = random.bytes(int(random.integers(1, 3000)))
                        member = tarfile.TarInfo(f"{number}-{sample}.{suffix}")
                        member.size = len(content)
                        tar.addfile(member, io.BytesIO(content))
            index = TarIndex.build(path)
            index.save(index_path(path))
            content = path.read_bytes()
            infos.append(
                ShardInfo(
                    path=path.name,
                    split="train",
                    num_samples=num_samples,
                    num_bytes=len(content),
                    sha256=hashlib.sha256(content).hexdigest(),
                    index_sha256=index.digest,
                )
            )
        return ShardSet(folder, tuple(infos))

    return make
