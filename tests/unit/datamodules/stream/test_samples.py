"""The order of a stream, how readers share it, and what it refuses."""

from __future__ import annotations

import io
import itertools
import pickle
import tarfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from datamodules.remote.fetch import Patience
from datamodules.stream.samples import Reader, ShardStream, Shuffle, StreamSample
from mae.errors import ConfigError, DataError

HASTY = Patience(attempts=3, first_pause_s=0.01)

Members = Sequence[tuple[str, bytes]]


def write_tar(path: Path, members: Members) -> Path:
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def write_shards(folder: Path, sizes: Sequence[int]) -> list[str]:
    """Write shards of that many samples; content is not looked at by a stream."""
    paths = []
    for shard, size in enumerate(sizes):
        members = [
            (f"{shard}-{i}.{suffix}", f"{shard} {i} {suffix}".encode())
            for i in range(size)
            for suffix in ("json", "png")
        ]
        paths.append(str(write_tar(folder / f"{shard}.tar", members)))
    return paths


def keys(stream: ShardStream, epoch: int, reader: Reader = Reader()) -> list[str]:  # noqa: B008
    return [sample.key for sample in stream.epoch(epoch, reader)]


SIZES = ([5], [3, 1], [4, 2, 7, 1], [2] * 9)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("readers", [1, 2, 3, 8])
def test_epoch_union_over_readers_is_each_sample_once(
    tmp_path: Path, sizes: list[int], readers: int
) -> None:
    stream = ShardStream(write_shards(tmp_path, sizes), seed=1)
    everything = {f"{shard}-{i}": 1 for shard, size in enumerate(sizes) for i in range(size)}
    for epoch in (0, 3):
        found = [
            sample for r in range(readers) for sample in stream.epoch(epoch, Reader(r, readers))
        ]
        assert Counter(sample.key for sample in found) == everything
        for sample in found:
            assert sample.image == f"{sample.key.replace('-', ' ')} png".encode()
            assert sample.shard == f"{tmp_path}/{sample.key[0]}.tar"


@pytest.mark.parametrize(
    ("num_shards", "readers", "times"),
    [(8, 8, 1), (9, 8, 1), (1, 8, 8), (5, 8, 2), (7, 5, 1), (4, 6, 2), (4, 5, 5)],
)
def test_share_few_shards_are_read_as_seldom_as_equal_groups_allow(
    num_shards: int, readers: int, times: int
) -> None:
    shares = [Reader(r, readers).share(num_shards) for r in range(readers)]
    assert {share.members for share in shares} == {times}
    taken = Counter((share.group, share.member) for share in shares)
    assert taken == dict.fromkeys(itertools.product(range(readers // times), range(times)), 1)


def test_epoch_more_readers_than_samples_gives_everybody_some_in_time(tmp_path: Path) -> None:
    stream = ShardStream(write_shards(tmp_path, [2, 1]), seed=0)
    for r in range(8):
        assert any(keys(stream, epoch, Reader(r, 8)) for epoch in range(4))


def test_epoch_order_differs_by_epoch_and_seed_and_repeats(tmp_path: Path) -> None:
    paths = write_shards(tmp_path, [6] * 6)
    orders = [
        keys(ShardStream(paths, seed=seed), epoch) for seed in (0, 1) for epoch in (0, 1, 2**40)
    ]
    assert len({tuple(order) for order in orders}) == 6
    assert keys(ShardStream(paths, seed=1), 2**40) == orders[-1]
    again = pickle.loads(pickle.dumps(ShardStream(paths, seed=1)))  # noqa: S301
    assert keys(again, 2**40) == orders[-1]


def test_epoch_buffer_of_one_shuffles_shards_alone(tmp_path: Path) -> None:
    stream = ShardStream(write_shards(tmp_path, [4] * 8), seed=0, shuffle_buffer=1)
    order = keys(stream, 0)
    shards = [key[0] for key in order[::4]]
    assert order == [f"{shard}-{i}" for shard in shards for i in range(4)]
    assert sorted(shards) != shards
    assert sorted(keys(ShardStream(stream.locations, seed=0), 0)) == sorted(order)
    assert keys(ShardStream(stream.locations, seed=0), 0) != order


def test_epoch_one_shard_is_shuffled_by_seed_epoch_and_reader(tmp_path: Path) -> None:
    paths = write_shards(tmp_path, [9])
    orders = [keys(ShardStream(paths, seed=seed), epoch) for seed in (0, 1) for epoch in (0, 1)]
    assert len({tuple(order) for order in orders}) == 4
    turns = [
        [int(key[2:]) for key in keys(ShardStream(paths, seed=0), 0, Reader(r, 3))]
        for r in range(3)
    ]
    assert [sorted(turn) for turn in turns] == [[0, 3, 6], [1, 4, 7], [2, 5, 8]]
    assert len({tuple(number // 3 for number in turn) for turn in turns}) > 1


@pytest.mark.parametrize(("num_samples", "num_bytes"), [(5, 10**9), (10**9, 40), (4, 30), (1, 1)])
def test_shuffle_holds_no_more_than_either_bound(num_samples: int, num_bytes: int) -> None:
    sizes = [7, 1, 30, 2, 99, 3, 11, 4, 20, 0, 5, 13] * 9
    given = [StreamSample("s", str(i), bytes(size)) for i, size in enumerate(sizes)]
    held: dict[str, int] = {}
    most = [0, 0]

    def source() -> Iterator[StreamSample]:
        for sample in given:
            most[:] = [max(most[0], len(held)), max(most[1], sum(held.values()))]
            held[sample.key] = len(sample.image)
            yield sample

    order = []
    for sample in Shuffle(num_samples, num_bytes, seed=3)(source()):
        del held[sample.key]
        order.append(sample.key)
    assert Counter(order) == Counter(sample.key for sample in given)
    assert most[0] <= num_samples - 1
    assert most[1] <= num_bytes
    again = [sample.key for sample in Shuffle(num_samples, num_bytes, seed=3)(given)]
    other = [sample.key for sample in Shuffle(num_samples, num_bytes, seed=4)(given)]
    assert order == again
    assert (order == other) is (num_samples == 1)


def test_epoch_buffer_is_bounded_by_bytes(tmp_path: Path) -> None:
    members = [(f"{i}.png", bytes(300_000)) for i in range(9)]
    path = str(write_tar(tmp_path / "a.tar", members))
    few = keys(ShardStream([path], seed=0, shuffle_mib=1), 0)
    assert set(few[:3]) <= {"0", "1", "2", "3", "4", "5"}  # four do not fit
    assert few != keys(ShardStream([path], seed=0), 0)
    assert sorted(few) == [str(i) for i in range(9)]


def test_epoch_pipe_equals_file(tmp_path: Path) -> None:
    (path,) = write_shards(tmp_path, [5])
    assert keys(ShardStream([f"pipe:cat {path}"], seed=0), 0) == keys(
        ShardStream([path], seed=0), 0
    )


def test_epoch_body_that_breaks_off_in_a_shard_goes_on_where_it_was(tmp_path: Path) -> None:
    path, flag = write_tar(tmp_path / "a.tar", [("a.png", b"1"), ("b.png", b"2")]), tmp_path / "f"
    for length in (100, 600, 1024, 1500, 2048, 3000):
        flag.unlink(missing_ok=True)
        command = f"[ -e {flag} ] && exec cat {path}; touch {flag}; head -c {length} {path}; exit 1"
        stream = ShardStream([f"pipe:{command}"], seed=0, patience=HASTY)
        assert sorted(keys(stream, 0)) == ["a", "b"]


def test_epoch_cut_anywhere_is_an_error_that_names_shard(tmp_path: Path) -> None:
    (path,) = write_shards(tmp_path, [3])
    whole = Path(path).read_bytes()
    end = whole.rindex(b"0 2 png") + 512  # its block, and then the trailer
    for length in (*range(0, end, 211), end, end + 512, end + 600):
        Path(path).write_bytes(whole[:length])
        for location in (path, f"pipe:cat {path}"):
            with pytest.raises(DataError, match=r"0\.tar"):
                keys(ShardStream([location], seed=0), 0)
    Path(path).write_bytes(whole[: end + 1024])
    assert len(keys(ShardStream([path], seed=0), 0)) == 3


def test_epoch_flipped_header_bit_is_an_error_with_place(tmp_path: Path) -> None:
    (path,) = write_shards(tmp_path, [2])
    data = bytearray(Path(path).read_bytes())
    data[1024 + 3] ^= 1
    Path(path).write_bytes(data)
    with pytest.raises(DataError, match=r"0\.tar is cut or damaged at byte 1024"):
        keys(ShardStream([path], seed=0), 0)


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["a.png", "b.png", "a.json"], r"at byte 2048: the members of sample 'a' are not adjacent"),
        (["a.png", "b.png", "a.png"], "not adjacent"),
        (["a.png", "a.PNG"], r"two members \.png"),
        (["1.2.840.1.png", "1.2.840.2.png"], r"suffix '2\.840\.1\.png'.*dot in a key"),
        (["a.pyd"], "suffix 'pyd'"),
        (["a.json", "b.png"], r"x\.tar: a has 0 images \(json\)"),
        (["a.png", "a.jpg"], r"x\.tar at byte 1024: sample 'a' has 2 images \(png, jpg\)"),
        (["../a.png"], "outside the shard"),
        ([], r"x\.tar has no samples"),
    ],
)
def test_epoch_ambiguous_members_are_refused(tmp_path: Path, names: list[str], words: str) -> None:
    path = write_tar(tmp_path / "x.tar", [(name, b"x") for name in names])
    with pytest.raises(DataError, match=words):
        keys(ShardStream([str(path)], seed=0), 0)


def test_epoch_same_key_in_two_shards_stays_two_samples(tmp_path: Path) -> None:
    one = write_tar(tmp_path / "1.tar", [("a.png", b"1"), ("k.png", b"1")])
    two = write_tar(tmp_path / "2.tar", [("k.png", b"2"), ("z.png", b"2")])
    stream = ShardStream([str(one), str(two)], seed=0, shuffle_buffer=1)
    orders = [keys(stream, epoch) for epoch in range(6)]
    assert ["a", "k", "k", "z"] in orders
    assert all(sorted(order) == ["a", "k", "k", "z"] for order in orders)


class Canary:
    """Creates a file if it is ever unpickled."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("suffix", ["pyd", "pickle", "pth", "ten"])
def test_epoch_pickles_never_run(tmp_path: Path, suffix: str) -> None:
    bomb = pickle.dumps(Canary(tmp_path / "canary"))
    members = [("a.png", b"x"), (f"a.{suffix}", bomb), ("b.png", bomb), ("b.json", bomb)]
    path = str(write_tar(tmp_path / "x.tar", members))
    with pytest.raises(DataError, match=f"suffix '{suffix}'"):
        keys(ShardStream([path], seed=0), 0)
    stream = ShardStream([path], seed=0, ignore_suffixes=[suffix])
    assert sorted(keys(stream, 0)) == ["a", "b"]
    assert not (tmp_path / "canary").exists()


def test_heads_takes_the_beginning_of_each_shard_and_ends_the_programs(tmp_path: Path) -> None:
    paths = write_shards(tmp_path, [3, 4])
    stream = ShardStream([f"pipe:cat {path}; sleep 99" for path in paths], seed=0)
    assert [sample.key for sample in stream.heads(2)] == ["0-0", "0-1", "1-0", "1-1"]
    short = ShardStream(write_shards(tmp_path, [1, 3]), seed=0)
    assert [sample.key for sample in short.heads(2)] == ["0-0", "1-0", "1-1"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"locations": []}, "no shards"),
        ({"locations": ["a.tar", "b.tar", "a.tar"]}, "a.tar stands twice"),
        ({"shuffle_buffer": 0}, "shuffle_buffer is 0"),
        ({"shuffle_mib": 0}, "shuffle_mib is 0"),
        ({"ignore_suffixes": ["json", "txt"]}, "ignore_suffixes has json"),
    ],
)
def test_init_impossible_setting_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        ShardStream(**{"locations": ["a.tar"], "seed": 0, **options})
