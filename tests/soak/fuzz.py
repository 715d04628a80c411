"""Read mutated shards under limits, and say of each whether it was read fully or refused by name.

``python -m tests.soak.fuzz NUMBER`` repeats one case and leaves its files in ``fuzz-NUMBER``.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import resource
import signal
import sys
import tarfile
import traceback
from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, get_args

import numpy as np

from datamodules.manifest import Manifest, ShardInfo
from datamodules.reader import Verify
from datamodules.records import Record, SplitRecords
from datamodules.tarindex import TarIndex, index_path
from mae.errors import MAEError
from tests.soak.archives import Archive, grouped, make_archive, sealed, set_field
from tests.soak.bombs import CONTENTS, bad_index, hollow, huge_index, with_content
from tests.soak.mutations import STRUCTURE, flip_anywhere
from tests.soak.shards import manifest_of, shard_info

NAME = "shard.tar"
LIMIT_BYTES = 160 * 2**20  # above what the process has when it begins
LIMIT_S = 5.0  # of computing, per reading of a case
MAX_PIXELS = 1_000_000
KINDS = (*STRUCTURE, *CONTENTS, "hollow", "bad_index")
ALLOWED = {"jpg", "jpeg", "png", "tif", "tiff", "json", "cls"}
Samples = list[tuple[str, dict[str, bytes]]]
Result = TypeVar("Result")


class Case(NamedTuple):
    """A mutated shard.

    Attributes:
        kind: Its mutation.
        shard: The file's bytes.
        stored: Those of the index file that lies beside it, if any.
        holes: Bytes of a hole, which takes no room on the disk, behind either file.
        original: What the shard was made from.
    """

    kind: str
    shard: bytes
    stored: bytes | None
    holes: tuple[int, int]
    original: Original


class Original(NamedTuple):
    """A whole shard."""

    archive: Archive
    info: ShardInfo
    stored: bytes
    records: list[Record]


class Outcome(NamedTuple):
    """What became of a case.

    Attributes:
        number: Its number.
        kind: Its mutation.
        known: ``read``, ``refused`` or ``partly`` with the manifest of the original.
        fresh: The same with an index of its own.
        problem: What must not be; empty where all is well.
    """

    number: int
    kind: str
    known: str
    fresh: str
    problem: str


class Slow(BaseException):
    """A case takes too long; no handler of errors may swallow it."""


class WrongError(Exception):
    """Something that must not be."""


def fuzz(numbers: Iterable[int], seed: int, scratch: str, results: str) -> None:
    """Run cases under limits and append an `Outcome` for each; called in a child."""
    root = Path(scratch)
    root.mkdir()
    run_case(0, seed, root)  # loads and allocates what every case needs
    signal.signal(signal.SIGPROF, _too_slow)
    _limit_memory()
    before = _num_open_files()
    with Path(results).open("w", encoding="utf-8") as file:
        for number in numbers:
            file.write(json.dumps(run_case(number, seed, root)) + "\n")
            file.flush()
    assert _num_open_files() <= before, "files are left open"


def run_case(number: int, seed: int, root: Path) -> Outcome:
    """Make one case and read it in both ways."""
    canary = root / "canary"
    case = make_case(number, seed, canary)
    outcome = Outcome(number, case.kind, "", "", "")
    try:
        outcome = outcome._replace(known=_timed(read_with_manifest, case, root / "known"))
        outcome = outcome._replace(fresh=_timed(read_freshly, case, root / "fresh"))
    except WrongError as problem:
        outcome = outcome._replace(problem=str(problem))
    except BaseException:  # also what Rust code panics with
        outcome = outcome._replace(problem=traceback.format_exc(limit=-12))
    left = sorted(path.name for path in (*root.glob("*"), *root.glob("*/*")))
    allowed = {"known", "fresh", NAME, index_path(Path(NAME)).name}
    if set(left) - allowed:
        outcome = outcome._replace(problem=f"files appeared: {left}\n{outcome.problem}")
    return outcome


def make_case(number: int, seed: int, canary: Path) -> Case:
    """Return a case; it depends on the numbers alone."""
    draw = random.Random(f"{seed} {number}")
    flavour = draw.choice((tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT))
    original = _original(flavour, canary)
    archive = original.archive
    stored = draw.choice((original.stored, original.stored, None))
    kind, shard, holes = KINDS[number % len(KINDS)], archive.data, (0, 0)
    if kind in STRUCTURE:
        shard = STRUCTURE[kind](draw, archive)
    elif kind in CONTENTS:
        suffix, content = CONTENTS[kind](draw, archive)
        shard = with_content(archive, suffix, content, number=draw.randrange(7))
    elif kind == "hollow":
        shard, hole = hollow(draw, archive)
        holes = (hole, 0)
    elif draw.random() < 0.1:
        holes = (0, draw.choice((2**20, 2**30, 2**40)))
        stored = huge_index(holes[1])
    else:
        stored = bad_index(draw, archive, original.stored)
        shard = flip_anywhere(draw, archive) if draw.random() < 0.5 else shard
    if draw.random() < 0.1 and shard:  # one mutation may hide another
        hit = draw.randrange(len(shard))
        shard = shard[:hit] + bytes([draw.randrange(256)]) + shard[hit + 1 :]
    return Case(kind, shard, stored, holes, original)


def read_with_manifest(case: Case, folder: Path) -> str:
    """Read with the original's manifest: each sample is the original's, or refused."""
    _write(folder, case.shard, case.stored, holes=case.holes)
    original = case.original
    verify: Verify = get_args(Verify)[len(case.shard) % 3]
    manifest = manifest_of([original.info], root=folder, labelled=True)
    return _read_all(manifest, original.archive.samples, original.records, verify=verify)


def read_freshly(case: Case, folder: Path) -> str:
    """Index the shard as it is; what is read is what Python's own tarfile finds in it."""
    path = _write(folder, case.shard, None, holes=case.holes)
    index = attempt(lambda: TarIndex.build(path))
    if index is None:
        return "refused"
    index.save(index_path(path))
    if TarIndex.load(index_path(path)).digest != index.digest:
        raise WrongError("the stored index is another one")
    expected = grouped(members_by_tarfile(path))
    found, keys = list(index.keys), [key for key, _ in expected]
    if found != keys:
        raise WrongError(f"keys {found}, tarfile finds {keys}")
    if len(set(keys)) != len(keys) or index.first[-1] != sum(len(m) for _, m in expected):
        raise WrongError(f"keys or members that stand twice were let in: {keys}")
    for key, members in expected:
        if ".." in key.split("/") or key.startswith("/") or not key.isprintable():
            raise WrongError(f"the key {key!r} was let in")
        if not members.keys() <= ALLOWED:
            raise WrongError(f"members {sorted(members)} were let in")
    if not found:
        return "read"
    info = shard_info(path, split="train", index=index)
    return _read_all(manifest_of([info], root=folder, labelled=True), expected, None)


class Header(tarfile.TarInfo):
    """A header whose owner, mode, time and device are of no interest.

    Python's tarfile ends an archive, in silence, where one of them is no number, and reads GNU's
    times as a part of the name.
    """

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Header:
        try:
            super().frombuf(buf, encoding, errors)
        except tarfile.InvalidHeaderError as error:  # type: ignore[attr-defined]
            if "checksum" in str(error):
                raise
        block = bytearray(buf)
        for field in ("mode", "uid", "gid", "mtime", "device"):
            set_field(block, field, bytes(20))
        if block[257:263] != b"ustar\0":
            set_field(block, "prefix", bytes(155))
        return super().frombuf(sealed(bytes(block)), encoding, errors)


def members_by_tarfile(path: Path) -> list[tuple[str, bytes]]:
    """Return the files of a tar, all of it, by another reader."""
    found = []
    with tarfile.open(path, "r:", tarinfo=Header) as tar:
        for info in tar:
            if info.isdir() or (info.name.endswith("/") and not info.size):
                continue
            if info.isreg():
                content = tar.extractfile(info)
                assert content is not None
                found.append((info.name, content.read()))
            else:
                raise WrongError(f"{info.name!r} of type {info.type!r} was let in")
        end = tar.offset
    rest = path.read_bytes()[end:]
    if rest.strip(b"\0"):
        raise WrongError(f"bytes from {end:,} on were passed over in silence")
    return found


def _read_all(
    manifest: Manifest, expected: Samples, records: list[Record] | None, *, verify: Verify = "first"
) -> str:
    """Read bytes and pixels of all samples; say whether they were read or refused."""
    split = SplitRecords(manifest, "train", verify=verify, max_pixels=MAX_PIXELS)
    refused = 0
    for i, (key, members) in enumerate(expected):
        found = attempt(partial(split.reader.read, 0, i))
        record = attempt(partial(_load, split, i))
        if found is not None and found != (key, members):
            raise WrongError(f"sample {i} {key}: other bytes than expected")
        if records is not None and found is not None:
            if record is None:
                raise WrongError(f"sample {i} {key}: the original's bytes do not decode")
            if not same(record, records[i]):
                raise WrongError(f"sample {i} {key}: another record than the original's")
        refused += record is None
    split.reader.close()
    return "read" if not refused else "refused" if refused == len(expected) else "partly"


def same(one: Record, other: Record) -> bool:
    """Return whether two records are equal in all they say."""
    return (
        np.array_equal(one.pixels, other.pixels)
        and (one.key, one.label, one.group) == (other.key, other.label, other.group)
        and one.sidecar == other.sidecar
    )


def attempt(read: Callable[[], Result]) -> Result | None:
    """Return what is read, or None where it is refused by an error that names the shard."""
    try:
        return read()
    except MAEError as error:
        if NAME not in str(error):
            raise WrongError(f"refused without the shard's name: {error}") from error
        return None


def _load(split: SplitRecords, number: int) -> Record:
    record = split.load(0, number)
    _ = record.group  # reads the sidecar
    return record


@lru_cache
def _original(flavour: int, canary: Path) -> Original:
    archive = make_archive(0, canary=canary, flavour=flavour)
    folder = canary.parent / f"original-{flavour}"
    path = _write(folder, archive.data, None)
    index = TarIndex.build(path)
    index.save(index_path(path))
    stored = index_path(path).read_bytes()
    info = shard_info(path, split="train", index=index)
    split = SplitRecords(manifest_of([info], root=folder, labelled=True), "train")
    records = [split.load(0, i) for i in range(len(split))]
    split.reader.close()
    _remove(folder)
    return Original(archive, info, stored, records)


def _write(
    folder: Path, shard: bytes, stored: bytes | None, *, holes: tuple[int, int] = (0, 0)
) -> Path:
    _remove(folder)
    folder.mkdir()
    path = folder / NAME
    for place, content, hole in ((path, shard, holes[0]), (index_path(path), stored, holes[1])):
        if content is not None:
            with place.open("wb") as file:
                file.write(content)
                file.truncate(len(content) + hole)
    return path


def _remove(folder: Path) -> None:
    for path in folder.glob("*"):
        path.unlink()
    if folder.exists():
        folder.rmdir()


def _timed(read: Callable[[Case, Path], str], case: Case, folder: Path) -> str:
    signal.setitimer(signal.ITIMER_PROF, LIMIT_S)
    try:
        return read(case, folder)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _too_slow(*_: Any) -> None:
    raise Slow(f"more than {LIMIT_S} s")


def _limit_memory() -> None:
    """Let the process have `LIMIT_BYTES` more than it has."""
    pages = int(Path("/proc/self/statm").read_text().split()[5])  # data and stack
    limit = pages * resource.getpagesize() + LIMIT_BYTES
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _num_open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


if __name__ == "__main__":
    place = Path(f"fuzz-{sys.argv[1]}")
    place.mkdir(exist_ok=True)
    outcome = run_case(int(sys.argv[1]), int(os.environ.get("MAE_SOAK_SEED", "0")), place)
    print(outcome._replace(problem=""), outcome.problem, sep="\n")
    print(hashlib.sha256((place / "fresh" / NAME).read_bytes()).hexdigest())
