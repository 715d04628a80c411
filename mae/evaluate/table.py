"""A probe's result as tables for the terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.markup import escape
from rich.table import Table

from mae.evaluate.metrics import Interval
from mae.evaluate.result import BudgetResult, Difference, ProbeResult
from mae.evaluate.words import points

_COLOURS = {"ahead": "green", "behind": "red", "undecided": "dim"}


def probe_tables(result: ProbeResult) -> Iterator[Table]:
    """Yield one table per label budget, 80 columns wide."""
    for budget in result.budgets:
        yield _table(budget, result.split)


def probe_notes(result: ProbeResult) -> list[str]:
    """Return what must be said about budgets and rows, in the order of the tables."""
    return [
        note
        for budget in result.budgets
        for note in [
            *(f"{_labels(budget)}: {note}" for note in budget.notes),
            *(
                f"{_labels(budget)}, {row.name}: {note}"
                for row in budget.rows
                for note in row.notes
            ),
        ]
    ]


def _table(budget: BudgetResult, split: str) -> Table:
    title = f"{_labels(budget)} ({budget.budget}), balanced accuracy on {split} in percent [95 %]"
    table = Table(title=escape(title), title_justify="left", box=None, padding=(0, 1, 0, 0))
    table.add_column("reading", no_wrap=True)
    for name in ("", "over random weights", f"over {budget.simple}"):
        table.add_column(name, justify="right")
    for row in budget.rows:
        score = f"{100 * row.balanced_accuracy:.1f} {_span(row.interval)}"
        style = "bold" if row.source == "mae" else None
        table.add_row(
            row.name, escape(score), _cell(row.vs_random), _cell(row.vs_simple), style=style
        )
    return table


def _labels(budget: BudgetResult) -> str:
    return f"{budget.num_labels:,} labels"


def _span(interval: Interval) -> str:
    return f"[{100 * interval.low:.1f}, {100 * interval.high:.1f}]"


def _cell(difference: Difference | None) -> str:
    if difference is None:
        return ""
    span = f"[{points(difference.interval.low)}, {points(difference.interval.high)}]"
    text = escape(f"{points(difference.estimate)} {span}")
    return f"[{_COLOURS[difference.verdict]}]{text}[/]"
