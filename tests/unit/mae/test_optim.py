from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from mae.classifier import Classifier
from mae.encoder import Encoder
from mae.errors import ConfigError
from mae.model import MaskedAutoencoder
from mae.optim import (
    OptimConfig,
    build_optimizer,
    build_schedule,
    layer_of,
    lr_factor,
    parameter_groups,
    scaled_lr,
)

DEPTH = 3


def make_autoencoder() -> MaskedAutoencoder:
    torch.manual_seed(0)
    return MaskedAutoencoder(
        img_size=16,
        patch_size=8,
        in_chans=3,
        embed_dim=16,
        depth=DEPTH,
        num_heads=2,
        decoder_embed_dim=16,
        decoder_depth=1,
        decoder_num_heads=2,
    )


def make_classifier() -> Classifier:
    torch.manual_seed(0)
    encoder = Encoder(img_size=16, patch_size=8, in_chans=3, embed_dim=16, depth=DEPTH, num_heads=2)
    return Classifier(encoder, num_classes=3, global_pool="mean")


def groups_of(module: nn.Module, config: OptimConfig, **options):
    options = {"effective_batch": 256, "depth": DEPTH} | options
    return parameter_groups(module.named_parameters(), config, **options)


def by_name(groups) -> dict[str, dict]:
    return {name: group for group in groups for name in group["names"]}


def test_lr_factor_in_warmup_rises_linearly_from_zero():
    factors = [lr_factor(step, total_steps=100, warmup_ratio=0.1) for step in range(11)]
    assert factors == pytest.approx([step / 10 for step in range(11)])


@pytest.mark.parametrize(
    ("step", "expected"),
    [(10, 1.0), (40, (1 + math.cos(math.pi / 3)) / 2), (55, 0.5), (70, 0.25), (100, 0.0)],
)
def test_lr_factor_after_warmup_is_half_a_cosine(step, expected):
    assert lr_factor(step, total_steps=100, warmup_ratio=0.1) == pytest.approx(expected)


def test_lr_factor_ends_at_the_minimum_and_stays_there():
    options = {"total_steps": 100, "warmup_ratio": 0.1, "min_factor": 0.2}
    assert lr_factor(55, **options) == pytest.approx(0.6)
    assert lr_factor(100, **options) == pytest.approx(0.2)
    assert lr_factor(500, **options) == pytest.approx(0.2)


def test_lr_factor_without_warmup_starts_at_the_top():
    assert lr_factor(0, total_steps=10, warmup_ratio=0.0) == 1.0


@given(
    total=st.integers(1, 10_000),
    ratio=st.floats(0, 0.99),
    floor=st.floats(0, 1),
    share=st.floats(0, 1),
)
def test_lr_factor_anywhere_lies_between_zero_and_one(total, ratio, floor, share):
    step = round(share * total)
    factor = lr_factor(step, total_steps=total, warmup_ratio=ratio, min_factor=floor)
    assert 0 <= factor <= 1
    if step >= ratio * total:
        assert factor >= floor * (1 - 1e-12)


def test_scaled_lr_is_linear_in_the_batch():
    assert scaled_lr(1.5e-4, 4096) == pytest.approx(2.4e-3)  # the paper's pretraining lr


@pytest.mark.parametrize("ratio", [-0.1, 1.0, 1.5])
def test_optim_config_with_warmup_outside_the_run_is_refused(ratio):
    with pytest.raises(ConfigError, match=rf"optim\.warmup_ratio is {ratio}; allowed: from 0 to"):
        OptimConfig(warmup_ratio=ratio)


@pytest.mark.parametrize("decay", [0.0, -1.0, 1.1])
def test_optim_config_with_impossible_layer_decay_is_refused(decay):
    with pytest.raises(ConfigError, match=rf"optim\.layer_decay is {decay}; allowed: above 0"):
        OptimConfig(layer_decay=decay)


@pytest.mark.parametrize("field", ["blr", "muon_blr"])
def test_optim_config_with_a_base_lr_of_zero_is_refused(field):
    with pytest.raises(ConfigError, match=rf"optim\.{field} is 0\.0; it must be above 0"):
        OptimConfig(**{field: 0.0})


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_parameter_groups_hold_each_trainable_parameter_once(name):
    model = make_autoencoder()
    groups = groups_of(model, OptimConfig(name=name))
    found = [id(parameter) for group in groups for parameter in group["params"]]
    assert len(found) == len(set(found))
    assert set(found) == {id(p) for p in model.parameters() if p.requires_grad}
    names = dict(model.named_parameters())
    for group in groups:
        pairs = zip(group["names"], group["params"], strict=True)
        assert all(names[name] is parameter for name, parameter in pairs)


def test_parameter_groups_leave_out_frozen_position_tables():
    names = by_name(groups_of(make_autoencoder(), OptimConfig()))
    assert not [name for name in names if "pos_embed" in name]


def test_parameter_groups_decay_matrices_and_tokens_but_no_bias_and_no_norm():
    groups = by_name(groups_of(make_autoencoder(), OptimConfig(weight_decay=0.05)))
    decays = {name: group["weight_decay"] for name, group in groups.items()}
    assert decays["encoder.cls_token"] == 0.05  # as the released code does: the token is 3-D
    assert decays["decoder.mask_token"] == 0.05
    assert decays["encoder.blocks.0.attn.qkv.weight"] == 0.05
    assert decays["encoder.patch_embed.proj.weight"] == 0.05
    undecayed = {name for name, decay in decays.items() if not decay}
    assert undecayed == {name for name in decays if name.endswith("bias") or "norm" in name}


def test_parameter_groups_scale_the_base_lr_by_the_effective_batch():
    groups = groups_of(make_autoencoder(), OptimConfig(blr=1.5e-4), effective_batch=1024)
    assert [group["lr"] for group in groups] == pytest.approx([6e-4] * len(groups))


def test_parameter_groups_give_muon_the_matrices_of_the_blocks_only():
    config = OptimConfig(name="muon", blr=1e-3, muon_blr=2e-2)
    groups = by_name(groups_of(make_autoencoder(), config))
    by_muon = {name for name, group in groups.items() if not group["use_fallback"]}
    matrices = ("attn.qkv.weight", "attn.proj.weight", "mlp.fc1.weight", "mlp.fc2.weight")
    stacks = [f"encoder.blocks.{i}" for i in range(DEPTH)] + ["decoder.decoder_blocks.0"]
    assert by_muon == {f"{stack}.{matrix}" for stack in stacks for matrix in matrices}
    assert {groups[name]["lr"] for name in by_muon} == {2e-2}
    assert {group["lr"] for name, group in groups.items() if name not in by_muon} == {1e-3}


def test_parameter_groups_with_nothing_trainable_say_so():
    model = make_autoencoder().requires_grad_(False)
    with pytest.raises(ConfigError, match="no parameter is trainable"):
        groups_of(model, OptimConfig())


def test_parameter_groups_with_layer_decay_but_no_depth_are_refused():
    with pytest.raises(ConfigError, match="needs the encoder's depth"):
        groups_of(make_classifier(), OptimConfig(layer_decay=0.5), depth=None)


def test_parameter_groups_with_layer_decay_refuse_an_unknown_parameter():
    with pytest.raises(ConfigError, match=r"'decoder\..*' belongs to no layer"):
        groups_of(make_autoencoder(), OptimConfig(layer_decay=0.5))


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("encoder.cls_token", 0),
        ("encoder.pos_embed", 0),
        ("patch_embed.proj.weight", 0),
        ("encoder.blocks.0.norm1.bias", 1),
        ("encoder.blocks.11.mlp.fc2.weight", 12),
        ("encoder.norm.weight", 13),
        ("fc_norm.bias", 13),
        ("head.weight", 13),
    ],
)
def test_layer_of_numbers_as_the_paper_does(name, layer):
    assert layer_of(name, depth=12) == layer


def test_build_optimizer_with_layer_decay_moves_each_parameter_by_its_own_lr():
    """The first AdamW step of any parameter with a clear gradient is its lr, whatever the scale."""
    model = make_classifier()
    decay, lr = 0.5, 1e-3
    config = OptimConfig(blr=lr, weight_decay=0.0, layer_decay=decay, warmup_ratio=0.0)
    optimizer = build_optimizer(groups_of(model, config), config)
    build_schedule(optimizer, config, total_steps=10)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 3.0)
    optimizer.step()
    steps = {n: (p.detach() - before[n]).abs().mean() for n, p in model.named_parameters()}
    for part, layers_below_the_head in {
        "head.weight": 0,
        "fc_norm.weight": 0,
        "encoder.blocks.2.mlp.fc1.weight": 1,
        "encoder.blocks.1.attn.qkv.bias": 2,
        "encoder.blocks.0.norm1.weight": 3,
        "encoder.cls_token": 4,
        "encoder.pos_embed": 4,
        "encoder.patch_embed.proj.weight": 4,
    }.items():
        assert float(steps[part]) == pytest.approx(lr * decay**layers_below_the_head, rel=1e-2), (
            part
        )


def test_build_optimizer_with_muon_moves_every_parameter():
    model = make_autoencoder()
    config = OptimConfig(name="muon", warmup_ratio=0.0)
    optimizer = build_optimizer(groups_of(model, config), config)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    still = [
        n for n, p in model.named_parameters() if p.requires_grad and torch.equal(p, before[n])
    ]
    assert still == []


def test_build_schedule_multiplies_all_groups_by_one_factor():
    config = OptimConfig(blr=1e-3, layer_decay=0.5, warmup_ratio=0.2, min_lr=1e-4)
    groups = groups_of(make_classifier(), config)
    bases = [group["lr"] for group in groups]
    optimizer = build_optimizer(groups, config)
    schedule = build_schedule(optimizer, config, total_steps=10)
    for step in range(11):
        factors = [g["lr"] / base for g, base in zip(optimizer.param_groups, bases, strict=True)]
        assert factors == pytest.approx([factors[0]] * len(factors))
        cosine = 0.1 + 0.9 * (1 + math.cos(math.pi * (step - 2) / 8)) / 2
        assert factors[0] == pytest.approx(step / 2 if step < 2 else cosine)
        optimizer.step()
        schedule.step()


def test_build_schedule_continued_from_its_state_gives_the_uninterrupted_curve():
    config = OptimConfig(warmup_ratio=0.3)

    def start():
        groups = [{"params": [nn.Parameter(torch.zeros(1))], "lr": 1.0}]
        optimizer = build_optimizer(groups, config)
        return optimizer, build_schedule(optimizer, config, total_steps=10)

    def run(optimizer, schedule, steps):
        curve = []
        for _ in range(steps):
            curve.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            schedule.step()
        return curve

    whole = run(*start(), 10)
    optimizer, schedule = start()
    first = run(optimizer, schedule, 5)
    resumed_optimizer, resumed = start()
    resumed_optimizer.load_state_dict(optimizer.state_dict())
    resumed.load_state_dict(schedule.state_dict())
    assert first + run(resumed_optimizer, resumed, 5) == whole


def test_build_schedule_with_min_lr_above_the_lr_names_both():
    config = OptimConfig(blr=1e-4, min_lr=1e-2)
    optimizer = build_optimizer(groups_of(make_autoencoder(), config), config)
    with pytest.raises(ConfigError, match=r"min_lr 0\.01 is above the actual lr 0\.0001"):
        build_schedule(optimizer, config, total_steps=10)


def test_build_schedule_of_a_run_without_steps_asks_for_a_budget():
    config = OptimConfig()
    optimizer = build_optimizer(groups_of(make_autoencoder(), config), config)
    with pytest.raises(ConfigError, match="0 optimizer steps; give a budget"):
        build_schedule(optimizer, config, total_steps=0)
