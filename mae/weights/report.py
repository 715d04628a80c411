"""What a load did, and the refusal of everything that did not fit.

There is one way to put tensors into a module, `load_part`, and it is strict: a name that is
missing or left over, a shape that differs, or nothing that matches is an error with counts and
names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mae.errors import WeightsError

MAX_NAMES = 5


@dataclass(frozen=True, kw_only=True)
class LoadReport:
    """What was loaded from where.

    Attributes:
        source: File or folder that was read.
        loaded: (part, tensors loaded, tensors the module has), e.g. ``("encoder", 150, 150)``.
        ignored: (part, tensors left aside), e.g. ``("head", 2)``.
        notes: Whole sentences on what is new or was converted.
    """

    source: str
    loaded: tuple[tuple[str, int, int], ...]
    ignored: tuple[tuple[str, int], ...] = ()
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        counts = [f"{part} {done}/{total}" for part, done, total in self.loaded]
        counts += [f"{part} {count} ignored" for part, count in self.ignored if count]
        return "; ".join([", ".join(counts), *self.notes]) + f" ({self.source})"


def load_part(
    module: nn.Module,
    tensors: Mapping[str, Tensor],
    *,
    part: str,
    source: str,
    may_miss: Iterable[str] = (),
) -> tuple[str, int, int]:
    """Copy `tensors` into `module`, all or nothing.

    Args:
        module: Takes the values; its own dtype and device stay.
        tensors: By the module's own names.
        part: Name for messages and the report, e.g. ``"encoder"``.
        source: File or folder, for messages.
        may_miss: Names that may be absent and keep their present value.

    Returns:
        (part, tensors loaded, tensors the module has).

    Raises:
        WeightsError: If names are missing or left over, shapes differ, or nothing matches; the
            module is unchanged then.
    """
    own = module.state_dict()
    common = [name for name in own if name in tensors]
    missing = sorted(set(own) - set(tensors) - set(may_miss))
    left_over = sorted(set(tensors) - set(own))
    reshaped = [name for name in common if own[name].shape != tensors[name].shape]
    loadable = len(common) - len(reshaped)

    problems = [
        _listed("missing", missing),
        _listed("not known to this architecture", left_over),
        _listed(
            "of another shape",
            [f"{n} {_shape(tensors[n])} in the file, {_shape(own[n])} here" for n in reshaped],
        ),
    ]
    found = [problem for problem in problems if problem]
    if found or not loadable:
        raise WeightsError(
            f"{part} of {source}: {loadable}/{len(own)} tensors fit; {'; '.join(found)}; nothing "
            f"was loaded: give weights of the same architecture, or build the model to match"
        )
    with torch.no_grad():
        for name in common:
            own[name].copy_(tensors[name])
    return part, loadable, len(own)


def require_same(
    theirs: Mapping[str, object], ours: Mapping[str, object], *, source: str, names: Iterable[str]
) -> None:
    """Refuse if the settings `names` differ between a file and a model.

    Raises:
        WeightsError: With both values of every setting that differs.
    """
    differing = [name for name in names if theirs.get(name) != ours.get(name)]
    if differing:
        sides = "; ".join(
            f"{name} is {theirs.get(name)!r} in the file and {ours.get(name)!r} in the model"
            for name in differing
        )
        raise WeightsError(
            f"weights of {source} do not fit this model: {sides}; set the model's values to the "
            f"file's, or start without these weights"
        )


def _shape(tensor: Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "scalar"


def _listed(what: str, names: list[str]) -> str:
    if not names:
        return ""
    shown = ", ".join(names[:MAX_NAMES])
    rest = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return f"{len(names)} {what}: {shown}{rest}"
