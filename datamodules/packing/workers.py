"""Who does the work: this process, a pool of processes, or a cluster of machines through dask.

Jobs are plain functions of plain values, handed to a `concurrent.futures.Executor`; which one it is
makes no difference to the bytes.

Source: Python documentation, "concurrent.futures"; dask.distributed documentation,
`Client.get_executor`.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import multiprocessing
import os
import re
import signal
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
    wait,
)
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar

from mae.errors import ConfigError, DataError

Job = TypeVar("Job")
Result = TypeVar("Result")

_POLL_S = 0.2
_MAX_PROCESSES = 64
_IMAGES_WORTH_A_PROCESS = 500  # starting one takes about as long as packing these
_ADDRESS = re.compile(r"(\w+://)?.+:\d+|inproc://.+")
_CLUSTER_WAIT_S = 30
_SHAPING = ("domain-mae", "numpy", "pillow", "tifffile")  # what is in the shards depends on these


class UnfinishedError(DataError):
    """Packing stopped for a reason that can be removed; what was finished before is good."""


class LostWorkerError(UnfinishedError):
    """A worker ended without a result."""


@dataclass(frozen=True)
class Team:
    """Somebody to give jobs to.

    Attributes:
        executor: Takes the jobs.
        size: How many run at once.
        words: What it is, for people.
        lost: Errors that mean that a worker is gone.
    """

    executor: Executor
    size: int
    words: str
    lost: tuple[type[BaseException], ...] = (BrokenExecutor,)

    def run(
        self,
        function: Callable[[Job], Result],
        jobs: Iterable[Job],
        *,
        poll: Callable[[], None] = lambda: None,
    ) -> Generator[tuple[Job, Result], None, None]:
        """Yield each job with its result, as they are finished.

        Args:
            function: Of a module, so that other processes find it.
            jobs: Values that can be pickled; only as many are handed out as keep all busy.
            poll: Called some times a second while jobs run.

        Raises:
            LostWorkerError: If a worker is gone.
        """
        waiting, running = iter(jobs), dict[Future[Any], Job]()
        try:
            while True:
                for job in islice(waiting, 2 * self.size - len(running)):
                    running[self.executor.submit(function, job)] = job
                if not running:
                    return
                done, _ = wait(running, timeout=_POLL_S, return_when=FIRST_COMPLETED)
                poll()
                for future in done:
                    yield running.pop(future), future.result()
        except self.lost as error:
            raise LostWorkerError(
                "a worker was ended from outside, most likely because memory ran out; run again "
                "with fewer --workers. In a script of your own, start it below "
                "`if __name__ == '__main__':`"
            ) from error
        finally:
            for future in running:
                future.cancel()


@contextmanager
def team_of(workers: int, *, dask: str | None = None) -> Iterator[Team]:
    """Yield a team and send it home at the end.

    Args:
        workers: Processes; 1 works in this one.
        dask: Address of a dask scheduler, whose workers are taken instead.

    Raises:
        ConfigError: If `workers` is impossible, dask is not installed, or its workers have other
            versions of what shapes the shards.
        DataError: If no scheduler answers, or it has no workers.
    """
    if workers < 1:
        raise ConfigError(f"workers is {workers}; allowed: 1 or more")
    if dask is not None:
        with _cluster(dask) as team:
            yield team
    elif workers == 1:
        with ThreadPoolExecutor(1, thread_name_prefix="pack") as executor:
            yield Team(executor, 1, "in this process")
    else:
        # "spawn": this process may have threads (a progress bar, torch), which fork would cut off.
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(workers, context, initializer=_start_worker) as executor:
            yield Team(executor, workers, f"by {workers} processes")


def sensible_workers(*, num_images: int, num_jobs: int, asked: int | None = None) -> int:
    """Return how many processes are worth starting.

    Args:
        num_images: Images in all.
        num_jobs: Shards in all.
        asked: What the user wants; None takes the processors that this process may use.
    """
    if asked is not None:
        return max(1, min(asked, num_jobs)) if asked > 0 else asked
    most = min(usable_cpus(), _MAX_PROCESSES, num_jobs, num_images // _IMAGES_WORTH_A_PROCESS)
    return max(1, most)


def usable_cpus() -> int:
    """Return the number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _start_worker() -> None:
    """Leave Ctrl-C to the parent, and end when it ends, even if it was killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: Any) -> None:
    parent.join()
    os._exit(1)


@contextmanager
def _cluster(address: str) -> Iterator[Team]:
    try:
        distributed: Any = importlib.import_module("distributed")
    except ImportError as error:
        raise ConfigError(
            "--dask needs dask.distributed; run: pip install 'domain-mae[cluster]'"
        ) from error
    if not _ADDRESS.fullmatch(address):
        raise ConfigError(
            f"dask is {address!r}; allowed: the address that `dask scheduler` prints, as "
            f"tcp://host:8786"
        )
    try:
        client = distributed.Client(address, set_as_default=False, timeout=_CLUSTER_WAIT_S)
    except (OSError, ValueError) as error:
        raise DataError(
            f"no dask scheduler answers at {address!r} ({error}); give the address that "
            f"`dask scheduler` prints, as tcp://host:8786"
        ) from error
    with client:
        try:
            client.wait_for_workers(1, timeout=_CLUSTER_WAIT_S)
        except TimeoutError as error:
            raise DataError(
                f"the dask scheduler at {address} has no workers; start some with `dask worker`"
            ) from error
        _require_equal_versions(client.run(package_versions), package_versions())
        size = sum(client.nthreads().values())
        words = f"by {size} threads of the dask cluster at {address}"
        with client.get_executor(pure=False) as executor:
            lost = (BrokenExecutor, CancelledError, distributed.KilledWorker)
            yield Team(executor, size, words, lost)


def package_versions() -> dict[str, str]:
    """Return the versions here of what decodes and measures images; ``none`` where one is absent.

    Other versions may decode to other values, and shards should not depend on who wrote them.
    """
    found = {}
    for name in _SHAPING:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "none"
    return found


def _require_equal_versions(
    of_workers: Mapping[str, Mapping[str, str]], ours: Mapping[str, str]
) -> None:
    """Refuse a cluster whose workers have other versions than this process.

    Raises:
        ConfigError: Names the packages, both versions, and a worker.
    """
    differing = {
        name: f"{name} {versions.get(name)} on {worker}, {version} here"
        for worker, versions in of_workers.items()
        for name, version in ours.items()
        if versions.get(name) != version
    }
    if differing:
        raise ConfigError(
            f"the workers of the dask cluster have other versions than this process "
            f"({'; '.join(differing.values())}), and might write other shards; install the same "
            f"versions everywhere"
        )
