"""The answer to "did pretraining help?": a probe's sentences, charts and tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mae.report.charts import Interval, interval_chart
from mae.report.words import duration, number, percent

if TYPE_CHECKING:
    from mae.evaluate.result import BudgetResult, Difference, ProbeResult

# Which colour a source of features gets in charts and tables.
STYLES = {"majority": "plain", "pixels": "plain", "colour": "plain", "random": "random"}


def probe_section(probe: ProbeResult) -> dict[str, Any]:
    """Return the verdict sentences, and per label budget a chart and a table.

    The sentences come in the probe's order; those about one reading say what the tables say, and
    go behind a fold.
    """
    readings = tuple(
        f"{row.name.removeprefix('MAE, ')}, {budget.num_labels:,} labels: "
        for budget in probe.budgets
        for row in budget.rows
    )
    return {
        "sentences": [said for said in probe.sentences if not said.startswith(readings)],
        "readings": [said for said in probe.sentences if said.startswith(readings)],
        "budgets": [_budget(budget) for budget in probe.budgets],
        "num_classes": len(probe.classes),
        "probe": probe,
        "seconds": duration(probe.seconds + probe.extraction_seconds),
    }


def _budget(budget: BudgetResult) -> dict[str, Any]:
    intervals = [
        Interval(
            name=row.name,
            value=100 * row.balanced_accuracy,
            low=100 * row.interval.low,
            high=100 * row.interval.high,
            style=STYLES.get(row.source, "mae"),
        )
        for row in budget.rows
    ]
    said = "; ".join(
        f"{row.name} {row.value:.1f}, from {row.low:.1f} to {row.high:.1f}" for row in intervals
    )
    return {
        "title": f"{budget.num_labels:,} labels",
        "budget": budget.budget,
        "simple": budget.simple,
        "notes": budget.notes,
        "chart": interval_chart(
            intervals,
            x_label="balanced accuracy, %",
            description=f"Balanced accuracy in percent with 95 % intervals: {said}.",
        ),
        "rows": [
            {
                "name": row.name,
                "style": STYLES.get(row.source, "mae"),
                "value": percent(row.balanced_accuracy),
                "interval": f"{percent(row.interval.low)} to {percent(row.interval.high)}",
                "vs_random": _difference(row.vs_random),
                "vs_simple": _difference(row.vs_simple),
                "notes": [
                    *([f"{row.setting} {number(row.chosen)}"] if row.chosen is not None else []),
                    *row.notes,
                ],
            }
            for row in budget.rows
        ],
    }


def _difference(difference: Difference | None) -> dict[str, str] | None:
    if difference is None:
        return None
    low, high = difference.interval.low, difference.interval.high
    return {
        "value": f"{100 * difference.estimate:+.1f}",
        "interval": f"{100 * low:+.1f} to {100 * high:+.1f}",
        "verdict": difference.verdict,
    }
