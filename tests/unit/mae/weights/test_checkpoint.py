from __future__ import annotations

import pickle

import pytest
import torch

from mae.errors import WeightsError
from mae.weights import load_encoder, read_checkpoint


class Payload:
    """Runs a command when it is unpickled."""

    def __init__(self, witness):
        self.witness = witness

    def __reduce__(self):
        import os

        return os.mkdir, (str(self.witness),)


def test_read_checkpoint_foreign_object_is_refused_and_nothing_runs(tmp_path, content):
    path, witness = tmp_path / "x.ckpt", tmp_path / "it-ran"
    torch.save(content(extra=Payload(witness)), path)
    with pytest.raises(WeightsError, match=r"holds objects other than tensors.*\(posix\.mkdir\)"):
        read_checkpoint(path)
    assert not witness.exists()


def test_read_checkpoint_plain_pickle_is_refused_and_nothing_runs(tmp_path):
    path, witness = tmp_path / "x.ckpt", tmp_path / "it-ran"
    path.write_bytes(pickle.dumps(Payload(witness)))
    for verify in (True, False):
        with pytest.raises(WeightsError):
            read_checkpoint(path, verify=verify)
    assert not witness.exists()


@pytest.mark.parametrize("kept", [0, 100, 0.5, 0.999])
def test_read_checkpoint_truncated_file_is_refused(tmp_path, content, kept):
    path = tmp_path / "x.ckpt"
    torch.save(content(), path)
    whole = path.read_bytes()
    path.write_bytes(whole[: kept if isinstance(kept, int) else int(kept * len(whole))])
    for verify in (True, False):
        with pytest.raises(WeightsError, match=r"x\.ckpt"):
            read_checkpoint(path, verify=verify)


def test_read_checkpoint_flipped_bit_is_found_by_its_checksum(tmp_path, content):
    path = tmp_path / "x.ckpt"
    torch.save(content(), path)
    whole = bytearray(path.read_bytes())
    whole[len(whole) // 2] ^= 1
    path.write_bytes(whole)
    with pytest.raises(WeightsError, match="is damaged: the checksum of"):
        read_checkpoint(path)


@pytest.mark.parametrize("other", [{"state_dict": {}}, [1, 2], {"model": {}}])
def test_read_checkpoint_of_another_kind_says_what_it_looked_for(tmp_path, other):
    path = tmp_path / "x.ckpt"
    torch.save(other, path)
    with pytest.raises(WeightsError, match="no checkpoint of domain-mae: it needs 'domain_mae'"):
        read_checkpoint(path)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({"format": 2, "version": "9.0"}, "has format 2, written by domain-mae 9.0"),
        ({"architecture": None}, "its description lacks architecture"),
        ({"image_spec": None}, "its description lacks image_spec"),
        ({"image_spec": {"colour": 1}}, "not an ImageSpec"),
        ({"architecture": {"img_size": 8}}, "its architecture lacks patch_size, in_chans"),
        ({"architecture": {"in_chans": 3}}, r"reads 3 channels, .* have 2 \(near, far\)"),
    ],
)
def test_load_encoder_description_that_is_wrong_says_how(tmp_path, content, header, message):
    made = content()
    made["domain_mae"] = made["domain_mae"] | header
    path = tmp_path / "x.ckpt"
    torch.save(made, path)
    with pytest.raises(WeightsError, match=message):
        load_encoder(path)


def test_read_checkpoint_that_does_not_exist_says_so(tmp_path):
    with pytest.raises(WeightsError, match="does not exist"):
        read_checkpoint(tmp_path / "x.ckpt")
