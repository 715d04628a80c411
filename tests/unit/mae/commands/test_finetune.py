from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
import yaml

from mae.cli import main
from mae.tasks.metrics_log import read_metrics
from mae.weights import load_encoder, read_checkpoint

FLAGS = ["--data.epochs", "2", "--data.batch_size", "6", "--trainer.log_every_n_steps", "1"]
FLAGS += ["--trainer.accelerator", "cpu"]


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory, shards, write_config) -> Path:
    """Return a run with two steps of pretraining."""
    folder = tmp_path_factory.mktemp("pretrained")
    config = write_config(folder / "tiny.yaml", data={"steps": 2}, checkpoint={"keep_last": 1})
    assert main(["pretrain", str(config), "--data", str(shards), "--out", str(folder / "run")]) == 0
    return folder / "run"


@pytest.fixture(scope="module")
def done(tmp_path_factory, pretrained, labeled_shards) -> Path:
    """Return a finished fine-tuning that learned to tell dark from bright."""
    run = tmp_path_factory.mktemp("finetuned") / "run"
    arguments = [str(pretrained), "--data", str(labeled_shards), "--out", str(run), *FLAGS]
    arguments += ["--data.epochs", "20", "--model.optim.blr", "0.2", "--checkpoint.keep_last", "-1"]
    assert main(["finetune", *arguments, "--checkpoint.every_n_steps", "1"]) == 0
    return run


def value(run: Path, name: str) -> list[float]:
    return [number for _, found, number in read_metrics(run) if found == name]


def test_finetune_leaves_a_run_and_measures_on_the_test_split(done):
    assert {path.name for path in done.iterdir()} >= {"config.yaml", "metrics.csv", "checkpoints"}
    assert len(value(done, "test/balanced_accuracy")) == 1
    assert value(done, "test/balanced_accuracy")[0] >= 0.9  # dark and bright images
    losses = value(done, "train/loss")
    assert losses[-1] < losses[0]


def test_finetune_config_names_weights_and_classes(done, pretrained):
    config = yaml.safe_load((done / "config.yaml").read_text(encoding="utf-8"))
    assert config["model"]["weights"] == str(pretrained)
    assert config["data"]["img_size"] == [16, 16]


def test_finetune_from_weights_starts_with_the_encoder_of_pretraining(
    mae, pretrained, labeled_shards
):
    """With a vanishing lr the encoder stays what it was."""
    flags = [*FLAGS, "--data.epochs", "1", "--model.optim.blr", "1e-30"]
    flags += ["--model.optim.min_lr", "0"]
    said = mae("finetune", pretrained, "--data", labeled_shards, "--out", "run", *flags)
    assert said.status == 0
    assert "steps from weights in" in said.out
    assert "test: balanced accuracy " in said.out
    (checkpoint,) = Path("run/checkpoints").iterdir()
    state = read_checkpoint(checkpoint)["state_dict"]
    encoder = load_encoder(pretrained).encoder.state_dict()
    compared = [name for name in encoder if not name.startswith("norm.")]  # replaced by fc_norm
    for name in compared:
        torch.testing.assert_close(state[f"model.encoder.{name}"], encoder[name])


def test_finetune_from_random_starts_with_another_encoder(mae, pretrained, labeled_shards):
    flags = [*FLAGS, "--data.epochs", "1", "--model.start", "random"]
    said = mae("finetune", pretrained, "--data", labeled_shards, "--out", "run", *flags)
    assert said.status == 0
    assert "steps from random in" in said.out
    (checkpoint,) = Path("run/checkpoints").iterdir()
    found = read_checkpoint(checkpoint)["state_dict"]["model.encoder.blocks.0.mlp.fc1.weight"]
    encoder = load_encoder(pretrained).encoder.state_dict()
    assert not torch.allclose(found, encoder["blocks.0.mlp.fc1.weight"], atol=1e-2)


def test_finetune_on_class_folders_packs_them(mae, pretrained, class_images):
    flags = [*FLAGS, "--data.epochs", "1", "--model.class_weights", "balanced"]
    flags += ["--model.global_pool", "cls"]
    said = mae("finetune", pretrained, "--data", class_images, "--out", "run", *flags)
    assert said.status == 0
    assert "test: balanced accuracy" in said.out


def test_finetune_resumed_gives_the_uninterrupted_run(mae, done, tmp_path):
    run = tmp_path / "stopped"
    shutil.copytree(done, run)
    last = max((done / "checkpoints").iterdir()).name
    for path in (run / "checkpoints").iterdir():
        if path.name > "step-00000007.ckpt":
            path.unlink()
    said = mae("finetune", "--resume", run)
    assert said.status == 0, said.err
    speed = "train/images_per_s"
    rows = [[row for row in read_metrics(folder) if row[1] != speed] for folder in (done, run)]
    assert rows[0] == rows[1]
    states = [
        read_checkpoint(folder / "checkpoints" / last)["state_dict"] for folder in (done, run)
    ]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--model.start", "rnadom"], "start"),
        (["--model.strat", "random"], "unknown key 'model.strat'"),
        (["--model.label_smoothing", "1"], "model.label_smoothing is 1.0; allowed: from 0"),
        (["--model.optim.layer_decay", "2"], "optim.layer_decay is 2.0; allowed: above 0"),
        (["--recipe", "finetune/smal"], "(did you mean 'finetune/small'?)"),
        (["--data.samples", "5"], "give exactly one"),
    ],
)
def test_finetune_with_a_wrong_setting_names_it_in_two_lines(
    mae, pretrained, labeled_shards, arguments, complaint
):
    said = mae("finetune", pretrained, "--data", labeled_shards, "--out", "run", *arguments)
    assert said.status == 1
    assert complaint in said.err
    assert len(said.err.splitlines()) <= 2


def test_finetune_without_weights_says_so(mae, labeled_shards):
    said = mae("finetune", "--data", labeled_shards, "--out", "run")
    assert said.status == 1
    assert "name the weights to start from, or a run with --resume" in said.err


@pytest.mark.parametrize("weights", ["nowhere", "."])
def test_finetune_from_weights_that_are_not_there_names_them(mae, weights, labeled_shards):
    said = mae("finetune", weights, "--data", labeled_shards, "--out", "run")
    assert said.status == 1
    assert "Traceback" not in said.err


def test_finetune_on_unlabelled_shards_says_how_to_label(mae, pretrained, shards):
    said = mae("finetune", pretrained, "--data", shards, "--out", "run")
    assert said.status == 1
    assert "no labels" in said.err


def test_finetune_on_other_pixels_names_both_sides(mae, pretrained, gray_shards, tmp_path):
    import csv

    from datamodules.pack import pack

    source = gray_shards.parent / "images"
    rows = [(str(path), path.stem) for path in sorted(source.iterdir())]
    with (tmp_path / "labels.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("path", "label"), *((p, int(s) % 2) for p, s in rows)])
    pack(tmp_path / "labels.csv", tmp_path / "labelled")
    said = mae("finetune", pretrained, "--data", tmp_path / "labelled", "--out", "run", *FLAGS)
    assert said.status == 1
    assert "channels: " in said.err
    assert "the weights" in said.err
