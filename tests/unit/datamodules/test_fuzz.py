"""Mutated shards: each is read fully or refused by name, within limits, and nothing in it runs.

The cases are in ``tests/soak``; ``python -m tests.soak.fuzz NUMBER`` repeats one.  Below stand,
each by itself, the shards that were once read otherwise than they should be.
"""

from __future__ import annotations

import contextlib
import io
import json
import struct
import tracemalloc
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import tifffile

from datamodules.decode import decode
from datamodules.guard import BadImageError
from datamodules.manifest import Manifest
from datamodules.records import SplitRecords
from datamodules.tarindex import TarIndex, index_path
from mae.errors import DataError
from tests.soak.archives import entry, gnu_long, joined, pax
from tests.soak.bombs import deflated_zeros, empty_index, huge_index, tiff_tags
from tests.soak.fuzz import KINDS, Outcome, fuzz
from tests.soak.settings import FACTOR, SEED
from tests.soak.shards import manifest_of, png, sample, shard_info, tar, write_shards
from tests.soak.warm import Child, run_all

NUM_CASES = 500 * FACTOR
NUM_PROCESSES = 2


@pytest.mark.slow
@pytest.mark.timeout(120 + 60 * FACTOR)
def test_read_mutated_shards_fully_or_refuse_them_by_name(tmp_path: Path) -> None:
    children = []
    for process in range(NUM_PROCESSES):
        numbers = range(process, NUM_CASES, NUM_PROCESSES)
        places = [str(tmp_path / f"{name}-{process}") for name in ("scratch", "results")]
        log = tmp_path / f"log-{process}.txt"
        children.append(Child(fuzz, numbers, SEED, *places, log=log))
    run_all(children, timeout_s=100 + 50 * FACTOR)
    lines = "".join(path.read_text(encoding="utf-8") for path in tmp_path.glob("results-*"))
    outcomes = sorted(Outcome(*json.loads(line)) for line in lines.splitlines())
    problems = [outcome for outcome in outcomes if outcome.problem]
    shown = "\n".join(f"{case.number} {case.kind}: {case.problem[-500:]}" for case in problems[:20])
    assert not problems, f"{len(problems)} of {NUM_CASES} cases (seed {SEED}):\n{shown}"
    assert [outcome.number for outcome in outcomes] == list(range(NUM_CASES))
    kinds = Counter(outcome.kind for outcome in outcomes)
    assert kinds.keys() == set(KINDS)
    # The mutations are neither all harmless nor all hopeless.
    for way in ("known", "fresh"):
        ends = Counter(getattr(outcome, way) for outcome in outcomes)
        assert ends.keys() == {"read", "partly", "refused"}
        assert min(ends.values()) > NUM_CASES / 20, ends


def build(folder: Path, entries: Sequence[bytes]) -> TarIndex:
    path = folder / "shard.tar"
    path.write_bytes(joined(entries))
    return TarIndex.build(path)


IMAGE = entry("a.png", b"image")


@pytest.mark.parametrize(
    "records", [{"path": b"b.png"}, {"size": b"0"}, {"path": b"b.png", "comment": b"x"}]
)
def test_build_global_header_with_names_or_sizes_is_refused(
    tmp_path: Path, records: dict[str, bytes]
) -> None:
    """Other readers apply it to all members that follow; here it was passed over."""
    with pytest.raises(DataError, match=r"shard\.tar.*byte 0"):
        build(tmp_path, [pax(records, kind=b"g"), IMAGE])


def test_build_global_header_with_a_comment_is_read(tmp_path: Path) -> None:
    index = build(tmp_path, [pax({"comment": b"from git archive"}, kind=b"g"), IMAGE])
    assert list(index.keys) == ["a"]


@pytest.mark.parametrize(
    "headers",
    [
        [pax({"path": b"b.png"}), pax({"path": b"c.png"})],
        [gnu_long(b"b.png"), gnu_long(b"c.png")],
        [gnu_long(b"b.png"), pax({"path": b"c.png"})],
        [pax({"path": b"b.png"}), gnu_long(b"c.png")],
        [pax({"size": b"0"}), pax({"path": b"c.png"})],
    ],
    ids=["pax pax", "gnu gnu", "gnu pax", "pax gnu", "size lost"],
)
def test_build_two_names_for_one_member_are_refused(tmp_path: Path, headers: list[bytes]) -> None:
    """Other readers take the first one, here the last one won."""
    with pytest.raises(DataError, match=r"shard\.tar.*byte"):
        build(tmp_path, [*headers, IMAGE])


@pytest.mark.parametrize("name", ["b/", "b.png"])
def test_build_folder_with_a_content_is_refused(tmp_path: Path, name: str) -> None:
    """Other readers find members in what is taken for its content."""
    with pytest.raises(DataError, match=r"shard\.tar.*byte 1024"):
        build(tmp_path, [IMAGE, entry(name, entry("hidden.png", b"x"), kind=b"5")])


@pytest.mark.parametrize("kind", [b"0", b"7"])
def test_build_file_whose_name_is_a_folders_is_refused(tmp_path: Path, kind: bytes) -> None:
    """It was passed over in silence."""
    with pytest.raises(DataError, match=r"shard\.tar.*byte 1024"):
        build(tmp_path, [IMAGE, entry("b.png/", b"content", kind=kind)])


def test_load_index_of_nothing_is_refused(tmp_path: Path) -> None:
    directory = write_shards(tmp_path / "shards", {"train": [2]})
    stored = index_path(directory / "train-000000.tar")
    stored.write_bytes(empty_index())
    with pytest.raises(DataError, match="rebuilt"):
        TarIndex.load(stored)
    assert len(SplitRecords(Manifest.load(directory), "train")) == 2


def test_reader_damaged_index_of_nothing_is_rebuilt(tmp_path: Path) -> None:
    directory = write_shards(tmp_path / "shards", {"train": [2]})
    index_path(directory / "train-000000.tar").write_bytes(empty_index())
    records = SplitRecords(Manifest.load(directory), "train")
    assert [records.load(0, i).key for i in range(2)] == ["000000", "000001"]


def test_reader_huge_index_is_rebuilt_in_little_memory(tmp_path: Path) -> None:
    directory = write_shards(tmp_path / "shards", {"train": [2]})
    with index_path(directory / "train-000000.tar").open("wb") as file:
        file.write(huge_index(2**28))
        file.truncate(file.tell() + 2**28)  # a hole: it takes no room
    records = SplitRecords(Manifest.load(directory), "train")
    tracemalloc.start()
    assert [records.load(0, i).key for i in range(2)] == ["000000", "000001"]
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 8e6


def group_with_sidecar(folder: Path, sidecar: bytes) -> str | None:
    """Return the group that is read from a shard of somebody else's, as ``mae index`` finds it."""
    path = folder / "shard.tar"
    path.write_bytes(tar([("a.png", png(0)), ("a.json", sidecar)]))
    info = shard_info(path, split="train", index=TarIndex.build(path))
    return SplitRecords(manifest_of([info], root=folder), "train").load(0, 0).group


@pytest.mark.parametrize(
    "sidecar",
    [b"{", b"\xff", b"[" * 100_000, b'{"a": ' + b"9" * 9999 + b"}", b"{}\0"],
    ids=["cut", "no text", "deep", "long number", "rest"],
)
def test_group_sidecar_that_is_no_json_is_refused_by_name(tmp_path: Path, sidecar: bytes) -> None:
    with pytest.raises(DataError, match=r"shard\.tar: a"):
        group_with_sidecar(tmp_path, sidecar)


@pytest.mark.parametrize("sidecar", [b"[]", b"null", b"3", b'"text"', b'{"group": null}', b"{}"])
def test_group_sidecar_without_one_gives_none_or_is_refused(tmp_path: Path, sidecar: bytes) -> None:
    with contextlib.suppress(DataError):
        assert group_with_sidecar(tmp_path, sidecar) is None


TAGS = [
    (256, 4, 1, 4),
    (257, 4, 1, 4),
    (258, 3, 1, 8),
    (259, 3, 1, 1),
    (262, 3, 1, 1),
    (273, 4, 1, 8),
    (277, 3, 1, 1),
    (278, 4, 1, 4),
    (279, 4, 1, 16),
]


@pytest.mark.timeout(10)
def test_decode_tiff_whose_pages_run_in_a_circle_is_refused() -> None:
    with pytest.raises(BadImageError, match=r"bomb.*page"):
        decode(tiff_tags(TAGS, following=8), what="bomb")


def test_decode_tiff_that_inflates_to_more_than_its_pixels_is_refused_in_little_memory() -> None:
    stream = io.BytesIO()
    tifffile.imwrite(stream, np.zeros((8, 8), np.uint8), compression="zlib")
    data = bytearray(stream.getvalue())
    with tifffile.TiffFile(io.BytesIO(data)) as file:
        tags = file.pages.first.tags
        places = [tags[name].valueoffset for name in ("StripOffsets", "StripByteCounts")]
    bomb = deflated_zeros(64)[:60_000]  # cut: it still inflates to some 60 MB
    struct.pack_into("<I", data, places[0], len(data))
    struct.pack_into("<H", data, places[1], len(bomb))
    tracemalloc.start()
    with pytest.raises(BadImageError, match="bomb"):
        decode(bytes(data) + bomb, what="bomb", max_pixels=10_000)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 8e6


def test_sample_key_reads_what_the_helpers_write(tmp_path: Path) -> None:
    directory = write_shards(tmp_path / "shards", {"train": [3]}, labelled=True)
    records = SplitRecords(Manifest.load(directory), "train")
    for i in range(3):
        key, members = records.reader.read(0, i)
        assert {f"{key}.{suffix}": content for suffix, content in members.items()} == dict(
            sample(i, labelled=True)
        )
