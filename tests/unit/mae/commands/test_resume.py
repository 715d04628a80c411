"""A run that stopped anywhere and went on is the run that never stopped."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from datamodules.pack import pack
from mae.cli import main
from mae.tasks.metrics_log import read_metrics
from mae.tasks.pretrain import PretrainTask
from mae.weights import load_encoder, read_checkpoint

STEPS = 6


def metrics(run: Path) -> list[tuple[int, str, float]]:
    """Return what a run logged, without its speed."""
    return [row for row in read_metrics(run) if row[1] != "train/images_per_s"]


def final(run: Path) -> dict:
    return read_checkpoint(run / "checkpoints" / f"step-{STEPS:08d}.ckpt")


def assert_same_run(one: Path, other: Path) -> None:
    """Compare weights, optimizer and log bit by bit."""
    assert metrics(one) == metrics(other)
    ours, theirs = final(one), final(other)
    assert ours["state_dict"].keys() == theirs["state_dict"].keys()
    for name, tensor in ours["state_dict"].items():
        assert torch.equal(tensor, theirs["state_dict"][name]), name
    moments, others = (content["optimizer_states"][0]["state"] for content in (ours, theirs))
    for key, state in moments.items():
        assert all(torch.equal(tensor, others[key][name]) for name, tensor in state.items())
    assert ours["domain_mae"] == theirs["domain_mae"]
    assert ours["UnlabeledShards"] == theirs["UnlabeledShards"]
    encoders = [load_encoder(run / "encoder" / "encoder.safetensors") for run in (one, other)]
    states = [encoder.encoder.state_dict() for encoder in encoders]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


@pytest.fixture(scope="module")
def config(tmp_path_factory, write_config) -> Path:
    """Return a configuration whose windows, epochs and validations do not fall together."""
    return write_config(
        tmp_path_factory.mktemp("config") / "tiny.yaml",
        trainer={"accumulate_grad_batches": 2, "val_check_interval": 4},
        data={"steps": STEPS, "batch_size": 3, "flips": "dihedral"},
        model={"masks_per_image": 2, "optim": {"blr": 0.01, "warmup_ratio": 0.3}},
    )


@pytest.fixture(scope="module")
def whole(config, shards, tmp_path_factory) -> Path:
    """Return an uninterrupted run."""
    run = tmp_path_factory.mktemp("whole") / "run"
    assert main(["pretrain", str(config), "--data", str(shards), "--out", str(run)]) == 0
    return run


@pytest.fixture
def stopped(whole, tmp_path):
    """Return a function that gives `whole` as it was when it died after some steps."""

    def stop(step: int) -> Path:
        run = tmp_path / "stopped"
        shutil.copytree(whole, run)
        shutil.rmtree(run / "encoder")
        for path in (run / "checkpoints").iterdir():
            if path.name > f"step-{step:08d}.ckpt":
                path.unlink()
        return run

    return stop


@pytest.mark.parametrize("step", [1, 3, 5])
def test_resume_after_some_steps_gives_the_uninterrupted_run(mae, whole, stopped, step):
    run = stopped(step)
    said = mae("pretrain", "--resume", run)
    assert said.status == 0
    assert f"going on from {run / 'checkpoints'}/step-{step:08d}.ckpt (step {step})" in said.out
    assert "changed on resume" not in said.out
    assert_same_run(whole, run)


@pytest.mark.parametrize(
    "flags", [["--model.optim.name", "muon"], ["--trainer.precision", "bf16-mixed"]], ids=str
)
def test_resume_with_other_arithmetic_gives_the_uninterrupted_run(
    mae, config, shards, tmp_path, flags
):
    one, other = tmp_path / "one", tmp_path / "other"
    assert mae("pretrain", config, "--data", shards, "--out", one, *flags).status == 0
    shutil.copytree(one, other)
    for path in (other / "checkpoints").iterdir():
        if path.name > "step-00000002.ckpt":
            path.unlink()
    assert mae("pretrain", "--resume", other).status == 0
    assert metrics(one) == metrics(other)
    ours, theirs = final(one)["state_dict"], final(other)["state_dict"]
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_resume_with_worker_processes_gives_the_uninterrupted_run(mae, whole, stopped):
    run = stopped(3)
    said = mae("pretrain", "--resume", run, "--data.num_workers", "2")
    assert said.status == 0
    assert "changed on resume: data.num_workers: 0 so far, 2 now" in said.out
    assert_same_run(whole, run)


def test_resume_from_a_checkpoint_drops_what_came_after_it(mae, whole, stopped):
    run = stopped(STEPS)
    path = run / "checkpoints" / "step-00000002.ckpt"
    shutil.rmtree(run / "checkpoints")
    path.parent.mkdir()
    shutil.copy(whole / "checkpoints" / path.name, path)
    assert mae("pretrain", "--resume", path).status == 0
    assert_same_run(whole, run)


def test_resume_auto_goes_on_with_the_run_at_out(mae, whole, stopped, config, shards):
    run = stopped(4)
    arguments = [config, "--data", shards, "--out", run, "--resume", "auto"]
    assert mae("pretrain", *arguments).status == 0
    assert_same_run(whole, run)


def test_resume_auto_without_a_run_starts_one(mae, config, shards, whole, tmp_path):
    run = tmp_path / "new"
    said = mae("pretrain", config, "--data", shards, "--out", run, "--resume", "auto")
    assert said.status == 0
    assert "going on" not in said.out
    assert_same_run(whole, run)


def test_resume_auto_of_a_run_without_a_checkpoint_starts_it_over(mae, whole, stopped, config):
    run = stopped(0)
    said = mae("pretrain", config, "--out", run, "--resume", "auto")
    assert said.status == 0
    assert "starting from the beginning: no good checkpoint" in said.out
    assert_same_run(whole, run)


def test_resume_auto_past_a_torn_checkpoint_takes_the_one_before(mae, whole, stopped, caplog):
    run = stopped(4)
    newest = run / "checkpoints" / "step-00000004.ckpt"
    newest.write_bytes(newest.read_bytes()[:1000])
    said = mae("pretrain", "--out", run, "--resume", "auto")
    assert said.status == 0
    assert "step-00000003.ckpt (step 3)" in said.out
    assert "skipped a checkpoint" in caplog.text
    assert_same_run(whole, run)


def test_resume_of_a_finished_run_changes_nothing(mae, whole, stopped):
    run = stopped(STEPS)
    assert mae("pretrain", "--resume", run).status == 0
    assert_same_run(whole, run)


@pytest.mark.parametrize(
    ("flag", "now", "before"),
    [
        ("model.depth", "2", "1"),
        ("model.mask_ratio", "0.25", "0.5"),
        ("model.optim.blr", "0.02", "0.01"),
        ("seed_everything", "4", "3"),
    ],
)
def test_resume_with_a_changed_model_is_refused_by_name(mae, whole, stopped, flag, now, before):
    run = stopped(3)
    log = (run / "metrics.csv").read_bytes()
    said = mae("pretrain", "--resume", run, f"--{flag}", now)
    assert said.status == 1
    assert f"{flag}: {before} so far, {now} now" in said.err
    assert "--init-weights" in said.err
    assert (run / "metrics.csv").read_bytes() == log
    assert mae("pretrain", "--resume", run).status == 0  # and the run is none the worse
    assert_same_run(whole, run)


def test_resume_on_other_data_is_refused_by_name_and_does_no_harm(
    mae, whole, stopped, labeled_shards
):
    run = stopped(3)
    said = mae("pretrain", "--resume", run, "--data", labeled_shards)
    assert said.status == 1
    assert "cannot continue on other data" in said.err
    assert mae("pretrain", "--resume", run).status == 0
    assert_same_run(whole, run)


def test_resume_with_data_reset_goes_on_with_other_data_and_the_runs_statistics(
    mae, stopped, class_images, tmp_path
):
    run = stopped(2)
    other = tmp_path / "other"
    pack(class_images, other, val_fraction=0.2)
    before = read_checkpoint(run / "checkpoints" / "step-00000002.ckpt")["domain_mae"]
    mae("pretrain", "--resume", run, "--data", other, "--seed_everything", 9, "--data-reset")
    after = final(run)
    assert after["domain_mae"]["image_spec"] == before["image_spec"]
    assert after["UnlabeledShards"]["fingerprint"]["seed"] == 9
    assert after["UnlabeledShards"]["samples_consumed"] == STEPS * 2 * 3


def test_data_reset_of_a_finished_run_is_refused_and_changes_nothing(
    mae, whole, stopped, class_images, tmp_path
):
    run = stopped(STEPS)
    other = tmp_path / "other"
    pack(class_images, other, val_fraction=0.2)
    before = (run / "config.yaml").read_bytes(), (run / "environment.json").read_bytes()
    said = mae("pretrain", "--resume", run, "--data", other, "--data-reset")
    assert said.status == 1
    assert "complete after 6 steps" in said.err
    assert ((run / "config.yaml").read_bytes(), (run / "environment.json").read_bytes()) == before


def test_data_reset_without_resume_is_refused(config, shards, capsys):
    assert main(["pretrain", str(config), "--data", str(shards), "--data-reset"]) != 0
    assert "--resume RUN" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "effective"), [("data.batch_size", 2), ("trainer.accumulate_grad_batches", 3)]
)
def test_resume_with_another_effective_batch_is_refused_with_both_numbers(
    mae, whole, stopped, change, effective
):
    """The lr was scaled to the batch and comes back with the optimizer."""
    run = stopped(3)
    said = mae("pretrain", "--resume", run, f"--{change}", "1")
    assert said.status == 1
    assert f"6 images per step so far, {effective} now" in said.err
    assert mae("pretrain", "--resume", run).status == 0
    assert_same_run(whole, run)


def test_resume_of_a_run_into_another_out_is_refused(mae, stopped):
    run = stopped(3)
    said = mae("pretrain", "--resume", run, "--out", "elsewhere")
    assert said.status == 1
    assert f"--resume goes on in {run}, but --out is elsewhere" in said.err
    assert not Path("elsewhere").exists()


def test_resume_with_another_budget_is_refused_with_both_values(mae, stopped):
    run = stopped(3)
    said = mae("pretrain", "--resume", run, "--data.steps", "4")
    assert said.status == 1
    assert "keeps its model, optimisation, seed and length" in said.err
    assert "data.steps: 6 so far, 4 now" in said.err


def test_resume_with_another_log_interval_is_said(mae, stopped):
    said = mae("pretrain", "--resume", stopped(3), "--trainer.log_every_n_steps", "2")
    assert said.status == 0
    assert "changed on resume: trainer.log_every_n_steps: 1 so far, 2 now" in said.out


@pytest.mark.parametrize(
    ("path", "complaint"),
    [("nowhere", "nowhere does not exist; --resume takes auto"), (".", "no good checkpoint in")],
)
def test_resume_from_nothing_says_so(mae, path, complaint):
    said = mae("pretrain", "--resume", path)
    assert said.status == 1
    assert complaint in said.err


def test_resume_from_a_lone_checkpoint_points_to_init_weights(mae, whole, tmp_path):
    folder = tmp_path / "downloads" / "weights"
    folder.mkdir(parents=True)
    shutil.copy(whole / "checkpoints" / "step-00000002.ckpt", folder / "x.ckpt")
    said = mae("pretrain", "--resume", folder / "x.ckpt")
    assert said.status == 1
    assert "has no config.yaml, so x.ckpt cannot be continued" in said.err
    assert "--init-weights" in said.err


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_resume_after_an_interrupt_gives_the_uninterrupted_run(
    mae, whole, config, shards, tmp_path, monkeypatch, sent
):
    step = PretrainTask.training_step

    def interrupted_step(task, batch, batch_idx):
        if batch_idx == 6:  # the first half of the fourth optimizer step
            os.kill(os.getpid(), sent)
        return step(task, batch, batch_idx)

    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs ignore it
    run = tmp_path / "run"
    try:
        with monkeypatch.context() as patch:
            patch.setattr(PretrainTask, "training_step", interrupted_step)
            said = mae("pretrain", config, "--data", shards, "--out", run)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    assert said.status == 130
    assert said.err.splitlines()[-1] == (
        f"mae: interrupted; go on from the last checkpoint with: mae pretrain --resume {run}"
    )
    assert "Traceback" not in said.err
    assert mae("pretrain", "--resume", run).status == 0
    assert_same_run(whole, run)


@pytest.mark.slow
def test_resume_after_kill_9_gives_the_uninterrupted_run(mae, config, shards, tmp_path):
    run, steps = tmp_path / "killed", 30
    longer = ["--data.steps", str(steps), "--checkpoint.keep_last", "2", "--data.num_workers", "1"]
    arguments = ["pretrain", str(config), "--data", str(shards), *longer]
    command = [sys.executable, "-m", "mae.cli", *arguments, "--out", str(run)]
    environment = os.environ | {"OMP_NUM_THREADS": str(torch.get_num_threads())}
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + 240
        while not list((run / "checkpoints").glob("step-*.ckpt")):
            assert process.poll() is None, "the run ended before it was killed"
            assert time.monotonic() < deadline, "no checkpoint appeared"
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
    finally:
        process.kill()
        process.wait()
    assert not (run / "encoder").exists()

    assert mae(*arguments, "--out", run, "--resume", "auto").status == 0
    assert mae(*arguments, "--out", tmp_path / "whole").status == 0
    # What the kill kept from being logged beside the checkpoint is not made up for; that is all.
    ours, theirs = set(metrics(run)), set(metrics(tmp_path / "whole"))
    assert ours <= theirs
    assert len({step for step, _, _ in theirs - ours}) <= 1
    last = f"step-{steps:08d}.ckpt"
    ours, theirs = (
        read_checkpoint(folder / "checkpoints" / last) for folder in (run, tmp_path / "whole")
    )
    for name, tensor in ours["state_dict"].items():
        assert torch.equal(tensor, theirs["state_dict"][name]), name
