"""Shards come before they are needed, in the plan's order, and the thread is in nobody's way."""

from __future__ import annotations

import hashlib
import itertools
import multiprocessing
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from datamodules.manifest import ShardInfo
from datamodules.plan import Plan
from datamodules.remote import CachedShards, Prefetcher, ShardCache, prefetch
from datamodules.tarindex import index_path
from mae.errors import ConfigError, DataError

from .conftest import PATIENCE, ShardSet, Store

pytestmark = pytest.mark.network


def planned(
    store: Store, shards: ShardSet, directory: Path, *, bound: int, window: int = 1
) -> CachedShards:
    """Return shards whose cache has room for `bound` of them."""
    largest = max(info.num_bytes for info in shards.infos)
    cache = ShardCache(directory, max_bytes=bound * largest, patience=PATIENCE)
    plan = Plan([info.num_samples for info in shards.infos], seed=1, window=window)
    return CachedShards(store.root, shards.infos, cache, plan=plan)


def order_of(files: CachedShards, position: int = 0) -> list[int]:
    """Return the shards in the order in which they are first needed, found by reading the plan."""
    assert files.plan is not None
    shards = files.plan.at(position, 3 * files.plan.num_samples).shard.tolist()
    return list(dict.fromkeys(shards))


def held(files: CachedShards) -> set[int]:
    return {n for n, w in enumerate(files.wanted) if w is not None and files.cache.holds(w)}


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.005)


def fetched(store: Store) -> list[int]:
    """Return the numbers of the shards that were downloaded, in order."""
    paths = [seen.path for seen in store.server.seen if seen.path.endswith(".tar")]
    return [int(path[-10:-4]) for path in paths]


def test_prefetcher_fetches_in_plan_order_what_fits(
    http_store: Store, shard_set: Callable[..., ShardSet], tmp_path: Path
) -> None:
    shards = shard_set(8)
    shards.upload(http_store)
    files = planned(http_store, shards, tmp_path / "cache", bound=4)
    order = order_of(files)
    with Prefetcher(files, position=lambda: 0, num_threads=1, pause_s=0.01) as ahead:
        expected = ahead.ahead(0)
        wait_for(lambda: held(files) == set(expected))
        time.sleep(0.1)  # time to do something wrong
    assert expected == order[: len(expected)]
    assert 4 <= len(expected) < 8
    assert fetched(http_store) == expected
    assert all(index_path(files.path(number)).exists() for number in expected)


def test_prefetcher_goes_on_with_the_position_and_removes_what_is_behind(
    http_store: Store, shard_set: Callable[..., ShardSet], tmp_path: Path
) -> None:
    shards = shard_set(8)
    shards.upload(http_store)
    files = planned(http_store, shards, tmp_path / "cache", bound=3)
    position = 0
    with Prefetcher(files, position=lambda: position, pause_s=0.005) as ahead:
        for position in range(0, 80, 5):  # two passes over 8 shards of 5
            needed = order_of(files, position)
            wait_for(lambda: set(ahead.ahead(position)) <= held(files))  # noqa: B023
            assert needed[:3] == ahead.ahead(position)[:3]
    assert ahead.errors == {}
    assert len(fetched(http_store)) <= 16 + 3  # it looks beyond the second pass


def test_reader_beside_a_prefetcher_finds_everything_once(
    s3_store: Store, shard_set: Callable[..., ShardSet], tmp_path: Path
) -> None:
    shards = shard_set(6)
    shards.upload(s3_store)
    files = planned(s3_store, shards, tmp_path / "cache", bound=6, window=2)
    context = multiprocessing.get_context("fork")
    with Prefetcher(files, position=lambda: 0, pause_s=0.01):
        answers = context.SimpleQueue()  # forked while the threads are at work
        processes = [context.Process(target=_read_all, args=(files, answers)) for _ in range(2)]
        for process in processes:
            process.start()
        found = [answers.get() for _ in processes]
    for process in processes:
        process.join()
    answers.close()
    assert found == [[info.sha256 for info in shards.infos]] * 2
    assert sorted(fetched(s3_store)) == list(range(6))


def _read_all(files: CachedShards, answers: Any) -> None:
    order = order_of(files)
    digests = {n: hashlib.sha256(files.path(n).read_bytes()).hexdigest() for n in order}
    answers.put([digests[number] for number in sorted(digests)])


def test_prefetcher_keeps_errors_and_goes_on(
    http_store: Store, shard_set: Callable[..., ShardSet], tmp_path: Path
) -> None:
    shards = shard_set(4)
    shards.upload(http_store)
    files = planned(http_store, shards, tmp_path / "cache", bound=4)
    lost, spoiled = order_of(files)[:2]
    del http_store.server.files[f"/d/{shards.infos[lost].path}"]
    http_store.put(shards.infos[spoiled].path, bytes(shards.infos[spoiled].num_bytes))
    with Prefetcher(files, position=lambda: 0, num_threads=1, pause_s=0.005) as ahead:
        wait_for(lambda: held(files) == set(range(4)) - {lost, spoiled})
        time.sleep(0.05)
    assert set(ahead.errors) == {lost, spoiled}
    assert fetched(http_store).count(lost) == 1  # and is not asked for again and again
    for number, words in ((lost, "does not exist"), (spoiled, "SHA-256")):
        assert words in str(ahead.errors[number])
        with pytest.raises(DataError, match=words):
            files.path(number)


def test_prefetcher_goes_on_after_a_defect_and_says_it_once(
    http_store: Store,
    shard_set: Callable[..., ShardSet],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    shards = shard_set(4)
    shards.upload(http_store)
    files = planned(http_store, shards, tmp_path / "cache", bound=4)
    honest, calls = CachedShards.fetch_ahead, itertools.count()
    seen: list[dict[int, Exception]] = []

    def fetch_ahead(self: CachedShards, shard: int, **options: Any) -> bool:
        if next(calls) < 3:
            raise TypeError("a defect")
        seen.append(dict(ahead.errors))
        return honest(self, shard, **options)

    monkeypatch.setattr(CachedShards, "fetch_ahead", fetch_ahead)
    monkeypatch.setattr(prefetch, "_AFTER_ERROR_S", 0.05)
    ahead = Prefetcher(files, position=lambda: 0, num_threads=2, pause_s=0.005)
    with ahead:
        wait_for(lambda: held(files) == set(range(4)) and not ahead.errors)
    assert all(type(error) is TypeError for errors in seen for error in errors.values())
    assert max(map(len, seen)) >= 2
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("datamodules.remote", "WARNING")
    assert "cannot be fetched ahead (TypeError: a defect)" in record.getMessage()


def test_prefetcher_leaves_room_for_an_evaluation(
    http_store: Store, shard_set: Callable[..., ShardSet], tmp_path: Path
) -> None:
    shards = shard_set(10)
    shards.upload(http_store)
    train, val = replace(shards, infos=shards.infos[:8]), shards.infos[8:]
    files = planned(http_store, train, tmp_path / "cache", bound=6)
    evaluated = CachedShards(http_store.root, val, files.cache, protected=files)
    reserved = sum(info.num_bytes for info in val)
    with Prefetcher(files, position=lambda: 0, pause_s=0.005, reserved_bytes=reserved) as ahead:
        wait_for(lambda: held(files) == set(ahead.ahead(0)))
        for _ in range(2):
            for number, info in enumerate(val):
                assert evaluated.path(number).stat().st_size == info.num_bytes
        time.sleep(0.05)  # time to do something wrong
    assert held(files) == set(order_of(files)[: len(held(files))])
    assert held(evaluated) == {0, 1}
    numbers = fetched(http_store)
    assert sorted(numbers) == sorted(set(numbers))  # nothing was fetched twice


def test_prefetcher_stops_in_the_middle_of_a_shard_and_starts_again(
    http_store: Store, shard_set: Callable[..., ShardSet], tmp_path: Path
) -> None:
    shards = shard_set(2, num_samples=300)
    shards.upload(http_store)
    http_store.server.always = "stall"
    files = planned(http_store, shards, tmp_path / "cache", bound=2)
    ahead = Prefetcher(files, position=lambda: 0, num_threads=1, pause_s=0.005).start()
    wait_for(lambda: len(http_store.server.seen) > 0)
    started = time.monotonic()
    ahead.stop()
    assert time.monotonic() - started < 4
    assert held(files) == set()
    http_store.server.always = ""
    http_store.server.seen.clear()
    with ahead:
        wait_for(lambda: held(files) == {0, 1})
    assert http_store.server.seen[0].begin > 0  # what had come was kept


def test_prefetcher_does_not_keep_the_interpreter_from_exiting(
    http_store: Store, shard_set: Callable[..., ShardSet], tmp_path: Path
) -> None:
    shards = shard_set(3, num_samples=300)
    shards.upload(http_store)
    http_store.server.always = "stall"
    program = f"""
import time
from datamodules.manifest import ShardInfo
from datamodules.plan import Plan
from datamodules.remote import CachedShards, Prefetcher, ShardCache
shards = {list(shards.infos)!r}
plan = Plan([shard.num_samples for shard in shards], seed=1, window=1)
cache = ShardCache({str(tmp_path / "cache")!r}, max_bytes=10**9)
files = CachedShards({http_store.root!r}, shards, cache, plan=plan)
ahead = Prefetcher(files, position=lambda: 0).start()
while not any(part.stat().st_size for part in files.cache.directory.glob("*.part")):
    time.sleep(0.01)
print("done")
"""
    started = time.monotonic()
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=30
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "done\n", "")
    assert time.monotonic() - started < 25  # the server says nothing for longer


def test_prefetcher_without_plan_or_thread_is_refused(
    http_store: Store, shard_set: Callable[..., ShardSet], tmp_path: Path
) -> None:
    files = planned(http_store, shard_set(1), tmp_path, bound=1)
    with pytest.raises(ConfigError, match="num_threads 0"):
        Prefetcher(files, position=lambda: 0, num_threads=0)
    with pytest.raises(ConfigError, match="reserved_bytes is -1"):
        Prefetcher(files, position=lambda: 0, reserved_bytes=-1)
    files.plan = None
    with pytest.raises(ConfigError, match="order of a plan"):
        Prefetcher(files, position=lambda: 0)


@pytest.mark.parametrize(
    ("reserved", "room"), [(0, 300), (70, 230), (10**9, 150)], ids=["", "some", "half"]
)
@pytest.mark.parametrize("sizes", [[100, 50, 100, 100], [50, 100, 150, 50], [300, 1, 1, 1]])
def test_ahead_is_the_longest_beginning_that_fits(
    tmp_path: Path, sizes: Sequence[int], reserved: int, room: int
) -> None:
    room = max(room, *sizes)  # what is shuffled together always has its room
    infos = [
        ShardInfo(
            path=f"{number}.tar",
            split="train",
            num_samples=3,
            num_bytes=size,
            sha256="0" * 64,
            index_sha256="0" * 64,
        )
        for number, size in enumerate(sizes)
    ]
    plan = Plan([3] * 4, seed=2, window=1)
    cache = ShardCache(tmp_path, max_bytes=300)
    files = CachedShards("memory://root", infos, cache, plan=plan)
    ahead = Prefetcher(files, position=lambda: 0, reserved_bytes=reserved).ahead
    for position in range(0, 30):
        order = order_of(files, position)
        totals = list(itertools.accumulate(sizes[shard] for shard in order))
        assert ahead(position) == order[: sum(total <= room for total in totals)]
