"""Reading by (shard, index), against the standard library's tarfile."""

from __future__ import annotations

import pickle
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from datamodules.manifest import Manifest
from datamodules.reader import ShardReader
from datamodules.shardfiles import LocalShards
from mae.errors import ConfigError, DataError


def open_reader(directory: Path, **options: Any) -> ShardReader:
    manifest = Manifest.load(directory)
    shards = manifest.shards("train")
    return ShardReader(LocalShards(manifest, shards), shards, **options)


def path_of(reader: ShardReader, shard: int = 0) -> Path:
    return reader.files.path(shard)


def flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


def test_read_equals_tarfile(shards: Callable[..., Path]) -> None:
    reader = open_reader(shards(9))
    for number, shard in enumerate(reader.shards):
        expected: dict[str, dict[str, bytes]] = {}
        with tarfile.open(path_of(reader, number)) as tar:
            for member in tar:
                key, suffix = member.name.split(".")
                content = tar.extractfile(member)
                assert content is not None
                expected.setdefault(key, {})[suffix] = content.read()
        found = [reader.read(number, i) for i in reversed(range(shard.num_samples))]
        assert dict(found) == expected


def test_read_after_pickling_and_closing(shards: Callable[..., Path]) -> None:
    reader = open_reader(shards(3))
    first = reader.read(0, 1)
    assert pickle.loads(pickle.dumps(reader)).read(0, 1) == first  # noqa: S301
    reader.close()
    assert reader.read(0, 1) == first


def test_read_keeps_few_files_open(
    shards: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("datamodules.reader._MIN_OPEN", 0)
    reader = open_reader(shards(12, shard_size=2), max_open=2)
    before = len(list(Path("/proc/self/fd").iterdir()))
    keys = [reader.read(shard, i)[0] for shard in range(6) for i in range(2)]
    again = [reader.read(shard, i)[0] for shard in range(6) for i in range(2)]
    assert keys == again
    assert len(set(keys)) == 12
    assert len(list(Path("/proc/self/fd").iterdir())) == before + 2


def test_read_shard_of_other_size_names_both_numbers(shards: Callable[..., Path]) -> None:
    reader = open_reader(shards(3))
    path, declared = path_of(reader), reader.shards[0].num_bytes
    path.write_bytes(path.read_bytes() + bytes(1024))
    with pytest.raises(DataError, match=f"{declared + 1024:,} bytes.*{declared:,}") as caught:
        reader.read(0, 0)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("verify", ["first", "always", "open"])
def test_read_flipped_content_names_shard_and_byte(
    shards: Callable[..., Path], verify: str
) -> None:
    reader = open_reader(shards(3), verify=verify)
    index = reader.files.index(0)
    place = int(index.offsets[index.first[1]])  # the first member of the second sample
    flip(path_of(reader), place + 3)
    if verify != "open":
        reader.read(0, 0)
    with pytest.raises(DataError, match=rf"train-000000\.tar.*at byte {place:,}") as caught:
        reader.read(0, 1)
    assert "copy it again" in str(caught.value)


def test_read_content_flipped_later_is_found_by_always_only(shards: Callable[..., Path]) -> None:
    directory = shards(3)
    readers = [open_reader(directory, verify=v) for v in ("open", "first", "always")]
    for reader in readers:
        reader.read(0, 0)
    flip(path_of(readers[0]), int(readers[0].files.index(0).offsets[0]))
    for reader in readers[:2]:
        reader.close()  # what was checked is remembered
        reader.read(0, 0)
    with pytest.raises(DataError, match="checksum"):
        readers[2].read(0, 0)


def test_reader_unknown_verify_names_the_nearest(shards: Callable[..., Path]) -> None:
    with pytest.raises(ConfigError, match=r"'allways' \(did you mean 'always'"):
        open_reader(shards(3), verify="allways")


def test_read_missing_shard_is_named(shards: Callable[..., Path]) -> None:
    reader = open_reader(shards(3))
    path_of(reader).unlink()
    with pytest.raises(DataError, match=r"train-000000\.tar cannot be opened"):
        reader.read(0, 0)


def test_read_shard_removed_between_path_and_open_is_asked_for_again(
    shards: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = open_reader(shards(3))
    path, content = path_of(reader), path_of(reader).read_bytes()
    asked: list[int] = []

    def vanishing(shard: int) -> Path:
        asked.append(shard)
        if len(asked) < 3:
            path.unlink(missing_ok=True)
        else:
            path.write_bytes(content)
        return path

    monkeypatch.setattr(reader.files, "path", vanishing)
    monkeypatch.setattr(reader.files, "index", open_reader(path.parent).files.index)
    reader.read(0, 0)
    assert asked == [0, 0, 0]


def test_read_removed_shards_are_closed_when_another_opens(shards: Callable[..., Path]) -> None:
    reader = open_reader(shards(4, shard_size=2))
    before = len(list(Path("/proc/self/fd").iterdir()))
    reader.read(0, 0)
    path_of(reader).unlink()
    reader.read(0, 1)  # still open
    reader.read(1, 0)
    assert len(list(Path("/proc/self/fd").iterdir())) == before + 1


def test_read_file_cut_while_open_is_refused(shards: Callable[..., Path]) -> None:
    reader = open_reader(shards(3))
    reader.read(0, 0)
    with path_of(reader).open("r+b") as file:
        file.truncate(2000)
    with pytest.raises(DataError, match=r"train-000000.tar gave 0 bytes for sample 2"):
        reader.read(0, 2)


def test_read_disk_error_names_shard_and_byte(
    shards: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = open_reader(shards(3))
    reader.read(0, 0)

    def fail(*_: object) -> bytes:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("datamodules.reader.os.pread", fail)
    with pytest.raises(DataError, match=r"train-000000\.tar .* byte .*Input/output error"):
        reader.read(0, 1)
