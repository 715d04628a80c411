"""The encoder as a folder that timm loads by itself.

``timm.create_model("local-dir:DIR", pretrained=True)`` reads ``config.json`` and
``model.safetensors``; mean, std and input size travel in ``pretrained_cfg``.  Pooling is "token",
as timm's average pooling would drop the pretrained ``norm`` for a fresh ``fc_norm``.

Choice: the registry name is only a hook to timm's ViT builder, since ``model_args`` override every
size it implies; one name therefore serves all architectures.

Source: timm 1.0.31, ``models/_hub.py`` and ``models/_builder.py``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from mae.encoder import Encoder
from mae.errors import WeightsError
from mae.spec import ImageSpec
from mae.weights.card import card
from mae.weights.header import HEADER_KEY, Header
from mae.weights.native import encoder_header, encoder_tensors, parse_header, read_safetensors

CONFIG_NAME = "config.json"
WEIGHTS_NAME = "model.safetensors"
CARD_NAME = "README.md"
TIMM_BUILDER = "vit_base_patch16_224"


def is_timm_folder(path: Path) -> bool:
    """Return whether `path` is a folder as timm loads it."""
    return (path / CONFIG_NAME).is_file() and (path / WEIGHTS_NAME).is_file()


def save_timm_folder(
    folder: Path, encoder: Encoder, spec: ImageSpec, *, info: Mapping[str, Any]
) -> None:
    """Write weights, configuration and card into an existing, empty folder.

    Use it inside `mae.files.atomic_folder`, so that no half export stays behind.

    Args:
        folder: Where to write.
        encoder: Its weights are written as float32.
        spec: Meaning of the images it reads.
        info: What should travel along; JSON-able.
    """
    header = encoder_header(encoder, spec, info=info)
    config = timm_config(header)
    metadata = {"format": "pt", HEADER_KEY: json.dumps(header.to_dict(), sort_keys=True)}
    save_file(encoder_tensors(encoder), folder / WEIGHTS_NAME, metadata)
    (folder / CONFIG_NAME).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    (folder / CARD_NAME).write_text(card(header), encoding="utf-8")


def timm_config(header: Header) -> dict[str, Any]:
    """Return the content of ``config.json``."""
    architecture = header.encoder_architecture(source="this encoder")
    mean, std = timm_mean_std(header.spec)
    return {
        "architecture": TIMM_BUILDER,
        "num_classes": 0,
        "num_features": architecture["embed_dim"],
        "global_pool": "token",
        "model_args": {**architecture, "global_pool": "token"},
        "pretrained_cfg": {
            "tag": "domain_mae",
            "input_size": [architecture["in_chans"], *architecture["img_size"]],
            "fixed_input_size": True,
            "interpolation": "bicubic",
            "crop_pct": 1.0,
            "mean": mean,
            "std": std,
            "num_classes": 0,
            "first_conv": "patch_embed.proj",
            "classifier": "head",
        },
        HEADER_KEY: header.to_dict(),
    }


def timm_mean_std(spec: ImageSpec) -> tuple[list[float], list[float]]:
    """Return mean and std in the units in which timm normalises.

    timm's transforms divide 8-bit images by 255 before they subtract the mean, so for uint8 both
    are divided by 255.  timm has no transform for other depths: there both stay in stored units,
    and ``(stored - mean) / std`` is the user's to compute; the card says so.
    """
    unit = 255.0 if spec.dtype == "uint8" else 1.0
    return [m / unit for m in spec.mean], [s / unit for s in spec.std]


def state_and_header(folder: Path) -> tuple[dict[str, Tensor], Header]:
    """Read the tensors and the description of a folder that `save_timm_folder` wrote.

    Raises:
        WeightsError: If it is damaged, written by others, or its two files contradict each other.
    """
    config_path = folder / CONFIG_NAME
    try:
        config = json.loads(config_path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise WeightsError(f"{config_path} cannot be read as JSON: {error}") from error
    if not isinstance(config, dict) or HEADER_KEY not in config:
        raise WeightsError(
            f"{config_path} has no {HEADER_KEY!r} entry, so its exact architecture and the meaning "
            f"of its pixels are unknown; give a folder that mae export wrote"
        )
    header = Header.from_dict(config[HEADER_KEY], source=str(config_path))
    weights_path = folder / WEIGHTS_NAME
    tensors, metadata = read_safetensors(weights_path)
    inside = metadata.get(HEADER_KEY)
    if inside is not None and parse_header(inside, source=str(weights_path)) != header:
        raise WeightsError(
            f"{config_path} describes other weights than {WEIGHTS_NAME} beside it does; they were "
            f"changed or mixed up: export again"
        )
    return tensors, header
