"""Paths, URLs and brace lists."""

from __future__ import annotations

import pytest
from braceexpand import braceexpand

from datamodules.locations import expand, is_url, join, shown, split_list
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
    [
        ("a{0..3", "do not match"),
        ("a}b", "do not match"),
        ("a{0..99999999}", "100,000,000 names; allowed: 1,000,000"),
        ("{a,b}" * 28, "268,435,456 names"),
        ("{{a,b},{c,d}}" * 14, "268,435,456 names"),
        ("{a,b}" * 99_999, "too many names"),
        ("{1..%s}" % ("9" * 30), "too many names"),
        ("::".join(["{1..600000}"] * 2), "1,200,000 names"),
        ("pipe:cat {0..999}{0..999}{0..9}.tar", "10,000,000 names"),
        ("{" * 5000 + "}" * 5000, "more than 15 deep"),
    ],
)
def test_expand_slips_are_refused(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        expand(text)


@pytest.mark.parametrize(
    "text",
    ["{a,b}{1..3}", "{a..c}{X..b}", "{{a,b},c{1..4..2}}x", "{x}", "a,b", "{a,b\\,c}", "{3..1}{,}"],
)
def test_expand_exactly_as_many_names_as_allowed(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = list(braceexpand(text))
    monkeypatch.setattr("datamodules.locations._MAX_EXPANDED", len(names))
    assert expand(text) == names
    monkeypatch.setattr("datamodules.locations._MAX_EXPANDED", len(names) - 1)
    with pytest.raises(ConfigError, match=f"stands for {len(names)} names"):
        expand(text)


@pytest.mark.parametrize(
    "command",
    [
        "pipe:tar cf - $(ls d | awk '{print $1,$2}')",
        "pipe:ssh h 'cat std::x.tar'",
        "pipe:cat {a,b}.tar",
        "pipe:cat {a..b}.tar; printf '\\n}'",
    ],
)
def test_expand_command_stays_as_it_is(command: str) -> None:
    assert expand(command) == [command]
    assert expand(f"a.tar::{command}") == ["a.tar", command]


def test_expand_command_ranges_of_numbers_as_webdataset_does() -> None:
    assert expand("pipe:cat {08..10}.tar | tee {a,b}") == [
        f"pipe:cat {n}.tar | tee {{a,b}}" for n in ("08", "09", "10")
    ]


def test_expand_address_of_a_host_is_not_cut() -> None:
    assert expand("http://[::1]:8000/{0..1}.tar::https://u@[fe80::2%25e]/b.tar::c[0-9].tar") == [
        "http://[::1]:8000/0.tar",
        "http://[::1]:8000/1.tar",
        "https://u@[fe80::2%25e]/b.tar",
        "c[0-9].tar",
    ]
    assert split_list("a::b") == ["a", "b"]


def test_shown_has_no_secrets() -> None:
    assert shown("https://user:word@host/a.tar?key=word") == "https://host/a.tar?…"
    assert shown("http://[::1/word") == "http://…"
    assert shown("/a@b/c?d") == "/a@b/c?d"
