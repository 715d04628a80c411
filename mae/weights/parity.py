"""Proof that an exported folder gives the features of the encoder it was made from.

The folder is loaded by timm itself, as its user will do it, and both sides read the same images.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import timm
import torch
from jaxtyping import Float
from torch import Tensor

from mae import __version__
from mae.encoder import Encoder
from mae.errors import WeightsError
from mae.pooling import POOLINGS, pool

# Choice: absolute and for float32.  A Linear over patch vectors against timm's convolution alone
# differs by some 5e-6 on ViT-B; a wrong norm, table or patch order differs by 0.1 and more.
TOLERANCE = 1e-5

Images = Float[Tensor, "batch chans height width"]


def measure_parity(folder: Path, encoder: Encoder, images: Mapping[str, Images]) -> dict[str, Any]:
    """Compare the features of a folder loaded by timm with an encoder's own.

    Args:
        folder: As `mae.weights.save_timm_folder` wrote it.
        encoder: In eval mode, float32, on the CPU.
        images: Normalised images by kind, e.g. ``{"real": ..., "random": ...}``.

    Returns:
        Primitives for ``parity.json``: per kind the number of images and the largest absolute
        difference over all tokens and per pooling, with tolerance, dtype and versions.
    """
    foreign = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    return {
        "tolerance": TOLERANCE,
        "dtype": "float32",
        "compared": {kind: _differences(foreign, encoder, batch) for kind, batch in images.items()},
        "versions": {
            "domain-mae": __version__,
            "timm": timm.__version__,
            "torch": torch.__version__,
        },
        "loaded_by": "timm.create_model('local-dir:DIR', pretrained=True).forward_features(images)",
    }


def require_parity(parity: Mapping[str, Any]) -> None:
    """Refuse an export that differs.

    Raises:
        WeightsError: Names the largest difference of each kind of images.
    """
    worst = {
        kind: max(measured["max_abs_difference"].values())
        for kind, measured in parity["compared"].items()
    }
    # "not <=" also refuses NaN.
    if not all(difference <= parity["tolerance"] for difference in worst.values()):
        sides = ", ".join(f"{value:.3g} on {kind} images" for kind, value in worst.items())
        raise WeightsError(
            f"timm's features differ from the encoder's by {sides}; allowed: "
            f"{parity['tolerance']:g}; nothing was written: report this, with the timm version "
            f"{parity['versions']['timm']}"
        )


@torch.inference_mode()
def _differences(foreign: torch.nn.Module, encoder: Encoder, images: Images) -> dict[str, Any]:
    theirs = foreign.forward_features(images)  # type: ignore[operator]
    ours = encoder(images)
    pairs = {"tokens": (theirs, ours)}
    pairs |= {pooling: (pool(theirs, pooling), pool(ours, pooling)) for pooling in POOLINGS}
    return {
        "num_images": len(images),
        "max_abs_difference": {name: (a - b).abs().max().item() for name, (a, b) in pairs.items()},
        "max_abs_feature": ours.abs().max().item(),
    }
