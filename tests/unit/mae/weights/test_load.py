from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest
import torch

from mae.encoder import Encoder
from mae.errors import DataError, WeightsError
from mae.files import atomic_folder
from mae.model import MaskedAutoencoder
from mae.weights import (
    init_from,
    load_encoder,
    load_run,
    save_encoder,
    save_timm_folder,
)


def equal_states(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    first, second = one.state_dict(), other.state_dict()
    return first.keys() == second.keys() and all(torch.equal(first[n], second[n]) for n in first)


@pytest.fixture(params=["run", "checkpoint", "encoder file", "timm folder"])
def source(request, run, model, spec, tmp_path) -> Path:
    """Return the same encoder in each format that `load_encoder` reads."""
    if request.param == "run":
        return run
    if request.param == "checkpoint":
        return run / "checkpoints" / "step-00000010.ckpt"
    if request.param == "encoder file":
        path = tmp_path / "any" / "encoder.safetensors"
        return save_encoder(path, model.encoder, spec, info={"step": 10, "samples_seen": 640})
    folder = tmp_path / "timm"
    with atomic_folder(folder) as temporary:
        info = {"step": 10, "samples_seen": 640}
        save_timm_folder(temporary, model.encoder, spec, info=info)
    return folder


def test_load_encoder_every_format_gives_the_same_tensors_spec_and_counts(source, model, spec):
    loaded = load_encoder(source)
    assert equal_states(loaded.encoder, model.encoder)
    assert loaded.spec == spec
    assert loaded.info["step"] == 10
    assert loaded.info["samples_seen"] == 640
    assert not loaded.encoder.training
    assert "encoder 30/30" in loaded.info["report"]


def test_load_run_of_a_run_gives_model_spec_and_counts_in_eval_mode(run, model, spec):
    loaded = load_run(run)
    assert equal_states(loaded.model, model)
    assert loaded.spec == spec
    assert loaded.info["recipe"] == "demo/satellite-cpu"
    assert not loaded.model.training
    assert loaded.model.mask_ratio == 0.5
    assert "encoder 30/30, decoder 20/20" in loaded.info["report"]


def test_load_run_weights_survive_the_removal_of_their_file(run, model):
    loaded = load_run(run)
    (run / "checkpoints" / "step-00000010.ckpt").write_bytes(b"")  # they must not stay mapped
    assert equal_states(loaded.model, model)


def test_load_run_takes_the_checkpoint_with_most_steps_whatever_its_name_and_age(run, content):
    newest = run / "checkpoints" / "a.ckpt"
    torch.save(content(step=200), newest)
    torch.save(content(step=30), run / "checkpoints" / "z.ckpt")
    os.utime(newest, (0, 0))
    assert load_run(run).info["step"] == 200


def test_load_run_skips_broken_checkpoints_and_says_so(run, content, caplog):
    good = (run / "checkpoints" / "step-00000010.ckpt").read_bytes()
    (run / "checkpoints" / "step-00000020.ckpt").write_bytes(good[: len(good) // 2])
    torch.save(content(step=30), run / "checkpoints" / "step-00000030.ckpt")
    flipped = bytearray((run / "checkpoints" / "step-00000030.ckpt").read_bytes())
    flipped[len(flipped) // 2] ^= 1  # in the middle of a tensor: only the checksum knows
    (run / "checkpoints" / "step-00000030.ckpt").write_bytes(flipped)

    assert load_run(run).info["step"] == 10
    assert "step-00000020.ckpt" in caplog.text
    assert "step-00000030.ckpt is damaged: the checksum" in caplog.text


def test_load_run_without_a_good_checkpoint_counts_what_is_there(run):
    (run / "checkpoints" / "step-00000010.ckpt").write_bytes(b"nothing")
    with pytest.raises(WeightsError, match=r"no good checkpoint in .*1 \*\.ckpt files, 1 of them"):
        load_run(run)


def test_load_run_of_an_encoder_only_is_refused(run, model, spec, tmp_path):
    file = save_encoder(tmp_path / "e.safetensors", model.encoder, spec, info={})
    with pytest.raises(WeightsError, match="encoder without a decoder, which cannot reconstruct"):
        load_run(file)


def test_load_run_directory_with_an_encoder_file_only_asks_for_a_run(tmp_path, model, spec):
    save_encoder(tmp_path / "encoder" / "encoder.safetensors", model.encoder, spec, info={})
    with pytest.raises(WeightsError, match="neither a run directory"):
        load_run(tmp_path)
    assert equal_states(load_encoder(tmp_path).encoder, model.encoder)


def test_load_encoder_missing_path_says_what_to_give(tmp_path):
    with pytest.raises(WeightsError, match="does not exist; give a run directory or a file"):
        load_encoder(tmp_path / "nothing")


def change_state(content, change):
    made = content()
    change(made["state_dict"])
    return made


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.pop("model.encoder.norm.bias"), r"29/30 tensors fit; 1 missing: norm\.bias"),
        (
            lambda s: s.update({"model.encoder.blocks.9.norm1.bias": torch.zeros(32)}),
            r"1 not known to this architecture: blocks\.9\.norm1\.bias",
        ),
        (
            lambda s: s.update({"model.encoder.norm.bias": torch.zeros(31)}),
            r"1 of another shape: norm\.bias 31 in the file, 32 here",
        ),
        (
            lambda s: [s.pop(k) for k in list(s) if "encoder.blocks.1" in k],
            r"18/30 tensors fit; 12 missing: blocks\.1\.attn\.proj\.bias, .* and 7 more",
        ),
        (
            lambda s: [s.update({f"module.net.{k}": s.pop(k)}) for k in list(s)],
            r"0 of 50 tensors belong to a known encoder; looked for 'model\.encoder\.cls_token'",
        ),
    ],
    ids=["one missing", "one left over", "shape", "a block missing", "wrong prefix"],
)
def test_load_encoder_tensors_that_do_not_fit_are_counted_and_named(
    tmp_path, content, change, message
):
    path = tmp_path / "x.ckpt"
    torch.save(change_state(content, change), path)
    with pytest.raises(WeightsError, match=message):
        load_encoder(path)


def test_load_encoder_head_of_a_classifier_is_left_aside_and_said(tmp_path, content):
    head = {"model.head.weight": torch.zeros(5, 32), "model.head.bias": torch.zeros(5)}
    path = tmp_path / "x.ckpt"
    torch.save(change_state(content, lambda state: state.update(head)), path)
    assert "encoder 30/30, decoder 20 ignored, head 2 ignored" in load_encoder(path).info["report"]


def test_init_from_whole_model_takes_encoder_and_decoder(run, model, spec, architecture):
    fresh = MaskedAutoencoder(**architecture)
    report = init_from(run, fresh, spec=spec)
    assert equal_states(fresh, model)
    assert str(report).startswith("encoder 30/30, decoder 20/20 (")


def test_init_from_encoder_file_keeps_a_fresh_decoder_and_says_so(
    tmp_path, model, spec, architecture
):
    file = save_encoder(tmp_path / "e.safetensors", model.encoder, spec, info={})
    fresh = MaskedAutoencoder(**architecture)
    before = {name: tensor.clone() for name, tensor in fresh.decoder.state_dict().items()}
    report = str(init_from(file, fresh))
    assert "encoder 30/30; the decoder is new: the file has none" in report
    assert equal_states(fresh.encoder, model.encoder)
    assert all(torch.equal(before[n], t) for n, t in fresh.decoder.state_dict().items())


@pytest.mark.parametrize(
    "changes",
    [{"decoder_depth": 2}, {"decoder_embed_dim": 32}, {"decoder_num_heads": 4}],
    ids=lambda changes: next(iter(changes)),
)
def test_init_from_another_decoder_keeps_the_fresh_one_and_says_so(
    run, model, architecture, changes
):
    fresh = MaskedAutoencoder(**(architecture | changes))
    report = str(init_from(run, fresh))
    assert "decoder 20 ignored" in report
    assert "the decoder is new: the file's has another architecture" in report
    assert equal_states(fresh.encoder, model.encoder)


def test_init_from_into_an_encoder_keeps_its_mode(run, model):
    encoder = Encoder(
        img_size=(16, 24),
        patch_size=8,
        in_chans=2,
        embed_dim=32,
        depth=2,
        num_heads=4,
        mlp_ratio=2.0,
    )
    report = str(init_from(run, encoder))
    assert "encoder 30/30, decoder 20 ignored" in report
    assert encoder.training
    assert equal_states(encoder, model.encoder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"img_size": (24, 16)}, r"img_size is \[16, 24\] in the file and \[24, 16\] in the model"),
        ({"patch_size": 4}, r"patch_size is \[8, 8\] in the file and \[4, 4\] in the model"),
        ({"in_chans": 3}, "in_chans is 2 in the file and 3 in the model"),
        ({"num_heads": 2}, "num_heads is 4 in the file and 2 in the model"),
        ({"depth": 3}, "depth is 2 in the file and 3 in the model"),
        ({"mlp_ratio": 4.0}, r"mlp_ratio is 2\.0 in the file and 4\.0 in the model"),
    ],
)
def test_init_from_another_architecture_names_both_sides_and_changes_nothing(
    run, architecture, changes, message
):
    fresh = MaskedAutoencoder(**(architecture | changes))
    before = {name: tensor.clone() for name, tensor in fresh.state_dict().items()}
    with pytest.raises(WeightsError, match=message):
        init_from(run, fresh)
    assert all(torch.equal(before[n], t) for n, t in fresh.state_dict().items())


def test_init_from_images_of_another_meaning_is_refused(run, architecture, spec):
    other = dataclasses.replace(spec, channels=("far", "near"))
    with pytest.raises(DataError, match=r"channels: .* in weights .* in these images"):
        init_from(run, MaskedAutoencoder(**architecture), spec=other)
