"""What survives kill -9, an interrupt and a full disk, and what does not."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from datamodules.pack import pack, pack_into_cache
from mae.errors import ConfigError, DataError

Tree = Callable[[Path], dict[str, bytes]]
OPTIONS: dict[str, Any] = {"shard_size": 5, "val_fraction": 0.2, "max_bad_fraction": 0.1}

SCRIPT = """
import sys
from datamodules.pack import pack
if __name__ == "__main__":
    pack(sys.argv[1], sys.argv[2], shard_size=5, val_fraction=0.2, max_bad_fraction=0.1,
         workers=int(sys.argv[3]))
"""


def done(out: Path) -> list[Path]:
    return sorted(out.with_name(f".{out.name}.partial").glob("*/done/*.json"))


def kill_amid(source: Path, out: Path, *, workers: int, min_done: int = 3) -> None:
    """Start packing in another process and kill it when some shards are finished."""
    script = out.with_name("script.py")
    script.write_text(SCRIPT)
    with subprocess.Popen([sys.executable, script, source, out, str(workers)]) as process:
        while len(done(out)) < min_done:
            assert process.poll() is None, "packed before it could be killed"
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
    script.unlink()


def stamps(out: Path) -> dict[str, tuple[int, int]]:
    """Return inode and time of the tars of finished shards."""
    found = {}
    for record in done(out):
        tar = record.parents[1] / "shards" / f"{record.stem}.tar"
        found[tar.name] = (tar.stat().st_ino, tar.stat().st_mtime_ns)
    return found


@pytest.mark.parametrize("workers", [1, 2])
def test_workplace_killed_and_restarted_keeps_finished_shards(
    image_folder: Callable[..., Path], tmp_path: Path, tree: Tree, workers: int
) -> None:
    source, out = image_folder(70, size=(120, 120)), tmp_path / "out"
    kill_amid(source, out, workers=workers)
    time.sleep(0.3)  # workers end with their parent
    assert not out.exists()
    before = stamps(out)
    summary = pack(source, out, **OPTIONS)
    assert summary.num_kept_shards == len(before) >= 3
    after = {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in out.iterdir()}
    assert before.items() <= after.items()
    pack(source, tmp_path / "undisturbed", **OPTIONS)
    assert tree(out) == tree(tmp_path / "undisturbed")
    assert not list(tmp_path.glob(".*"))


def test_workplace_of_other_files_or_options_begins_anew(
    image_folder: Callable[..., Path], tmp_path: Path
) -> None:
    source, out = image_folder(50, size=(120, 120)), tmp_path / "out"
    for change in ("option", "file"):
        kill_amid(source, out, workers=1, min_done=2)
        options = dict(OPTIONS)
        if change == "option":
            options["shard_size"] = 6
        else:
            os.utime(source / "img001.png", (1, 1))
        summary = pack(source, out, **options)
        assert summary.num_kept_shards == 0
        assert "an earlier attempt, of other files or with other options, was thrown away" in (
            summary.notes
        )
        assert not list(tmp_path.glob(".*"))
        out.rename(tmp_path / change)


def test_workplace_shards_that_are_not_whole_are_written_again(
    image_folder: Callable[..., Path], tmp_path: Path, tree: Tree
) -> None:
    source, out = image_folder(70, size=(120, 120)), tmp_path / "out"
    kill_amid(source, out, workers=1, min_done=4)
    records = done(out)
    shards = records[0].parents[1] / "shards"
    with (shards / f"{records[0].stem}.tar").open("ab") as file:
        file.write(b"x")
    (shards / f"{records[1].stem}.tar").unlink()
    (shards / f"{records[2].stem}.idx.safetensors").unlink()
    records[3].write_text("{")
    summary = pack(source, out, **OPTIONS)
    assert summary.num_kept_shards == len(records) - 4
    pack(source, tmp_path / "undisturbed", **OPTIONS)
    assert tree(out) == tree(tmp_path / "undisturbed")


def test_workplace_interrupted_goes_on_with_the_same_call(
    image_folder: Callable[..., Path], tmp_path: Path
) -> None:
    source = image_folder(30)

    def interrupt(stage: str, num_done: int, total: int) -> None:
        if num_done >= 15 and stage == "packing":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt, match=r"finished shards are kept in .*\.out\.partial"):
        pack(source, tmp_path / "out", **OPTIONS, on_progress=interrupt)
    assert not (tmp_path / "out").exists()
    assert pack(source, tmp_path / "out", **OPTIONS).num_kept_shards >= 2


def _pack_with_file_limit(source: Path, out: Path) -> None:
    # A limit on the size of files stands for a full disk: write() fails half-way.
    resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))
    try:
        pack(source, out, **OPTIONS)
    except DataError as error:
        said = re.search(
            r"cannot write .*/out: File too large; 2 finished shards are kept in .*Free space",
            str(error),
        )
        sys.exit(0 if said else 3)
    sys.exit(4)


def test_workplace_disk_that_fills_up_keeps_finished_shards(
    csv_source: Callable[..., Path], image_folder: Callable[..., Path], tmp_path: Path
) -> None:
    rows = [[f"{n}.png", "train" if n < 10 else "val"] for n in range(15)]
    table = csv_source(["path", "split"], rows)
    for number, path in enumerate(image_folder(5, size=(90, 90)).iterdir(), 10):
        path.rename(table.parent / f"{number}.png")  # the shard of val will not fit
    child = multiprocessing.get_context("fork").Process(
        target=_pack_with_file_limit, args=(table, tmp_path / "out")
    )
    child.start()
    child.join()
    assert child.exitcode == 0
    assert not (tmp_path / "out").exists()
    assert pack(table, tmp_path / "out", **OPTIONS).num_kept_shards == 2


def test_workplace_second_packer_is_refused(
    image_folder: Callable[..., Path], tmp_path: Path
) -> None:
    source = image_folder(3)
    (tmp_path / ".out.partial").mkdir()
    with (
        FileLock(tmp_path / ".out.partial" / "lock"),
        pytest.raises(DataError, match="another process is packing into"),
    ):
        pack(source, tmp_path / "out")
    pack(source, tmp_path / "out")


def test_workplace_too_many_bad_images_go_on_with_a_higher_limit(
    image_folder: Callable[..., Path], tmp_path: Path
) -> None:
    source, out = image_folder(50, size=(120, 120)), tmp_path / "out"
    for path in sorted(source.iterdir())[20:30]:
        path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(DataError, match=r"(?s)of 50 images cannot.*finished shards are kept"):
        pack(source, out, **OPTIONS)
    options = OPTIONS | {"max_bad_fraction": 0.5}
    assert pack(source, out, **options).num_kept_shards >= 1


def test_workplace_error_that_would_come_again_leaves_nothing(
    shards: Callable[..., Path], tmp_path: Path
) -> None:
    source = shards(30)
    data = bytearray((source / "train-000003.tar").read_bytes())
    data[data.index(b"IDAT") + 9] ^= 1
    (source / "train-000003.tar").write_bytes(data)
    with pytest.raises(DataError, match="differs from the checksum that its manifest promises"):
        pack(source, tmp_path / "out", shard_size=2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["shards", "shards-source"]


def test_workplace_scheduler_that_does_not_answer_costs_no_finished_shard(
    image_folder: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("datamodules.packing.workers._CLUSTER_WAIT_S", 0.2)
    source, out = image_folder(50, size=(120, 120)), tmp_path / "out"
    kill_amid(source, out, workers=1)
    with pytest.raises(DataError, match="no dask scheduler answers"):
        pack(source, out, **OPTIONS, dask="tcp://127.0.0.1:1")
    assert pack(source, out, **OPTIONS).num_kept_shards >= 3


def _pack_cached(source: Path, cache: Path, answers: Any) -> None:
    packed: list[object] = []
    place = pack_into_cache(source, cache=cache, on_packed=packed.append)
    answers.put((str(place), len(packed)))


def test_pack_into_cache_processes_wait_for_the_one_that_packs(
    image_folder: Callable[..., Path], tmp_path: Path
) -> None:
    source, context = image_folder(40, size=(100, 100)), multiprocessing.get_context("fork")
    answers = context.Queue()
    arguments = (source, tmp_path / "cache", answers)
    children = [context.Process(target=_pack_cached, args=arguments) for _ in range(3)]
    for child in children:
        child.start()
    found = [answers.get(timeout=60) for _ in children]
    for child in children:
        child.join()
    assert len({place for place, _ in found}) == 1
    assert sum(count for _, count in found) == 1
    assert [p.name for p in (tmp_path / "cache").iterdir()] == [Path(found[0][0]).name]


def test_workplace_plan_says_what_it_is(image_folder: Callable[..., Path], tmp_path: Path) -> None:
    source, plans = image_folder(3), []

    def look(stage: str, num_done: int, total: int) -> None:
        (plan,) = tmp_path.glob(".out.partial/*/plan.json")
        plans.append(json.loads(plan.read_text()))

    pack(source, tmp_path / "out", on_progress=look)
    assert plans[0]["source"] == str(source)
    assert plans[0]["options"]["shard_size"] == 1000


def test_workplace_impossible_parent_is_an_error(
    image_folder: Callable[..., Path], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises((DataError, ConfigError), match="cannot write"):
        pack(image_folder(2), tmp_path / "file" / "out")
