from __future__ import annotations

import json
from importlib.metadata import version

import pytest

from mae.commands.run_directory import (
    choose_run,
    environment,
    require_writable,
    update_environment,
    write_environment,
)
from mae.errors import ConfigError


def test_choose_run_without_out_takes_runs_and_the_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    start = choose_run(out=None, resume=None, name="vit-b16")
    assert str(start.directory) == "runs/vit-b16"
    assert start.checkpoint is None
    assert start.directory.is_dir()


def test_choose_run_takes_an_empty_directory(tmp_path):
    assert choose_run(out=str(tmp_path), resume=None, name="x").directory == tmp_path


def test_choose_run_auto_in_a_directory_of_something_else_is_refused(tmp_path):
    (tmp_path / "thesis.txt").touch()
    with pytest.raises(ConfigError, match="is not empty"):
        choose_run(out=str(tmp_path), resume="auto", name="x")


def test_require_writable_on_a_full_disk_says_why(tmp_path, monkeypatch):
    def full(**_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("mae.commands.run_directory.tempfile.TemporaryFile", full)
    with pytest.raises(ConfigError, match=r"cannot write .*: No space left on device; choose"):
        require_writable(tmp_path)


def test_write_environment_of_a_resumed_run_keeps_the_earlier_start(tmp_path):
    write_environment(tmp_path, ["pretrain", "a"])
    update_environment(tmp_path, seconds=3.5)
    write_environment(tmp_path, ["pretrain", "--resume", "x"])
    first, second = json.loads((tmp_path / "environment.json").read_text("utf-8"))["starts"]
    assert first["command"] == ["mae", "pretrain", "a"]
    assert first["seconds"] == 3.5
    assert second["command"] == ["mae", "pretrain", "--resume", "x"]
    assert "seconds" not in second


def test_environment_holds_what_numbers_depend_on():
    found = environment(["probe"])
    assert found["packages"]["timm"] == version("timm")
    assert found["cores"] >= 1
    assert found["torch_threads"] >= 1
    assert found["started"].endswith("+00:00")
    json.dumps(found)
