from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import logsumexp
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score
from sklearn.metrics.pairwise import cosine_similarity
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from mae.evaluate import heads
from mae.evaluate.heads import Fitted, Task, choose, forest, knn, logistic, majority, standardise
from mae.evaluate.splits import selection_folds


@pytest.fixture(autouse=True)
def _small_forests(monkeypatch):
    monkeypatch.setattr(heads, "NUM_TREES", 40)
    monkeypatch.setattr(heads, "NUM_TREES_CHOOSING", 5)


def blobs(num=160, *, classes=4, distance=2.0, dim=6, seed=0):
    """Gaussian classes on the axes; returns features and labels."""
    random = np.random.default_rng(seed)
    labels = np.arange(num) % classes
    return (random.normal(size=(num, dim)) + distance * np.eye(dim)[labels]), labels


def task(train, labels, test, **kwargs) -> Task:
    folds = selection_folds(labels, kwargs.pop("groups", None), seed=0)
    return Task(train=train, labels=labels, folds=folds, test=test, **kwargs)


@pytest.mark.parametrize("head", [logistic, knn, forest])
def test_head_separable_classes_are_read_perfectly(head):
    train, labels = blobs(distance=30)
    test, truth = blobs(distance=30, seed=1)
    np.testing.assert_array_equal(head(task(train, labels, test)).predictions, truth)


@pytest.mark.parametrize("head", [logistic, knn, forest])
def test_head_pure_noise_gives_chance(head):
    train, labels = blobs(distance=0)
    test, truth = blobs(1200, distance=0, seed=1)
    score = balanced_accuracy_score(truth, head(task(train, labels, test)).predictions)
    assert score == pytest.approx(0.25, abs=0.05)


def test_logistic_rare_class_is_not_given_up():
    random = np.random.default_rng(0)
    labels = np.repeat([0, 1], [380, 20])
    train = random.normal(size=(400, 2)) + 1.5 * labels[:, None]
    truth = np.repeat([0, 1], 500)
    test = random.normal(size=(1000, 2)) + 1.5 * truth[:, None]
    predictions = logistic(task(train, labels, test)).predictions
    bayes = (test.sum(axis=1) > 1.5).astype(int)  # the best rule for equal classes
    assert (
        balanced_accuracy_score(truth, predictions) > balanced_accuracy_score(truth, bayes) - 0.03
    )


def test_logistic_predictions_equal_a_direct_minimisation_of_the_loss():
    train, labels = blobs(120, classes=3, distance=1.5, dim=3)
    test, _ = blobs(300, classes=3, distance=1.5, dim=3, seed=1)
    labels = np.where(np.arange(120) % 4 == 1, 0, labels)  # unequal classes
    fitted = logistic(task(train, labels, test))

    mean, std = train.mean(0), train.std(0)
    x = np.c_[(train - mean) / std, np.ones(120)]
    weight = (120 / (3 * np.bincount(labels)))[labels]

    def loss(flat):
        w = flat.reshape(4, 3)
        logits = x @ w
        nll = logsumexp(logits, axis=1) - logits[np.arange(120), labels]
        return fitted.chosen * (weight * nll).sum() + 0.5 * (w[:-1] ** 2).sum()

    best = minimize(loss, np.zeros(12), method="BFGS", options={"gtol": 1e-5}).x.reshape(4, 3)
    logits = np.c_[(test - mean) / std, np.ones(300)] @ best
    ordered = np.sort(logits, axis=1)
    clear = ordered[:, -1] - ordered[:, -2] > 0.02
    assert clear.mean() > 0.9
    np.testing.assert_array_equal(fitted.predictions[clear], logits.argmax(1)[clear])


def test_logistic_scaled_and_shifted_features_give_the_same_answers():
    train, labels = blobs()
    test, _ = blobs(seed=1)
    factors = 10.0 ** np.arange(-3, 3)
    first = logistic(task(train, labels, test))
    second = logistic(task(train * factors + 7, labels, test * factors + 7))
    assert (first.predictions == second.predictions).mean() > 0.98
    assert first.chosen == second.chosen


def test_logistic_choice_equals_cold_cross_validation_by_sklearn():
    train, labels = blobs(120, distance=1.0, dim=20)
    train = train @ np.random.default_rng(1).normal(size=(20, 20))  # so that C matters
    groups = np.arange(len(labels)) // 5
    folds = selection_folds(labels, groups, seed=0)
    scores = {}
    for c in heads.C_GRID:
        answers = np.empty_like(labels)
        for fold in range(4):
            inside = folds != fold
            model = make_pipeline(
                StandardScaler(), LogisticRegression(C=c, class_weight="balanced", max_iter=5000)
            ).fit(train[inside], labels[inside])
            answers[~inside] = model.predict(train[~inside])
        scores[c] = balanced_accuracy_score(labels, answers)
    assert max(scores.values()) > min(scores.values()) + 0.05
    chosen = logistic(task(train, labels, train, groups=groups)).chosen
    assert scores[chosen] == pytest.approx(max(scores.values()), abs=0.01)


def test_logistic_class_in_one_group_alone_still_answers():
    train, labels = blobs(40, classes=2, distance=30)
    fitted = logistic(task(train, labels, train, groups=labels))  # a group holds one class
    np.testing.assert_array_equal(fitted.predictions, labels)


def test_logistic_too_few_iterations_is_reported_without_a_warning(monkeypatch):
    monkeypatch.setattr(heads, "MAX_ITER", 1)
    train, labels = blobs(distance=1.0)
    assert not logistic(task(train, labels, train)).converged


def test_logistic_enough_iterations_converges():
    train, labels = blobs(distance=1.0)
    assert logistic(task(train, labels, train)).converged


def brute_force_knn(train, labels, test, k):
    """Vote by a plain sort of cosine similarities; equal votes go to the larger sum."""
    found = []
    for similarities in cosine_similarity(test, train):
        nearest = sorted(range(len(train)), key=lambda i: -similarities[i])[:k]
        votes = {c: [similarities[i] for i in nearest if labels[i] == c] for c in set(labels)}
        found.append(max(votes, key=lambda c: (len(votes[c]), sum(votes[c]))))
    return np.array(found)


@pytest.mark.parametrize("k", [1, 3, 10, 50])
def test_knn_every_k_equals_brute_force(k, monkeypatch):
    monkeypatch.setattr(heads, "K_GRID", (k,))
    monkeypatch.setattr(heads, "_KNN_CHUNK", 7)
    train, labels = blobs(distance=1.0)
    test, _ = blobs(90, distance=1.0, seed=1)
    fitted = knn(task(train, labels, test))
    np.testing.assert_array_equal(fitted.predictions, brute_force_knn(train, labels, test, k))


def test_knn_choice_equals_brute_force_over_folds():
    train, labels = blobs(distance=1.0)
    fitted = knn(task(train, labels, train))
    folds = selection_folds(labels, None, seed=0)
    scores = {}
    for k in heads.K_GRID:
        answers = np.empty_like(labels)
        for fold in range(4):
            inside = folds != fold
            answers[~inside] = brute_force_knn(train[inside], labels[inside], train[~inside], k)
        scores[k] = balanced_accuracy_score(labels, answers)
    assert scores[fitted.chosen] == pytest.approx(max(scores.values()))


def test_knn_few_labels_keeps_k_inside_the_smallest_training_fold():
    train, labels = blobs(8)
    fitted = knn(task(train, labels, train))
    assert max(fitted.grid) <= 6
    two = knn(task(train[:2], labels[:2], train))
    assert two.grid == (1,)


def test_knn_length_of_the_features_does_not_matter():
    train, labels = blobs()
    test, _ = blobs(seed=1)
    lengths = np.random.default_rng(0).uniform(0.01, 100, size=(len(test), 1))
    first, second = (knn(task(train, labels, t)).predictions for t in (test, test * lengths))
    np.testing.assert_array_equal(first, second)


def test_knn_zero_feature_vector_gives_an_answer():
    train, labels = blobs()
    assert knn(task(train, labels, np.zeros((1, 6)))).predictions[0] in range(4)


def test_forest_same_seed_gives_the_same_answers():
    train, labels = blobs(distance=1.0)
    test, _ = blobs(distance=1.0, seed=1)
    first, second = (forest(task(train, labels, test, seed=3)).predictions for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_majority_most_frequent_class_answers_everything():
    found = majority(task(np.zeros((5, 1)), np.array([2, 0, 2, 1, 2]), np.zeros((3, 1))))
    np.testing.assert_array_equal(found.predictions, [2, 2, 2])
    assert not found.at_edge


def test_standardise_uses_train_statistics_and_keeps_constant_features_finite():
    random = np.random.default_rng(0)
    train = np.c_[random.normal(5, 3, 50), np.full(50, 0.1)].astype(np.float32)
    test = np.c_[random.normal(5, 3, 20), np.full(20, 0.1)].astype(np.float32)
    a, b = standardise(train, test)
    np.testing.assert_allclose(a[:, 0].mean(), 0, atol=1e-12)
    np.testing.assert_allclose(a[:, 0].std(), 1, atol=1e-12)
    np.testing.assert_allclose(b[:, 0], (test[:, 0] - train[:, 0].mean(dtype=float))
                               / train[:, 0].std(dtype=float))  # fmt: skip
    np.testing.assert_allclose(a[:, 1], 0, atol=1e-6)
    np.testing.assert_allclose(b[:, 1], 0, atol=1e-6)


def test_choose_plateau_takes_its_middle():
    labels = np.array([0, 1, 0, 1])
    right, wrong = labels, 1 - labels
    assert choose(np.stack([wrong, right, right, right, wrong]), labels) == 2
    assert choose(np.stack([wrong, wrong, right]), labels) == 2


@pytest.mark.parametrize(
    ("chosen", "complete_below", "expected"),
    [(1, False, True), (1, True, False), (3, False, False), (9, True, True)],
)
def test_at_edge_value_beyond_the_grid_possible_is_reported(chosen, complete_below, expected):
    fitted = Fitted(predictions=np.zeros(1, dtype=int), setting="k", chosen=chosen, grid=(1, 3, 9),
                    complete_below=complete_below)  # fmt: skip
    assert fitted.at_edge is expected
