"""Splits by keyed hash, order, groups and classes of listed images."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datamodules.packing.items import (
    Item,
    assign_splits,
    class_names,
    shuffled,
    with_groups,
)
from datamodules.packing.places import StoredPlace
from mae.errors import ConfigError, DataError


def item(name: str, label: str | None = None, *, group: str | None = None, split: str = "") -> Item:
    labels = None if label is None else (label,)
    return Item(StoredPlace(name, 1, 0), name, labels, group, split)


def items_of(count: int, *, groups: int) -> list[Item]:
    return [item(f"{i}.png", group=f"g{i % groups}") for i in range(count)]


def test_assign_splits_groups_stay_whole_and_shares_hold() -> None:
    placed = assign_splits(items_of(9000, groups=3000), val_fraction=0.1, test_fraction=0.2, seed=0)
    splits_of_group: dict[str | None, set[str]] = {}
    for one in placed:
        splits_of_group.setdefault(one.group, set()).add(one.split)
    assert all(len(splits) == 1 for splits in splits_of_group.values())
    counts = Counter(next(iter(splits)) for splits in splits_of_group.values())
    # Binomial: 3000 groups, five standard deviations.
    assert abs(counts["val"] - 300) < 5 * (3000 * 0.1 * 0.9) ** 0.5
    assert abs(counts["test"] - 600) < 5 * (3000 * 0.2 * 0.8) ** 0.5


def test_assign_splits_added_images_move_nothing() -> None:
    few = assign_splits(items_of(50, groups=50), val_fraction=0.3, test_fraction=0.3, seed=4)
    many = assign_splits(items_of(200, groups=200), val_fraction=0.3, test_fraction=0.3, seed=4)
    assert few == many[:50]
    other = assign_splits(items_of(50, groups=50), val_fraction=0.3, test_fraction=0.3, seed=5)
    assert few != other


def test_assign_splits_group_in_two_named_splits_is_refused() -> None:
    items = [
        item("a", group="p", split="train"),
        item("b", group="p", split="test"),
    ]
    with pytest.raises(DataError, match="group 'p' stands in two splits: 'a' in train and 'b'"):
        assign_splits(items, val_fraction=0, test_fraction=0, seed=0)


@pytest.mark.parametrize(("val", "test"), [(-0.1, 0), (0.5, 0.5), (0, 1)])
def test_assign_splits_impossible_shares_are_refused(val: float, test: float) -> None:
    with pytest.raises(ConfigError, match="together below 1"):
        assign_splits([], val_fraction=val, test_fraction=test, seed=0)


def test_shuffled_is_keyed_and_mixes_classes() -> None:
    items = [item(f"{'ab'[i // 50]}/{i}", "ab"[i // 50]) for i in range(100)]
    order = shuffled(items, seed=0)
    assert order == shuffled(reversed(items), seed=0)
    assert order != shuffled(items, seed=1)
    # Hypergeometric, 25 of 100: mean 12.5, standard deviation 2.2.
    assert 4 < sum(i.labels == ("a",) for i in order[:25]) < 21


def test_class_names_numbers_sort_by_value() -> None:
    def labelled(*names: str) -> list[Item]:
        return [item(name, name) for name in names]

    assert class_names(labelled("10", "9", "-1")) == ("-1", "9", "10")
    assert class_names(labelled("b", "a", "10")) == ("10", "a", "b")
    assert class_names([item("a")]) is None


def test_class_names_several_labels_are_joined() -> None:
    several = [Item(StoredPlace("a", 1, 0), "a", names) for names in [("x", "z"), (), ("y",)]]
    assert class_names(several) == ("x", "y", "z")


@given(
    st.lists(st.tuples(st.text(max_size=4), st.sampled_from("abcde")), unique_by=lambda t: t[0]),
    st.integers(0, 3),
    st.floats(0, 0.5),
    st.floats(0, 0.49),
)
def test_assign_splits_no_group_stands_in_two_splits(
    named: list[tuple[str, str]], seed: int, val: float, test: float
) -> None:
    items = [item(name, group=group) for name, group in named]
    placed = assign_splits(items, val_fraction=val, test_fraction=test, seed=seed)
    assert [i.name for i in placed] == [name for name, _ in named]
    pairs = {(i.group, i.split) for i in placed}
    assert len(pairs) == len({i.group for i in placed})


def test_with_groups_takes_first_bracket_or_whole_match() -> None:
    items = [item("p1_a.png"), item("p1_b.png"), item("p22_a.png")]
    for expression in (r"(p\d+)_", r"p\d+"):
        assert [i.group for i in with_groups(items, expression)] == ["p1", "p1", "p22"]


def test_with_groups_faults_are_named() -> None:
    with pytest.raises(DataError, match=r"no group in 'other\.png'"):
        with_groups([item("p1_a.png"), item("other.png")], r"(p\d+)_")
    with pytest.raises(ConfigError, match="is no expression"):
        with_groups([item("a")], "(")
