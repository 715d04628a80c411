"""Sizes of the paper's models, counted without allocating them."""

from __future__ import annotations

import pytest
import torch

from mae.presets import build_preset


@pytest.mark.parametrize(
    ("preset", "encoder_count", "total"),
    [
        ("vit_base_patch16", 85_798_656, 111_907_840),
        ("vit_large_patch16", 303_301_632, 329_541_888),
        ("vit_huge_patch14", 630_764_800, 657_074_508),
    ],
)
def test_build_preset_of_the_paper_has_the_published_number_of_parameters(
    preset, encoder_count, total
):
    with torch.device("meta"):
        model = build_preset(preset)
    counts = {name: p.numel() for name, p in model.named_parameters()}
    assert sum(counts.values()) == total
    assert sum(n for name, n in counts.items() if name.startswith("encoder.")) == encoder_count
    frozen = {name for name, p in model.named_parameters() if not p.requires_grad}
    assert frozen == {"encoder.pos_embed", "decoder.decoder_pos_embed"}


def test_build_preset_base_encoder_has_the_tensors_of_a_timm_vit():
    with torch.device("meta"):
        model = build_preset("vit_base_patch16")
    assert len(model.encoder.state_dict()) == 150
