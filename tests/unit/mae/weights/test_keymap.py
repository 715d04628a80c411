from __future__ import annotations

import pytest
import torch

from mae.errors import WeightsError
from mae.weights.keymap import split_parts

HERE = torch.zeros(1)


@pytest.mark.parametrize("prefix", ["model.", ""])
def test_split_parts_of_a_masked_autoencoder_takes_both_parts(prefix):
    names = ["encoder.cls_token", "encoder.norm.bias", "decoder.mask_token"]
    parts = split_parts({prefix + name: HERE for name in names}, source="x")
    assert set(parts.encoder) == {"cls_token", "norm.bias"}
    assert set(parts.decoder) == {"mask_token"}
    assert parts.ignored == {}


def test_split_parts_of_a_timm_vit_leaves_its_head_aside():
    names = ["cls_token", "blocks.0.norm1.bias", "head.weight", "head.bias"]
    parts = split_parts(dict.fromkeys(names, HERE), source="x")
    assert set(parts.encoder) == {"cls_token", "blocks.0.norm1.bias"}
    assert parts.decoder == {}
    assert parts.ignored == {"head": 2}


def test_split_parts_foreign_tensors_beside_the_model_are_counted():
    names = ["model.encoder.cls_token", "val_means.loss.total"]
    assert split_parts(dict.fromkeys(names, HERE), source="x").ignored == {"other": 1}


def test_split_parts_without_an_encoder_says_what_was_looked_for_and_found():
    with pytest.raises(WeightsError, match=r"x: 0 of 1 tensors .* found vit\.cls"):
        split_parts({"vit.cls": HERE}, source="x")
    with pytest.raises(WeightsError, match=r"0 of 0 tensors .* found none"):
        split_parts({}, source="x")
