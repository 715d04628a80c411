"""Children that are forked from a warm parent, each the leader of a process group of its own.

Importing torch and Lightning takes seconds, killing a run ten times would take minutes.  So a
fork server imports them once; a child then starts within milliseconds and is a process as good as
any: it has workers, it is killed with all of them, and nothing of the test's process is in it.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

_REAPED_WITHIN_S = 10.0


class Child:
    """A function that runs in a process of its own.

    Args:
        function: Importable by name; its return value, None or a number, is the exit status.
        arguments: Its arguments.
        log: File that gets what it prints.
        environment: Laid over the parent's environment.
    """

    def __init__(
        self,
        function: Callable[..., int | None],
        *arguments: Any,
        log: Path,
        environment: Mapping[str, str] | None = None,
    ):
        self.log = log
        self._process: BaseProcess = _context().Process(
            target=_run, args=(function, arguments, str(log), dict(environment or {}))
        )
        self._process.start()

    def wait(self, *, timeout_s: float = 120.0) -> int:
        """Return the exit status, negative for the signal that killed it.

        Raises:
            AssertionError: If it takes too long, or leaves processes behind.
        """
        self._process.join(timeout_s)
        hangs = self._process.exitcode is None
        self.kill()
        assert not hangs, f"still running after {timeout_s} s:\n{self.output()}"
        status = self._process.exitcode
        assert status is not None
        self._require_nobody_left()
        return status

    def kill(self) -> None:
        """End the process and all of its own, if they are still there."""
        if self._process.exitcode is None:
            os.killpg(self._group, signal.SIGKILL)
            self._process.join()

    def output(self) -> str:
        """Return what was printed."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    @property
    def _group(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def _require_nobody_left(self) -> None:
        """Wait until the kernel knows no process of the group: neither alive nor a zombie."""
        deadline = time.monotonic() + _REAPED_WITHIN_S
        while time.monotonic() < deadline:
            try:
                os.killpg(self._group, 0)
            except ProcessLookupError:
                return
            time.sleep(0.002)
        os.killpg(self._group, signal.SIGKILL)
        raise AssertionError(f"processes of group {self._group} are left:\n{self.output()}")


def run_all(children: Sequence[Child], *, timeout_s: float = 120.0) -> None:
    """Wait for processes that work together.

    Raises:
        AssertionError: If one of them fails; shows what it printed.
    """
    try:
        for child in children:
            status = child.wait(timeout_s=timeout_s)
            assert status == 0, f"exit status {status}:\n{child.output()}"
    finally:
        for child in children:
            child.kill()


def free_port() -> str:
    """Return a port on which nobody listens now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])


def _context() -> multiprocessing.context.ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.soak.preload"])
    return context


def _run(
    function: Callable[..., int | None],
    arguments: Sequence[Any],
    log: str,
    environment: Mapping[str, str],
) -> None:
    os.setsid()
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.stdout = os.fdopen(1, "w", buffering=1, encoding="utf-8", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, encoding="utf-8", closefd=False)
    os.environ.update(environment)
    multiprocessing.set_start_method("fork", force=True)  # else workers come from a new fork server
    import torch

    torch.set_num_threads(1)
    try:
        status = function(*arguments)
    except BaseException:
        traceback.print_exc()
        raise
    sys.exit(status)
