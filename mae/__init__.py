"""Masked-autoencoder pretraining for domain images.

Importing this package is cheap: the names below load torch when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mae.encoder import Encoder
    from mae.errors import MAEError
    from mae.model import MAEOutput, MaskedAutoencoder
    from mae.presets import PRESETS, build_preset
    from mae.spec import ImageSpec
    from mae.weights import load_encoder, load_run

__version__ = "0.1.0"

_HOMES = {
    "Encoder": "mae.encoder",
    "ImageSpec": "mae.spec",
    "MAEError": "mae.errors",
    "MAEOutput": "mae.model",
    "MaskedAutoencoder": "mae.model",
    "PRESETS": "mae.presets",
    "build_preset": "mae.presets",
    "load_encoder": "mae.weights",
    "load_run": "mae.weights",
}

__all__ = [
    "PRESETS",
    "Encoder",
    "ImageSpec",
    "MAEError",
    "MAEOutput",
    "MaskedAutoencoder",
    "build_preset",
    "load_encoder",
    "load_run",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module 'mae' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
