from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mae.errors import ConfigError
from mae.evaluate.splits import (
    NUM_FOLDS,
    LabelBudget,
    label_subset,
    parse_budgets,
    selection_folds,
)

LABELS = np.random.default_rng(0).permutation(np.repeat([0, 1, 2, 3], [400, 250, 30, 7]))
label_lists = st.lists(st.integers(0, 3), min_size=4, max_size=80).map(np.array)


def subset(budget: str, *, labels=LABELS, seed=0) -> set[int]:
    return set(label_subset(labels, LabelBudget.parse(budget), seed=seed).tolist())


def test_parse_budgets_all_kinds_reads_them_without_repeats():
    parsed = parse_budgets("10-per-class, 2000,all,2000")
    assert [str(budget) for budget in parsed] == ["10-per-class", "2000", "all"]
    assert parse_budgets(["5"]) == (LabelBudget("total", 5),)


@pytest.mark.parametrize("text", ["", "0", "-3", "ten", "10-per-clas", "2,000", "1.5"])
def test_parse_budgets_nonsense_names_what_is_allowed(text):
    if text == "2,000":
        text = "2000,000"
    with pytest.raises(ConfigError, match="10-per-class"):
        parse_budgets(text)


def test_parse_budgets_empty_list_is_refused():
    with pytest.raises(ConfigError, match="no label budget"):
        parse_budgets([])


def test_label_subset_per_class_takes_so_many_of_each_or_all_there_are():
    chosen = label_subset(LABELS, LabelBudget.parse("10-per-class"), seed=0)
    np.testing.assert_array_equal(np.bincount(LABELS[chosen]), [10, 10, 10, 7])
    np.testing.assert_array_equal(chosen, np.unique(chosen))


def test_label_subset_total_keeps_the_proportions():
    chosen = label_subset(LABELS, LabelBudget.parse("100"), seed=0)
    assert len(chosen) == 100
    exact = np.bincount(LABELS) * 100 / len(LABELS)
    assert np.abs(np.bincount(LABELS[chosen]) - exact).max() <= 1


def test_label_subset_small_total_has_one_of_each_class():
    assert set(LABELS[sorted(subset("4"))]) == {0, 1, 2, 3}


def test_label_subset_more_than_there_are_takes_all():
    assert subset("100000") == subset("all") == set(range(len(LABELS)))


def test_label_subset_other_seed_gives_other_samples():
    assert subset("100", seed=0) == subset("100", seed=0)
    assert subset("100", seed=0) != subset("100", seed=1)


def test_label_subset_every_sample_is_equally_likely():
    labels = np.repeat([0, 1], [10, 30])
    hits = np.zeros(40)
    for seed in range(600):
        hits[sorted(subset("2-per-class", labels=labels, seed=seed))] += 1
    assert np.abs(hits[:10] / 600 - 0.2).max() < 0.06
    assert np.abs(hits[10:] / 600 - 2 / 30).max() < 0.05


@given(
    labels=label_lists, small=st.integers(1, 80), more=st.integers(0, 80), seed=st.integers(0, 9)
)
def test_label_subset_budgets_of_one_kind_are_nested(labels, small, more, seed):
    for kind in ("", "-per-class"):
        lesser = subset(f"{small}{kind}", labels=labels, seed=seed)
        assert lesser <= subset(f"{small + more}{kind}", labels=labels, seed=seed)
    assert len(subset(f"{small}", labels=labels, seed=seed)) == min(small, len(labels))


def test_label_subset_per_class_inside_a_large_total_is_nested():
    assert subset("5-per-class") <= subset("600")


@given(labels=label_lists, seed=st.integers(0, 9), data=st.data())
def test_selection_folds_keep_groups_whole_and_use_every_fold(labels, seed, data):
    groups = np.array(data.draw(st.lists(st.integers(0, 9), min_size=len(labels),
                                         max_size=len(labels))))  # fmt: skip
    folds = selection_folds(labels, groups, seed=seed)
    num_groups = len(np.unique(groups))
    if num_groups > 1:
        for group in np.unique(groups):
            assert len(np.unique(folds[groups == group])) == 1
        assert len(np.unique(folds)) == min(NUM_FOLDS, num_groups)


def test_selection_folds_without_groups_spread_every_class_evenly():
    folds = selection_folds(LABELS, None, seed=0)
    for c in range(4):
        per_fold = np.bincount(folds[c == LABELS], minlength=NUM_FOLDS)
        assert per_fold.max() - per_fold.min() <= 1


def test_selection_folds_single_group_deals_single_samples():
    folds = selection_folds(LABELS, np.zeros(len(LABELS), dtype=int), seed=0)
    np.testing.assert_array_equal(folds, selection_folds(LABELS, None, seed=0))


def test_selection_folds_groups_of_one_class_each_spread_the_classes():
    labels = np.repeat([0, 1], 40)
    folds = selection_folds(labels, np.arange(80) // 5, seed=0)
    for c in (0, 1):
        np.testing.assert_array_equal(np.bincount(folds[labels == c]), [10] * 4)
