from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from mae.encoder import Encoder
from mae.errors import ConfigError, DataError
from mae.evaluate import heads
from mae.evaluate.features import FeatureSet, batches
from mae.evaluate.metrics import balanced_accuracy
from mae.evaluate.probe import ProbeFeatures, extract_probe, run_probe
from mae.evaluate.result import load_probe, save_probe
from mae.spec import ImageSpec

CLASSES = ("ash", "birch", "cedar")


@pytest.fixture(autouse=True)
def _small_forests(monkeypatch):
    monkeypatch.setattr(heads, "NUM_TREES", 20)
    monkeypatch.setattr(heads, "NUM_TREES_CHOOSING", 5)


def features(*, mae=0.0, random=0.0, colour=0.0, num=180, groups=12, shares=None, seed=0):
    """Planted features; each source has its classes so many standard deviations apart."""
    generator = np.random.default_rng(seed)

    def split(name):
        labels = generator.permutation(np.arange(num) % 3)
        if shares is not None:
            labels = generator.choice(3, p=shares, size=num)
        where = np.eye(6)[labels]

        def planted(distance):
            return (generator.normal(size=(num, 6)) + distance * where).astype(np.float32)

        apart = {"pixels": 0.0, "colour": colour, "mae/cls": mae, "mae/mean": mae}
        apart |= {f"random-{s}/{p}": random for s in (0, 1) for p in ("cls", "mean")}
        return FeatureSet(
            features={key: planted(distance) for key, distance in apart.items()},
            labels=labels,
            groups=tuple(f"{name}{i * groups // num:02d}" for i in range(num)) if groups else None,
            keys=tuple(f"{name}{i}" for i in range(num)),
        )

    return ProbeFeatures(
        train=split("train"), test=split("test"), classes=CLASSES, seeds=(0, 1),
        weights_digest="w", data_digest="d", split="test", seconds=0.0,
    )  # fmt: skip


def test_run_probe_planted_gain_is_ahead_in_every_reading():
    result = run_probe(features(mae=4, random=1), labels="90")
    (budget,) = result.budgets
    for name in ("MAE, linear CLS", "MAE, linear mean", "MAE, kNN CLS", "MAE, kNN mean"):
        row = budget.row(name)
        assert row.vs_random.verdict == "ahead"
        assert row.vs_random.against == name.replace("MAE", "random")
        rival = budget.row(row.vs_random.against)
        difference = row.balanced_accuracy - rival.balanced_accuracy
        assert row.vs_random.estimate == pytest.approx(difference)
        assert row.interval.low <= row.balanced_accuracy <= row.interval.high
        assert row.vs_random.interval.low <= difference <= row.vs_random.interval.high
    assert "ahead in 4 of 4" in result.sentences[0]
    assert any("points over random weights" in sentence for sentence in result.sentences)


def test_run_probe_planted_loss_is_said_as_plainly():
    result = run_probe(features(mae=0.5, random=4, colour=4), labels="90")
    row = result.budgets[0].row("MAE, linear CLS")
    assert row.vs_random.verdict == row.vs_simple.verdict == "behind"
    assert "behind in 4" in result.sentences[0]
    assert "behind in 4" in result.sentences[1]
    expected = f"{-100 * row.vs_random.estimate:.1f} points behind random weights"
    assert any(expected in sentence for sentence in result.sentences)


def test_run_probe_same_features_are_not_distinguishable():
    planted = features(mae=2)
    for split in (planted.train, planted.test):
        for pooling in ("cls", "mean"):
            split.features[f"random-0/{pooling}"] = split.features[f"mae/{pooling}"]
    result = run_probe(planted, labels="90")
    difference = result.budgets[0].row("MAE, linear CLS").vs_random
    assert (difference.estimate, difference.interval.low, difference.interval.high) == (0, 0, 0)
    assert difference.verdict == "undecided"
    assert any("not distinguishable from random weights" in s for s in result.sentences)


def test_run_probe_permuted_test_labels_change_no_choice_and_no_answer():
    planted = features(mae=1.5, random=1)
    shuffled = np.random.default_rng(1).permutation(planted.test.labels)
    other = replace(planted, test=replace(planted.test, labels=shuffled))
    first, second = (run_probe(f, labels="2-per-class,90").budgets for f in (planted, other))
    for a, b in zip(first, second, strict=True):
        assert [row.chosen for row in a.rows] == [row.chosen for row in b.rows]
        assert a.class_counts == b.class_counts


def test_run_probe_table_has_every_row_for_every_budget():
    result = run_probe(features(), labels="2-per-class,all", poolings=("cls", "mean", "concat"))
    encoders = [f"{s}, {head} {p}" for s in ("random", "MAE") for head in ("linear", "kNN")
                for p in ("CLS", "mean", "both")]  # fmt: skip
    simple = ["most frequent class", "logistic on pixels", "logistic on colour",
              "forest on colour"]  # fmt: skip
    assert [[row.name for row in budget.rows] for budget in result.budgets] == [
        simple + encoders
    ] * 2
    assert [budget.num_labels for budget in result.budgets] == [6, 180]
    assert result.budgets[0].class_counts == dict.fromkeys(CLASSES, 2)


def test_run_probe_concat_reads_what_only_both_poolings_together_know():
    planted = features(num=600, groups=0)
    for split in (planted.train, planted.test):
        split.features["mae/cls"][:, 0] += 8 * (split.labels == 0)
        split.features["mae/mean"][:, 0] += 8 * (split.labels == 1)
    budget = run_probe(planted, labels="all", poolings=("cls", "mean", "concat")).budgets[0]
    assert budget.row("MAE, linear both").balanced_accuracy > 0.95
    assert budget.row("MAE, linear CLS").balanced_accuracy < 0.8


def test_run_probe_majority_row_and_its_score_are_chance():
    row = run_probe(features(), labels="90").budgets[0].row("most frequent class")
    assert row.balanced_accuracy == pytest.approx(1 / 3)
    assert row.vs_random is None
    assert row.vs_simple is None


def test_run_probe_useless_features_on_unequal_classes_are_said_aloud():
    planted = features(shares=(0.9, 0.06, 0.04), num=300)
    for split in (planted.train, planted.test):
        for name in ("mae/cls", "mae/mean"):
            split.features[name][:] = 1.0  # a dead encoder
    row = run_probe(planted, labels="all").budgets[0].row("MAE, kNN CLS")
    assert any("answers only '" in note for note in row.notes)
    assert any("share of the most frequent class" in note for note in row.notes)
    assert row.balanced_accuracy == pytest.approx(1 / 3)


def test_run_probe_best_simple_row_is_what_encoders_are_compared_with():
    budget = run_probe(features(colour=3), labels="90").budgets[0]
    simple = {n: budget.row(n).balanced_accuracy for n in
              ("logistic on pixels", "logistic on colour", "forest on colour")}  # fmt: skip
    assert budget.simple == max(simple, key=simple.get)
    assert {row.vs_simple.against for row in budget.rows if row.vs_simple} == {budget.simple}


def test_run_probe_too_few_labels_and_small_classes_are_noted():
    planted = features(num=30, groups=0)
    result = run_probe(planted, labels="20-per-class,500")
    assert result.budgets[0].notes == [f"class {c!r} has only 10 training labels" for c in CLASSES]
    assert "500 labels asked for, 30 there are" in result.budgets[1].notes[0]
    assert any("names no groups" in sentence for sentence in result.sentences)
    assert result.num_test_groups is None


def test_run_probe_few_test_groups_and_shared_groups_are_said():
    planted = features(groups=3)
    leaky = replace(planted, test=replace(planted.test, groups=planted.train.groups))
    assert "3 groups stand in both" in run_probe(leaky, labels="9").sentences[0]
    assert any("so few groups" in s for s in run_probe(planted, labels="9").sentences)


def test_run_probe_labels_of_one_group_say_how_settings_were_chosen():
    planted = features(groups=1)
    assert "one group" in run_probe(planted, labels="30").budgets[0].notes[0]


def test_run_probe_seeds_draw_other_labels_and_other_random_weights():
    planted = features(mae=1, random=1)
    planted.test.features["random-1/cls"][:] = 0
    first, again, second = (run_probe(planted, labels="30", seed=s) for s in (0, 0, 1))

    def scores(result):
        return [row.balanced_accuracy for row in result.budgets[0].rows]

    assert scores(first) == scores(again)
    assert scores(first) != scores(second)
    dead = second.budgets[0].row("random, linear CLS")
    assert dead.balanced_accuracy == pytest.approx(1 / 3)


def test_run_probe_seed_without_random_weights_is_refused():
    with pytest.raises(ConfigError, match="random weights of seed 7"):
        run_probe(features(), seed=7)


def test_run_probe_unknown_pooling_names_the_nearest():
    with pytest.raises(ConfigError, match="did you mean 'concat'"):
        run_probe(features(), poolings=("concatt",))


def test_run_probe_single_label_is_refused():
    with pytest.raises(ConfigError, match="one class only"):
        run_probe(features(), labels="1")


def test_save_probe_written_file_reads_back_equal(tmp_path):
    result = run_probe(features(mae=2), labels="2-per-class,90")
    path = tmp_path / "probe.json"
    path.write_text("old")
    save_probe(result, path)
    assert load_probe(path) == result
    assert [file.name for file in tmp_path.iterdir()] == ["probe.json"]
    assert json.loads(path.read_text())["format"] == "domain-mae-probe"


@pytest.mark.parametrize("text", ["{", "[]", '{"format": "domain-mae-probe", "version": 99}'])
def test_load_probe_something_else_is_refused(tmp_path, text):
    (tmp_path / "probe.json").write_text(text)
    with pytest.raises(DataError, match="mae probe"):
        load_probe(tmp_path / "probe.json")


class Images:
    """Bright and dark images; labels as given."""

    def __init__(self, labels):
        self.labels = labels

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        noise = np.random.default_rng(index).integers(0, 60, (3, 16, 16))
        pixels = (noise + 120 * self.labels[index]).astype(np.uint8)
        return {"image": pixels, "label": self.labels[index], "group": None, "key": str(index)}


@pytest.fixture
def encoder() -> Encoder:
    torch.manual_seed(0)
    return Encoder(img_size=16, patch_size=8, in_chans=3, embed_dim=16, depth=1, num_heads=2)


def extract(encoder, train, test=(0, 1) * 20, classes=("dark", "bright")):
    spec = ImageSpec(channels=("r", "g", "b"), dtype="uint8", mean=(90.0,) * 3, std=(60.0,) * 3,
                     value_range=(0.0, 255.0))  # fmt: skip
    return extract_probe(
        encoder, spec, train=batches(Images(train), batch_size=8),
        test=batches(Images(test), batch_size=8), classes=classes, data_digest="d", seeds=(3,),
    )  # fmt: skip


def test_extract_probe_then_run_probe_real_images_are_told_apart(encoder):
    result = run_probe(extract(encoder, (0, 1) * 20), labels="4-per-class", seed=3)
    for row in result.budgets[0].rows[1:]:
        assert row.balanced_accuracy > 0.9, row.name
    assert result.num_train == result.num_test == 40


def test_extract_probe_random_weights_of_each_seed_differ_from_the_encoder(encoder):
    found = extract(encoder, (0, 1)).test.features
    assert set(found) == {
        "pixels",
        "colour",
        "mae/cls",
        "mae/mean",
        "random-3/cls",
        "random-3/mean",
    }
    assert np.abs(found["mae/cls"] - found["random-3/cls"]).max() > 0.01


def test_extract_probe_one_class_in_training_is_refused(encoder):
    with pytest.raises(DataError, match="all 3 training labels are 'bright'"):
        extract(encoder, (1, 1, 1))


def test_extract_probe_label_outside_the_classes_is_refused(encoder):
    with pytest.raises(DataError, match="from 0 to 2"):
        extract(encoder, (0, 1, 2))


def test_run_probe_scores_equal_a_recount_from_recalls():
    result = run_probe(features(mae=2, shares=(0.6, 0.3, 0.1)), labels="90")
    for row in result.budgets[0].rows:
        assert row.balanced_accuracy == pytest.approx(np.mean(list(row.recalls.values())))
        recount = sum(result.test_counts[c] * share for c, share in row.recalls.items())
        assert row.accuracy == pytest.approx(recount / result.num_test)
    assert balanced_accuracy(np.array([0, 1]), np.array([0, 1])) == 1
