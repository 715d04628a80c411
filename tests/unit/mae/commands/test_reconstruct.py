from __future__ import annotations

import json

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

from datamodules.manifest import Manifest
from datamodules.pack import pack
from mae.commands.reconstruct import reconstruct
from mae.errors import ConfigError, DataError, WeightsError
from mae.model import MaskedAutoencoder
from mae.weights import checkpoint_header

ARCHITECTURE = {
    "img_size": [16, 16],
    "patch_size": 4,
    "in_chans": 3,
    "embed_dim": 16,
    "depth": 1,
    "num_heads": 2,
    "mlp_ratio": 2.0,
    "decoder_embed_dim": 16,
    "decoder_depth": 1,
    "decoder_num_heads": 2,
    "mask_ratio": 0.75,
    "norm_pix_loss": True,
}


def shards(folder, splits):
    """Pack noise images into splits of the given sizes."""
    random = np.random.default_rng(0)
    for split, count in splits.items():
        (folder / "images" / split).mkdir(parents=True)
        for i in range(count):
            pixels = random.integers(0, 256, (20, 20, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / "images" / split / f"{split}{i}.png")
    pack(folder / "images", folder / "shards", split="folders")
    return folder / "shards"


def run_on(folder, data):
    """Write a run directory with one checkpoint and a configuration that names `data`."""
    run = folder / "run"
    (run / "checkpoints").mkdir(parents=True)
    torch.manual_seed(0)
    state = MaskedAutoencoder(**ARCHITECTURE).state_dict()
    header = checkpoint_header(
        architecture=ARCHITECTURE,
        spec=Manifest.load(data).spec,
        step=3,
        samples_seen=192,
        recipe="",
    )
    content = {
        "state_dict": {f"model.{name}": value for name, value in state.items()},
        "global_step": 3,
        "domain_mae": header,
    }
    torch.save(content, run / "checkpoints" / "step-00000003.ckpt")
    (run / "config.yaml").write_text(yaml.safe_dump({"data": {"data_dir": str(data)}}))
    return run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reconstruct")
    return run_on(folder, shards(folder, {"train": 6, "val": 4, "test": 3}))


@pytest.fixture(scope="module")
def run_without_val(tmp_path_factory):
    folder = tmp_path_factory.mktemp("no-val")
    return run_on(folder, shards(folder, {"train": 6}))


def numbers_of(path):
    return json.loads(path.with_suffix(".json").read_text())


def test_reconstruct_default_shows_validation_images(run, capsys):
    path = reconstruct(str(run), num_images=3)
    assert path == run / "reconstruct" / "val-mask75-seed0.png"
    numbers = numbers_of(path)
    assert len(numbers["images"]) == 3
    assert all(image["name"].startswith("val") for image in numbers["images"])
    assert numbers["warning"] == ""
    with Image.open(path) as picture:
        assert picture.text["Description"].startswith(
            "Reconstruction of 3 images of split val, 75 % of the patches removed"
        )
    printed = capsys.readouterr().out
    assert "filling with the interpolated mean" in printed
    assert str(path) in printed
    assert str(path.with_suffix(".json")) in printed


def test_reconstruct_again_gives_the_same_bytes(run):
    first = reconstruct(str(run), num_images=2, seed=5)
    before = first.read_bytes(), first.with_suffix(".json").read_bytes()
    second = reconstruct(str(run), num_images=2, seed=5)
    assert first == second
    assert (second.read_bytes(), second.with_suffix(".json").read_bytes()) == before


def test_reconstruct_other_options_get_other_files(run):
    paths = {
        reconstruct(str(run), num_images=1, **options)
        for options in (
            {"split": "test"},
            {"mask_ratio": 0.5},
            {"statistics": "target"},
            {"seed": 1},
        )
    }
    assert {path.stem for path in paths} == {
        "test-mask75-seed0",
        "val-mask50-seed0",
        "val-mask75-seed0-target-statistics",
        "val-mask75-seed1",
    }


def test_reconstruct_mask_ratio_changes_what_is_removed(run, tmp_path):
    few, many = (
        numbers_of(reconstruct(str(run), mask_ratio=ratio, out=str(tmp_path / f"{ratio}.png")))
        for ratio in (0.25, 0.75)
    )
    assert [image["name"] for image in few["images"]] == [i["name"] for i in many["images"]]
    assert few["mean"] != many["mean"]


def test_reconstruct_from_a_checkpoint_writes_into_its_run(run):
    checkpoint = run / "checkpoints" / "step-00000003.ckpt"
    path = reconstruct(str(checkpoint), num_images=1)
    assert path.resolve() == (run / "reconstruct" / "val-mask75-seed0.png").resolve()


def test_reconstruct_without_val_and_test_warns_loudly(run_without_val, capsys):
    path = reconstruct(str(run_without_val), num_images=1)
    assert path.name.startswith("train-")
    assert "The model was trained on these images" in numbers_of(path)["warning"]
    assert "The model was trained on these images" in capsys.readouterr().out


def test_reconstruct_train_split_of_other_shards_may_have_been_trained_on(
    run, run_without_val, tmp_path
):
    data = str(run_without_val.parent / "shards")
    path = reconstruct(str(run), data=data, num_images=1, out=str(tmp_path / "x.png"))
    assert "may have been trained on" in numbers_of(path)["warning"]


def test_reconstruct_missing_split_is_refused(run_without_val):
    with pytest.raises(DataError, match="no samples in split 'val'"):
        reconstruct(str(run_without_val), split="val")


def test_reconstruct_other_pixels_are_refused(run, tmp_path):
    (tmp_path / "images").mkdir()
    for i in range(2):
        pixels = np.full((16, 16), 1000 * i, np.uint16)
        Image.fromarray(pixels).save(tmp_path / "images" / f"{i}.png")
    pack(tmp_path / "images", tmp_path / "shards")
    with pytest.raises(DataError, match="pixels do not mean the same"):
        reconstruct(str(run), data=str(tmp_path / "shards"))


def test_reconstruct_run_whose_shards_are_unknown_asks_for_them(run, tmp_path):
    checkpoint = tmp_path / "lonely.ckpt"
    checkpoint.write_bytes((run / "checkpoints" / "step-00000003.ckpt").read_bytes())
    with pytest.raises(DataError, match="name them with --data"):
        reconstruct(str(checkpoint))


def test_reconstruct_missing_run_is_refused(tmp_path):
    with pytest.raises(WeightsError, match="does not exist"):
        reconstruct(str(tmp_path / "nowhere"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_images": 0}, "num_images is 0; allowed: 1 or more"),
        ({"out": "picture.jpg"}, r"give a file that ends in \.png"),
        ({"mask_ratio": 1.0}, "mask_ratio is 1.0; allowed"),
    ],
)
def test_reconstruct_impossible_option_is_refused(run, options, message):
    with pytest.raises(ConfigError, match=message):
        reconstruct(str(run), **options)
