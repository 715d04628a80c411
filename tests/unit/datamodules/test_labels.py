"""One label or several: read from members, stacked into batches."""

from __future__ import annotations

import json

import pytest
import torch

from datamodules.labels import read_label, stack_labels
from mae.errors import DataError

CLASSES = ("edema", "effusion", "mass")


def sidecar(**fields: object) -> dict[str, bytes]:
    return {"json": json.dumps(fields).encode()}


def test_read_label_one_is_the_index() -> None:
    assert read_label({"cls": b"2"}, CLASSES, multilabel=False, what="x") == 2
    assert read_label({}, None, multilabel=False, what="x") is None


@pytest.mark.parametrize("members", [{}, {"cls": b"3"}, {"cls": b"-1"}, {"cls": b"mass"}])
def test_read_label_one_that_is_wrong_is_named(members: dict[str, bytes]) -> None:
    with pytest.raises(DataError, match=r"s\.tar: key has the class .*allowed: 0 … 2"):
        read_label(members, CLASSES, multilabel=False, what="s.tar: key")


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"labels": [], "classes": []}, ()),
        ({"labels": ["mass", "edema"], "classes": [2, 0]}, (0, 2)),
        ({"labels": ["mass"]}, (2,)),  # somebody else's shard
        ({"classes": [1, 0]}, (0, 1)),
    ],
)
def test_read_label_several(fields: dict[str, object], expected: tuple[int, ...]) -> None:
    assert read_label(sidecar(**fields), CLASSES, multilabel=True, what="x") == expected


@pytest.mark.parametrize(
    "members",
    [
        {},
        {"json": b"{"},
        {"json": b"[" * 100_000},
        {"json": b"[]"},
        sidecar(labels=["mass"], classes=[0]),
        sidecar(labels=["mass", "edema"], classes=[2]),
        sidecar(labels=["tumour"]),
        sidecar(classes=[3]),
        sidecar(classes=[-1]),
        sidecar(classes=[True]),
        sidecar(classes=["2"]),
        sidecar(classes=2),
        sidecar(labels=[["mass"]], classes=[2]),
    ],
)
def test_read_label_several_that_are_wrong_are_named(members: dict[str, bytes]) -> None:
    with pytest.raises(DataError, match=r"s\.tar: key"):
        read_label(members, CLASSES, multilabel=True, what="s.tar: key")


def test_stack_labels_one_gives_indices() -> None:
    found = stack_labels([2, 0], num_classes=3, multilabel=False)
    assert found.dtype == torch.int64
    assert found.tolist() == [2, 0]
    assert stack_labels([], num_classes=3, multilabel=False).shape == (0,)


def test_stack_labels_several_give_zeros_and_ones() -> None:
    found = stack_labels([(0, 2), (), (1,)], num_classes=3, multilabel=True)
    assert found.dtype == torch.float32
    assert found.tolist() == [[1, 0, 1], [0, 0, 0], [0, 1, 0]]
    assert stack_labels([], num_classes=3, multilabel=True).shape == (0, 3)


def test_stack_labels_keep_their_shapes() -> None:
    """The shapes in the signature, checked while it runs."""
    from beartype import beartype
    from jaxtyping import jaxtyped

    checked = jaxtyped(typechecker=beartype)(stack_labels)
    checked([1], num_classes=3, multilabel=False)
    checked([(1,)], num_classes=3, multilabel=True)
