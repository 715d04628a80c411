"""What names of shards say, and what they do not say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datamodules.shardnames import gaps, late_starts, splits_of
from mae.errors import ConfigError, DataError


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["a-0.tar", "a-1.tar", "a-3.tar"], ["a-N.tar lacks 1: 2"]),
        (["a-003.tar", "a-004.tar", "a-007.tar"], ["a-N.tar lacks 2: 5-6"]),
        (["a-0.tar", "a-1.tar", "b-0.tar", "b-2.tar"], ["b-N.tar lacks 1: 1"]),
        (["a-00-of-04.tar", "a-02-of-04.tar"], ["a-N-of-04.tar lacks 2: 1, 3"]),
        (
            ["a-00-of-99999999999.tar"],
            ["a-N-of-99999999999.tar lacks 99,999,999,998: 1-99999999998"],
        ),
        (["a-0.tar", "a-1.tar"], []),
        (["one.tar", "two.tar"], []),
        (["scene_10012.tar", "scene_98771.tar"], []),  # identifiers, no numbering
        (["train/0.tar", "train/1.tar", "val/0.tar", "val/1.tar"], []),
        (["train/0.tar", "train/2.tar", "val/0.tar", "val/1.tar"], ["train/N.tar lacks 1: 1"]),
    ],
)
def test_gaps_names_the_missing_numbers(names: list[str], said: list[str]) -> None:
    assert list(gaps(names)) == said


@given(st.sets(st.integers(0, 60), min_size=2))
def test_gaps_counts_what_is_not_there(numbers: set[int]) -> None:
    missing = max(numbers) - min(numbers) + 1 - len(numbers)
    found = list(gaps([f"s-{number:06d}.tar" for number in numbers]))
    if 0 < missing <= len(numbers):
        assert found[0].startswith(f"s-N.tar lacks {missing}: ")
    else:
        assert found == []


def test_late_starts_names_series_without_their_beginning() -> None:
    assert late_starts(["a-005.tar", "a-006.tar"]) == ["a-N.tar begins at number 5"]
    assert late_starts(["a-2.tar", "a-3.tar"]) == ["a-N.tar begins at number 2"]
    assert late_starts(["a-001.tar", "a-002.tar"]) == []


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("train-000.tar", "train"),
        ("imagenet-val-000.tar", "val"),
        ("x_validation_3.tar", "val"),
        ("valid0001.tar", "val"),
        ("dev.tar", "val"),
        ("TEST-1.tar", "test"),
        ("val/000.tar", "val"),
        ("test/train-000.tar", "train"),  # the file's own name counts first
    ],
)
def test_splits_of_name_is_understood(name: str, split: str) -> None:
    assert splits_of([name], "names") == [split]


def test_splits_of_names_that_say_nothing_are_train() -> None:
    assert splits_of(["pretraining-0.tar", "latest.tar"], "names") == ["train", "train"]


@pytest.mark.parametrize(
    ("names", "fault"),
    [
        (["train-0.tar", "other-0.tar"], "other-0.tar say none"),
        (["train-val-0.tar", "val-0.tar"], "train-val-0.tar say two"),
    ],
)
def test_splits_of_unclear_names_are_refused(names: list[str], fault: str) -> None:
    with pytest.raises(DataError, match=fault):
        splits_of(names, "names")


def test_splits_of_rule_and_expression_decide() -> None:
    names = ["p1/a0.tar", "p2/a1.tar"]
    assert splits_of(names, "val") == ["val", "val"]
    assert splits_of(["x.training.tar", "x.dev.tar"], "names", r"x\.(\w+)") == ["train", "val"]
    with pytest.raises(DataError, match=r"finds no split in 'p1/a0.tar'"):
        splits_of(names, "names", "train")
    with pytest.raises(DataError, match="unknown split 'p1'"):
        splits_of(names, "names", "p.")
    with pytest.raises(ConfigError, match="no expression"):
        splits_of(names, "names", "(")
    with pytest.raises(ConfigError, match="give one of them"):
        splits_of(names, "train", "p.")
    with pytest.raises(ConfigError, match=r"unknown split 'tran'.*train"):
        splits_of(names, "tran")  # type: ignore[arg-type]
