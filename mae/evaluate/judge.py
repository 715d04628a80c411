"""From answers to rows: scores, intervals, paired differences, and what must be said aloud."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from mae.evaluate.heads import MAX_ITER, Fitted
from mae.evaluate.metrics import (
    Floats,
    Ints,
    balanced_accuracy,
    bootstrap_balanced_accuracy,
    interval,
    recalls,
)
from mae.evaluate.result import Difference, HeadName, Row, Source

_SIMPLE_NAMES: dict[tuple[Source, HeadName], str] = {
    ("majority", "none"): "most frequent class",
    ("pixels", "linear"): "logistic on pixels",
    ("colour", "linear"): "logistic on colour",
    ("colour", "forest"): "forest on colour",
}
_ENCODER_WORDS: dict[str, str] = {
    "random": "random",
    "mae": "MAE",
    "linear": "linear",
    "knn": "kNN",
}
POOLING_WORDS = {"cls": "CLS", "mean": "mean", "concat": "both"}


@dataclass(frozen=True)
class Reading:
    """Which features are read by which head; `pooling` is empty where there is no encoder."""

    source: Source
    head: HeadName
    pooling: str = ""

    @property
    def name(self) -> str:
        """What the table calls it."""
        if not self.pooling:
            return _SIMPLE_NAMES[self.source, self.head]
        source, head = _ENCODER_WORDS[self.source], _ENCODER_WORDS[self.head]
        return f"{source}, {head} {POOLING_WORDS[self.pooling]}"


@dataclass(frozen=True)
class Answer:
    """One reading's answers, before they are judged."""

    reading: Reading
    fitted: Fitted
    seconds: float


def readings(poolings: Sequence[str]) -> list[Reading]:
    """Return the rows of a table in their order, those without a network first."""
    sources: tuple[Source, ...] = ("random", "mae")
    names: tuple[HeadName, ...] = ("linear", "knn")
    return [Reading(source, head) for source, head in _SIMPLE_NAMES] + [
        Reading(source, head, pooling)
        for source in sources
        for head in names
        for pooling in poolings
    ]


def judge(
    answers: Sequence[Answer],
    truth: Ints,
    units: Ints,
    classes: Sequence[str],
    *,
    num_resamples: int,
) -> tuple[list[Row], str]:
    """Turn answers into rows, all read on the same resamples.

    Args:
        answers: One per reading.
        truth: Classes of the test images.
        units: What the bootstrap resamples, see `bootstrap_balanced_accuracy`.
        classes: Class names.
        num_resamples: Of the bootstrap.

    Returns:
        The rows, and the name of the best one that needs no network.
    """
    predictions = np.stack([answer.fitted.predictions for answer in answers])
    scores = [balanced_accuracy(truth, row) for row in predictions]
    table = _Table(
        place={answer.reading: i for i, answer in enumerate(answers)},
        scores=scores,
        resampled=bootstrap_balanced_accuracy(
            truth, predictions, units, num_resamples=num_resamples
        ),
    )
    return [_row(answer, table, truth, classes) for answer in answers], table.simple.name


@dataclass(frozen=True)
class _Table:
    """Scores of all readings and their resampled values, ``(num_resamples, rows)``."""

    place: dict[Reading, int]
    scores: list[float]
    resampled: Floats

    @property
    def simple(self) -> Reading:
        """The best reading without a network.

        # Choice: the best on the test split itself, which favours the baseline.
        """
        return max(
            (reading for reading in self.place if reading.source in ("pixels", "colour")),
            key=lambda reading: self.scores[self.place[reading]],
        )

    def difference(self, reading: Reading, other: Reading) -> Difference:
        i, j = self.place[reading], self.place[other]
        return Difference(
            against=other.name,
            estimate=self.scores[i] - self.scores[j],
            interval=interval(self.resampled[:, i] - self.resampled[:, j]),
        )


def _row(answer: Answer, table: _Table, truth: Ints, classes: Sequence[str]) -> Row:
    reading, fitted = answer.reading, answer.fitted
    rival = Reading("random", reading.head, reading.pooling)
    place = table.place[reading]
    return Row(
        name=reading.name,
        source=reading.source,
        head=reading.head,
        pooling=reading.pooling,
        balanced_accuracy=table.scores[place],
        interval=interval(table.resampled[:, place]),
        accuracy=float((truth == fitted.predictions).mean()),
        recalls={classes[c]: found for c, found in recalls(truth, fitted.predictions).items()},
        vs_random=table.difference(reading, rival) if reading.source == "mae" else None,
        vs_simple=table.difference(reading, table.simple) if reading.pooling else None,
        setting=fitted.setting,
        chosen=fitted.chosen,
        grid=list(fitted.grid),
        notes=list(_notes(reading, fitted, truth, classes)),
        seconds=answer.seconds,
    )


def _notes(reading: Reading, fitted: Fitted, truth: Ints, classes: Sequence[str]) -> Iterator[str]:
    if fitted.at_edge:
        yield (
            f"{fitted.setting} {fitted.chosen:g} is at the edge of its grid "
            f"{min(fitted.grid):g} … {max(fitted.grid):g}"
        )
    if not fitted.converged:
        yield f"not converged after {MAX_ITER} iterations"
    if reading.source == "majority":
        return
    answered = np.unique(fitted.predictions)
    if len(answered) == 1:
        yield f"answers only {classes[answered[0]]!r}"
    accuracy, most = (truth == fitted.predictions).mean(), np.bincount(truth).max() / len(truth)
    if accuracy <= most:
        yield (
            f"accuracy {100 * accuracy:.1f} is no more than the share of the most frequent class, "
            f"{100 * most:.1f}"
        )
