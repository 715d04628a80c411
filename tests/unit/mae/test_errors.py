from __future__ import annotations

import pytest

from mae import errors


def test_did_you_mean_near_name_is_proposed_and_a_far_one_is_not():
    options = ["mask_ratio", "norm_pix_loss"]
    assert errors.did_you_mean("mask_ration", options) == " (did you mean 'mask_ratio'?)"
    assert errors.did_you_mean("zzz", options) == ""


def test_unknown_name_lists_what_is_known():
    message = str(
        errors.unknown_name("recipe", "demo/sat", ["demo/satellite-cpu", "paper/vit-b16"])
    )
    assert message.startswith("unknown recipe 'demo/sat'")
    assert message.endswith("known: demo/satellite-cpu, paper/vit-b16")


@pytest.mark.parametrize("name", ["ConfigError", "DataError", "WeightsError", "DivergedError"])
def test_every_user_error_is_one_family(name):
    assert issubclass(getattr(errors, name), errors.MAEError)
