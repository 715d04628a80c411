from __future__ import annotations

from typing import Literal

import pytest

from mae.commands.signature import call_with_arguments
from mae.errors import ConfigError


def bake(cake: str, *, heat: int = 180, val_fraction: float | None = None,
         form: Literal["round", "square"] = "round") -> tuple[object, ...]:  # fmt: skip
    """Bake a cake.

    Args:
        cake: Which one.
        heat: Degrees.
        val_fraction: Share to taste.
        form: Of the tin.
    """
    return cake, heat, val_fraction, form


def call(*arguments: str):
    return call_with_arguments(bake, arguments, prog="mae bake")


def test_call_with_arguments_takes_positionals_and_options():
    assert call("apple", "--heat", "200") == ("apple", 200, None, "round")
    assert call("--form=square", "apple") == ("apple", 180, None, "square")


@pytest.mark.parametrize("spelling", ["--val_fraction", "--val-fraction"])
def test_call_with_arguments_takes_both_spellings_of_an_option(spelling):
    assert call("apple", spelling, "0.5")[2] == 0.5
    assert call("apple", f"{spelling}=0.5")[2] == 0.5


def test_call_with_arguments_lets_positionals_with_a_default_be_left_out(capsys):
    def order(what: str, size: Literal["small", "large"] = "small", *, to: str = "here"):
        """Order.

        Args:
            what: A drink.
            size: Of the cup.
        """
        return what, size, to

    def call_order(*arguments: str):
        return call_with_arguments(order, arguments, prog="mae order")

    order.__annotations__["size"] = Literal["small", "large"]
    assert call_order("tea") == ("tea", "small", "here")
    assert call_order("tea", "large") == ("tea", "large", "here")
    assert call_order("--to", "there", "tea", "large") == ("tea", "large", "there")
    with pytest.raises(ConfigError, match="size"):
        call_order("tea", "huge")
    with pytest.raises(SystemExit):
        call_order("--help")
    assert "Of the cup." in capsys.readouterr().out


def test_call_with_arguments_leaves_dashes_in_values_alone():
    assert call("apple-pie")[0] == "apple-pie"


def test_call_with_arguments_with_a_typo_says_two_lines_with_the_nearest():
    with pytest.raises(ConfigError) as caught:
        call("apple", "--heet", "200")
    assert str(caught.value).splitlines() == [
        "unknown option '--heet' of mae bake (did you mean '--heat'?)",
        "mae bake --help shows all",
    ]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["apple", "--heat", "hot"], "heat"),
        (["apple", "--form", "oval"], "form"),
        ([], "cake"),
        (["apple", "pear"], "pear"),
        (["apple", "--heat"], "heat"),
    ],
)
def test_call_with_arguments_with_a_wrong_value_says_two_lines_and_names_it(arguments, named):
    with pytest.raises(ConfigError) as caught:
        call(*arguments)
    lines = str(caught.value).splitlines()
    assert len(lines) == 2
    assert named in str(caught.value)
    assert "mae bake --help shows all" in lines[1]


def test_call_with_arguments_help_shows_the_docstring(capsys):
    with pytest.raises(SystemExit) as ended:
        call("--help")
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert "Bake a cake." in said
    assert said.count("Share to taste.") == 1  # beside its option, not in the description too
    assert "Args" not in said
