from __future__ import annotations

import pytest

from mae.commands.config_keys import refuse_unknown_keys, report_changes, split_arguments
from mae.errors import ConfigError

OWN = {"--data", "--out", "--help"}
KNOWN = ["model", "model.depth", "trainer", "trainer.callbacks", "seed_everything"]


@pytest.mark.parametrize(
    ("arguments", "mine", "flags"),
    [
        ("recipe --data d --model.depth 2", "recipe --data d", "--model.depth 2"),
        ("--model.depth 2 recipe", "recipe", "--model.depth 2"),
        ("--model.depth=2 recipe --data=d", "recipe --data=d", "--model.depth=2"),
        ("--model.x -1 recipe", "recipe", "--model.x -1"),
        ("--model.depth --data d", "--data d", "--model.depth"),
        ("recipe --help", "recipe --help", ""),
        ("--help recipe", "--help recipe", ""),
        ("recipe -h", "recipe -h", ""),
        ("--model.depth", "", "--model.depth"),
        ("--out", "--out", ""),
    ],
)
def test_split_arguments_parts_the_verbs_own_from_lightnings(arguments, mine, flags):
    assert split_arguments(arguments.split(), OWN) == (mine.split(), flags.split())


def test_refuse_unknown_keys_knows_flags_groups_and_free_form_places(tmp_path):
    (tmp_path / "c.yaml").write_text(
        "model: {depth: 1}\ntrainer: {callbacks: {init_args: {any: 1}}}", encoding="utf-8"
    )
    flags = ["--model.depth", "2", "--config", str(tmp_path / "c.yaml"), "--seed_everything=1"]
    refuse_unknown_keys(flags, known=KNOWN)
    refuse_unknown_keys([f"--config={tmp_path / 'c.yaml'}"], known=KNOWN)


def test_refuse_unknown_keys_suggests_options_of_the_verb_too():
    with pytest.raises(ConfigError, match=r"'images' in the command line \(did you mean 'image'"):
        refuse_unknown_keys(["--images", "x"], known=KNOWN, suggested=["--image"])


def test_refuse_unknown_keys_with_nothing_near_suggests_nothing():
    with pytest.raises(ConfigError) as caught:
        refuse_unknown_keys(["--zzz", "1"], known=KNOWN)
    assert "did you mean" not in str(caught.value)


def test_report_changes_of_equal_runs_says_nothing(capsys):
    report_changes("model: {depth: 1}", "model: {depth: 1}")
    assert capsys.readouterr().out == ""


def test_report_changes_outside_the_model_prints_both_values(capsys):
    report_changes("data: {num_workers: 0, x: 1}", "data: {num_workers: 2, y: 3}")
    assert capsys.readouterr().out.splitlines() == [
        "changed on resume: data.num_workers: 0 so far, 2 now",
        "changed on resume: data.x: 1 so far, None now",
        "changed on resume: data.y: None so far, 3 now",
    ]


def test_report_changes_names_every_refused_key():
    with pytest.raises(ConfigError) as caught:
        report_changes(
            "seed_everything: 1\nmodel: {depth: 1, optim: {betas: [0.9, 0.95]}}",
            "seed_everything: 2\nmodel: {depth: 2, optim: {betas: [0.9, 0.99]}}",
        )
    message = str(caught.value)
    assert "model.depth: 1 so far, 2 now" in message
    assert "model.optim.betas: [0.9, 0.95] so far, [0.9, 0.99] now" in message
    assert "seed_everything: 1 so far, 2 now" in message
