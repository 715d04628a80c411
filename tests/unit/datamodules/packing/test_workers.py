"""Teams of every kind do the same, and say so when a member is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import PIL
import pytest
from PIL import Image

from datamodules.pack import pack
from datamodules.packing.workers import (
    LostWorkerError,
    package_versions,
    sensible_workers,
    team_of,
    usable_cpus,
)
from mae.errors import ConfigError, DataError

Tree = Callable[[Path], dict[str, bytes]]


def square(number: int) -> int:
    return number * number


def fail(number: int) -> int:
    raise DataError(f"number {number} is wrong")


def vanish(number: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return number


@pytest.mark.parametrize("workers", [1, 2])
def test_run_gives_every_job_its_result(workers: int) -> None:
    polls = []
    with team_of(workers) as team:
        assert team.size == workers
        found = dict(team.run(square, range(20), poll=lambda: polls.append(1)))
        with pytest.raises(DataError, match="number 3 is wrong"):
            dict(team.run(fail, [3]))
    assert found == {number: number**2 for number in range(20)}
    assert polls


def test_run_takes_jobs_as_they_are_needed() -> None:
    taken: list[int] = []

    def jobs() -> Iterator[int]:
        for number in range(1000):
            taken.append(number)
            yield number

    with team_of(1) as team:
        running = team.run(square, jobs())
        next(running)
        running.close()
    assert len(taken) <= 2


def test_run_lost_worker_is_an_error_that_says_how_to_go_on() -> None:
    with team_of(2) as team, pytest.raises(LostWorkerError, match="fewer --workers"):
        dict(team.run(vanish, range(3)))


@pytest.mark.parametrize(
    ("num_images", "num_jobs", "asked", "expected"),
    [
        (999, 9, None, 1),  # not worth starting processes
        (10**6, 1000, None, min(usable_cpus(), 64)),
        (10**6, 1, None, 1),
        (10, 5, 3, 3),  # what the user asks for is done
        (10, 2, 8, 2),
        (10, 2, 0, 0),
    ],
)
def test_sensible_workers(num_images: int, num_jobs: int, asked: int | None, expected: int) -> None:
    assert sensible_workers(num_images=num_images, num_jobs=num_jobs, asked=asked) == expected


def test_team_of_impossible_number_is_named() -> None:
    with pytest.raises(ConfigError, match="workers is 0"), team_of(0):
        pass


def test_pack_lost_worker_keeps_what_is_finished(
    image_folder: Callable[..., Path], tmp_path: Path
) -> None:
    source, out = image_folder(60, size=(100, 100)), tmp_path / "out"
    killed: list[int] = []

    def kill_one(stage: str, done: int, total: int) -> None:
        if done >= 20 and stage == "packing" and not killed:
            children = subprocess.run(
                ["pgrep", "-P", str(os.getpid()), "-f", "spawn_main"],
                capture_output=True,
                text=True,
            ).stdout.split()
            killed.append(int(children[0]))
            os.kill(killed[0], signal.SIGKILL)

    options: dict[str, Any] = {"shard_size": 5, "val_fraction": 0}
    with pytest.raises(DataError, match=r"(?s)memory ran out.*finished shards are kept"):
        pack(source, out, **options, workers=2, on_progress=kill_one)
    assert pack(source, out, **options).num_kept_shards >= 3


def test_pack_processes_end_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    Image.new("RGB", (3000, 3000)).save(tmp_path / "in" / "0.png")
    for number in range(1, 400):
        os.link(tmp_path / "in" / "0.png", tmp_path / "in" / f"{number}.png")
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\nfrom datamodules.pack import pack\n"
        "if __name__ == '__main__':\n"
        "    pack(sys.argv[1], sys.argv[2], shard_size=200, workers=2, duplicates='keep')\n"
    )
    running = tmp_path / ".out.partial"
    with subprocess.Popen([sys.executable, script, tmp_path / "in", tmp_path / "out"]) as process:
        while len(list(running.glob("*/running/*.progress"))) < 2:
            assert process.poll() is None
            time.sleep(0.01)
        command = ["pgrep", "-P", str(process.pid), "-f", "spawn_main"]
        children = subprocess.run(command, capture_output=True, text=True).stdout.split()
        process.kill()
    assert len(children) == 2
    deadline = time.monotonic() + 3  # packing goes on for much longer
    while any(is_running(child) for child in children):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def is_running(process: str) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_pack_script_without_a_guard_is_told_what_to_do(
    image_folder: Callable[..., Path], tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\nfrom datamodules.pack import pack\n"
        "pack(sys.argv[1], sys.argv[2], shard_size=2, workers=2)\n"
    )
    done = subprocess.run(
        [sys.executable, script, image_folder(6), tmp_path / "out"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert "`if __name__ == '__main__':`" in done.stderr.splitlines()[-2]


# dask.distributed warns about a busy port for its dashboard, and leaves sockets to the collector.
@pytest.mark.filterwarnings("ignore:Port .* is already in use:UserWarning")
def test_pack_on_a_dask_cluster_gives_equal_bytes(
    busy_source: Path, tmp_path: Path, tree: Tree
) -> None:
    from distributed import LocalCluster

    options: dict[str, Any] = {"shard_size": 7, "val_fraction": 0.3, "max_bad_fraction": 0.1}
    one = pack(busy_source, tmp_path / "one", **options)
    with LocalCluster(
        n_workers=2, threads_per_worker=2, processes=True, dashboard_address=None
    ) as cluster:
        address = cluster.scheduler_address
        summary = pack(busy_source, tmp_path / "many", **options, dask=address)
    assert summary.workers == f"by 4 threads of the dask cluster at {address}"
    assert summary.left_out == one.left_out
    assert tree(tmp_path / "one") == tree(tmp_path / "many")


def test_team_of_no_scheduler_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datamodules.packing.workers._CLUSTER_WAIT_S", 0.5)
    with (
        pytest.raises(DataError, match="no dask scheduler answers"),
        team_of(1, dask="tcp://127.0.0.1:1"),
    ):
        pass


def test_team_of_dask_not_installed_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(ConfigError, match=r"domain-mae\[cluster\]"), team_of(1, dask="x"):
        pass


def test_package_versions_are_those_installed() -> None:
    found = package_versions()
    assert found["pillow"] == PIL.__version__
    assert found["numpy"] == np.__version__
    assert found.keys() == {"domain-mae", "numpy", "pillow", "tifffile"}


class OneOldWorker:
    """A cluster as `distributed` shows it, whose second worker has another Pillow."""

    class Client:
        def __init__(self, *_: Any, **__: Any):
            pass

        def __enter__(self) -> OneOldWorker.Client:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def wait_for_workers(self, *_: Any, **__: Any) -> None:
            pass

        def run(self, function: Callable[[], dict[str, str]]) -> dict[str, dict[str, str]]:
            return {"tcp://one": function(), "tcp://two": function() | {"pillow": "9.0"}}


def test_team_of_cluster_with_other_versions_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", OneOldWorker)
    with (
        pytest.raises(ConfigError, match=rf"pillow 9\.0 on tcp://two, {PIL.__version__} here\)"),
        team_of(1, dask="tcp://scheduler:1"),
    ):
        pass
