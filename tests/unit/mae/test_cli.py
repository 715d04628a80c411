from __future__ import annotations

import errno
import json
import os
import resource
import subprocess
import sys

import pytest
from lightning.pytorch.utilities.exceptions import SIGTERMException

import mae.cli
from mae import __version__
from mae.cli import VERBS, main, overview
from mae.errors import DataError


@pytest.fixture
def verb(monkeypatch):
    """Return a function that makes ``mae recipes`` raise an error."""

    def raising(error: BaseException) -> None:
        def recipes() -> None:
            raise error

        monkeypatch.setattr("mae.commands.recipes.recipes", recipes)

    return raising


@pytest.mark.parametrize("arguments", [[], ["-h"], ["--help"]])
def test_main_help_lists_every_verb_with_its_summary(arguments, capsys):
    assert main(arguments) == 0
    said = capsys.readouterr().out
    for name, (_, summary) in VERBS.items():
        assert f"  {name}" in said
        assert summary in said
    assert max(map(len, said.splitlines())) <= 80


def test_main_version_names_the_distribution(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"domain-mae {__version__}\n"


@pytest.mark.parametrize(("typo", "meant"), [("pretrian", "pretrain"), ("recipe", "recipes")])
def test_main_with_an_unknown_verb_says_two_lines_with_the_nearest(typo, meant, capsys):
    assert main([typo]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines() == [
        f"mae: unknown command {typo!r} (did you mean {meant!r}?)",
        "mae --help lists them all",
    ]


@pytest.mark.parametrize("name", VERBS)
def test_main_verb_help_names_its_options_and_ends_well(name, capsys):
    assert main([name, "--help"]) == 0
    said = capsys.readouterr().out
    assert f"usage: mae {name}" in said
    assert "WARNING" not in said


def test_main_with_a_wrong_usage_of_a_training_verb_is_a_status_not_an_exit(capsys):
    assert main(["pretrain", "one", "two"]) == 2
    assert "unrecognized arguments: two" in capsys.readouterr().err


def test_main_with_an_error_of_the_user_prints_it_without_traceback(verb, capsys):
    verb(DataError("images are missing; pack them"))
    assert main(["recipes"]) == 1
    assert capsys.readouterr().err == "mae: images are missing; pack them\n"


def test_main_with_an_error_in_a_loader_worker_prints_its_message_alone(verb, capsys):
    wrapped = "Caught DataError in DataLoader worker process 0.\nOriginal Traceback (most recent"
    verb(DataError(f"{wrapped} call last):\n  File x\nmae.errors.DataError: shard 3 is cut\n"))
    assert main(["recipes"]) == 1
    assert capsys.readouterr().err == "mae: shard 3 is cut\n"


@pytest.mark.parametrize(("code", "status"), [(None, 0), (3, 3), ("no GPU", 1)])
def test_main_passes_on_how_a_verb_ended_itself(verb, code, status):
    verb(SystemExit(code))
    assert main(["recipes"]) == status


def test_main_terminated_is_no_success(verb, capsys):
    verb(SIGTERMException())
    assert main(["recipes"]) == 143
    assert "goes on from its last checkpoint with --resume" in capsys.readouterr().err


def test_main_interrupted_says_how_to_go_on(verb, capsys):
    verb(KeyboardInterrupt("go on with x"))
    assert main(["recipes"]) == 130
    assert capsys.readouterr().err == "mae: go on with x\n"


def test_main_on_a_full_disk_names_the_file_and_the_remedy(verb, capsys):
    verb(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "runs/x"))
    assert main(["recipes"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("mae: No space left on device: runs/x\n")
    assert "free disk space" in said


def test_main_with_a_defect_of_ours_keeps_its_traceback(verb):
    verb(ZeroDivisionError("ours"))
    with pytest.raises(ZeroDivisionError):
        main(["recipes"])


def test_main_into_a_closed_pipe_ends_quietly():
    command = [sys.executable, "-m", "mae.cli", "recipes", "show", "paper/vit-b16"]
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, check=False, timeout=60)
    os.close(write)
    assert done.stderr == b""


def test_main_help_imports_nothing_heavy():
    code = (
        "import json, sys\n"
        "from mae.cli import main\n"
        "main(['--help']); main(['--version']); main(['pretrian'])\n"
        "print(json.dumps(sorted(name for name in sys.modules if '.' not in name)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    loaded = set(json.loads(done.stdout.splitlines()[-1]))
    heavy = {"torch", "timm", "lightning", "jsonargparse", "numpy", "PIL", "datamodules"}
    assert loaded & heavy == set()
    assert "mae" in loaded


def test_main_help_answers_within_half_a_second_of_processor_time():
    def seconds() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [sys.executable, "-m", "mae.cli", "--help"]
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True, timeout=60)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    assert min(seconds() for _ in range(3)) < 0.5


def test_overview_names_verbs_that_exist():
    for name, (target, _) in VERBS.items():
        module, function = target.split(":")
        assert module == f"mae.commands.{name}"
        assert function == name
    assert overview().startswith("usage: mae COMMAND")
    assert set(VERBS) >= mae.cli.RAW_VERBS
