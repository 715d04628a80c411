"""The command line in process."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest

from mae.cli import main


class Said(NamedTuple):
    """What a command left: exit status and the text of both streams."""

    status: int
    out: str
    err: str


@pytest.fixture
def mae(capsys, tmp_path, monkeypatch) -> Callable[..., Said]:
    """Return a function that runs ``mae`` with some arguments, in a directory of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def run(*arguments: object) -> Said:
        capsys.readouterr()
        status = main([str(argument) for argument in arguments])
        return Said(status, *capsys.readouterr())

    return run
