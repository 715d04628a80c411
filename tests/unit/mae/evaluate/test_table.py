from __future__ import annotations

import io

from rich.console import Console

from mae.evaluate.metrics import Interval
from mae.evaluate.result import BudgetResult, Difference, ProbeResult, Row
from mae.evaluate.table import probe_notes, probe_tables


def difference(estimate, low, high):
    return Difference(against="x", estimate=estimate, interval=Interval(low, high))


def row(name, *, vs_random=None, vs_simple=None, notes=()):
    return Row(
        name=name, source="mae", head="linear", pooling="cls", balanced_accuracy=0.5,
        interval=Interval(0.4, 0.6), accuracy=0.5, recalls={}, vs_random=vs_random,
        vs_simple=vs_simple, setting="C", chosen=1.0, grid=[1.0], notes=list(notes), seconds=0.0,
    )  # fmt: skip


def result(*rows):
    budget = BudgetResult(
        budget="2000", num_labels=2000, class_counts={}, simple="logistic on pixels",
        rows=list(rows), notes=["few"],
    )  # fmt: skip
    return ProbeResult(
        weights_digest="", data_digest="", classes=[], split="test", num_train=1, num_test=1,
        num_test_groups=None, test_counts={}, seed=0, num_resamples=1, budgets=[budget],
        sentences=[], seconds=0.0, extraction_seconds=0.0,
    )  # fmt: skip


def test_probe_tables_widest_values_fit_eighty_columns_on_one_line_each():
    wide = difference(-0.211, -0.313, -0.109)
    rows = [row("most frequent class"), row("MAE, linear both", vs_random=wide, vs_simple=wide)]
    text = io.StringIO()
    console = Console(file=text, width=80)
    for table in probe_tables(result(*rows)):
        console.print(table)
    lines = text.getvalue().splitlines()
    (line,) = [line for line in lines if line.startswith("MAE")]
    expected = "MAE, linear both 50.0 [40.0, 60.0] -21.1 [-31.3, -10.9] -21.1 [-31.3, -10.9]"
    assert " ".join(line.split()) == expected
    assert "2,000 labels (2000), balanced accuracy on test" in lines[0]


def test_probe_notes_budget_and_row_notes_name_their_place():
    notes = probe_notes(result(row("MAE, kNN CLS", notes=["odd"])))
    assert notes == ["2,000 labels: few", "2,000 labels, MAE, kNN CLS: odd"]
