from __future__ import annotations

import pytest
import torch

from mae.errors import ConfigError
from mae.presets import PRESETS, build_preset


@pytest.mark.parametrize("name", PRESETS)
def test_build_preset_any_name_has_heads_that_divide_and_patches_of_its_name(name):
    with torch.device("meta"):
        model = build_preset(name)
    assert name.endswith(f"patch{model.encoder.patch_size[0]}")
    assert model.encoder.norm.eps == model.decoder.decoder_norm.eps == 1e-6
    assert model.mask_ratio == 0.75
    assert model.norm_pix_loss


@pytest.mark.parametrize(
    ("name", "encoder", "decoder"),
    [
        ("vit_base_patch16", (768, 12, 12), (512, 8, 16)),
        ("vit_large_patch16", (1024, 24, 16), (512, 8, 16)),
        ("vit_huge_patch14", (1280, 32, 16), (512, 8, 16)),
    ],
)
def test_presets_of_the_paper_have_its_constants(name, encoder, decoder):
    settings = PRESETS[name]
    assert (settings["embed_dim"], settings["depth"], settings["num_heads"]) == encoder
    assert (
        settings["decoder_embed_dim"],
        settings["decoder_depth"],
        settings["decoder_num_heads"],
    ) == decoder


def test_build_preset_options_reach_the_model():
    with torch.device("meta"):
        model = build_preset(
            "vit_micro_patch16", img_size=(32, 64), in_chans=5, mask_ratio=0.5, norm_pix_loss=False
        )
    assert model.encoder.img_size == (32, 64)
    assert model.encoder.in_chans == 5
    assert model.mask_ratio == 0.5
    assert not model.norm_pix_loss


def test_build_preset_typo_names_the_nearest():
    with pytest.raises(ConfigError, match="did you mean 'vit_base_patch16'"):
        build_preset("vit_base_path16")


def test_presets_cannot_be_changed_by_accident():
    with pytest.raises(TypeError):
        PRESETS["vit_base_patch16"]["depth"] = 3
