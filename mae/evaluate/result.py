"""What a probe found, as records and as ``probe.json``.

Nothing here depends on the machine but the seconds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from mae.errors import DataError
from mae.evaluate.metrics import Interval
from mae.files import atomic_write

FORMAT = "domain-mae-probe"
VERSION = 1

Source = Literal["majority", "pixels", "colour", "random", "mae"]
HeadName = Literal["none", "linear", "forest", "knn"]


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A row's balanced accuracy minus another row's, from the same resamples.

    Args:
        against: Name of the other row.
        estimate: Difference on the test split itself.
        interval: Its 95 % interval.
    """

    against: str
    estimate: float
    interval: Interval

    @property
    def verdict(self) -> Literal["ahead", "behind", "undecided"]:
        """Whether the interval excludes zero, and on which side."""
        if self.interval.low > 0:
            return "ahead"
        return "behind" if self.interval.high < 0 else "undecided"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One reading of the test split.

    Args:
        name: What the table calls it.
        source: Where the features come from.
        head: What reads them.
        pooling: ``"cls"``, ``"mean"`` or ``"concat"`` for encoders, else an empty string.
        balanced_accuracy: Mean recall, in [0, 1].
        interval: Its 95 % interval.
        accuracy: Share of right answers, in [0, 1].
        recalls: Class name to the share of its images found.
        vs_random: Difference to random weights read the same way; for pretrained rows.
        vs_simple: Difference to the best row that needs no network; for encoder rows.
        setting: Name of what the head chose, or an empty string.
        chosen: Its value.
        grid: The values it was chosen from.
        notes: What a reader must know about this row.
        seconds: Time to fit and answer.
    """

    name: str
    source: Source
    head: HeadName
    pooling: str
    balanced_accuracy: float
    interval: Interval
    accuracy: float
    recalls: dict[str, float]
    vs_random: Difference | None
    vs_simple: Difference | None
    setting: str
    chosen: int | float | None
    grid: list[int | float]
    notes: list[str]
    seconds: float


@dataclass(frozen=True, kw_only=True)
class BudgetResult:
    """All rows that learned from the same labels.

    Args:
        budget: As asked for, e.g. ``"10-per-class"``.
        num_labels: How many labels that was.
        class_counts: How many of each class.
        simple: Name of the best row that needs no network.
        rows: In the order of the table.
        notes: What a reader must know about this budget.
    """

    budget: str
    num_labels: int
    class_counts: dict[str, int]
    simple: str
    rows: list[Row]
    notes: list[str]

    def row(self, name: str) -> Row:
        """Return the row of that name."""
        return next(row for row in self.rows if row.name == name)


@dataclass(frozen=True, kw_only=True)
class ProbeResult:
    """A whole probe: one label draw, several budgets.

    Args:
        weights_digest: SHA-256 of the encoder's parameters and buffers.
        data_digest: Digest of the labelled data's manifest.
        classes: Class names.
        split: The split that was read, ``"test"`` or ``"val"``.
        num_train: Labelled images available for training.
        num_test: Images read.
        num_test_groups: Groups that the intervals resample; None if images were resampled.
        test_counts: Test images of each class.
        seed: Of the label draw, the random weights, the folds and the forest.
        num_resamples: Of the bootstrap.
        budgets: In the order asked for.
        sentences: What it means, in words.
        seconds: Time without feature extraction.
        extraction_seconds: Time to read the features of both splits.
    """

    weights_digest: str
    data_digest: str
    classes: list[str]
    split: str
    num_train: int
    num_test: int
    num_test_groups: int | None
    test_counts: dict[str, int]
    seed: int
    num_resamples: int
    budgets: list[BudgetResult]
    sentences: list[str]
    seconds: float
    extraction_seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-able dictionary; `from_dict` reads it back."""
        return {"format": FORMAT, "version": VERSION, **asdict(self)}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> ProbeResult:
        """Build a result from `to_dict`'s output.

        Raises:
            DataError: If it is something else, or of another version.
        """
        found = (fields.get("format"), fields.get("version")) if isinstance(fields, Mapping) else ()
        if found != (FORMAT, VERSION):
            raise DataError(
                f"not a probe result of this version: found {found}, expected "
                f"{(FORMAT, VERSION)}; run `mae probe` again"
            )
        rest = {k: v for k, v in fields.items() if k not in ("format", "version")}
        return cls(**{**rest, "budgets": [_budget(budget) for budget in fields["budgets"]]})


def save_probe(result: ProbeResult, path: Path) -> None:
    """Write ``probe.json``, whole or not at all.

    Raises:
        OutputError: If the folder cannot be written; an older file stays.
    """
    text = json.dumps(result.to_dict(), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    atomic_write(path, lambda file: file.write_text(text, encoding="utf-8"))


def load_probe(path: Path) -> ProbeResult:
    """Read a ``probe.json``.

    Raises:
        DataError: If the file is no probe result of this version.
    """
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"{path} is not JSON ({error}); run `mae probe` again") from error
    if not isinstance(fields, dict):
        raise DataError(f"{path} is no probe result; run `mae probe` again")
    return ProbeResult.from_dict(fields)


def _budget(fields: Mapping[str, Any]) -> BudgetResult:
    return BudgetResult(**{**fields, "rows": [_row(row) for row in fields["rows"]]})


def _row(fields: Mapping[str, Any]) -> Row:
    differences = {k: _difference(fields[k]) for k in ("vs_random", "vs_simple")}
    return Row(**{**fields, "interval": Interval(**fields["interval"]), **differences})


def _difference(fields: Mapping[str, Any] | None) -> Difference | None:
    if fields is None:
        return None
    return Difference(**{**fields, "interval": Interval(**fields["interval"])})
