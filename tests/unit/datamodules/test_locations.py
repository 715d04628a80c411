"""Paths, URLs and brace lists."""

from __future__ import annotations

import pytest

from datamodules.locations import expand, is_url, join
from mae.errors import ConfigError


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        ("s3://bucket/a", True),
        ("https://host/a", True),
        ("/data/a", False),
        ("data/a", False),
        ("C:\\data", False),
        ("pipe:cat x", False),
    ],
)
def test_is_url_needs_a_scheme(location: str, expected: bool) -> None:
    assert is_url(location) is expected


@pytest.mark.parametrize(
    ("root", "name", "expected"),
    [
        ("/data", "a/b.tar", "/data/a/b.tar"),
        ("data", "b.tar", "data/b.tar"),
        ("s3://bucket/x/", "b.tar", "s3://bucket/x/b.tar"),
        ("/data", "/other/b.tar", "/other/b.tar"),
        ("/data", "https://host/b.tar", "https://host/b.tar"),
        ("https://host/x", "s3://bucket/b.tar", "s3://bucket/b.tar"),
    ],
)
def test_join_keeps_absolute_names(root: str, name: str, expected: str) -> None:
    assert join(root, name) == expected


def test_expand_as_a_shell_does() -> None:
    assert expand("a/{08..11}.tar") == [f"a/{i:02d}.tar" for i in range(8, 12)]
    assert expand("x{a,b}{0..1}::y") == ["xa0", "xa1", "xb0", "xb1", "y"]
    assert expand("s3://b/train-{000000..000001}.tar")[1] == "s3://b/train-000001.tar"


@pytest.mark.parametrize(
    ("text", "words"),
    [("a{0..3", "do not match"), ("a{0..99999999}", "100,000,000 names; allowed: 1,000,000")],
)
def test_expand_slips_are_refused(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        expand(text)
