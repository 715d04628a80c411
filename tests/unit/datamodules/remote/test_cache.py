"""The cache holds whole shards, within its bound, whoever shares it and whoever is killed."""

from __future__ import annotations

import contextlib
import hashlib
import multiprocessing
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datamodules.remote.cache import ShardCache, Wanted, key_of
from datamodules.tarindex import index_path
from mae.errors import ConfigError, DataError, OutputError

from .conftest import BLOCK, PATIENCE, Store

pytestmark = pytest.mark.network

SIZE = 2**16
FORK = multiprocessing.get_context("fork")


def cache_at(path: Path, *, shards: int = 100) -> ShardCache:
    return ShardCache(path, max_bytes=shards * SIZE, patience=PATIENCE)


def shards_at(store: Store, content: Callable[..., bytes], count: int) -> list[Wanted]:
    return [store.wanted(f"{n}.tar", content(n, SIZE)) for n in range(count)]


def held(cache: ShardCache, shards: list[Wanted]) -> list[int]:
    return [number for number, wanted in enumerate(shards) if cache.holds(wanted)]


def plan_of(shards: list[Wanted], positions: Mapping[int, int]) -> Callable[[], dict[str, int]]:
    return lambda: {shards[number].key: position for number, position in positions.items()}


def test_get_equals_the_remote_bytes_and_asks_once(
    store: Store, content: Callable[..., bytes], tmp_path: Path
) -> None:
    cache = cache_at(tmp_path / "new" / "cache")
    (wanted,) = shards_at(store, content, 1)
    path = cache.get(wanted)
    assert path.read_bytes() == content(0, SIZE)
    asked = len(store.server.asked)
    assert cache.get(wanted) == path
    assert cache_at(tmp_path / "new" / "cache").get(wanted) == path  # as another process
    assert len(store.server.asked) == asked


def test_get_file_names_are_digests_of_urls_and_verifiable(
    http_store: Store, content: Callable[..., bytes], tmp_path: Path
) -> None:
    cache = cache_at(tmp_path)
    names = ("a/train.tar", "b/train.tar")
    wanted = [http_store.wanted(name, content(n, SIZE)) for n, name in enumerate(names)]
    paths = [cache.get(w) for w in wanted]
    assert [path.read_bytes() for path in paths] == [content(n, SIZE) for n in range(2)]
    assert [path.name for path in paths] == [
        f"{hashlib.sha256(w.url.encode()).hexdigest()}.tar" for w in wanted
    ]
    checked = subprocess.run(
        ["sha256sum", "-c", *(path.with_suffix(".sha256").name for path in paths)], cwd=tmp_path
    )
    assert checked.returncode == 0


@pytest.mark.parametrize("change", ["cut", "longer", "unverified", "rubbish", "new version"])
def test_get_what_is_here_but_is_not_it_is_fetched_again(
    http_store: Store, content: Callable[..., bytes], tmp_path: Path, change: str
) -> None:
    cache = cache_at(tmp_path)
    (wanted,) = shards_at(http_store, content, 1)
    path = cache.get(wanted)
    if change == "cut":
        os.truncate(path, SIZE - 1)
    elif change == "longer":
        os.truncate(path, SIZE + 1)
    elif change == "unverified":
        path.unlink()
        path.with_suffix(".sha256").unlink()
        path.write_bytes(bytes(SIZE))
    elif change == "rubbish":
        path.with_suffix(".sha256").write_bytes(b"\xff\xfe")
        cache = cache_at(tmp_path)  # which remembers nothing
    else:
        wanted = http_store.wanted("0.tar", content(7, SIZE))
    index_path(path).write_text("of the shard that goes")
    assert cache.get(wanted).read_bytes() == content(7 if change == "new version" else 0, SIZE)
    assert not index_path(path).exists()
    assert len(http_store.server.seen) == 2


def test_get_larger_than_the_bound_names_both_numbers(
    http_store: Store, content: Callable[..., bytes], tmp_path: Path
) -> None:
    wanted = http_store.wanted("a.tar", content(0, 2 * SIZE))
    with pytest.raises(ConfigError, match=r"a\.tar has 131,072 bytes.*may hold 65,536"):
        cache_at(tmp_path, shards=1).get(wanted)
    assert http_store.server.seen == []


def test_get_exactly_the_bound_fits(
    http_store: Store, content: Callable[..., bytes], tmp_path: Path
) -> None:
    cache = cache_at(tmp_path, shards=1)
    shards = shards_at(http_store, content, 3)
    for number, wanted in enumerate(shards):
        assert cache.get(wanted).read_bytes() == content(number, SIZE)
        assert held(cache, shards) == [number]


def test_get_removes_what_the_plan_needs_last(
    http_store: Store, content: Callable[..., bytes], tmp_path: Path
) -> None:
    cache = cache_at(tmp_path, shards=4)
    shards = shards_at(http_store, content, 7)
    next_uses = plan_of(shards, {0: 40, 1: 900, 2: 41, 3: 500, 4: 1, 5: 2, 6: 3})
    for wanted in shards[:4]:
        cache.get(wanted, next_uses=next_uses)
    left = []
    for wanted in shards[4:]:
        index_path(cache.path(wanted.key)).write_text("index")
        cache.get(wanted, next_uses=next_uses)
        left.append(held(cache, shards))
    assert left == [[0, 2, 3, 4], [0, 2, 4, 5], [0, 4, 5, 6]]
    assert len(list(tmp_path.glob("*.*"))) == 3 * 4 - 4  # tar and digest; no index was new


def test_get_removes_other_data_sets_first_longest_unused_first(
    http_store: Store, content: Callable[..., bytes], tmp_path: Path
) -> None:
    cache = cache_at(tmp_path, shards=4)
    shards = shards_at(http_store, content, 8)
    for number in (0, 1, 2, 0):  # another data set's, of which 1 was not used for longest
        cache.get(shards[number])
    ours = plan_of(shards, {3: 10, 4: 11, 5: 12, 6: 99})
    left = []
    for number in (6, 3, 4, 5):
        cache.get(shards[number], next_uses=ours)
        left.append(held(cache, shards))
    assert left == [[0, 1, 2, 6], [0, 2, 3, 6], [0, 3, 4, 6], [3, 4, 5, 6]]


def test_get_removed_shard_stays_readable_where_it_is_open(
    http_store: Store, content: Callable[..., bytes], tmp_path: Path
) -> None:
    cache = cache_at(tmp_path, shards=1)
    shards = shards_at(http_store, content, 2)
    with cache.get(shards[0]).open("rb") as file:
        cache.get(shards[1])
        assert not cache.path(shards[0].key).exists()
        assert file.read() == content(0, SIZE)


def test_get_refused_contents_leave_nothing(
    http_store: Store, content: Callable[..., bytes], tmp_path: Path
) -> None:
    cache = cache_at(tmp_path)
    (good,) = shards_at(http_store, content, 1)
    wrong = Wanted(url=good.url, num_bytes=SIZE, sha256="0" * 64)
    with pytest.raises(DataError, match=f"{good.sha256}.*{'0' * 64}"):
        cache.get(wrong)
    assert [path for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".lock"] == []
    assert cache.get(good).read_bytes() == content(0, SIZE)


def test_get_missing_shard_is_not_found(http_store: Store, tmp_path: Path) -> None:
    wanted = Wanted(url=http_store.url("no.tar"), num_bytes=5, sha256="0" * 64)
    with pytest.raises(FileNotFoundError, match=r"no\.tar"):
        cache_at(tmp_path).get(wanted)


def test_get_unwritable_directory_says_so(http_store: Store, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    wanted = Wanted(url=http_store.url("no.tar"), num_bytes=5, sha256="0" * 64)
    with pytest.raises(OutputError, match="choose another cache folder"):
        cache_at(tmp_path / "file").get(wanted)


def _get(cache: ShardCache, wanted: Wanted, answers: Any) -> None:
    answers.put(hashlib.sha256(cache.get(wanted).read_bytes()).hexdigest())


def test_get_in_several_processes_downloads_once(
    http_store: Store, content: Callable[..., bytes], tmp_path: Path
) -> None:
    cache = cache_at(tmp_path)
    (wanted,) = shards_at(http_store, content, 1)
    http_store.server.faults[:] = ["slow"]
    answers = FORK.SimpleQueue()
    processes = [FORK.Process(target=_get, args=(cache, wanted, answers)) for _ in range(3)]
    for process in processes:
        process.start()
    assert [answers.get() for _ in processes] == [wanted.sha256] * 3
    for process in processes:
        process.join()
    answers.close()
    assert len(http_store.server.seen) == 1


def _get_many(cache: ShardCache, shards: list[Wanted], seed: int, answers: Any) -> None:
    order = np.random.default_rng(seed).integers(0, len(shards), 40).tolist()
    wrong = 0
    for place, number in enumerate(order):
        # The plan of this process: what it needs next is what stands next in its order.
        rest = order[place:] + order
        uses = {wanted.key: rest.index(n) for n, wanted in enumerate(shards) if n in rest}
        while True:
            path = cache.get(shards[number], next_uses=lambda uses=uses: uses)  # type: ignore[misc]
            with contextlib.suppress(FileNotFoundError):  # another process needed the room
                wrong += hashlib.sha256(path.read_bytes()).hexdigest() != shards[number].sha256
                break
    answers.put(wrong)


def test_get_several_processes_stay_within_the_bound_and_read_what_is_true(
    http_store: Store, content: Callable[..., bytes], tmp_path: Path
) -> None:
    cache = cache_at(tmp_path, shards=4)
    shards = shards_at(http_store, content, 8)
    answers = FORK.SimpleQueue()
    processes = [
        FORK.Process(target=_get_many, args=(cache, shards, seed, answers)) for seed in range(3)
    ]
    for process in processes:
        process.start()
    most = 0
    while any(process.is_alive() for process in processes):
        sizes = []
        for path in tmp_path.glob("*.tar"):
            with contextlib.suppress(FileNotFoundError):
                sizes.append(path.stat().st_size)
        # A listing is not of one moment: what was renamed meanwhile may be counted twice.
        most = max(most, sum(sizes))
        time.sleep(0.005)
    assert [answers.get() for _ in processes] == [0, 0, 0]
    answers.close()
    assert most <= (4 + 1) * SIZE
    assert len(list(tmp_path.glob("*.tar"))) <= 4
    assert list(tmp_path.glob("*.part")) == []


def test_get_after_kill_during_a_download_goes_on(
    http_store: Store, content: Callable[..., bytes], tmp_path: Path
) -> None:
    cache = cache_at(tmp_path)
    whole = content(num_bytes=64 * BLOCK)
    wanted = http_store.wanted("a.tar", whole)
    http_store.server.faults[:] = ["stall"]
    patient = ShardCache(tmp_path, max_bytes=10**8)
    answers = FORK.SimpleQueue()
    process = FORK.Process(target=_get, args=(patient, wanted, answers))
    process.start()
    part = tmp_path / wanted.part
    while not part.exists() or part.stat().st_size < 20 * BLOCK:
        time.sleep(0.005)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    answers.close()
    assert not cache.holds(wanted)
    assert cache.get(wanted).read_bytes() == whole
    assert http_store.server.seen[-1].begin >= 20 * BLOCK
    assert not part.exists()


def test_get_half_of_a_killed_download_makes_room(
    http_store: Store, content: Callable[..., bytes], tmp_path: Path
) -> None:
    cache = cache_at(tmp_path, shards=2)
    shards = shards_at(http_store, content, 3)
    cache.get(shards[0])
    (tmp_path / shards[1].part).write_bytes(content(1, SIZE)[:1000])
    (tmp_path / f".{shards[1].key}.sha256.x.tmp").write_bytes(b"")
    os.utime(tmp_path / f".{shards[1].key}.sha256.x.tmp", (0, 0))
    cache.get(shards[2])
    assert held(cache, shards) == [0, 2]
    assert list(tmp_path.glob("*.part")) == list(tmp_path.glob(".*.tmp")) == []


def test_get_waits_for_room_that_others_fill(
    http_store: Store, content: Callable[..., bytes], tmp_path: Path
) -> None:
    """Two downloads at once in a cache for one shard: one after the other, none is thrown out."""
    cache = cache_at(tmp_path, shards=1)
    shards = shards_at(http_store, content, 2)
    http_store.server.faults[:] = ["slow"]
    got: list[bytes] = []
    first = threading.Thread(target=lambda: got.append(cache.get(shards[0]).read_bytes()))
    first.start()
    while not (tmp_path / shards[0].part).exists():
        time.sleep(0.002)
    assert cache.get(shards[1]).read_bytes() == content(1, SIZE)
    first.join()
    assert len(http_store.server.seen) == 2
    assert held(cache, shards) == [1]


def test_room_is_reserved_before_the_first_byte(
    http_store: Store, content: Callable[..., bytes], tmp_path: Path
) -> None:
    cache = cache_at(tmp_path, shards=1)
    first, second = shards_at(http_store, content, 2)
    with cache.locked(first.key):
        assert cache._has_room(first, {}, before=-1)
        assert not cache._has_room(second, {}, before=-1)
    assert cache._has_room(second, {}, before=-1)  # the first was left behind


def test_fetch_ahead_removes_nothing_that_is_needed_before(
    http_store: Store, content: Callable[..., bytes], tmp_path: Path
) -> None:
    cache = cache_at(tmp_path, shards=3)
    shards = shards_at(http_store, content, 6)
    next_uses = plan_of(shards, {0: 5, 1: 20, 3: 10, 4: 30, 5: 20})
    for number in (0, 1, 2):  # 2 is of another data set
        cache.get(shards[number], next_uses=next_uses)
    come = [cache.fetch_ahead(shards[n], next_uses=next_uses) for n in (5, 3, 4, 1)]
    assert come == [True, True, False, False]
    assert held(cache, shards) == [0, 3, 5]


def test_fetch_ahead_leaves_a_shard_to_the_process_that_fetches_it(
    http_store: Store, content: Callable[..., bytes], tmp_path: Path
) -> None:
    cache = cache_at(tmp_path)
    (wanted,) = shards_at(http_store, content, 1)
    next_uses = plan_of([wanted], {0: 5})
    with cache.locked(wanted.key):
        assert not cache.fetch_ahead(wanted, next_uses=next_uses)
    assert cache.fetch_ahead(wanted, next_uses=next_uses)
    assert len(http_store.server.seen) == 1


def test_key_of_is_that_of_the_whole_url() -> None:
    assert key_of("http://a/b?c=d") == hashlib.sha256(b"http://a/b?c=d").hexdigest()
