"""Where encoder and decoder stand in a state dict, per layout: one table.

Our encoder's names are timm's, so a layout differs in prefixes alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from mae.errors import WeightsError
from mae.weights.report import MAX_NAMES


@dataclass(frozen=True, kw_only=True)
class Layout:
    """One way of naming.

    Attributes:
        name: For messages.
        encoder: Prefix of the encoder's tensors.
        decoder: Prefix of the decoder's; None if the layout has none.
        ignored: Prefixes of parts that are left aside, by name of the part.
    """

    name: str
    encoder: str
    decoder: str | None = None
    ignored: Mapping[str, str] = field(default_factory=dict)


# The first whose encoder has a CLS token is taken.
LAYOUTS = (
    Layout(
        name="domain-mae checkpoint",
        encoder="model.encoder.",
        decoder="model.decoder.",
        ignored={"head": "model.head."},
    ),
    Layout(
        name="MaskedAutoencoder", encoder="encoder.", decoder="decoder.", ignored={"head": "head."}
    ),
    Layout(name="encoder or timm ViT", encoder="", ignored={"head": "head."}),
)
_MARK = "cls_token"


@dataclass(frozen=True, kw_only=True)
class Parts:
    """A state dict taken apart; names without prefixes.

    Attributes:
        layout: Name of the layout.
        encoder: Tensors of the encoder.
        decoder: Tensors of the decoder, empty if there is none.
        ignored: Number of tensors left aside, by part.
    """

    layout: str
    encoder: dict[str, Tensor]
    decoder: dict[str, Tensor]
    ignored: dict[str, int]


def split_parts(state: Mapping[str, Tensor], *, source: str) -> Parts:
    """Take a state dict apart by the first layout that fits.

    Args:
        state: Tensors by name.
        source: File or folder, for messages.

    Raises:
        WeightsError: If no layout fits.
    """
    for layout in LAYOUTS:
        if layout.encoder + _MARK in state:
            return _split(state, layout)
    shown = ", ".join(sorted(state)[:MAX_NAMES]) or "none"
    expected = " or ".join(repr(layout.encoder + _MARK) for layout in LAYOUTS)
    raise WeightsError(
        f"{source}: 0 of {len(state)} tensors belong to a known encoder; looked for {expected}, "
        f"found {shown}"
    )


def _split(state: Mapping[str, Tensor], layout: Layout) -> Parts:
    encoder: dict[str, Tensor] = {}
    decoder: dict[str, Tensor] = {}
    ignored: dict[str, int] = {}
    for name, tensor in state.items():
        aside = [part for part, prefix in layout.ignored.items() if name.startswith(prefix)]
        if aside:
            ignored[aside[0]] = ignored.get(aside[0], 0) + 1
        elif layout.decoder is not None and name.startswith(layout.decoder):
            decoder[name.removeprefix(layout.decoder)] = tensor
        elif name.startswith(layout.encoder):
            encoder[name.removeprefix(layout.encoder)] = tensor
        else:
            ignored["other"] = ignored.get("other", 0) + 1
    return Parts(layout=layout.name, encoder=encoder, decoder=decoder, ignored=ignored)
