"""Frozen features of a labelled split, read once.

One pass over the images feeds every encoder and every pixel baseline, so all rows of the table see
the same pixels.  Afterwards the encoders are as they were: weights, buffers, modes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.data import DataLoader

from mae.encoder import Encoder
from mae.errors import DataError, WeightsError
from mae.evaluate.baselines import colour_moments, pixel_features
from mae.evaluate.metrics import Floats, Ints
from mae.pooling import POOLINGS, pool
from mae.spec import ImageSpec

Batch = Mapping[str, Any]


@runtime_checkable
class Samples(Protocol):
    """A map-style data set of ``{"image", "label", "group", "key"}``."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Mapping[str, Any]: ...


@dataclass(frozen=True, kw_only=True)
class FeatureSet:
    """Features and answers of one split, in the order of the split.

    Args:
        features: Name to ``(samples, dim)``: ``"pixels"``, ``"colour"``, and for each encoder
            ``"<name>/cls"`` and ``"<name>/mean"``.
        labels: Classes, ``(samples,)``.
        groups: Group names, or None if the data has none.
        keys: Sample keys.
    """

    features: Mapping[str, Floats]
    labels: Ints
    groups: tuple[str, ...] | None
    keys: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.labels)


def batches(samples: Samples, *, batch_size: int, num_workers: int = 0) -> Iterable[Batch]:
    """Read `samples` once and in order.

    Args:
        samples: See `Samples`.
        batch_size: Images at a time; the last batch may be smaller.
        num_workers: Reader processes.
    """
    return DataLoader(
        samples,  # type: ignore[arg-type]  # map-style by its two methods, not by inheritance
        batch_size=batch_size,
        num_workers=num_workers,
        collate_fn=_collate,
        generator=torch.Generator(),  # the global one belongs to whoever calls
    )


def extract(
    images: Iterable[Batch],
    encoders: Mapping[str, Encoder],
    spec: ImageSpec,
    *,
    what: str,
    on_batch: Callable[[int], None] | None = None,
) -> FeatureSet:
    """Read the features of every image under every encoder.

    Args:
        images: Batches of ``{"image": stored pixels, "label", "key"}`` and optional ``"group"`` and
            ``"is_padding"``: rows that are left out.
        encoders: Name to encoder; all on one device.
        spec: The *model's* spec: its mean and std normalise the pixels.
        what: Name of the split for messages.
        on_batch: Called with the number of images done after each batch.

    Raises:
        DataError: If the split is empty or only some samples have a label or group.
        WeightsError: If a feature is not finite.
    """
    parts: dict[str, list[Tensor]] = {}
    labels: list[int] = []
    groups: list[str | None] = []
    keys: list[str] = []
    device = next(iter(encoders.values())).cls_token.device
    with frozen(*encoders.values()):
        for batch in images:
            num_rows = len(batch["image"])
            kept = [
                i for i in range(num_rows) if not batch.get("is_padding", [False] * num_rows)[i]
            ]
            if not kept:
                continue
            raw = torch.as_tensor(batch["image"])[kept].to(device).float()
            for name, values in _read(raw, encoders, spec):
                parts.setdefault(name, []).append(values.cpu())
            labels += [int(batch["label"][i]) for i in kept]
            groups += [(batch.get("group") or [None] * num_rows)[i] for i in kept]
            keys += [batch["key"][i] for i in kept]
            if on_batch:
                on_batch(len(labels))
    if not labels:
        raise DataError(f"the {what} split is empty; pack labelled images into it")
    features = {name: torch.cat(values).numpy() for name, values in parts.items()}
    _require_finite(features, keys, what)
    return FeatureSet(
        features=features,
        labels=np.asarray(labels, dtype=np.int64),
        groups=_whole_groups(groups, keys, what),
        keys=tuple(keys),
    )


@contextmanager
def frozen(*modules: nn.Module) -> Iterator[None]:
    """Put modules into eval mode without gradients, and give each submodule its mode back."""
    modes = [(module, module.training) for root in modules for module in root.modules()]
    try:
        for root in modules:
            root.eval()
        with torch.inference_mode():
            yield
    finally:
        for module, mode in modes:
            module.training = mode


def weights_digest(module: nn.Module) -> str:
    """Return the SHA-256 over names, types, shapes and bytes of all parameters and buffers."""
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _read(
    raw: Float[Tensor, "batch chans height width"],
    encoders: Mapping[str, Encoder],
    spec: ImageSpec,
) -> Iterator[tuple[str, Tensor]]:
    """Yield every named feature of one batch of stored pixels."""
    yield "pixels", pixel_features(raw)
    yield "colour", colour_moments(raw)
    mean, std = (raw.new_tensor(values).view(-1, 1, 1) for values in (spec.mean, spec.std))
    normalised = (raw - mean) / std
    for name, encoder in encoders.items():
        tokens = encoder(normalised)
        for pooling in POOLINGS:
            yield f"{name}/{pooling}", pool(tokens, pooling)


def _collate(samples: Sequence[Mapping[str, Any]]) -> Batch:
    for sample in samples:
        if sample.get("label") is None:
            raise DataError(
                f"sample {sample['key']!r} has no label; label every sample or leave it out"
            )
    return {
        "image": torch.stack([torch.as_tensor(sample["image"]) for sample in samples]),
        "label": [int(sample["label"]) for sample in samples],
        "group": [sample.get("group") for sample in samples],
        "key": [str(sample["key"]) for sample in samples],
    }


def _whole_groups(
    groups: Sequence[str | None], keys: Sequence[str], what: str
) -> tuple[str, ...] | None:
    lacking = [key for key, group in zip(keys, groups, strict=True) if not group]
    if len(lacking) == len(groups):
        return None
    if lacking:
        raise DataError(
            f"{len(lacking)} of {len(groups)} samples of the {what} split have no group, e.g. "
            f"{lacking[0]!r}; give every sample a group, or none"
        )
    return tuple(str(group) for group in groups)


def _require_finite(features: Mapping[str, Floats], keys: Sequence[str], what: str) -> None:
    for name, values in features.items():
        bad = np.flatnonzero(~np.isfinite(values).all(axis=1))
        if len(bad):
            raise WeightsError(
                f"{len(bad)} of {len(keys)} {what} images have features {name!r} that are not "
                f"finite, e.g. {keys[bad[0]]!r}; if it is all of them the weights have diverged: "
                f"use an earlier checkpoint; if it is a few, look at their pixels"
            )
