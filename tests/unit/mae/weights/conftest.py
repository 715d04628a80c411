"""A run directory as pretraining leaves it, written by hand from the description of the format."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from mae.model import MaskedAutoencoder
from mae.spec import ImageSpec

ARCHITECTURE: dict[str, Any] = {
    "img_size": [16, 24],
    "patch_size": 8,
    "in_chans": 2,
    "embed_dim": 32,
    "depth": 2,
    "num_heads": 4,
    "mlp_ratio": 2.0,
    "decoder_embed_dim": 16,
    "decoder_depth": 1,
    "decoder_num_heads": 2,
    "mask_ratio": 0.5,
    "norm_pix_loss": True,
}


@pytest.fixture
def architecture() -> dict[str, Any]:
    """Return the keyword arguments of the model."""
    return ARCHITECTURE | {"img_size": (16, 24)}


@pytest.fixture
def spec() -> ImageSpec:
    return ImageSpec(
        channels=("near", "far"),
        dtype="uint8",
        mean=(51.0, 102.0),
        std=(25.5, 5.1),
        value_range=(0.0, 255.0),
    )


@pytest.fixture
def model(architecture) -> MaskedAutoencoder:
    torch.manual_seed(0)
    model = MaskedAutoencoder(**architecture)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model


@pytest.fixture
def content(model, spec) -> Callable[..., dict[str, Any]]:
    """Return a function that gives a checkpoint's content."""

    def build(*, step: int = 10, **changes: Any) -> dict[str, Any]:
        header = {
            "format": 1,
            "architecture": ARCHITECTURE,
            "image_spec": spec.to_dict(),
            "samples_seen": step * 64,
            "step": step,
            "version": "0.1.0",
            "recipe": "demo/satellite-cpu",
        }
        state = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
        return {"state_dict": state, "global_step": step, "domain_mae": header} | changes

    return build


@pytest.fixture
def run(tmp_path, content) -> Path:
    """Return a run directory with one checkpoint."""
    folder = tmp_path / "run"
    (folder / "checkpoints").mkdir(parents=True)
    torch.save(content(), folder / "checkpoints" / "step-00000010.ckpt")
    return folder
