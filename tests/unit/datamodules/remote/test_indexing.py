"""Tars on real servers are indexed, read and inspected like local ones."""

from __future__ import annotations

import io
import multiprocessing
import resource
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from datamodules import remote
from datamodules.indexing import index_shards
from datamodules.inspection.look import inspect_shards
from datamodules.inspection.loose import LooseShard
from datamodules.manifest import Manifest
from datamodules.reader import ShardReader
from datamodules.remote import bodies
from datamodules.shardfiles import open_files
from mae.errors import ConfigError, DataError, OutputError

pytestmark = pytest.mark.network

NAMES = tuple(f"train-{number:03d}.tar" for number in range(6))
Store = Any


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    patience = remote.Patience(attempts=3, first_pause_s=0.005, longest_pause_s=0.01, stall_s=0.4)
    monkeypatch.setattr(remote, "Patience", lambda: patience)


@pytest.fixture
def tars(tmp_path: Path) -> Path:
    """Return a folder of six small tars."""
    folder, random = tmp_path / "tars", np.random.default_rng(0)
    folder.mkdir()
    for shard, name in enumerate(NAMES):
        with tarfile.open(folder / name, "w") as tar:
            for number in range(3):
                stream = io.BytesIO()
                pixels = random.integers(0, 256, (64, 48, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(stream, "PNG")
                info = tarfile.TarInfo(f"s{shard}i{number}.png")
                info.size = stream.tell()
                tar.addfile(info, io.BytesIO(stream.getvalue()))
    return folder


@pytest.fixture
def upload(store: Store, tars: Path) -> Store:
    for name in NAMES:
        store.put(name, (tars / name).read_bytes())
    return store


def test_index_shards_on_a_server_are_those_on_the_disk(
    upload: Store, tars: Path, tmp_path: Path
) -> None:
    source = upload.url("train-{000..005}.tar")
    here = index_shards(str(tars), tmp_path / "here").manifest
    there = index_shards(source, tmp_path / "there").manifest
    assert there.spec == here.spec
    assert [info.path for info in there.shard_list] == [upload.url(name) for name in NAMES]
    for one, other in zip(there.shard_list, here.shard_list, strict=True):
        assert (one.sha256, one.index_sha256) == (other.sha256, other.index_sha256)
    assert {p.name for p in (tmp_path / "there").iterdir()} == {"manifest.json", "indexes"}
    shards = there.shards("train")
    files = open_files(there, shards, cache=tmp_path / "cache")
    found = ShardReader(files, shards).read(5, 2)
    with tarfile.open(tars / NAMES[5]) as tar:
        assert found == ("s5i2", {"png": tar.extractfile("s5i2.png").read()})  # type: ignore[union-attr]


def test_index_shards_few_remote_shards_are_here_at_a_time(
    http_store: Store, tars: Path, tmp_path: Path
) -> None:
    for name in NAMES:
        http_store.put(name, (tars / name).read_bytes())
    here: list[int] = []
    index_shards(
        http_store.url("train-{000..005}.tar"),
        tmp_path / "out",
        on_progress=lambda _: here.append(len(list((tmp_path / "out").rglob("*.tar")))),
    )
    assert max(here) == 2


def test_index_shards_body_that_is_shorter_than_said_is_asked_for_again(
    tars: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = (tars / NAMES[0]).read_bytes()
    lengths = [len(data) // 2, len(data)]

    @contextmanager
    def body(url: str, *, stall_s: float) -> Iterator[bodies.Body]:
        yield bodies.Body(0, len(data), "", iter([data[: lengths.pop(0)]]))

    monkeypatch.setattr(bodies, "open_body", body)
    manifest = index_shards("memory://x/a.tar", tmp_path / "out").manifest
    assert manifest.shard_list[0].num_bytes == len(data)


@pytest.mark.parametrize("fault", ["503", "reset", "cut", "short"])
def test_index_shards_broken_bodies_are_asked_for_again(
    http_store: Store, tars: Path, tmp_path: Path, fault: str
) -> None:
    name = NAMES[0]
    http_store.put(name, (tars / name).read_bytes())
    http_store.server.faults[:] = [fault]
    if fault == "short":  # told as its length: only the tar itself shows that it is not whole
        with pytest.raises(DataError, match="is cut or damaged") as error:
            index_shards(http_store.url(name), tmp_path / "out")
        assert http_store.url(name) in str(error.value)
        assert not (tmp_path / "out").exists()
        return
    manifest = index_shards(http_store.url(name), tmp_path / "out").manifest
    assert manifest.shard_list[0].num_bytes == (tars / name).stat().st_size
    assert http_store.server.faults == []


def test_loose_shard_full_disk_says_what_to_do_and_is_not_tried_again(
    http_store: Store, tars: Path, tmp_path: Path
) -> None:
    http_store.put("a.tar", (tars / NAMES[0]).read_bytes())
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    shard = LooseShard(http_store.url("a.tar"), scratch=tmp_path)
    process = context.Process(target=_on_a_full_disk, args=(shard, answers))
    process.start()
    said = answers.get()
    assert said.startswith("cannot write")
    assert "free space" in said
    process.join()
    answers.close()
    assert len(http_store.server.seen) == 1


def _on_a_full_disk(shard: LooseShard, answers: Any) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
    try:
        shard.path(0)
    except OutputError as error:
        answers.put(str(error))
    except BaseException as error:
        answers.put(repr(error))


def test_index_shards_missing_on_the_server_are_named(upload: Store, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"1 of 7 shards cannot be used.*train-006.tar"):
        index_shards(upload.url("train-{000..006}.tar"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_index_shards_server_that_never_answers_is_given_up(
    http_store: Store, tmp_path: Path
) -> None:
    http_store.server.always = "503"
    with pytest.raises(DataError, match="could not be read, asked 3 times"):
        index_shards(http_store.url(NAMES[0]), tmp_path / "out")


def test_index_shards_object_stores_are_listed(s3_store: Store, tars: Path, tmp_path: Path) -> None:
    for name in NAMES:
        s3_store.put(name, (tars / name).read_bytes())
    s3_store.put("readme.txt", b"x")
    for number, source in enumerate(("", "train-*.tar")):
        manifest = index_shards(s3_store.url(source), tmp_path / str(number)).manifest
        assert [info.path for info in manifest.shard_list] == [s3_store.url(n) for n in NAMES]
    with pytest.raises(DataError, match="1 of 1 shards do not exist"):
        index_shards(s3_store.url("val-*.tar"), tmp_path / "none")


def test_inspect_shards_remote_quick_look_fetches_some_deep_all(
    upload: Store, tars: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    index_shards(upload.url("train-{000..005}.tar"), out)
    quick = inspect_shards(str(out), cache=tmp_path / "cache", num_sheet=4)
    assert quick.problems == ()
    assert len(quick.findings.shards) == 4
    deep = inspect_shards(str(out), cache=tmp_path / "cache", deep=True)
    assert deep.problems == ()
    assert deep.findings.num_samples == 18


def test_inspect_shards_manifest_on_the_server(upload: Store, tars: Path, tmp_path: Path) -> None:
    index_shards(str(tars))
    upload.put("manifest.json", (tars / "manifest.json").read_bytes())
    upload.put(NAMES[2], b"\0" * (tars / NAMES[2]).stat().st_size)
    deep = inspect_shards(upload.root, cache=tmp_path / "cache", deep=True)
    assert deep.manifest == Manifest.load(upload.root)
    assert len(deep.problems) == 1
    assert NAMES[2] in deep.problems[0]


def test_inspect_shards_urls_without_manifest_say_what_to_do(upload: Store) -> None:
    with pytest.raises(ConfigError, match="run `mae index"):
        inspect_shards(upload.url("train-{000..005}.tar"))
