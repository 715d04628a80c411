"""A probe's result as plain sentences, computed from the intervals alone.

Whoever pretrained hopes for a gain; these sentences name a loss and a draw as plainly.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from mae.evaluate.result import BudgetResult, Difference, Row

FEW_GROUPS = 20

# Source: published frozen readings of one encoder, MAE ViT-B on ImageNet; the linear one is He et
# al. 2022 (arXiv:2111.06377), the attentive one comes from the literature on attentive probing.
ONE_READING_IS_NOT_ALL = (
    "A low linear probe alone does not condemn a MAE encoder: on ImageNet the published ViT-B "
    "reads 35.6 by kNN, 67.8 linear and 75.5 through an attentive probe. Fine-tuning is not "
    "measured here."
)


def sentences(
    budgets: Sequence[BudgetResult],
    *,
    num_test: int,
    num_test_groups: int | None,
    num_shared_groups: int,
    num_resamples: int,
    seed: int,
) -> list[str]:
    """Say where pretraining helps, where it does not, and how far to trust it.

    Args:
        budgets: All rows.
        num_test: Images read.
        num_test_groups: Groups resampled; None if images were.
        num_shared_groups: Groups that stand in both training and test split.
        num_resamples: Of the bootstrap.
        seed: Of the label draw.
    """
    said = []
    if num_shared_groups:
        said.append(
            f"{num_shared_groups} groups stand in both training and test split: every number here "
            f"is too good. Split by group and run again."
        )
    said += _score(budgets)
    said += [_reading(budget, row) for budget in budgets for row in budget.rows if row.vs_random]
    said.append(
        "Pixels are averaged to 8x8, colour is each channel's mean and standard deviation, linear "
        "is logistic regression; every row chose its settings on its training labels alone."
    )
    said.append(_trust(num_test, num_test_groups, num_resamples, seed))
    said.append(ONE_READING_IS_NOT_ALL)
    return said


def points(value: float) -> str:
    """Return a share in [0, 1] as signed percentage points with one decimal."""
    return f"{100 * value:+.1f}"


def _score(budgets: Sequence[BudgetResult]) -> list[str]:
    rows = [row for budget in budgets for row in budget.rows if row.source == "mae"]
    return [
        f"Against {what}, pretraining is ahead in {won['ahead']} of {won.total()} readings, "
        f"behind in {won['behind']}, not distinguishable in {won['undecided']}."
        for what, won in (
            ("random weights", Counter(row.vs_random.verdict for row in rows if row.vs_random)),
            (
                "the best row without a network",
                Counter(row.vs_simple.verdict for row in rows if row.vs_simple),
            ),
        )
    ]


def _reading(budget: BudgetResult, row: Row) -> str:
    against = [
        _against(difference, name)
        for difference, name in (
            (row.vs_random, "random weights"),
            (row.vs_simple, f"the {budget.simple}"),
        )
        if difference
    ]
    reading = row.name.removeprefix("MAE, ")
    return (
        f"{reading}, {budget.num_labels:,} labels: {100 * row.balanced_accuracy:.1f}; "
        f"{'; '.join(against)}."
    )


def _against(difference: Difference, name: str) -> str:
    span = f"[{points(difference.interval.low)}, {points(difference.interval.high)}]"
    if difference.verdict == "ahead":
        return f"{points(difference.estimate)} points over {name} {span}"
    if difference.verdict == "behind":
        return f"{-100 * difference.estimate:.1f} points behind {name} {span}"
    return f"not distinguishable from {name} ({points(difference.estimate)} {span})"


def _trust(num_test: int, num_groups: int | None, num_resamples: int, seed: int) -> str:
    what = f"{num_test:,} test images"
    if num_groups is not None:
        what = f"the {num_groups:,} groups of {what}"
    text = (
        f"Balanced accuracy in percent. Intervals: 95 %, {num_resamples:,} bootstrap resamples of "
        f"{what}, the same for both sides of a difference. They hold for this one draw of labels "
        f"and of random weights (seed {seed}) and leave out how another draw would differ: repeat "
        f"with other seeds before you believe a small difference, the more so with few labels."
    )
    if num_groups is None:
        text += (
            " The data names no groups: if images of one patient or place resemble each other, "
            "these intervals are too narrow."
        )
    elif num_groups < FEW_GROUPS:
        text += " With so few groups the intervals are too narrow."
    return text
