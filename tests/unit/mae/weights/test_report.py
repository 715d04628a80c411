from __future__ import annotations

import pytest
import torch
from torch import nn

from mae.errors import WeightsError
from mae.weights.report import LoadReport, load_part


def test_load_report_reads_as_one_line():
    report = LoadReport(
        source="x.ckpt",
        loaded=(("encoder", 150, 150),),
        ignored=(("decoder", 105), ("head", 0)),
        notes=("the decoder is new: the file has none",),
    )
    assert str(report) == (
        "encoder 150/150, decoder 105 ignored; the decoder is new: the file has none (x.ckpt)"
    )


def test_load_part_allowed_absence_keeps_the_present_value_and_is_counted():
    linear = nn.Linear(2, 2)
    bias = linear.bias.detach().clone()
    counts = load_part(
        linear, {"weight": torch.ones(2, 2)}, part="head", source="x", may_miss=["bias"]
    )
    assert counts == ("head", 1, 2)
    assert torch.equal(linear.bias, bias)
    assert torch.equal(linear.weight, torch.ones(2, 2))


def test_load_part_nothing_in_common_is_refused_even_if_all_may_be_missing():
    with pytest.raises(WeightsError, match="0/2 tensors fit"):
        load_part(nn.Linear(2, 2), {}, part="head", source="x", may_miss=["weight", "bias"])


def test_load_part_one_bad_shape_leaves_the_module_unchanged():
    linear = nn.Linear(2, 2)
    before = linear.weight.detach().clone()
    with pytest.raises(WeightsError, match="bias 3 in the file, 2 here"):
        load_part(
            linear, {"weight": torch.ones(2, 2), "bias": torch.zeros(3)}, part="head", source="x"
        )
    assert torch.equal(linear.weight, before)


def test_load_part_keeps_the_modules_dtype():
    linear = nn.Linear(2, 2).bfloat16()
    load_part(linear, {"weight": torch.ones(2, 2), "bias": torch.zeros(2)}, part="head", source="x")
    assert linear.weight.dtype == torch.bfloat16
