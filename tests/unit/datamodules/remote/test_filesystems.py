"""Which servers are allowed, what their errors mean, and that filesystems outlive a fork."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from datamodules.remote import read_bytes
from datamodules.remote.filesystems import SCHEMES, filesystem, has_query, kind_of, public, scheme
from mae.errors import DataError

from .conftest import PATIENCE, Store


@pytest.mark.parametrize(
    "url",
    [
        "pipe:cat /etc/passwd",
        "pipe://cat /etc/passwd",
        "ssh://host/a.tar",
        "simplecache::s3://bucket/a.tar",
        "zip://a.tar::https://host/b.zip",
        "github://org:repo@main/a.tar",
        "local.tar",
    ],
)
def test_scheme_others_than_file_servers_are_refused(url: str) -> None:
    with pytest.raises(DataError, match="allowed: http, https, s3, gs"):
        read_bytes(url, max_bytes=1)


def test_scheme_is_found_in_any_case() -> None:
    assert [scheme(f"{name.upper()}://host/a") for name in SCHEMES] == list(SCHEMES)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://user:secret@host:81/a/b.tar", "https://host:81/a/b.tar"),
        ("https://host/a.tar?X-Amz-Signature=secret#secret", "https://host/a.tar?…"),
        ("s3://bucket/a.tar", "s3://bucket/a.tar"),
        ("file:///data/a.tar", "file:///data/a.tar"),
    ],
)
def test_public_hides_secrets_alone(url: str, shown: str) -> None:
    assert public(url) == shown


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://host/d?token=x", True),
        ("HTTP://host/d?token=x/manifest.json", True),
        ("https://host/d", False),
        ("s3://bucket/what?", False),
        ("file:///data/what?/really?", False),
    ],
)
def test_has_query_is_of_web_servers_alone(url: str, expected: bool) -> None:
    assert has_query(url) is expected


@pytest.mark.parametrize(
    ("library", "url"), [("s3fs", "s3://b/a"), ("aiohttp", "https://h/a"), ("fsspec", "file:///a")]
)
def test_filesystem_missing_library_names_the_extra(library: str, url: str) -> None:
    program = f"""
import sys
sys.modules[{library!r}] = None
from datamodules.remote import read_bytes
from mae.errors import ConfigError
try:
    read_bytes({url!r}, max_bytes=1)
except ConfigError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert library in done.stdout, done.stderr
    assert "pip install 'domain-mae[remote]'" in done.stdout


def test_filesystem_keeps_the_users_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    import fsspec

    given = {"endpoint_url": "http://h:1", "config_kwargs": {"read_timeout": 7}, "anon": True}
    monkeypatch.setitem(fsspec.config.conf, "s3", given)
    made = filesystem("s3://bucket/a", stall_s=1.25)  # other settings, so a new one
    assert (made.endpoint_url, made.anon) == ("http://h:1", True)
    assert made.config_kwargs["read_timeout"] == 7
    assert made.config_kwargs["connect_timeout"] == 1.25
    headers = {"client_kwargs": {"headers": {"Authorization": "Bearer x"}}}
    monkeypatch.setitem(fsspec.config.conf, "http", headers)
    made = filesystem("https://host/a", stall_s=1.25)
    assert made.client_kwargs["headers"] == {"Authorization": "Bearer x"}
    assert made.client_kwargs["trust_env"]


def _with_status(status: int) -> Exception:
    import aiohttp
    import yarl

    info = aiohttp.RequestInfo(yarl.URL("http://h/a"), "GET", None, yarl.URL("http://h/a"))  # type: ignore[arg-type]
    return aiohttp.ClientResponseError(info, (), status=status)


def _of_s3(status: int, code: str) -> Exception:
    import botocore.exceptions
    import s3fs.errors

    answer = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}
    found: Exception = s3fs.errors.translate_boto_error(
        botocore.exceptions.ClientError(answer, "GetObject")
    )
    return found


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda: _with_status(404), "missing"),
        (lambda: _with_status(410), "missing"),
        (lambda: _with_status(401), "forbidden"),
        (lambda: _with_status(302), "refused"),
        (lambda: _with_status(400), "refused"),
        (lambda: _with_status(408), "passing"),
        (lambda: _with_status(429), "passing"),
        (lambda: _with_status(503), "passing"),
        (lambda: _of_s3(404, "NoSuchKey"), "missing"),
        (lambda: _of_s3(403, "SignatureDoesNotMatch"), "forbidden"),
        (lambda: _of_s3(301, "PermanentRedirect"), "refused"),
        (lambda: _of_s3(503, "SlowDown"), "passing"),
        (lambda: _of_s3(500, "InternalError"), "passing"),
        (lambda: ConnectionResetError(), "passing"),
        (lambda: TimeoutError(), "passing"),
        (lambda: PermissionError(), "forbidden"),
        (lambda: IsADirectoryError(), "refused"),
        (lambda: TypeError(), "defect"),
        (lambda: KeyError(), "defect"),
    ],
)
def test_kind_of_sorts_errors(make: Callable[[], Exception], kind: str) -> None:
    assert kind_of(make()) == kind


def test_kind_of_settings_that_are_missing_or_wrong() -> None:
    import aiohttp
    from botocore import exceptions

    assert kind_of(exceptions.NoCredentialsError()) == "forbidden"
    assert kind_of(exceptions.ProfileNotFound(profile="x")) == "forbidden"
    assert kind_of(exceptions.ParamValidationError(report="bad bucket name")) == "refused"
    assert kind_of(aiohttp.InvalidURL("http://")) == "refused"


def _read(urls: list[str], answers: Any) -> None:
    answers.put([read_bytes(url, max_bytes=100, patience=PATIENCE) for url in urls])


@pytest.mark.network
def test_filesystem_works_in_a_forked_child_of_a_process_that_used_it(
    http_store: Store, s3_store: Store
) -> None:
    urls = [store.url("a") for store in (http_store, s3_store)]
    for store, word in ((http_store, b"from http"), (s3_store, b"from s3")):
        store.put("a", word)
    assert [read_bytes(url, max_bytes=100, patience=PATIENCE) for url in urls]  # loop, connections
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    processes = [context.Process(target=_read, args=(urls, answers)) for _ in range(2)]
    for process in processes:
        process.start()
    assert [answers.get() for _ in processes] == [[b"from http", b"from s3"]] * 2
    for process in processes:
        process.join()
    answers.close()
    assert [read_bytes(url, max_bytes=100, patience=PATIENCE) for url in urls]


@pytest.mark.network
def test_read_refused_connection_is_tried_again_and_named() -> None:
    with pytest.raises(DataError, match=r"127\.0\.0\.1:9/a .*asked 5 times"):
        read_bytes("http://127.0.0.1:9/a", max_bytes=1, patience=PATIENCE)
