"""Small files, manifests and indexes, come whole or with a reason."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from datamodules.locations import join
from datamodules.remote.fetch import read_bytes
from mae.errors import ConfigError, DataError

from .conftest import PATIENCE, SECRET, Store

pytestmark = pytest.mark.network


def test_read_bytes_equals_the_file(store: Store, content: Callable[..., bytes]) -> None:
    store.put("manifest.json", content())
    store.server.faults[:] = ["500", "cut", "reset"]
    assert read_bytes(store.url("manifest.json"), max_bytes=10**6, patience=PATIENCE) == content()


def test_read_bytes_keeps_nothing_and_does_not_say_so(store: Store) -> None:
    store.put("manifest.json", b"{}")
    store.server.always = "503"
    with pytest.raises(DataError, match=r"asked 5 times.*503.*then run again$"):
        read_bytes(store.url("manifest.json"), max_bytes=100, patience=PATIENCE)


def test_read_bytes_in_a_directory_with_a_query_is_refused(http_store: Store) -> None:
    root = f"{http_store.root.replace('//', '//user:secret@')}?token=secret"
    with pytest.raises(ConfigError, match=r"/d\?… is a directory with a query.*netrc") as caught:
        read_bytes(join(root, "manifest.json"), max_bytes=100, patience=PATIENCE)
    assert "secret" not in str(caught.value)
    assert http_store.server.asked == []


def test_read_bytes_of_a_file_with_a_query_equals_it(http_store: Store) -> None:
    http_store.put("a?token=x", b"contents")
    assert read_bytes(http_store.url("a?token=x"), max_bytes=8, patience=PATIENCE) == b"contents"


def test_read_bytes_empty_file(store: Store) -> None:
    store.put("empty", b"")
    assert read_bytes(store.url("empty"), max_bytes=0, patience=PATIENCE) == b""


def test_read_bytes_missing_file_is_asked_for_once(store: Store) -> None:
    with pytest.raises(FileNotFoundError, match=r"d/nothing\.json"):
        read_bytes(store.url("nothing.json"), max_bytes=100, patience=PATIENCE)
    assert len(store.server.asked) <= 2  # S3: what it is, or what lies below it


def test_read_bytes_missing_bucket_is_not_found(s3_store: Store) -> None:
    with pytest.raises(FileNotFoundError):
        read_bytes("s3://no-such-bucket/manifest.json", max_bytes=100, patience=PATIENCE)


@pytest.mark.parametrize("status", ["401", "403"])
def test_read_bytes_without_permission_says_how_to_get_it(store: Store, status: str) -> None:
    store.put("manifest.json", b"{}")
    store.server.always = status
    way = "FSSPEC_S3_ENDPOINT_URL" if store.root.startswith("s3") else "netrc"
    with pytest.raises(DataError, match=rf"manifest\.json.*{status}.*{way}") as caught:
        read_bytes(store.url("manifest.json"), max_bytes=100, patience=PATIENCE)
    assert len(store.server.seen) == 1
    assert SECRET["AWS_SECRET_ACCESS_KEY"] not in str(caught.value)


def test_read_bytes_too_large_names_both_numbers(store: Store) -> None:
    store.put("manifest.json", bytes(1001))
    with pytest.raises(DataError, match=r"1,001.*1,000"):
        read_bytes(store.url("manifest.json"), max_bytes=1000, patience=PATIENCE)


def test_read_bytes_too_large_without_a_length_is_stopped(http_store: Store) -> None:
    http_store.put("manifest.json", bytes(2**22))
    http_store.server.always = "unsized"
    with pytest.raises(DataError, match="has 65,536 bytes or more; allowed: 1,000"):
        read_bytes(http_store.url("manifest.json"), max_bytes=1000, patience=PATIENCE)
