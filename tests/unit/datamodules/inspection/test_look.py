"""Whatever is changed in a shard directory is found and named."""

from __future__ import annotations

import io
import itertools
import json
import random
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from datamodules.indexing import index_shards
from datamodules.inspection.look import inspect_shards
from datamodules.manifest import Manifest
from datamodules.pack import pack
from datamodules.tarindex import TarIndex, checksum, index_path
from mae.errors import ConfigError, DataError

Write = Callable[..., Path]
Png = Callable[..., bytes]


@pytest.fixture(scope="module")
def _packed(class_images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("packed") / "shards"
    pack(class_images, out, labels="folders", shard_size=5, seed=4)
    return out


@pytest.fixture
def packed(_packed: Path, tmp_path: Path) -> Path:
    """Return a copy of labelled shards of three splits, several in train."""
    shutil.copytree(_packed, tmp_path / "packed")
    return tmp_path / "packed"


def first_tar(folder: Path) -> Path:
    return folder / "train-000000.tar"


def rewrite_manifest(folder: Path, change: Callable[[dict[str, object]], object]) -> None:
    fields = json.loads((folder / "manifest.json").read_text())
    change(fields)
    (folder / "manifest.json").write_text(json.dumps(fields))


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize("workers", [1, 2])
def test_inspect_shards_of_pack_have_no_problems(packed: Path, deep: bool, workers: int) -> None:
    seen = inspect_shards(str(packed), deep=deep, workers=workers)
    assert seen.problems == ()
    assert seen.findings.num_samples == 30
    assert seen.manifest == Manifest.load(packed)


def test_inspect_shards_manifest_file_stands_for_its_folder(packed: Path) -> None:
    assert inspect_shards(str(packed / "manifest.json")).manifest is not None


def test_inspect_shards_indexed_ones_are_what_they_are(write_tar: Write, png: Png) -> None:
    path = write_tar("t/a.tar", {"1.png": png(1), "1.txt": b"x", "2.png": png(2)})
    index_shards(str(path.parent), ignore=["txt"])
    assert inspect_shards(str(path.parent), deep=True).problems == ()


def test_inspect_shards_missing_or_cut_shard_is_named(packed: Path) -> None:
    tar = first_tar(packed)
    data = tar.read_bytes()
    tar.write_bytes(data[:-512])
    (problem,) = inspect_shards(str(packed)).problems
    assert f"shard {tar} has {len(data) - 512:,} bytes, the manifest says {len(data):,}" in problem
    tar.unlink()
    (problem,) = inspect_shards(str(packed)).problems
    assert f"shard {tar} cannot be opened" in problem


def flip(tar: Path, place: int) -> None:
    data = bytearray(tar.read_bytes())
    data[place] ^= 1
    tar.write_bytes(bytes(data))


def test_inspect_shards_flipped_bit_in_an_image_is_found(packed: Path) -> None:
    tar = first_tar(packed)
    index = TarIndex.load(index_path(tar))
    member = index.suffixes.index("png")
    flip(tar, int(index.offsets[member]) + int(index.sizes[member]) - 9)
    quick = inspect_shards(str(packed))
    assert [p for p in quick.problems if "is damaged (its checksum differs" in p]
    deep = inspect_shards(str(packed), deep=True).problems
    assert any("names, sizes or checksums of its members differ" in p for p in deep)


def test_inspect_shards_changed_header_is_found_when_deep(packed: Path) -> None:
    tar = first_tar(packed)
    with tarfile.open(tar) as old:
        members = [(m, old.extractfile(m).read()) for m in old]  # type: ignore[union-attr]
    with tarfile.open(tar, "w") as new:
        for member, data in members:
            member.mtime = 7
            new.addfile(member, io.BytesIO(data))
    assert inspect_shards(str(packed)).problems == ()
    (problem,) = inspect_shards(str(packed), deep=True).problems
    assert "another SHA-256" in problem


def test_inspect_shards_swapped_shards_are_found(packed: Path) -> None:
    (packed / "train-000000.idx.safetensors").unlink()
    shutil.copyfile(packed / "train-000001.tar", first_tar(packed))
    problems = inspect_shards(str(packed)).problems
    assert problems
    assert all("train-000000.tar" in problem for problem in problems)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda m: m["spec"]["mean"].__setitem__(0, 99.0), "channel red has mean"),
        (lambda m: m.update(min_size=[1, 1]), "images have (20, 24)"),
        (
            lambda m: m["class_counts"]["train"].update(dark=0),
            "more and nothing fewer than the manifest says",
        ),
        (lambda m: m["spec"].update(dtype="uint16"), "most others have 3 x uint16"),
        (lambda m: m["shards"][0].update(num_samples=4), "5 samples, the manifest says 4"),
    ],
)
def test_inspect_shards_manifest_that_says_something_else_is_found(
    packed: Path, change: Callable[[dict[str, object]], object], said: str
) -> None:
    rewrite_manifest(packed, change)
    problems = inspect_shards(str(packed), deep=True).problems
    assert any(said in problem for problem in problems), problems


def test_inspect_shards_labels_that_are_missing_are_found(packed: Path) -> None:
    tar = first_tar(packed)
    with tarfile.open(tar) as old:
        members = [(m, old.extractfile(m).read()) for m in old]  # type: ignore[union-attr]
    with tarfile.open(tar, "w") as new:
        for member, data in members[1:]:  # the first is a .cls
            new.addfile(member, io.BytesIO(data))
    index = TarIndex.build(tar)
    index.save(index_path(tar))
    rewrite_manifest(
        packed,
        lambda m: m["shards"][0].update(index_sha256=index.digest, num_bytes=index.num_bytes),
    )
    assert any("4 members .cls for 5 samples" in p for p in inspect_shards(str(packed)).problems)


def test_inspect_shards_bad_images_are_problems(write_tar: Write, png: Png) -> None:
    members = {f"{n}.png": png(n) for n in range(6)} | {"3.png": b"?", "4.png": png(4, mode="L")}
    path = write_tar("t/a.tar", members)
    problems = inspect_shards(str(path)).problems
    assert ["t/a.tar: 3 " in problems[0], "t/a.tar: 4 " in problems[1]] == [True, True]
    index_shards(str(path.parent), max_bad_fraction=0.5)
    assert inspect_shards(str(path.parent)).problems == problems


def test_inspect_shards_without_manifest_finds_faults(write_tar: Write, png: Png) -> None:
    write_tar("t/train-0.tar", {"1.png": png(1), "1.cls": b"x", "2.json": {}})
    path = write_tar("t/val-0.tar", {"1.png": png(1)})
    path.write_bytes(path.read_bytes()[:512])
    seen = inspect_shards(str(path.parent))
    words = ("val-0.tar", "has 0 images", "its .cls holds b'x'")
    assert all(any(word in problem for problem in seen.problems) for word in words)
    assert seen.manifest is None


def test_inspect_shards_sample_is_spread_over_the_shards(write_tar: Write, png: Png) -> None:
    for shard in range(3):
        members = {f"{n}.png": png(n) for n in range(8 if shard else 1)}
        path = write_tar(f"t/a-{shard}.tar", members)
    seen = inspect_shards(str(path.parent), num_images=8, num_sheet=4)
    decoded = [
        sorted(s[0] for sizes in shard.measured.sizes.values() for part in sizes for s in part)
        for shard in seen.findings.shards
    ]
    assert decoded == [[0], [1, 4, 6], [2, 6]]  # 3, 3 and 2 are wanted, the first has one
    assert [block.keys for block in seen.sheet] == [("0",), ("4",), ("4",)]
    few = inspect_shards(str(path.parent), num_images=1)
    assert sum(few.findings.kinds().values()) == 1


def test_inspect_shards_names_that_say_no_split_are_taken_together(
    write_tar: Write, png: Png
) -> None:
    write_tar("t/train-0.tar", {"1.png": png(1)})
    path = write_tar("t/more-0.tar", {"2.png": png(2)})
    seen = inspect_shards(str(path.parent))
    assert seen.findings.splits == ["all"]
    assert "splits are not told apart" in seen.notes[0]


def test_inspect_shards_unlisted_tars_are_said(packed: Path) -> None:
    shutil.copyfile(first_tar(packed), packed / "extra.tar")
    seen = inspect_shards(str(packed))
    assert seen.problems == ()
    assert "1 tars lie in" in seen.notes[0]
    assert "extra.tar" in seen.notes[0]


def test_inspect_shards_impossible_sources_are_refused(tmp_path: Path) -> None:
    (tmp_path / "w.safetensors").touch()
    with pytest.raises(ConfigError, match="holds weights"):
        inspect_shards(str(tmp_path / "w.safetensors"))
    with pytest.raises(DataError, match="holds no shards"):
        inspect_shards(str(tmp_path))
    with pytest.raises(ConfigError, match="run `mae index"):
        inspect_shards("https://localhost/a-{0..3}.tar")
    with pytest.raises(ConfigError, match="num_images is 0"):
        inspect_shards(str(tmp_path), num_images=0)


def test_inspect_shards_equal_checksums_are_no_duplicates_when_bytes_are_compared(
    write_tar: Write,
) -> None:
    seen: dict[int, bytes] = {}
    draws = map(random.Random(0).randbytes, itertools.repeat(8))
    other = next(data for data in draws if seen.setdefault(checksum(data), data) != data)
    path = write_tar("t/a.tar", {"1.png": seen[checksum(other)], "2.png": other, "3.png": other})
    quick, deep = (inspect_shards(str(path), deep=deep, num_images=1) for deep in (False, True))
    assert quick.findings.repeated_images().within == {"train": 2}
    assert deep.findings.repeated_images().within == {"train": 1}
