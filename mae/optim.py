"""Parameter groups, learning rates and their one schedule.

Every trainable parameter lands in exactly one group.  Each group carries its own base lr and the
schedule multiplies all of them by the same factor, so layer decay shows in every step.

Source: He et al. 2022 (arXiv:2111.06377), tables 8 and 9; Clark et al. 2020 (arXiv:2003.10555) for
layer-wise lr decay; Jordan et al. 2024 for Muon, through timm.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from timm.optim import Muon  # type: ignore[attr-defined]  # public, not re-exported for mypy
from torch import nn

from mae.errors import ConfigError

ParameterGroup = dict[str, Any]
REFERENCE_BATCH = 256


@dataclass(frozen=True, kw_only=True)
class OptimConfig:
    """How the weights move.

    Args:
        name: ``adamw`` as in the paper, or ``muon``: Muon for the 2-D matrices of the blocks and
            AdamW for everything else.
        blr: Base lr of AdamW; the actual lr is ``blr * effective batch / 256``.
        muon_blr: The same for Muon's matrices, matched to AdamW's step size; unused by ``adamw``.
        betas: AdamW's.
        muon_momentum: Muon's Nesterov momentum.
        weight_decay: Decoupled; none on biases and other 1-D parameters.
        warmup_ratio: Share of the run over which the lr rises linearly from 0, in [0, 1).
        min_lr: Lr at the end of the cosine.
        layer_decay: Lr of a layer over the lr of the layer above it, in (0, 1]; 1 is no decay.
    """

    name: Literal["adamw", "muon"] = "adamw"
    blr: float = 1.5e-4
    muon_blr: float = 3e-3
    betas: tuple[float, float] = (0.9, 0.95)
    muon_momentum: float = 0.95
    weight_decay: float = 0.05
    warmup_ratio: float = 0.05
    min_lr: float = 0.0
    layer_decay: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.warmup_ratio < 1:
            raise ConfigError(
                f"optim.warmup_ratio is {self.warmup_ratio}; allowed: from 0 to below 1, the share "
                f"of the run that warms up (0.05 is 40 of 800 epochs)"
            )
        if not 0 < self.layer_decay <= 1:
            raise ConfigError(
                f"optim.layer_decay is {self.layer_decay}; allowed: above 0 up to 1 (no decay)"
            )
        for field in ("blr", "muon_blr"):
            if getattr(self, field) <= 0:
                raise ConfigError(f"optim.{field} is {getattr(self, field)}; it must be above 0")


def lr_factor(
    step: int, *, total_steps: int, warmup_ratio: float, min_factor: float = 0.0
) -> float:
    """Return what to multiply the base lr with at an optimizer step.

    Linear from 0 over the warmup, then half a cosine from 1 to `min_factor` at `total_steps`.

    Args:
        step: Optimizer steps done so far, >= 0.
        total_steps: Optimizer steps of the whole run.
        warmup_ratio: Share of the run that warms up.
        min_factor: Final lr over base lr.
    """
    warmup_steps = warmup_ratio * total_steps
    if step < warmup_steps:
        return step / warmup_steps
    progress = min((step - warmup_steps) / max(total_steps - warmup_steps, 1), 1.0)
    return min_factor + (1 - min_factor) * 0.5 * (1 + math.cos(math.pi * progress))


def scaled_lr(blr: float, effective_batch: int) -> float:
    """Return ``blr * effective_batch / 256``, the linear scaling rule (arXiv:1706.02677)."""
    return blr * effective_batch / REFERENCE_BATCH


def layer_of(name: str, depth: int) -> int:
    """Return the layer of a parameter: tokens and embeddings 0, block i is i + 1, the rest above.

    Args:
        name: Parameter name, with or without an ``encoder.`` in front.
        depth: Number of blocks.

    Raises:
        ConfigError: If the name is none that a ViT with a head has.
    """
    name = name.removeprefix("encoder.")
    if name in ("cls_token", "pos_embed") or name.startswith("patch_embed."):
        return 0
    if block := re.match(r"blocks\.(\d+)\.", name):
        return int(block[1]) + 1
    if name.startswith(("norm.", "fc_norm.", "head.")):
        return depth + 1
    raise ConfigError(
        f"parameter {name!r} belongs to no layer; layer decay knows cls_token, pos_embed, "
        f"patch_embed, blocks, norm, fc_norm and head"
    )


def parameter_groups(
    named_parameters: Iterable[tuple[str, nn.Parameter]],
    config: OptimConfig,
    *,
    effective_batch: int,
    depth: int | None = None,
    no_decay: Collection[str] = (),
) -> list[ParameterGroup]:
    """Sort the trainable parameters into groups of equal layer, decay and method.

    Args:
        named_parameters: As of `nn.Module.named_parameters`; frozen ones are left out.
        config: Learning rates and decays.
        effective_batch: Images per optimizer step, over ranks, accumulation and masks.
        depth: Number of blocks; needed for layer decay only.
        no_decay: Last parts of names that are not decayed though they are tables: tokens and
            positions in fine-tuning, as timm has it; pretraining decays its tokens.

    Returns:
        Groups with ``params``, ``names``, ``lr``, ``weight_decay``; for Muon also
        ``use_fallback``, True where AdamW moves them.

    Raises:
        ConfigError: If nothing is trainable, or layer decay meets an unknown parameter.
    """
    groups: dict[tuple[float, bool, bool], ParameterGroup] = {}
    for name, parameter in named_parameters:
        if not parameter.requires_grad:
            continue
        decayed = parameter.ndim > 1 and name.rpartition(".")[2] not in no_decay
        by_muon = config.name == "muon" and parameter.ndim == 2 and "blocks." in name
        scale = 1.0
        if config.layer_decay < 1:
            if depth is None:
                raise ConfigError("layer_decay below 1 needs the encoder's depth")
            scale = config.layer_decay ** (depth + 1 - layer_of(name, depth))
        key = (scale, decayed, by_muon)
        if key not in groups:
            blr = config.muon_blr if by_muon else config.blr
            groups[key] = {
                "params": [],
                "names": [],
                "lr": scaled_lr(blr, effective_batch) * scale,
                "weight_decay": config.weight_decay if decayed else 0.0,
            } | ({"use_fallback": not by_muon} if config.name == "muon" else {})
        groups[key]["params"].append(parameter)
        groups[key]["names"].append(name)
    if not groups:
        raise ConfigError(
            "no parameter is trainable; unfreeze some of the encoder or use mae probe"
        )
    return list(groups.values())


def build_optimizer(groups: list[ParameterGroup], config: OptimConfig) -> torch.optim.Optimizer:
    """Build the optimizer over `parameter_groups`' groups.

    Fused AdamW takes the same steps as the default one; on CPUs it is several times faster.
    """
    if config.name == "adamw":
        return torch.optim.AdamW(groups, betas=config.betas, fused=True)
    optimizer: torch.optim.Optimizer = Muon(
        groups, momentum=config.muon_momentum, nesterov=True, betas=config.betas
    )
    return optimizer


def build_schedule(
    optimizer: torch.optim.Optimizer, config: OptimConfig, *, total_steps: int
) -> torch.optim.lr_scheduler.LambdaLR:
    """Attach `lr_factor` to every group.

    Raises:
        ConfigError: If the run has no steps, or `min_lr` is above the actual lr.
    """
    if total_steps < 1:
        raise ConfigError(
            f"the run has {total_steps} optimizer steps; give a budget of at least one: "
            f"data.steps, data.samples or data.epochs"
        )
    top_lr = max(group["lr"] for group in optimizer.param_groups)
    if config.min_lr > top_lr:
        raise ConfigError(
            f"optim.min_lr {config.min_lr:g} is above the actual lr {top_lr:g} "
            f"(blr * effective batch / {REFERENCE_BATCH}); lower min_lr or raise blr"
        )
    factor = partial(
        lr_factor,
        total_steps=total_steps,
        warmup_ratio=config.warmup_ratio,
        min_factor=config.min_lr / top_lr,
    )
    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
