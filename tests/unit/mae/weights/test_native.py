from __future__ import annotations

import json
import struct

import pytest
import torch
from safetensors.torch import load_file, save_file

from mae.errors import WeightsError
from mae.weights import load_encoder, save_encoder


def header_of(path):
    """Read a safetensors header by the format's own description, without the library."""
    content = path.read_bytes()
    (size,) = struct.unpack("<Q", content[:8])
    return json.loads(content[8 : 8 + size])["__metadata__"]


def test_save_encoder_header_says_what_the_file_is(tmp_path, model, spec):
    info = {"step": 5, "samples_seen": 320, "recipe": "demo/satellite-cpu"}
    path = save_encoder(tmp_path / "encoder.safetensors", model.encoder, spec, info=info)
    header = json.loads(header_of(path)["domain_mae"])
    assert header["format"] == 1
    assert header["architecture"] == {
        "img_size": [16, 24],
        "patch_size": [8, 8],
        "in_chans": 2,
        "embed_dim": 32,
        "depth": 2,
        "num_heads": 4,
        "mlp_ratio": 2.0,
    }
    assert header["image_spec"] == spec.to_dict()
    assert header["norm"] == "norm"
    assert header["poolings"] == ["cls", "mean"]
    assert header["pos_embed"] == {"flavour": "sincos_2d", "grid": [2, 3]}
    assert header["recipe"] == "demo/satellite-cpu"
    assert (header["step"], header["samples_seen"]) == (5, 320)
    assert "version" in header


def test_save_encoder_trained_position_table_is_called_learned(tmp_path, model, spec):
    with torch.no_grad():
        model.encoder.pos_embed.add_(0.01)
    path = save_encoder(tmp_path / "e.safetensors", model.encoder, spec, info={})
    assert json.loads(header_of(path)["domain_mae"])["pos_embed"]["flavour"] == "learned"


def test_save_encoder_half_precision_is_written_as_float32(tmp_path, model, spec):
    path = save_encoder(tmp_path / "e.safetensors", model.encoder.bfloat16(), spec, info={})
    assert {tensor.dtype for tensor in load_file(path).values()} == {torch.float32}


def test_load_encoder_plain_safetensors_says_that_its_meaning_is_unknown(tmp_path):
    path = tmp_path / "x.safetensors"
    save_file({"cls_token": torch.zeros(1, 1, 4)}, path)
    with pytest.raises(WeightsError, match="1 tensors but no 'domain_mae' header"):
        load_encoder(path)


def test_load_encoder_truncated_safetensors_is_refused(tmp_path, model, spec):
    path = save_encoder(tmp_path / "e.safetensors", model.encoder, spec, info={})
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(WeightsError, match="cannot be read as safetensors"):
        load_encoder(path)


def test_load_encoder_header_that_is_no_json_is_refused(tmp_path):
    path = tmp_path / "x.safetensors"
    save_file({"cls_token": torch.zeros(1, 1, 4)}, path, {"domain_mae": "{"})
    with pytest.raises(WeightsError, match="header is not JSON"):
        load_encoder(path)
