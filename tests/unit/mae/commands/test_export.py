from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
import yaml
from PIL import Image

from datamodules.manifest import Manifest
from datamodules.pack import pack
from mae.commands.export import export
from mae.commands.run_paths import run_directory_of
from mae.errors import DataError, WeightsError
from mae.model import MaskedAutoencoder
from mae.weights import checkpoint_header, load_encoder, save_encoder

ARCHITECTURE = {
    "img_size": (16, 24),
    "patch_size": 8,
    "in_chans": 3,
    "embed_dim": 32,
    "depth": 2,
    "num_heads": 4,
    "mlp_ratio": 4.0,
    "decoder_embed_dim": 16,
    "decoder_depth": 1,
    "decoder_num_heads": 2,
}


@pytest.fixture(scope="module")
def shards(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("export")
    (folder / "images").mkdir()
    random = np.random.default_rng(0)
    for number in range(12):
        pixels = random.integers(0, 256, (20, 30, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / "images" / f"{number}.png")
    pack(folder / "images", folder / "shards", val_fraction=0.3)
    return folder / "shards"


@pytest.fixture
def run(tmp_path, shards) -> Path:
    torch.manual_seed(0)
    model = MaskedAutoencoder(**ARCHITECTURE)
    folder = tmp_path / "run"
    (folder / "checkpoints").mkdir(parents=True)
    header = checkpoint_header(
        architecture=ARCHITECTURE,
        spec=Manifest.load(shards).spec,
        step=3,
        samples_seen=192,
        recipe="demo/satellite-cpu",
    )
    state = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    torch.save(
        {"state_dict": state, "domain_mae": header}, folder / "checkpoints" / "step-00000003.ckpt"
    )
    config = {"data": {"data_dir": str(shards)}}
    (folder / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    return folder


def test_export_run_writes_the_folder_and_its_proof_and_prints_how_to_load(run, capsys):
    folder = export(str(run))
    assert folder == run / "encoder" / "timm"
    assert sorted(path.name for path in folder.iterdir()) == [
        "README.md",
        "config.json",
        "model.safetensors",
        "parity.json",
    ]
    parity = json.loads((folder / "parity.json").read_text(encoding="utf-8"))
    assert parity["tolerance"] == 1e-5
    assert parity["dtype"] == "float32"
    assert parity["compared"].keys() == {"real", "random"}
    for measured in parity["compared"].values():
        assert measured["num_images"] > 0
        assert measured["max_abs_difference"].keys() == {"tokens", "cls", "mean"}
        assert max(measured["max_abs_difference"].values()) <= 1e-5
    assert parity["versions"]["timm"] == timm.__version__

    printed = capsys.readouterr().out
    assert f'timm.create_model("local-dir:{folder}", pretrained=True)' in printed
    assert "encoder 30/30" in printed
    assert "real images: largest difference" in printed


def test_export_run_loads_in_timm_with_statistics_scaled_for_its_transforms(run, shards):
    theirs = timm.create_model(f"local-dir:{export(str(run))}", pretrained=True).eval()
    spec = Manifest.load(shards).spec
    assert theirs.pretrained_cfg["mean"] == pytest.approx([m / 255 for m in spec.mean])
    images = torch.randn(2, 3, 16, 24)
    with torch.inference_mode():
        difference = theirs.forward_features(images) - load_encoder(run).encoder(images)
    assert difference.abs().max() <= 1e-5


def test_export_its_own_result_comes_back_bitwise(run, tmp_path):
    again = export(str(export(str(run))), out=str(tmp_path / "again"))
    ours, theirs = load_encoder(run).encoder.state_dict(), load_encoder(again).encoder.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert load_encoder(again).info["samples_seen"] == 192


def test_export_existing_folder_is_kept_unless_overwritten(run):
    folder = export(str(run))
    (folder / "mine").write_text("")
    with pytest.raises(
        WeightsError, match="exists already; choose another --out, or add --overwrite"
    ):
        export(str(run))
    assert (folder / "mine").exists()
    export(str(run), overwrite=True)
    assert not (folder / "mine").exists()


def test_export_features_that_differ_are_refused_and_nothing_is_left(run, monkeypatch):
    import mae.weights.timm_folder as timm_folder

    def changed(encoder):
        tensors = original(encoder)
        tensors["norm.bias"] += 1e-3
        return tensors

    original = timm_folder.encoder_tensors
    monkeypatch.setattr(timm_folder, "encoder_tensors", changed)
    with pytest.raises(WeightsError, match=r"differ from the encoder's by 0\.001 on real images"):
        export(str(run))
    assert list((run / "encoder").iterdir()) == []


def test_export_run_whose_data_moved_says_that_only_random_images_were_compared(
    run, tmp_path, capsys
):
    config = {"data": {"data_dir": str(tmp_path / "gone")}}
    (run / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    folder = export(str(run))
    assert "comparing on random images only" in capsys.readouterr().out
    parity = json.loads((folder / "parity.json").read_text(encoding="utf-8"))
    assert parity["compared"].keys() == {"random"}


def test_export_named_data_that_are_missing_are_an_error(run, tmp_path):
    with pytest.raises(DataError, match="does not exist"):
        export(str(run), data=str(tmp_path / "gone"))
    assert not (run / "encoder").exists()


def test_export_encoder_file_outside_a_run_needs_out(run, tmp_path, shards):
    loaded = load_encoder(run)
    file = tmp_path / "weights" / "e.safetensors"
    save_encoder(file, loaded.encoder, loaded.spec, info={"step": 3})
    with pytest.raises(WeightsError, match="lies in no run directory; say with --out"):
        export(str(file))
    folder = export(str(file), out=str(tmp_path / "out"), data=str(shards))
    assert (folder / "parity.json").is_file()


def test_export_missing_run_says_so(tmp_path):
    with pytest.raises(WeightsError, match="does not exist"):
        export(str(tmp_path / "nothing"))


def test_run_directory_of_every_path_inside_a_run_is_the_run(run):
    folder = export(str(run))
    inside = [run, run / "checkpoints" / "step-00000003.ckpt", folder, folder / "model.safetensors"]
    assert [run_directory_of(path) for path in inside] == [run] * 4
    shutil.copytree(folder, run.parent / "elsewhere")
    assert run_directory_of(run.parent / "elsewhere") is None
