"""Which labels a probe may see, and on which of them it chooses its settings.

Budgets are nested: one seeded order of the training samples, of which each budget takes the first.
So a curve over label counts adds labels and never swaps them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from mae.errors import ConfigError
from mae.evaluate.metrics import Ints

NUM_FOLDS = 4


@dataclass(frozen=True)
class LabelBudget:
    """How many labels: per class, in total, or all.

    Args:
        kind: What `count` counts.
        count: At least 1; 0 for ``"all"``.
    """

    kind: Literal["per-class", "total", "all"]
    count: int

    @classmethod
    def parse(cls, text: str) -> LabelBudget:
        """Read ``"10-per-class"``, ``"2000"`` or ``"all"``.

        Raises:
            ConfigError: If the text is none of these.
        """
        text = text.strip()
        if text == "all":
            return cls("all", 0)
        found = re.fullmatch(r"([1-9]\d*)(-per-class)?", text)
        if not found:
            raise ConfigError(
                f"label budget {text!r} is not understood; allowed: '10-per-class' (so many of "
                f"each class), '2000' (so many in total) or 'all', several separated by commas"
            )
        return cls("per-class" if found[2] else "total", int(found[1]))

    def __str__(self) -> str:
        return {"all": "all", "total": f"{self.count}"}.get(self.kind, f"{self.count}-per-class")


def parse_budgets(budgets: str | Sequence[str]) -> tuple[LabelBudget, ...]:
    """Read comma-separated budgets, or a list of them, without repeats.

    Raises:
        ConfigError: If there are none, or one is not understood.
    """
    texts = budgets.split(",") if isinstance(budgets, str) else budgets
    parsed = tuple(dict.fromkeys(LabelBudget.parse(text) for text in texts))
    if not parsed:
        raise ConfigError("no label budget given; allowed: e.g. '10-per-class,2000' or 'all'")
    return parsed


def label_subset(labels: Ints, budget: LabelBudget, *, seed: int) -> Ints:
    """Choose training samples.

    Each class has one seeded order, and every budget takes the first of it: so many of each class,
    or so many in total in proportion to the classes' sizes.  Proportions follow Webster's divisor
    method after one sample of each class: unlike rounding to the largest remainder it never takes
    back a seat when the total grows, so totals are nested too.

    Args:
        labels: Classes of all training samples, ``(samples,)``.
        budget: A budget larger than what there is takes what there is.
        seed: Seeds the order.

    Returns:
        Ascending indices into `labels`.
    """
    order = np.random.default_rng(seed).permutation(len(labels))
    rank = np.empty(len(labels), dtype=np.int64)  # within its class
    share = np.empty(len(labels))
    for c in np.unique(labels):
        members = order[labels[order] == c]
        rank[members] = np.arange(len(members))
        share[members] = (np.arange(len(members)) + 0.5) / len(members)
    if budget.kind == "per-class":
        return np.flatnonzero(rank < budget.count)
    share[rank == 0] -= 1  # one of each class comes first
    first = np.lexsort((labels, share))
    return np.sort(first if budget.kind == "all" else first[: budget.count])


def selection_folds(labels: Ints, groups: Ints | None, *, seed: int) -> Ints:
    """Deal labelled samples into folds for choosing a head's settings, whole groups at a time.

    Largest groups first, each to the fold where it keeps the classes most evenly spread.

    Args:
        labels: Classes, ``(samples,)``.
        groups: Group numbers, ``(samples,)``; None, or a single group, deals single samples.
        seed: Seeds the order among groups of equal size.

    Returns:
        Fold number of each sample, fewer than `NUM_FOLDS` folds if there are fewer groups.
    """
    if groups is None or len(np.unique(groups)) < 2:
        groups = np.arange(len(labels))
    _, unit = np.unique(groups, return_inverse=True)
    _, label = np.unique(labels, return_inverse=True)
    counts = np.zeros((unit.max() + 1, label.max() + 1))
    np.add.at(counts, (unit, label), 1)
    shares = counts / counts.sum(axis=0)

    shuffled = np.random.default_rng(seed).permutation(len(counts))
    fold_shares = np.zeros((min(NUM_FOLDS, len(counts)), counts.shape[1]))
    fold_of_unit = np.empty(len(counts), dtype=np.int64)
    for u in shuffled[np.argsort(-counts[shuffled].sum(axis=1), kind="stable")]:
        unevenness = ((fold_shares + shares[u]) ** 2 - fold_shares**2).sum(axis=1)
        # rounded, so that equal folds tie and the emptier one wins
        fold = np.lexsort((fold_shares.sum(axis=1), np.round(unevenness, 12)))[0]
        fold_shares[fold] += shares[u]
        fold_of_unit[u] = fold
    return fold_of_unit[unit]
