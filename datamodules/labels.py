"""Labels of samples: one class, or any number of classes, possibly none.

With one class per sample the member ``KEY.cls`` holds its index.  With several, the sidecar
``KEY.json`` holds ``labels`` (names) and ``classes`` (indices), one of them being enough; an empty
list means that none of the classes applies, which is not the same as "not labelled".
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float32, Int64
from torch import Tensor

from mae.errors import DataError

Label = int | tuple[int, ...]


def read_label(
    members: Mapping[str, bytes],
    classes: Sequence[str] | None,
    *,
    multilabel: bool,
    what: str,
) -> Label | None:
    """Return the label of a sample.

    Args:
        members: Contents of the sample by suffix.
        classes: Class names of the manifest; None if the set is unlabelled.
        multilabel: Whether a sample may have several labels, or none.
        what: Shard and key for messages.

    Returns:
        The class index; or the sorted indices of all its classes; or None if the set is unlabelled.

    Raises:
        DataError: If the label is missing or none of `classes`.
    """
    if classes is None:
        return None
    return _several(members, classes, what) if multilabel else _one(members, classes, what)


def stack_labels(
    labels: Sequence[Label], *, num_classes: int, multilabel: bool
) -> Int64[Tensor, " batch"] | Float32[Tensor, "batch classes"]:
    """Return the labels of a batch as a tensor.

    Args:
        labels: From `read_label`.
        num_classes: Number of classes.
        multilabel: Whether a sample may have several labels, or none.

    Returns:
        Class indices; or a row of zeros and ones per sample, 1 where the class applies.
    """
    if not multilabel:
        return torch.tensor(list(labels), dtype=torch.int64)
    rows = torch.zeros(len(labels), num_classes)
    for row, label in zip(rows, labels, strict=True):
        row[list(label) if isinstance(label, tuple) else [label]] = 1.0
    return rows


def _one(members: Mapping[str, bytes], classes: Sequence[str], what: str) -> int:
    try:
        label = int(members["cls"])
    except (KeyError, ValueError):
        label = -1
    if not 0 <= label < len(classes):
        raise DataError(
            f"{what} has the class {members.get('cls', b'none')!r}; allowed: 0 … "
            f"{len(classes) - 1}, the places in the manifest's classes"
        )
    return label


def _several(members: Mapping[str, bytes], classes: Sequence[str], what: str) -> tuple[int, ...]:
    try:
        sidecar = json.loads(members.get("json", b"{}"))
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"the JSON sidecar of {what} cannot be read ({error}); pack it again"
        ) from error
    names, indices = _field(sidecar, "labels"), _field(sidecar, "classes")
    found = indices if names is None else [_place(name, classes) for name in names]
    is_known = found is not None and all(_is_class(index, classes) for index in found)
    if found is None or not is_known or (indices is not None and indices != found):
        raise DataError(
            f"{what} has the labels {names} and the classes {indices} in its JSON sidecar; "
            f"allowed: lists of names of the manifest's {len(classes)} classes and of their "
            f"places, in one order. Pack the images again"
        )
    return tuple(sorted(set(found)))


def _place(name: Any, classes: Sequence[str]) -> int:
    return classes.index(name) if name in classes else -1


def _field(sidecar: Any, name: str) -> list[Any] | None:
    value = sidecar.get(name) if isinstance(sidecar, dict) else None
    return value if isinstance(value, list) else None


def _is_class(index: Any, classes: Sequence[str]) -> bool:
    return type(index) is int and 0 <= index < len(classes)
