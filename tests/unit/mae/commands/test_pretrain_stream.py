"""Pretraining on tars without a manifest."""

from __future__ import annotations

from pathlib import Path

import pytest

from mae.weights import load_encoder, read_checkpoint


@pytest.fixture
def config(tmp_path, write_config) -> Path:
    return write_config(tmp_path / "tiny.yaml", data={"steps": 4, "window": 4, "cache_mib": 1})


def stream(shards: Path) -> str:
    """Return the training tars of a shard directory as a list."""
    return "::".join(str(path) for path in sorted(shards.glob("train-*.tar")))


def test_pretrain_stream_says_what_it_is_and_leaves_an_encoder(mae, config, shards, tmp_path):
    said = mae("pretrain", config, "--data", stream(shards), "--out", tmp_path / "run")
    assert said.status == 0
    assert "data.window of the recipe does not apply to a stream" in said.out
    assert "data.cache_mib of the recipe does not apply" in said.out
    assert "not exactly resumable" in said.out
    spec = load_encoder(tmp_path / "run").spec
    assert spec.dtype == "uint8"
    assert 100 < spec.mean[0] < 156  # uniform noise


def test_pretrain_stream_goes_on_with_its_own_statistics(mae, config, shards, tmp_path):
    run = tmp_path / "run"
    mae("pretrain", config, "--data", stream(shards), "--out", run)
    for step in (3, 4):
        (run / "checkpoints" / f"step-{step:08d}.ckpt").unlink()
    before = read_checkpoint(run / "checkpoints" / "step-00000002.ckpt")
    said = mae("pretrain", "--resume", run)
    assert said.status == 0
    assert "resumed at image 8 (resume number 1)" in said.out
    after = read_checkpoint(run / "checkpoints" / "step-00000004.ckpt")
    assert after["domain_mae"]["image_spec"] == before["domain_mae"]["image_spec"]
    assert after["StreamedShards"]["samples_consumed"] == 16


def test_pretrain_stream_cannot_go_on_with_a_shard_directory(mae, config, shards, tmp_path):
    run = tmp_path / "run"
    mae("pretrain", config, "--data", stream(shards), "--out", run)
    said = mae("pretrain", "--resume", run, "--data", shards)
    assert said.status == 1
    assert "a run goes on with the kind that it began with" in said.err


def test_pretrain_stream_pipe_runs_only_on_request(mae, config, shards, tmp_path):
    (tar, *_) = sorted(shards.glob("train-*.tar"))
    command = f"pipe:cat {tar}"
    said = mae("pretrain", config, "--data", command, "--out", tmp_path / "run")
    assert said.status == 1
    assert "--data.allow_pipe true" in said.err
    said = mae(
        "pretrain", config, "--data", command, "--out", tmp_path / "run", "--data.allow_pipe=true"
    )
    assert said.status == 0


def test_pretrain_stream_keys_of_shard_directories_are_refused_as_flags(mae, config, shards):
    said = mae("pretrain", config, "--data", stream(shards), "--data.window", "3")
    assert said.status == 1
    assert "unknown key 'data.window' in the command line" in said.err


def test_pretrain_stream_pipe_is_not_allowed_by_the_file_that_brings_it(
    mae, config, shards, tmp_path
):
    (tar, *_) = sorted(shards.glob("train-*.tar"))
    run, ran = tmp_path / "run", tmp_path / "ran"
    recipe = tmp_path / "theirs.yaml"
    recipe.write_text(
        f"data: {{allow_pipe: true, urls: 'pipe:touch {ran}; cat {tar}'}}", encoding="utf-8"
    )
    said = mae("pretrain", config, "--config", recipe, "--out", run)
    assert said.status == 1
    assert "data.allow_pipe is true in a file" in said.err
    assert not ran.exists()
    flags = ("--data.allow_pipe", "true", "--checkpoint.every_n_steps", "2")
    assert mae("pretrain", config, "--config", recipe, "--out", run, *flags).status == 0
    (run / "checkpoints" / "step-00000004.ckpt").unlink()
    other = tmp_path / "other.yaml"
    other.write_text(f"data: {{urls: 'pipe:touch {ran}2; cat {tar}'}}", encoding="utf-8")
    said = mae("pretrain", "--resume", run, "--config", other)  # allowed were other commands
    assert said.status == 1
    assert "data.allow_pipe is true in a file" in said.err
    assert not Path(f"{ran}2").exists()
    assert mae("pretrain", run / "config.yaml", "--out", tmp_path / "new").status == 1
    said = mae("pretrain", "--resume", run)
    assert said.status == 0
    assert "resumed at image 8" in said.out
