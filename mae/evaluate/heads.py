"""Classifiers on frozen features.

A head gets a `Task`, which holds no test labels: what it chooses, it chooses on folds of the
training labels, and then fits all of them.  Every head is a function ``Task -> Fitted``.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import RandomForestClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # scikit-learn's

from mae.evaluate.metrics import Floats, Ints, balanced_accuracy

C_GRID = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)
K_GRID = (1, 3, 5, 10, 20, 50, 100)
LEAF_GRID = (1, 3, 10)
MAX_ITER = 3000
TOLERANCE = 1e-4  # largest gradient entry at which L-BFGS stops
TOLERANCE_CHOOSING = 1e-3  # enough to rank values of C, in half the time
NUM_TREES = 300
NUM_TREES_CHOOSING = 50  # enough to rank leaf sizes
_KNN_CHUNK = 1024  # queries at a time


@dataclass(frozen=True, kw_only=True)
class Task:
    """What a head learns from and answers.

    Args:
        train: Features of the labelled samples, ``(samples, dim)``.
        labels: Their classes, at least two different ones.
        folds: Their fold numbers, for choosing settings.
        test: Features to classify, ``(queries, dim)``.
        seed: For heads with randomness.
    """

    train: Floats
    labels: Ints
    folds: Ints
    test: Floats
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """A head's answers and what it chose.

    Args:
        predictions: Classes of the queries.
        setting: Name of what was chosen, or an empty string.
        chosen: Its value.
        grid: The values it was chosen from.
        complete_below: Whether no value below the grid exists.
        converged: Whether the final fit converged.
    """

    predictions: Ints
    setting: str = ""
    chosen: int | float | None = None
    grid: tuple[int | float, ...] = ()
    complete_below: bool = False
    converged: bool = True

    @property
    def at_edge(self) -> bool:
        """Whether a better value may lie beyond the grid."""
        if not self.grid:
            return False
        at_bottom = self.chosen == min(self.grid) and not self.complete_below
        return at_bottom or self.chosen == max(self.grid)


Head = Callable[[Task], Fitted]


def logistic(task: Task) -> Fitted:
    """Logistic regression on standardised features, C chosen on the folds.

    # Choice: classes weigh equally, because balanced accuracy is what is read.
    """
    # Matrices this small gain nothing from BLAS threads, which spin where cores are shared.
    with threadpool_limits(1, user_api="blas"):
        out_of_fold = np.empty((len(C_GRID), len(task.labels)), dtype=np.int64)
        for held_out in _held_out_folds(task):
            out_of_fold[:, held_out] = _answer_along_grid(task, held_out)
        chosen = C_GRID[choose(out_of_fold, task.labels)]
        train, queries = standardise(task.train, task.test)
        model = _logistic_regression(chosen, TOLERANCE)
        _fit(model, train, task.labels)
    return Fitted(
        predictions=model.predict(queries),
        setting="C",
        chosen=chosen,
        grid=C_GRID,
        converged=int(model.n_iter_.max()) < MAX_ITER,
    )


def _answer_along_grid(task: Task, held_out: NDArray[np.bool_]) -> Ints:
    """Answer one fold from the others for every C, ``(len(C_GRID), held out)``.

    C rises, and each fit starts from the one before.
    """
    labels = task.labels[~held_out]
    train, queries = standardise(task.train[~held_out], task.train[held_out])
    if len(np.unique(labels)) < 2:  # all other classes stand in the held-out groups
        return np.full((len(C_GRID), len(queries)), labels[0])
    model = _logistic_regression(C_GRID[0], TOLERANCE_CHOOSING)
    answers = []
    for c in C_GRID:
        model.set_params(C=c)
        _fit(model, train, labels)
        answers.append(model.predict(queries))
    return np.stack(answers)


def knn(task: Task) -> Fitted:
    """Majority vote of the nearest neighbours by cosine, k chosen on the folds.

    Equal votes go to the class whose neighbours are nearer in sum.
    """
    train = _unit_length(task.train)
    smallest = min(int((task.folds != fold).sum()) for fold in np.unique(task.folds))
    grid = tuple(k for k in K_GRID if k <= smallest)
    out_of_fold = np.empty((len(grid), len(task.labels)), dtype=np.int64)
    for held_out in _held_out_folds(task):
        out_of_fold[:, held_out] = _vote(
            train[held_out], train[~held_out], task.labels[~held_out], grid
        )
    chosen = grid[choose(out_of_fold, task.labels)]
    predictions = _vote(_unit_length(task.test), train, task.labels, (chosen,))[0]
    return Fitted(
        predictions=predictions, setting="k", chosen=chosen, grid=grid, complete_below=True
    )


def forest(task: Task) -> Fitted:
    """Random forest, the smallest leaf chosen on the folds, classes weighing equally."""
    out_of_fold = np.empty((len(LEAF_GRID), len(task.labels)), dtype=np.int64)
    for held_out in _held_out_folds(task):
        for row, leaf in zip(out_of_fold, LEAF_GRID, strict=True):
            model = _fit_forest(
                task.train[~held_out], task.labels[~held_out], NUM_TREES_CHOOSING, leaf, task.seed
            )
            row[held_out] = model.predict(task.train[held_out])
    chosen = LEAF_GRID[choose(out_of_fold, task.labels)]
    model = _fit_forest(task.train, task.labels, NUM_TREES, chosen, task.seed)
    return Fitted(
        predictions=model.predict(task.test),
        setting="min_samples_leaf",
        chosen=chosen,
        grid=LEAF_GRID,
        complete_below=True,
    )


def majority(task: Task) -> Fitted:
    """Always answer with the most frequent class, the first of equals."""
    winner = np.bincount(task.labels).argmax()
    return Fitted(predictions=np.full(len(task.test), winner, dtype=np.int64))


def standardise(train: Floats, test: Floats) -> tuple[Floats, Floats]:
    """Give both zero mean and unit variance by the statistics of `train`, in float64.

    Constant features stay at zero in `train`.
    """
    train, test = train.astype(np.float64), test.astype(np.float64)
    mean, std = train.mean(axis=0), train.std(axis=0)
    std[std <= 1e-12 * np.maximum(1.0, np.abs(mean))] = 1.0
    return (train - mean) / std, (test - mean) / std


def choose(out_of_fold: Ints, labels: Ints) -> int:
    """Return the row of `out_of_fold` with the best balanced accuracy, the middle one of equals.

    The middle, because on a plateau the first would look like the edge of the grid.
    """
    scores = np.array([balanced_accuracy(labels, row) for row in out_of_fold])
    best = np.flatnonzero(scores >= scores.max() - 1e-12)
    return int(best[(len(best) - 1) // 2])


def _held_out_folds(task: Task) -> Iterator[NDArray[np.bool_]]:
    for fold in np.unique(task.folds):
        yield task.folds == fold


def _logistic_regression(c: float, tolerance: float) -> LogisticRegression:
    return LogisticRegression(
        C=c, class_weight="balanced", max_iter=MAX_ITER, tol=tolerance, warm_start=True
    )


def _fit(model: LogisticRegression, train: Floats, labels: Ints) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # read off n_iter_ and reported
        model.fit(train, labels)


def _fit_forest(
    train: Floats, labels: Ints, num_trees: int, leaf: int, seed: int
) -> RandomForestClassifier:
    model = RandomForestClassifier(
        num_trees, min_samples_leaf=leaf, class_weight="balanced", random_state=seed, n_jobs=-1
    ).fit(train, labels)
    return model.set_params(n_jobs=1)  # threads would add votes in a changing order


def _unit_length(features: Floats) -> Floats:
    features = features.astype(np.float32)
    length = np.linalg.norm(features, axis=1, keepdims=True)
    return np.asarray(features / np.maximum(length, np.finfo(np.float32).tiny))


def _vote(queries: Floats, train: Floats, labels: Ints, ks: Sequence[int]) -> Ints:
    """Return the winning class for each k, ``(len(ks), queries)``."""
    parts = [
        _vote_chunk(queries[start : start + _KNN_CHUNK], train, labels, ks)
        for start in range(0, len(queries), _KNN_CHUNK)
    ]
    return np.concatenate(parts, axis=1)


def _vote_chunk(queries: Floats, train: Floats, labels: Ints, ks: Sequence[int]) -> Ints:
    similarity = queries @ train.T
    furthest = max(ks)
    nearest = np.argpartition(-similarity, furthest - 1, axis=1)[:, :furthest]
    closeness = np.take_along_axis(similarity, nearest, axis=1)
    order = np.argsort(-closeness, axis=1, kind="stable")
    nearest = np.take_along_axis(nearest, order, axis=1)
    closeness = np.take_along_axis(closeness, order, axis=1)

    is_class = labels[nearest][:, :, None] == np.arange(labels.max() + 1)
    # a cosine is at most 1, so this stays below half a vote
    ballots = np.cumsum(is_class * (1 + closeness[:, :, None] / (4 * furthest)), axis=1)
    return np.stack([ballots[:, k - 1].argmax(axis=1) for k in ks])
