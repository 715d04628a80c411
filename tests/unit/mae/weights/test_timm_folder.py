from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from timm.data import create_transform, resolve_model_data_config

from mae.encoder import Encoder
from mae.errors import WeightsError
from mae.files import atomic_folder
from mae.spec import ImageSpec
from mae.weights import (
    load_encoder,
    measure_parity,
    require_parity,
    save_timm_folder,
)
from mae.weights.timm_folder import timm_mean_std

INFO = {"step": 10, "samples_seen": 640, "recipe": "demo/satellite-cpu"}


@pytest.fixture
def folder(tmp_path, model, spec):
    with atomic_folder(tmp_path / "timm") as temporary:
        save_timm_folder(temporary, model.encoder, spec, info=INFO)
    return tmp_path / "timm"


def images(batch: int = 3) -> torch.Tensor:
    return torch.randn(batch, 2, 16, 24, generator=torch.Generator().manual_seed(0))


def largest(difference: torch.Tensor) -> float:
    return difference.abs().max().item()


@torch.inference_mode()
def test_save_timm_folder_timm_gives_the_same_tokens(folder, model):
    theirs = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    assert largest(theirs.forward_features(images()) - model.encode(images())) <= 1e-5
    assert largest(theirs(images()) - model.encode(images())[:, 0]) <= 1e-5  # token pooling


@torch.inference_mode()
def test_save_timm_folder_mean_pooling_keeps_the_pretrained_norm_with_fc_norm_false(folder, model):
    theirs = timm.create_model(
        f"local-dir:{folder}", pretrained=True, global_pool="avg", fc_norm=False
    ).eval()
    assert largest(theirs(images()) - model.encode(images())[:, 1:].mean(1)) <= 1e-5


@torch.inference_mode()
def test_save_timm_folder_with_a_new_head_keeps_the_encoder(folder, model):
    theirs = timm.create_model(f"local-dir:{folder}", pretrained=True, num_classes=7).eval()
    assert theirs(images()).shape == (3, 7)
    assert largest(theirs.forward_features(images()) - model.encode(images())) <= 1e-5


@torch.inference_mode()
@pytest.mark.parametrize("in_chans", [1, 3, 13])
@pytest.mark.parametrize(("img_size", "patch_size"), [(32, 8), ((16, 48), (4, 16))])
def test_save_timm_folder_any_size_and_channels_is_equal(tmp_path, in_chans, img_size, patch_size):
    torch.manual_seed(0)
    encoder = Encoder(
        img_size=img_size,
        patch_size=patch_size,
        in_chans=in_chans,
        embed_dim=24,
        depth=1,
        num_heads=3,
    ).eval()
    spec = ImageSpec(
        channels=tuple(f"band {i}" for i in range(in_chans)),
        dtype="uint16",
        mean=(100.0,) * in_chans,
        std=(10.0,) * in_chans,
        value_range=(0.0, 65535.0),
    )
    save_timm_folder(tmp_path, encoder, spec, info={})
    batch = torch.randn(2, in_chans, *encoder.img_size)
    parity = measure_parity(tmp_path, encoder, {"random": batch})
    require_parity(parity)
    assert parity["compared"]["random"]["num_images"] == 2
    assert parity["compared"]["random"]["max_abs_difference"].keys() == {"tokens", "cls", "mean"}


def test_save_timm_folder_timms_own_transform_normalises_as_we_do(tmp_path):
    encoder = Encoder(img_size=16, patch_size=8, in_chans=3, embed_dim=8, depth=1, num_heads=1)
    spec = ImageSpec(
        channels=("red", "green", "blue"),
        dtype="uint8",
        mean=(51.0, 102.0, 12.75),
        std=(25.5, 5.1, 76.5),
        value_range=(0.0, 255.0),
    )
    save_timm_folder(tmp_path, encoder, spec, info={})
    theirs = timm.create_model(f"local-dir:{tmp_path}", pretrained=True)
    config = resolve_model_data_config(theirs)
    pixels = np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8)
    found = create_transform(**config, is_training=False)(Image.fromarray(pixels))

    expected = (pixels.astype(np.float64) - spec.mean) / spec.std
    assert config["input_size"] == (3, 16, 16)
    assert np.allclose(found.permute(1, 2, 0).numpy(), expected, atol=1e-5)


def test_timm_mean_std_other_depths_stay_in_stored_units(spec):
    assert timm_mean_std(spec) == ([0.2, 0.4], [0.1, pytest.approx(0.02)])
    wide = dataclasses.replace(spec, dtype="uint16")
    assert timm_mean_std(wide) == ([51.0, 102.0], [25.5, 5.1])


def test_card_names_channels_units_and_how_to_load(folder):
    text = (folder / "README.md").read_text(encoding="utf-8")
    assert 'timm.create_model("local-dir:DIR", pretrained=True)' in text
    assert "| near | 51 | 25.5 |" in text
    assert "divided by 255" in text
    assert "demo/satellite-cpu" in text
    assert str(folder) not in text


def test_card_of_another_depth_says_that_pixels_are_not_divided(tmp_path, model, spec):
    wide = dataclasses.replace(spec, dtype="uint16", unit="reflectance", scale=1e-4, nodata=0.0)
    save_timm_folder(tmp_path, model.encoder, wide, info={})
    text = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert "without dividing the pixels first" in text
    assert "Physical value = stored x 0.0001 + 0 reflectance." in text
    assert "0 marks missing pixels." in text


def test_require_parity_other_weights_are_refused(folder, model):
    with torch.no_grad():
        model.encoder.norm.bias.add_(2e-5)
    parity = measure_parity(folder, model.encoder.eval(), {"random": images()})
    with pytest.raises(WeightsError, match=r"differ from the encoder's by .* on random images"):
        require_parity(parity)


def test_require_parity_not_a_number_is_refused(folder, model):
    with torch.no_grad():
        model.encoder.norm.bias[0] = float("nan")
    parity = measure_parity(folder, model.encoder.eval(), {"random": images()})
    with pytest.raises(WeightsError, match="nan on random images"):
        require_parity(parity)


def test_load_encoder_folder_of_others_is_refused_by_name(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"architecture": "vit_base_patch16_224"}))
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(WeightsError, match="has no 'domain_mae' entry"):
        load_encoder(tmp_path)


def test_load_encoder_folder_whose_files_were_mixed_up_is_refused(folder):
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["domain_mae"]["image_spec"]["mean"] = [0.0, 0.0]
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(WeightsError, match="describes other weights"):
        load_encoder(folder)
