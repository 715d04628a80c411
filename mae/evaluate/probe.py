"""The probe: frozen readings of an encoder beside everything they must beat.

`extract_probe` reads the images once; `run_probe` then fits all heads for one draw of labels, and
may be called with several seeds.  No head sees a test label before it has answered.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from mae.encoder import Encoder
from mae.errors import ConfigError, DataError, unknown_name
from mae.evaluate import heads
from mae.evaluate.baselines import random_encoder
from mae.evaluate.features import Batch, FeatureSet, extract, weights_digest
from mae.evaluate.judge import POOLING_WORDS, Answer, Reading, judge, readings
from mae.evaluate.metrics import Floats, Ints
from mae.evaluate.result import BudgetResult, HeadName, ProbeResult
from mae.evaluate.splits import LabelBudget, label_subset, parse_budgets, selection_folds
from mae.evaluate.words import sentences
from mae.spec import ImageSpec

DEFAULT_LABELS = "10-per-class,2000"
DEFAULT_POOLINGS = ("cls", "mean")
NUM_RESAMPLES = 2000

_HEADS: dict[HeadName, heads.Head] = {
    "none": heads.majority,
    "linear": heads.logistic,
    "forest": heads.forest,
    "knn": heads.knn,
}


@dataclass(frozen=True, kw_only=True)
class ProbeFeatures:
    """Everything that `run_probe` needs, read once.

    Args:
        train: The split that gives labels.
        test: The split that is read.
        classes: Class names.
        seeds: Seeds of the random weights that were read along.
        weights_digest: Of the pretrained encoder.
        data_digest: Of the labelled data.
        split: Name of the split that is read.
        seconds: Time it took.
    """

    train: FeatureSet
    test: FeatureSet
    classes: tuple[str, ...]
    seeds: tuple[int, ...]
    weights_digest: str
    data_digest: str
    split: str
    seconds: float


def extract_probe(
    encoder: Encoder,
    spec: ImageSpec,
    *,
    train: Iterable[Batch],
    test: Iterable[Batch],
    classes: Sequence[str],
    data_digest: str,
    seeds: Sequence[int] = (0,),
    split: str = "test",
    on_batch: Callable[[str, int], None] | None = None,
) -> ProbeFeatures:
    """Read the features of both splits under the encoder and under random weights.

    Args:
        encoder: Pretrained; unchanged afterwards, modes included.
        spec: The encoder's own spec, whose mean and std normalise the pixels.
        train: Batches of the training split, see `mae.evaluate.features.extract`.
        test: Batches of the split to read.
        classes: Class names, indexed by label.
        data_digest: Identifies the labelled data in the result.
        seeds: One random encoder is read for each.
        split: Name of the split to read.
        on_batch: Called with the split's name and the number of images done.

    Raises:
        DataError: If a split is empty, its labels and classes disagree, or training has one class.
        WeightsError: If features are not finite.
    """
    start = time.perf_counter()
    encoders = {"mae": encoder} | {f"random-{s}": random_encoder(encoder, seed=s) for s in seeds}

    def read(name: str, images: Iterable[Batch]) -> FeatureSet:
        progress = None if on_batch is None else lambda done: on_batch(name, done)
        found = extract(images, encoders, spec, what=name, on_batch=progress)
        _check_labels(found.labels, classes, name)
        return found

    features = ProbeFeatures(
        train=read("train", train),
        test=read(split, test),
        classes=tuple(classes),
        seeds=tuple(seeds),
        weights_digest=weights_digest(encoder),
        data_digest=data_digest,
        split=split,
        seconds=time.perf_counter() - start,
    )
    if len(np.unique(features.train.labels)) < 2:
        raise DataError(
            f"all {len(features.train)} training labels are "
            f"{classes[features.train.labels[0]]!r}; a probe needs at least two classes"
        )
    return features


def run_probe(
    features: ProbeFeatures,
    *,
    labels: str | Sequence[str] = DEFAULT_LABELS,
    seed: int = 0,
    poolings: Sequence[str] = DEFAULT_POOLINGS,
    num_resamples: int = NUM_RESAMPLES,
    on_row: Callable[[str, str], None] | None = None,
) -> ProbeResult:
    """Fit every head on every budget and judge all of them on the same resamples.

    Args:
        features: From `extract_probe`.
        labels: Label budgets, see `mae.evaluate.splits.parse_budgets`.
        seed: Of label draw, folds and forest; chooses the random weights of the same seed.
        poolings: ``"cls"``, ``"mean"`` and ``"concat"`` (both side by side).
        num_resamples: Of the bootstrap.
        on_row: Called with budget and row name before each row.

    Raises:
        ConfigError: If a budget or pooling is unknown, or no random weights of `seed` were read.
    """
    start = time.perf_counter()
    check_poolings(poolings)
    if seed not in features.seeds:
        raise ConfigError(
            f"no random weights of seed {seed} were read; allowed: {features.seeds}; give the seed "
            f"to extract_probe as well"
        )
    test = features.test
    units, num_groups = _units(test)
    budgets = [
        _run_budget(features, budget, seed, poolings, units, num_resamples, on_row)
        for budget in parse_budgets(labels)
    ]
    return ProbeResult(
        weights_digest=features.weights_digest,
        data_digest=features.data_digest,
        classes=list(features.classes),
        split=features.split,
        num_train=len(features.train),
        num_test=len(test),
        num_test_groups=num_groups,
        test_counts=_counts(test.labels, features.classes),
        seed=seed,
        num_resamples=num_resamples,
        budgets=budgets,
        sentences=sentences(
            budgets,
            num_test=len(test),
            num_test_groups=num_groups,
            num_shared_groups=len(set(features.train.groups or ()) & set(test.groups or ())),
            num_resamples=num_resamples,
            seed=seed,
        ),
        seconds=time.perf_counter() - start,
        extraction_seconds=features.seconds,
    )


def check_poolings(poolings: Sequence[str]) -> None:
    """Refuse unknown poolings, or none.

    Raises:
        ConfigError: See above.
    """
    for pooling in poolings:
        if pooling not in POOLING_WORDS:
            raise unknown_name("pooling", pooling, POOLING_WORDS)
    if not poolings:
        raise ConfigError(f"no pooling given; allowed: {', '.join(POOLING_WORDS)}")


def _run_budget(
    features: ProbeFeatures,
    budget: LabelBudget,
    seed: int,
    poolings: Sequence[str],
    units: Ints,
    num_resamples: int,
    on_row: Callable[[str, str], None] | None,
) -> BudgetResult:
    train = features.train
    chosen = label_subset(train.labels, budget, seed=seed)
    groups = None if train.groups is None else np.asarray(train.groups)[chosen]
    numbers = None if groups is None else np.unique(groups, return_inverse=True)[1]
    labels = train.labels[chosen]
    if len(np.unique(labels)) < 2:
        raise ConfigError(
            f"label budget {str(budget)!r} gives labels of one class only; a probe needs two "
            f"classes: ask for at least 2 labels, or 1-per-class"
        )
    folds = selection_folds(labels, numbers, seed=seed)

    answers = []
    for reading in readings(poolings):
        if on_row:
            on_row(str(budget), reading.name)
        start = time.perf_counter()
        fitted = _HEADS[reading.head](
            heads.Task(
                train=_features_of(train, reading, seed)[chosen],
                labels=labels,
                folds=folds,
                test=_features_of(features.test, reading, seed),
                seed=seed,
            )
        )
        answers.append(Answer(reading, fitted, time.perf_counter() - start))

    rows, simple = judge(
        answers, features.test.labels, units, features.classes, num_resamples=num_resamples
    )
    return BudgetResult(
        budget=str(budget),
        num_labels=len(chosen),
        class_counts=_counts(labels, features.classes),
        simple=simple,
        rows=rows,
        notes=list(_budget_notes(budget, labels, numbers, features.classes)),
    )


def _budget_notes(
    budget: LabelBudget, labels: Ints, groups: Ints | None, classes: Sequence[str]
) -> Iterator[str]:
    counts = np.bincount(labels, minlength=len(classes))
    if budget.kind == "total" and len(labels) < budget.count:
        yield f"{budget.count:,} labels asked for, {len(labels):,} there are: all of them used"
    if budget.kind == "per-class":
        for name, count in zip(classes, counts, strict=True):
            if count < budget.count:
                yield f"class {name!r} has only {count} training labels"
    if groups is not None and len(np.unique(groups)) < 2:
        yield "these labels come from one group: settings were chosen on folds of single images"


def _features_of(split: FeatureSet, reading: Reading, seed: int) -> Floats:
    if reading.source == "majority":
        return split.features["colour"]
    if not reading.pooling:
        return split.features[reading.source]
    encoder = "mae" if reading.source == "mae" else f"random-{seed}"
    parts = ("cls", "mean") if reading.pooling == "concat" else (reading.pooling,)
    return np.concatenate([split.features[f"{encoder}/{part}"] for part in parts], axis=1)


def _units(test: FeatureSet) -> tuple[Ints, int | None]:
    """Return what the bootstrap resamples, and how many groups if it is groups."""
    if test.groups is None:
        return np.arange(len(test)), None
    names, units = np.unique(np.asarray(test.groups), return_inverse=True)
    return units, len(names)


def _counts(labels: Ints, classes: Sequence[str]) -> dict[str, int]:
    counts = np.bincount(labels, minlength=len(classes))
    return {name: int(count) for name, count in zip(classes, counts, strict=True)}


def _check_labels(labels: Ints, classes: Sequence[str], what: str) -> None:
    if labels.min() < 0 or labels.max() >= len(classes):
        raise DataError(
            f"labels of the {what} split run from {labels.min()} to {labels.max()}; allowed: 0 to "
            f"{len(classes) - 1}, one for each of the classes {', '.join(classes)}"
        )
