"""Remote shards read like local ones, in any process."""

from __future__ import annotations

import multiprocessing
import pickle
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from datamodules.plan import Plan
from datamodules.reader import ShardReader
from datamodules.remote import CachedShards, ShardCache
from datamodules.tarindex import INDEX_SUFFIX, TarIndex, index_path
from mae.errors import ConfigError, DataError

from .conftest import PATIENCE, ShardSet, Store

pytestmark = pytest.mark.network

Sample = tuple[str, dict[str, bytes]]


def cached(store: Store, shards: ShardSet, directory: Path, **options: Any) -> CachedShards:
    sizes = sorted(info.num_bytes for info in shards.infos)
    bound = sum(sizes[-options.pop("bound", len(sizes)) :])
    cache = ShardCache(directory, max_bytes=bound, patience=PATIENCE)
    return CachedShards(store.root, shards.infos, cache, **options)


def plan_for(shards: ShardSet, **options: Any) -> Plan:
    return Plan([info.num_samples for info in shards.infos], **{"seed": 1, **options})


def samples(files: CachedShards) -> list[list[Sample]]:
    """Return all samples, by shard."""
    with closing(ShardReader(files, files.shards)) as reader:
        return [
            [reader.read(number, i) for i in range(info.num_samples)]
            for number, info in enumerate(files.shards)
        ]


@pytest.mark.parametrize("indexes", ["", "beside", "indexes"])
def test_read_through_faults_equals_the_local_shards(
    store: Store, shard_set: Callable[..., ShardSet], tmp_path: Path, indexes: str
) -> None:
    shards = shard_set(4)
    shards.upload(store, indexes=indexes)
    store.server.faults[:] = ["reset", "503", "", "cut", "", "", "flip", "slow"]
    files = cached(store, shards, tmp_path / "cache")
    assert samples(files) == [shards.samples(number) for number in range(4)]
    assert [files.path(n).read_bytes() for n in range(4)] == [shards.bytes(n) for n in range(4)]


@pytest.mark.parametrize(("method", "indexes"), [("fork", ""), ("spawn", "beside")])
def test_read_in_children_equals_the_local_shards(
    http_store: Store,
    s3_store: Store,
    shard_set: Callable[..., ShardSet],
    tmp_path: Path,
    method: str,
    indexes: str,
) -> None:
    shards = shard_set(3)
    both = []
    for store in (http_store, s3_store):
        shards.upload(store, indexes=indexes)
        both.append(cached(store, shards, tmp_path / "cache", plan=plan_for(shards), bound=3))
        both[-1].cache.max_bytes *= 2
        both[-1].path(0)  # so that this process has a loop and connections
    context = multiprocessing.get_context(method)
    answers = context.SimpleQueue()
    processes = [context.Process(target=_answer, args=(both, answers)) for _ in range(2)]
    for process in processes:
        process.start()
    found = [answers.get() for _ in processes]
    for process in processes:
        process.join()
    answers.close()
    expected = [shards.samples(number) for number in range(3)]
    assert found == [[expected, expected]] * 2
    fetched = [seen.path for seen in http_store.server.seen if seen.path.endswith(".tar")]
    assert sorted(fetched) == [f"/d/{info.path}" for info in shards.infos]


def _answer(several: list[CachedShards], answers: Any) -> None:
    answers.put([samples(files) for files in several])


def test_pickle_keeps_position_and_leaves_memory_behind(
    http_store: Store, shard_set: Callable[..., ShardSet], tmp_path: Path
) -> None:
    shards = shard_set(3)
    shards.upload(http_store)
    files = cached(http_store, shards, tmp_path / "cache", plan=plan_for(shards))
    files.path(1)
    files.seek(7)
    copy = pickle.loads(pickle.dumps(files))  # noqa: S301
    assert copy.next_uses() == files.next_uses()
    assert copy.path(1).read_bytes() == shards.bytes(1)
    assert not copy.cache._verified.keys() - {files.wanted[1].key}  # type: ignore[union-attr]


@pytest.mark.parametrize("place", ["beside", "indexes"])
def test_index_is_fetched_once_and_kept(
    http_store: Store, shard_set: Callable[..., ShardSet], tmp_path: Path, place: str
) -> None:
    shards = shard_set(1)
    shards.upload(http_store, indexes=place)
    files = cached(http_store, shards, tmp_path / "cache")
    assert files.index(0).digest == shards.infos[0].index_sha256
    stored = index_path(files.path(0)).read_bytes()
    assert stored == index_path(shards.folder / shards.infos[0].path).read_bytes()
    asked = len(http_store.server.asked)
    assert http_store.server.asked[-1].endswith(INDEX_SUFFIX)
    assert files.index(0).digest == shards.infos[0].index_sha256
    assert len(http_store.server.asked) == asked


def test_index_of_a_manifest_on_this_disk_is_found_there(
    http_store: Store, shard_set: Callable[..., ShardSet], tmp_path: Path
) -> None:
    """As `mae index` leaves it for shards of others."""
    shards = shard_set(2)
    shards.upload(http_store)
    infos = [replace(info, path=http_store.url(info.path)) for info in shards.infos]
    central = tmp_path / "indexed" / "indexes"
    central.mkdir(parents=True)
    for info in shards.infos:
        content = index_path(shards.folder / info.path).read_bytes()
        (central / f"{info.index_sha256}{INDEX_SUFFIX}").write_bytes(content)
    cache = ShardCache(tmp_path / "cache", max_bytes=10**6, patience=PATIENCE)
    files = CachedShards(str(tmp_path / "indexed"), infos, cache)
    assert samples(files) == [shards.samples(number) for number in range(2)]
    assert len(http_store.server.asked) == 2


@pytest.mark.parametrize("wrong", ["another's", "no index"])
def test_index_that_is_not_its_own_is_built_instead(
    http_store: Store, shard_set: Callable[..., ShardSet], tmp_path: Path, wrong: str
) -> None:
    shards = shard_set(2)
    shards.upload(http_store)
    other = index_path(shards.folder / shards.infos[1].path).read_bytes()
    name = index_path(Path(shards.infos[0].path)).name
    http_store.put(name, other if wrong == "another's" else b"<html>Not found, with status 200")
    files = cached(http_store, shards, tmp_path / "cache")
    assert files.index(0).digest == shards.infos[0].index_sha256
    assert TarIndex.load(index_path(files.path(0))).digest == shards.infos[0].index_sha256


def test_index_other_than_the_manifests_names_the_url(
    http_store: Store, shard_set: Callable[..., ShardSet], tmp_path: Path
) -> None:
    shards = shard_set(1)
    shards.upload(http_store)
    infos = [replace(shards.infos[0], index_sha256="0" * 64)]
    cache = ShardCache(tmp_path / "cache", max_bytes=10**6, patience=PATIENCE)
    files = CachedShards(http_store.root, infos, cache)
    with pytest.raises(DataError, match=r"http://127.*train-000000\.tar, in the cache: .*differ"):
        files.index(0)


def test_path_missing_shard_is_named(
    store: Store, shard_set: Callable[..., ShardSet], tmp_path: Path
) -> None:
    files = cached(store, shard_set(1), tmp_path / "cache")
    with pytest.raises(DataError, match=r"d/train-000000\.tar does not exist, but the manifest"):
        files.path(0)


def test_path_of_a_local_shard_is_its_own(
    http_store: Store, shard_set: Callable[..., ShardSet], tmp_path: Path
) -> None:
    shards = shard_set(2)
    shards.upload(http_store)
    here = str(shards.folder / shards.infos[0].path)
    infos = [replace(shards.infos[0], path=here), shards.infos[1]]
    cache = ShardCache(tmp_path / "cache", max_bytes=10**6, patience=PATIENCE)
    files = CachedShards(http_store.root, infos, cache)
    assert samples(files) == [shards.samples(number) for number in range(2)]
    assert (files.path(0), files.name(0)) == (Path(here), here)
    assert len(list((tmp_path / "cache").glob("*.tar"))) == 1


def test_name_hides_secrets(shard_set: Callable[..., ShardSet], tmp_path: Path) -> None:
    infos = [replace(shard_set(1).infos[0], path="https://u:secret@host/a.tar?token=secret")]
    files = CachedShards(".", infos, ShardCache(tmp_path, max_bytes=10**6))
    assert files.name(0) == "https://host/a.tar?…"


@pytest.mark.parametrize(
    ("lanes", "lanes_here", "together"), [(1, None, 3), (2, None, 6), (2, [1], 3)]
)
def test_cache_smaller_than_what_is_shuffled_together_is_refused(
    http_store: Store,
    shard_set: Callable[..., ShardSet],
    tmp_path: Path,
    lanes: int,
    lanes_here: list[int] | None,
    together: int,
) -> None:
    shards = shard_set(8)
    plan = plan_for(shards, window=3, lanes=lanes)
    cached(http_store, shards, tmp_path, plan=plan, lanes=lanes_here, bound=together)
    with pytest.raises(ConfigError, match=rf"may hold [\d,]+ bytes, but {together} shards"):
        cached(http_store, shards, tmp_path, plan=plan, lanes=lanes_here, bound=together - 1)


def test_root_with_a_query_is_refused(shard_set: Callable[..., ShardSet], tmp_path: Path) -> None:
    (info,) = shard_set(1).infos
    cache, root = ShardCache(tmp_path, max_bytes=10**6), "https://u:secret@host/d?token=secret"
    with pytest.raises(ConfigError, match=r"https://host/d\?… is a directory") as caught:
        CachedShards(root, [info], cache)
    assert "secret" not in str(caught.value)
    CachedShards(root, [replace(info, path="https://host/a.tar")], cache)  # nothing is joined to it


def test_index_of_a_shard_with_a_query_is_built_from_it(
    http_store: Store, shard_set: Callable[..., ShardSet], tmp_path: Path
) -> None:
    shards = shard_set(1)
    http_store.put("a.tar?token=x/y", shards.bytes(0))
    infos = [replace(shards.infos[0], path=http_store.url("a.tar?token=x/y"))]
    cache = ShardCache(tmp_path / "cache", max_bytes=10**6, patience=PATIENCE)
    files = CachedShards(str(tmp_path / "indexed"), infos, cache)
    assert samples(files) == [shards.samples(0)]
    assert http_store.server.asked == ["GET /d/a.tar?token=x/y"]


@pytest.mark.parametrize("is_pickled", [False, True])
def test_protected_shards_go_only_if_the_stream_needs_them_last(
    http_store: Store, shard_set: Callable[..., ShardSet], tmp_path: Path, is_pickled: bool
) -> None:
    shards = shard_set(8)
    shards.upload(http_store)
    cache = ShardCache(
        tmp_path / "cache",
        max_bytes=5 * max(info.num_bytes for info in shards.infos),
        patience=PATIENCE,
    )
    train, val = replace(shards, infos=shards.infos[:5]), replace(shards, infos=shards.infos[5:])
    training = CachedShards(http_store.root, train.infos, cache, plan=plan_for(train, window=1))
    for number in range(5):
        training.path(number)
    evaluated = CachedShards(http_store.root, val.infos, cache, protected=training)
    if is_pickled:
        evaluated = pickle.loads(pickle.dumps(evaluated))  # noqa: S301
    # In the middle of the first pass; the shard that is read now was touched before all others.
    position = 7
    evaluated.seek(position)
    order = training.plan.at(position, 100).shard.tolist()  # type: ignore[union-attr]
    last = max(range(5), key=order.index)
    for number in range(3):
        assert evaluated.path(number).read_bytes() == val.bytes(number)
        kept = {n for n, w in enumerate(training.wanted) if w is not None and cache.holds(w)}
        assert kept == set(range(5)) - {last}  # one makes room, then evaluated shards take turns


def in_plan_order(files: CachedShards, num_samples: int) -> Iterator[int]:
    """Yield the shard of each position, after telling the position."""
    assert files.plan is not None
    for position, shard in enumerate(files.plan.at(0, num_samples).shard.tolist()):
        files.seek(position)
        yield shard


@pytest.mark.parametrize("bound", [3, 5])
def test_path_in_plan_order_fetches_little_more_than_the_best_order_of_removal(
    http_store: Store, shard_set: Callable[..., ShardSet], tmp_path: Path, bound: int
) -> None:
    shards = shard_set(9)
    shards.upload(http_store)
    equal = max(info.num_bytes for info in shards.infos)  # so that the bound counts shards
    files = cached(http_store, shards, tmp_path / "cache", plan=plan_for(shards, window=3))
    files.cache.max_bytes = bound * equal
    order = list(in_plan_order(files, 3 * 45))
    for shard in in_plan_order(files, 3 * 45):
        assert files.path(shard).read_bytes() == shards.bytes(shard)
    # The plan knows windows, not samples, so the last shards of a window go a little late.
    fewest = _fewest_fetches(order, bound)
    assert fewest <= len(http_store.server.seen) <= fewest + 2


def _fewest_fetches(order: list[int], room: int) -> int:
    """Belady 1966: remove what is needed last; nothing fetches less."""
    here: set[int] = set()
    fetches = 0
    for place, shard in enumerate(order):
        if shard not in here:
            fetches += 1
            rest = order[place:]
            if len(here) == room:
                here.remove(max(here, key=lambda s: rest.index(s) if s in rest else len(rest)))
            here.add(shard)
    return fetches
