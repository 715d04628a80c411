"""The encoder on its own: one safetensors file with a JSON header.

Choice: safetensors instead of a checkpoint, because it cannot run code, maps without copying, and
its header can be read without its tensors.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from mae import __version__
from mae.encoder import Encoder
from mae.errors import WeightsError
from mae.files import atomic_write
from mae.pooling import POOLINGS
from mae.posembed import sincos_2d
from mae.spec import ImageSpec
from mae.weights.header import HEADER_KEY, Header, describe_encoder, plain

FINAL_NORM = "norm"


def save_encoder(
    path: str | Path, encoder: Encoder, spec: ImageSpec, *, info: Mapping[str, Any]
) -> Path:
    """Write an encoder with everything needed to use it.

    Args:
        path: Usually ``RUN/encoder/encoder.safetensors``; replaced in one step.
        encoder: Its weights are written as float32.
        spec: Meaning of the images it reads.
        info: ``step``, ``samples_seen``, ``recipe`` and whatever should travel along; JSON-able.

    Raises:
        OutputError: If the file cannot be written.
    """
    fields = encoder_header(encoder, spec, info=info).to_dict()
    metadata = {"format": "pt", HEADER_KEY: json.dumps(fields, sort_keys=True)}
    tensors = encoder_tensors(encoder)
    return atomic_write(path, lambda temporary: save_file(tensors, temporary, metadata))


def encoder_header(encoder: Encoder, spec: ImageSpec, *, info: Mapping[str, Any]) -> Header:
    """Describe an encoder for a file: architecture, pixels, norm, poolings, position table."""
    table = sincos_2d(encoder.embed_dim, encoder.grid_size)
    fixed = torch.equal(encoder.pos_embed.detach().cpu().float(), table)
    extra = {
        "version": __version__,
        "kind": "encoder",
        "norm": FINAL_NORM,
        "poolings": list(POOLINGS),
        "pos_embed": {
            "flavour": "sincos_2d" if fixed else "learned",
            "grid": list(encoder.grid_size),
        },
    }
    return Header(
        architecture=describe_encoder(encoder), spec=spec, info={**plain(dict(info)), **extra}
    )


def encoder_tensors(encoder: Encoder) -> dict[str, Tensor]:
    """Return the encoder's tensors for a file: float32, contiguous, on the CPU, unshared."""
    return {
        name: tensor.detach().to("cpu", torch.float32).contiguous().clone()
        for name, tensor in encoder.state_dict().items()
    }


def read_safetensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read the tensors and the text header of any safetensors file.

    Raises:
        WeightsError: If it does not exist, is truncated or damaged.
    """
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise WeightsError(f"{path} cannot be read as safetensors: {error}") from error


def state_and_header(path: Path) -> tuple[dict[str, Tensor], Header]:
    """Read the tensors and the description of an encoder file.

    Raises:
        WeightsError: If it is damaged, or does not describe itself.
    """
    tensors, metadata = read_safetensors(path)
    if HEADER_KEY not in metadata:
        raise WeightsError(
            f"{path} has {len(tensors)} tensors but no {HEADER_KEY!r} header, so their "
            f"architecture and the meaning of their pixels are unknown; give a file that mae wrote"
        )
    return tensors, parse_header(metadata[HEADER_KEY], source=str(path))


def parse_header(text: str, *, source: str) -> Header:
    """Read the JSON that a safetensors file carries.

    Raises:
        WeightsError: If it is no JSON, or no description.
    """
    try:
        fields = json.loads(text)
    except json.JSONDecodeError as error:
        raise WeightsError(f"{source}: its {HEADER_KEY!r} header is not JSON: {error}") from error
    return Header.from_dict(fields, source=source)
