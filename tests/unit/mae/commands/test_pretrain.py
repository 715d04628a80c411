from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

from datamodules.manifest import Manifest
from mae.cli import main
from mae.commands.pretrain import configure
from mae.commands.run_directory import RunStart
from mae.tasks.metrics_log import read_metrics
from mae.weights import load_encoder, read_checkpoint


def metrics(run: Path) -> list[tuple[int, str, float]]:
    """Return what a run logged, without its speed."""
    return [row for row in read_metrics(run) if row[1] != "train/images_per_s"]


def value(run: Path, key: str):
    """Return the value of a dotted key of a run's configuration."""
    found = yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))
    for name in key.split("."):
        found = found[name]
    return found


@pytest.fixture(scope="module")
def done(tmp_path_factory, shards, write_config) -> Path:
    """Return a finished run of 4 steps."""
    folder = tmp_path_factory.mktemp("done")
    trainer = {"val_check_interval": 0.5}
    config = write_config(folder / "tiny.yaml", data={"steps": 4}, trainer=trainer)
    assert main(["pretrain", str(config), "--data", str(shards), "--out", str(folder / "run")]) == 0
    return folder / "run"


@pytest.fixture
def config(tmp_path, write_config) -> Path:
    return write_config(tmp_path / "tiny.yaml", data={"steps": 1})


def test_pretrain_leaves_the_files_of_a_run(done, shards):
    files = {str(path.relative_to(done)) for path in done.rglob("*") if path.is_file()}
    checkpoints = {f"checkpoints/step-{step:08d}.ckpt" for step in (1, 2, 3, 4)}
    assert files == checkpoints | {
        "config.yaml",
        "environment.json",
        "metrics.csv",
        "encoder/encoder.safetensors",
    }
    (start,) = json.loads((done / "environment.json").read_text(encoding="utf-8"))["starts"]
    assert start["command"][:2] == ["mae", "pretrain"]
    assert start["packages"]["torch"] == version("torch")
    assert {"seconds", "peak_memory_mib", "processor", "started"} <= set(start)
    encoder = load_encoder(done / "encoder" / "encoder.safetensors")
    assert encoder.spec == Manifest.load(shards).spec
    assert encoder.info["step"] == 4
    assert encoder.info["samples_seen"] == 16
    assert encoder.info["data_digest"] == Manifest.load(shards).digest


def test_pretrain_logs_steps_that_are_done_and_validation_where_it_happened(done):
    rows = list(read_metrics(done))
    by_name = {name: [step for step, found, _ in rows if found == name] for _, name, _ in rows}
    assert by_name.pop("train/images_per_s") == [1, 2, 3, 4]
    assert by_name.pop("train/loss") == [1, 2, 3, 4]
    assert by_name.pop("train/lr") == [1, 2, 3, 4]
    names = ("val/loss", "val/predict_zero", "val/predict_patch_mean", "val/feature_std")
    assert by_name == {key: [0, 2, 4] for key in names}


def test_pretrain_hands_the_encoder_of_the_last_checkpoint_over(done):
    state = read_checkpoint(done / "checkpoints" / "step-00000004.ckpt")["state_dict"]
    encoder = load_encoder(done / "encoder" / "encoder.safetensors").encoder.state_dict()
    assert all(torch.equal(state[f"model.encoder.{name}"], encoder[name]) for name in encoder)


def test_pretrain_with_its_own_config_reproduces_the_run(done, mae, tmp_path):
    said = mae("pretrain", done / "config.yaml", "--out", tmp_path / "again")
    assert said.status == 0
    assert metrics(tmp_path / "again") == metrics(done)
    configs = [
        (run / "config.yaml").read_text(encoding="utf-8") for run in (done, tmp_path / "again")
    ]
    assert configs[0] == configs[1]
    states = [
        read_checkpoint(run / "checkpoints" / "step-00000004.ckpt")["state_dict"]
        for run in (done, tmp_path / "again")
    ]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_pretrain_with_another_seed_trains_something_else(done, mae, tmp_path):
    mae("pretrain", done / "config.yaml", "--out", tmp_path / "b", "--seed_everything", 4)
    assert metrics(tmp_path / "b") != metrics(done)


def test_pretrain_gives_seed_size_and_batch_to_model_and_data_alike(config, shards, tmp_path):
    args = ["--config", str(config), "--data.data_dir", str(shards), "--seed_everything", "7"]
    args += ["--data.batch_size", "5", "--model.img_size", "24"]
    cli = configure(args, RunStart(tmp_path, None), own=set())
    assert (cli.model.seed, cli.datamodule.seed) == (7, 7)
    assert (cli.model.batch_size, cli.datamodule.batch_size) == (5, 5)
    assert cli.model.model.encoder.img_size == cli.datamodule.img_size == (24, 24)


def test_pretrain_says_trivial_losses_lr_and_what_is_next(mae, config, shards):
    said = mae("pretrain", config, "--data", shards, "--out", "run")
    assert said.status == 0
    assert "validation loss before training " in said.out
    assert "predicting 0: 0.99" in said.out
    assert "predicting each patch's mean: 0.99" in said.out
    assert "base lr -> actual lr: 0.00015 -> 2.34375e-06" in said.out
    assert "encoder: run/encoder/encoder.safetensors" in said.out
    assert "next: mae probe run --data LABELLED_SHARDS" in said.out


def test_pretrain_without_a_val_split_says_how_to_get_one(mae, config, gray_shards):
    said = mae("pretrain", config, "--data", gray_shards, "--out", "run", "--model.in_chans=1")
    assert said.status == 0
    assert "no val split" in said.out
    assert "--val_fraction" in said.out
    assert value(Path("run"), "model.in_chans") == 1


def test_pretrain_settings_flag_over_later_file_over_earlier_over_recipe_over_default(
    mae, tmp_path, shards, write_config
):
    recipe = write_config(
        tmp_path / "recipe.yaml", data={"steps": 1, "window": 2, "val_batch_size": 2}
    )
    earlier, later = tmp_path / "earlier.yaml", tmp_path / "later.yaml"
    earlier.write_text("data: {window: 3, val_batch_size: 3, batch_size: 3}", encoding="utf-8")
    later.write_text("data: {val_batch_size: 4, batch_size: 5}", encoding="utf-8")
    flags = ["--data.batch_size", "6", "--out", "run", "--data", str(shards)]
    said = mae("pretrain", recipe, "--config", earlier, "--config", later, *flags)
    assert said.status == 0
    run = Path("run")
    assert value(run, "data.batch_size") == 6  # flag
    assert value(run, "data.val_batch_size") == 4  # later file
    assert value(run, "data.window") == 3  # earlier file
    assert value(run, "model.embed_dim") == 16  # recipe
    assert value(run, "model.mlp_ratio") == 4.0  # default
    assert value(run, "data.data_dir") == str(shards)


def test_pretrain_flags_may_stand_before_the_files(mae, tmp_path, config, shards):
    other = tmp_path / "other.yaml"
    other.write_text("model: {depth: 3}", encoding="utf-8")
    flag = ["--model.depth=2", "--config", str(other), "--data", str(shards), "--out", "run"]
    assert mae("pretrain", *flag, config).status == 0
    assert value(Path("run"), "model.depth") == 2


def test_pretrain_demo_recipe_trains_two_steps(mae, shards, tmp_path):
    arguments = ["--data.steps", "2", "--data.batch_size", "4", "--data.crop", "random_resized"]
    arguments += ["--trainer.log_every_n_steps", "1"]
    said = mae("pretrain", "demo/satellite-cpu", "--data", shards, "--out", "run", *arguments)
    assert said.status == 0
    header = read_checkpoint(tmp_path / "run/checkpoints/step-00000002.ckpt")["domain_mae"]
    assert header["recipe"] == "demo/satellite-cpu"
    assert header["samples_seen"] == 8


def test_pretrain_without_out_names_the_run_after_the_recipe(mae, config, shards, tmp_path):
    assert mae("pretrain", config, "--data", shards).status == 0
    assert (tmp_path / "runs" / "tiny" / "config.yaml").is_file()


def test_pretrain_with_images_packs_them_once_and_says_where(mae, config, images, tmp_path):
    said = mae("pretrain", config, "--images", images, "--out", "run")
    assert said.status == 0
    shards = Path(value(Path("run"), "data.data_dir"))
    assert f"{shards}: " in said.out
    assert shards.is_relative_to(tmp_path / "cache")
    again = mae("pretrain", config, "--images", images, "--out", "again")
    assert again.status == 0
    assert f"the images of {images} were packed before, in {shards}" in again.out
    assert value(Path("again"), "data.data_dir") == str(shards)


def test_pretrain_with_weights_starts_a_new_run_from_them(mae, done, config, shards):
    said = mae("pretrain", config, "--data", shards, "--out", "run", "--init-weights", done)
    assert said.status == 0
    assert "150/150" not in said.out
    first = [row for row in read_metrics(Path("run")) if row[:2] == (0, "val/loss")]
    last = [row for row in read_metrics(done) if row[:2] == (4, "val/loss")]
    assert first[0][2] == pytest.approx(last[0][2], abs=1e-6)
    assert read_checkpoint(Path("run/checkpoints/step-00000001.ckpt"))["global_step"] == 1


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--model.mask_ratio", "0"], "mask_ratio is 0.0; allowed: above 0 and below 1"),
        (["--model.mask_ratio", "1"], "mask_ratio is 1.0; allowed: above 0 and below 1"),
        (["--model.mask_ratio", "1.5"], "mask_ratio is 1.5; allowed: above 0 and below 1"),
        (["--model.img_size", "20"], "img_size 20x20 is not divisible by patch_size 8x8"),
        (["--model.num_heads", "3"], "num_heads 3 does not divide the width 16"),
        (["--data.samples", "8"], "given 2 times (steps=1, samples=8); give exactly one"),
        (["--data.steps", "null"], "given 0 times (no budget); give exactly one of steps, samples"),
        (["--data.steps", "0"], "steps is 0; allowed: above 0"),
        (["--data.batch_size", "0"], "batch_size is 0; allowed: above 0"),
        (["--model.in_chans", "4"], "hold 3 channels (red, green, blue), but model.in_chans is 4"),
        (["--model.optim.warmup_ratio", "1"], "optim.warmup_ratio is 1.0; allowed: from 0"),
        (["--model.optim.min_lr", "1"], "optim.min_lr 1 is above the actual lr"),
        (["--model.optim.name", "adam"], "adam"),
        (["--trainer.max_epochs", "3"], "trainer.max_epochs is 3; it must stay 1"),
        (["--trainer.accelerator", "mps"], "these trainer settings do not fit this machine"),
        (["--trainer.val_check_interval", "9"], "`val_check_interval` (9) must be less than or"),
        (["--checkpoint.keep_last", "0"], "checkpoint.keep_last is 0; allowed: 1 or more"),
        (["--images", "x"], "--data and --images exclude each other"),
        (["--resume", "auto", "--init-weights", "x"], "--init-weights starts a new run and"),
        (["--init-weights", "nowhere"], "nowhere"),
        (["--model.depth"], "depth"),
        (["--model.depth", "--data.window", "3"], "depth"),
        (["--config", "missing.yaml"], "cannot read the configuration missing.yaml"),
    ],
)
def test_pretrain_with_an_impossible_setting_names_value_and_remedy_before_the_first_step(
    mae, config, shards, arguments, complaint
):
    said = mae("pretrain", config, "--data", shards, "--out", "run", *arguments)
    assert said.status == 1
    assert said.err.startswith("mae: ")
    assert complaint in said.err
    assert "Traceback" not in said.err
    assert len(said.err.splitlines()) <= 2
    assert not list(Path("run").rglob("*.ckpt"))


@pytest.mark.parametrize(
    ("typo", "meant"),
    [
        ("--model.mask_rato", "model.mask_ratio"),
        ("--mask_ratio", "model.mask_ratio"),
        ("--model.optim.blrr", "model.optim.blr"),
        ("--trainer.acumulate_grad_batches", "trainer.accumulate_grad_batches"),
        ("--imges", "images"),
        ("--init_weights", "init-weights"),
    ],
)
def test_pretrain_with_an_unknown_flag_says_two_lines_with_the_nearest(
    mae, config, shards, typo, meant
):
    said = mae("pretrain", config, "--data", shards, "--out", "run", typo, "1")
    assert said.status == 1
    first, second = said.err.splitlines()
    key = typo.removeprefix("--")
    assert first == f"mae: unknown key {key!r} in the command line (did you mean {meant!r}?)"
    assert "mae recipes show" in second


@pytest.mark.parametrize(
    ("content", "key", "meant"),
    [
        ("model: {dept: 2}", "model.dept", "model.depth"),
        ("modell: {depth: 2}", "modell", "model"),
        ("model: {optim: {warmup: 0.1}}", "model.optim.warmup", "model.optim.warmup_ratio"),
    ],
)
def test_pretrain_with_an_unknown_key_in_a_file_names_file_and_nearest(
    mae, config, shards, tmp_path, content, key, meant
):
    (tmp_path / "mine.yaml").write_text(content, encoding="utf-8")
    said = mae("pretrain", config, "--data", shards, "--out", "run", "--config", "mine.yaml")
    assert said.status == 1
    first, _ = said.err.splitlines()
    assert first == f"mae: unknown key {key!r} in mine.yaml (did you mean {meant!r}?)"


@pytest.mark.parametrize("content", ["just words", "- a list", "model: [", ""])
def test_pretrain_with_a_file_that_is_no_configuration_names_it(mae, config, shards, content):
    Path("bad.yaml").write_text(content, encoding="utf-8")
    said = mae("pretrain", config, "--data", shards, "--out", "run", "--config", "bad.yaml")
    assert said.status == 1
    assert "bad.yaml" in said.err
    assert "Traceback" not in said.err


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "name a recipe (mae recipes list), or a run with --resume"),
        (["paper/vit-b6"], "unknown recipe 'paper/vit-b6' (did you mean 'paper/vit-b16'?)"),
        (["mine.yaml"], "recipe file mine.yaml does not exist; mae recipes list"),
    ],
)
def test_pretrain_without_a_good_recipe_says_where_they_are(mae, arguments, complaint):
    said = mae("pretrain", *arguments)
    assert said.status == 1
    assert complaint in said.err


@pytest.mark.parametrize("data", [[], ["--data", "nowhere"], ["--images", "nowhere"]])
def test_pretrain_without_data_says_so(mae, config, data):
    said = mae("pretrain", config, "--out", "run", *data)
    assert said.status == 1
    assert ("nowhere" if data else "no images: give --data SHARDS") in said.err
    assert "Traceback" not in said.err


def test_pretrain_on_a_folder_of_images_as_shards_says_to_pack(mae, config, images):
    said = mae("pretrain", config, "--data", images, "--out", "run")
    assert said.status == 1
    assert "mae pack" in said.err


def test_pretrain_into_a_directory_with_a_run_is_refused_and_leaves_it(mae, done, config, shards):
    before = sorted(path for path in done.rglob("*"))
    said = mae("pretrain", config, "--data", shards, "--out", done)
    assert said.status == 1
    assert f"{done} holds a run; choose another" in said.err
    assert sorted(path for path in done.rglob("*")) == before


def test_pretrain_into_a_directory_with_other_files_is_refused(mae, config, shards, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").touch()
    said = mae("pretrain", config, "--data", shards, "--out", "out")
    assert said.status == 1
    assert "out is not empty" in said.err


def test_pretrain_into_a_place_that_cannot_be_written_is_refused_before_the_first_step(
    mae, config, shards, tmp_path
):
    (tmp_path / "file").touch()
    said = mae("pretrain", config, "--data", shards, "--out", "file/run")
    assert said.status == 1
    assert "cannot write to the run directory file/run: Not a directory" in said.err


def test_pretrain_that_diverges_stops_with_a_sentence(mae, config, shards):
    flags = ["--model.optim.blr", "1e30", "--model.optim.warmup_ratio", "0", "--data.steps", "9"]
    said = mae("pretrain", config, "--data", shards, "--out", "run", *flags)
    assert said.status == 1
    complaint = said.err.splitlines()[-1]
    assert "no longer finite at step" in complaint
    assert "lower optim.blr" in complaint


def test_pretrain_refused_before_its_first_step_leaves_the_directory_free(mae, config, gray_shards):
    """Without a val split the channels are compared late, when the files are there already."""
    arguments = [config, "--data", gray_shards, "--out", "run"]
    assert mae("pretrain", *arguments).status == 1
    assert list(Path("run").iterdir()) == []
    assert mae("pretrain", *arguments, "--model.in_chans", "1").status == 0


def test_pretrain_on_sixteen_bit_rectangles_of_one_channel(mae, config, gray_shards):
    flags = ["--model.in_chans", "1", "--model.img_size", "[16,24]", "--model.patch_size", "[8,4]"]
    said = mae("pretrain", config, "--data", gray_shards, "--out", "run", *flags)
    assert said.status == 0
    loaded = load_encoder(Path("run"))
    assert loaded.encoder.img_size == (16, 24)
    assert loaded.spec.dtype == "uint16"
    assert value(Path("run"), "model.img_size") == [16, 24]


def test_pretrain_with_muon_and_two_masks(mae, config, shards):
    flags = ["--model.optim.name", "muon", "--model.masks_per_image", "2", "--data.steps", "2"]
    said = mae("pretrain", config, "--data", shards, "--out", "run", *flags)
    assert said.status == 0
    assert "2 steps of 8 masked images (4 images x 2 masks" in said.out
    assert "Muon 0.003 -> " in said.out


def test_pretrain_on_images_with_one_unreadable_counts_it(mae, config, tmp_path):
    folder = tmp_path / "images"
    folder.mkdir()
    for number in range(120):
        pixels = np.full((16, 16, 3), number, dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    (folder / "broken.png").write_bytes((folder / "0.png").read_bytes()[:40])
    said = mae("pretrain", config, "--images", folder, "--out", "run")
    assert said.status == 0
    shards = Path(value(Path("run"), "data.data_dir"))
    assert "broken.png" in (shards / "left_out.csv").read_text(encoding="utf-8")
    assert "left out: 1 x " in said.out  # said, not only written down
