from __future__ import annotations

import pytest

from mae.report import words


@pytest.mark.parametrize(
    ("value", "expected"),
    [(1234567, "1,234,567"), (75.0, "75"), (0.123456, "0.1235"), (None, ""), (1e-5, "1e-05")],
)
def test_number_is_written_for_a_reader(value, expected):
    assert words.number(value) == expected


@pytest.mark.parametrize(
    ("seconds", "expected"), [(42.2, "42 s"), (211.4, "3 min 31 s"), (7322.0, "2 h 2 min")]
)
def test_duration_uses_the_two_largest_units(seconds, expected):
    assert words.duration(seconds) == expected


def test_flatten_writes_nested_settings_with_dots():
    values = {"a": {"b": 1, "c": [1, 2]}, "d": None, "command": ["mae", "pack"], "e": {}}
    assert words.flatten(values) == [
        ("a.b", "1"),
        ("a.c", "1, 2"),
        ("d", "none"),
        ("command", "mae pack"),
        ("e", "none"),
    ]
