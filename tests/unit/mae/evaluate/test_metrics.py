from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import balanced_accuracy_score

from mae.evaluate.metrics import (
    balanced_accuracy,
    bootstrap_balanced_accuracy,
    interval,
    recalls,
)


@pytest.fixture
def answers():
    """300 samples of 4 unequal classes in 12 groups, three rows of answers."""
    random = np.random.default_rng(5)
    labels = random.choice(4, p=[0.55, 0.3, 0.1, 0.05], size=300)
    units = random.integers(12, size=300)
    rows = np.stack([np.where(random.random(300) < p, labels, random.integers(4, size=300))
                     for p in (0.2, 0.6, 0.9)])  # fmt: skip
    return labels, rows, units


def test_balanced_accuracy_unequal_classes_equals_sklearn(answers):
    labels, rows, _ = answers
    for row in rows:
        assert balanced_accuracy(labels, row) == pytest.approx(balanced_accuracy_score(labels, row))


def test_recalls_class_without_samples_is_left_out():
    assert recalls(np.array([0, 0, 2, 2]), np.array([0, 1, 2, 2])) == {0: 0.5, 2: 1.0}


def test_bootstrap_groups_equals_slow_loop_on_the_same_draws(answers):
    labels, rows, units = answers
    fast = bootstrap_balanced_accuracy(labels, rows, units, num_resamples=40, seed=3)
    draws = np.random.default_rng(3).integers(12, size=(40, 12))
    for resample, drawn in zip(fast, draws, strict=True):
        members = np.concatenate([np.flatnonzero(units == unit) for unit in drawn])
        for row, value in zip(rows, resample, strict=True):
            assert value == pytest.approx(
                balanced_accuracy_score(labels[members], row[members]), abs=1e-12
            )


def test_bootstrap_class_missing_in_a_resample_averages_over_the_rest():
    labels, units = np.array([0, 0, 1]), np.array([0, 1, 2])  # class 1 stands in one group alone
    values = bootstrap_balanced_accuracy(labels, labels[None], units, num_resamples=200)
    np.testing.assert_array_equal(values, 1.0)


def test_bootstrap_in_chunks_equals_one_piece(answers, monkeypatch):
    labels, rows, units = answers
    whole = bootstrap_balanced_accuracy(labels, rows, units, num_resamples=50)
    monkeypatch.setattr("mae.evaluate.metrics._CHUNK_VALUES", 100)
    np.testing.assert_array_equal(
        bootstrap_balanced_accuracy(labels, rows, units, num_resamples=50), whole
    )


def test_bootstrap_one_group_in_all_never_varies(answers):
    labels, rows, units = answers
    values = bootstrap_balanced_accuracy(labels, rows, units * 0, num_resamples=20)
    np.testing.assert_allclose(values - values[0], 0, atol=1e-12)


def test_bootstrap_clustered_answers_have_wider_intervals_than_single_samples():
    random = np.random.default_rng(0)
    units = np.repeat(np.arange(20), 50)
    labels = random.integers(2, size=1000)
    right = np.repeat(random.random(20) < 0.7, 50)  # a whole group is right or wrong
    rows = np.where(right, labels, 1 - labels)[None]
    grouped = interval(bootstrap_balanced_accuracy(labels, rows, units)[:, 0])
    single = interval(bootstrap_balanced_accuracy(labels, rows, np.arange(1000))[:, 0])
    assert grouped.high - grouped.low > 4 * (single.high - single.low)


def test_bootstrap_many_independent_groups_has_the_binomial_width():
    random = np.random.default_rng(1)
    labels = np.repeat([0, 1], 2000)
    rows = np.where(random.random(4000) < 0.8, labels, 1 - labels)[None]
    found = interval(bootstrap_balanced_accuracy(labels, rows, np.arange(4000))[:, 0])
    expected = 2 * 1.96 * np.sqrt(0.8 * 0.2 / 4000)  # mean of two halves of 2,000
    assert found.high - found.low == pytest.approx(expected, rel=0.1)


def test_interval_known_values_are_the_percentiles():
    found = interval(np.arange(1001) / 1000)
    assert (found.low, found.high) == pytest.approx((0.025, 0.975))
