from __future__ import annotations

import csv
import json
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from datamodules.manifest import Manifest
from datamodules.pack import pack
from mae.commands.probe import probe
from mae.commands.signature import call_with_arguments
from mae.encoder import Encoder
from mae.errors import ConfigError, DataError, WeightsError
from mae.evaluate import heads
from mae.evaluate.result import load_probe
from mae.weights import save_encoder


@pytest.fixture(autouse=True)
def _small_forests(monkeypatch):
    monkeypatch.setattr(heads, "NUM_TREES", 20)
    monkeypatch.setattr(heads, "NUM_TREES_CHOOSING", 5)


def labelled(folder, *, mode="RGB", test="test", labels="none"):
    """Pack 48 dark and bright images in 12 groups, half of them for testing."""
    (folder / "images").mkdir(parents=True)
    random = np.random.default_rng(0)
    rows = []
    for i in range(48):
        bright = i % 2
        pixels = random.integers(0, 100, (16, 24, 3)) + 100 * bright
        name = f"images/{i:02d}.png"
        Image.fromarray(pixels.astype(np.uint8)).convert(mode).save(folder / name)
        group = i // 4
        rows.append((name, ("dark", "bright")[bright], f"g{group}", "train" if i < 24 else test))
    with (folder / "labels.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("path", "label", "group", "split"), *rows])
    pack(folder / "labels.csv", folder / "shards", labels=labels)
    return folder / "shards"


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    return labelled(tmp_path_factory.mktemp("labelled"))


@pytest.fixture
def weights(tmp_path, shards):
    torch.manual_seed(0)
    encoder = Encoder(img_size=(16, 24), patch_size=8, in_chans=3, embed_dim=16, depth=1,
                      num_heads=2)  # fmt: skip
    path = tmp_path / "run" / "encoder" / "encoder.safetensors"
    return save_encoder(path, encoder, Manifest.load(shards).spec, info={})


def test_probe_run_directory_writes_the_result_and_prints_the_table(weights, shards, capsys):
    (weights.parent.parent / "config.yaml").write_text("{}")
    before = weights.read_bytes()
    path = probe(str(weights.parent.parent), data=str(shards), labels="3-per-class,all")
    assert path == weights.parent.parent / "probe.json"
    result = load_probe(path)
    assert result.data_digest == Manifest.load(shards).digest
    assert (result.num_train, result.num_test, result.num_test_groups) == (24, 24, 6)
    assert result.classes == ["bright", "dark"]
    assert [budget.num_labels for budget in result.budgets] == [6, 24]
    assert result.budgets[1].row("logistic on colour").balanced_accuracy == 1
    assert weights.read_bytes() == before
    printed = capsys.readouterr().out
    assert "MAE, kNN mean" in printed
    assert "does not condemn" in printed
    assert str(path) in printed.replace("\n", "")


def test_probe_result_holds_nothing_of_the_machine(weights, shards):
    text = probe(str(weights), data=str(shards), labels="all").read_text()
    assert str(weights.parent) not in text
    assert str(shards) not in text


def test_probe_command_line_reads_lists_with_commas(weights, shards, tmp_path):
    out = tmp_path / "deep" / "other.json"
    arguments = [str(weights), "--data", str(shards), "--labels", "2-per-class,8",
                 "--poolings", "mean,concat", "--out", str(out), "--seed", "3"]  # fmt: skip
    call_with_arguments(probe, arguments, prog="mae probe")
    fields = json.loads(out.read_text())
    assert [budget["budget"] for budget in fields["budgets"]] == ["2-per-class", "8"]
    assert {row["pooling"] for row in fields["budgets"][0]["rows"]} == {"", "mean", "concat"}
    assert fields["seed"] == 3


def test_probe_images_of_other_channels_name_both_sides(weights, tmp_path):
    grey = labelled(tmp_path / "grey", mode="L")
    with pytest.raises(DataError, match=r"channels.*the encoder.*grey"):
        probe(str(weights), data=str(grey))
    assert not list(tmp_path.rglob("probe.json"))


def test_probe_leaves_out_images_that_cannot_be_decoded_and_says_so(
    weights, shards, tmp_path, reseal, capsys
):
    hurt = tmp_path / "hurt"
    shutil.copytree(shards, hurt)
    path = hurt / "test-000000.tar"
    data = path.read_bytes()
    place = data.index(b"IDAT") + 8
    path.write_bytes(data[:place] + bytes(16) + data[place + 16 :])
    reseal(hurt)
    probe(str(weights), data=str(hurt), out=str(tmp_path / "p.json"))
    assert "1 images of test cannot be decoded and are left out: 1 x" in capsys.readouterr().out
    assert load_probe(tmp_path / "p.json").num_test == 23


def test_probe_several_labels_per_image_are_refused(weights, tmp_path):
    shards = labelled(tmp_path, labels="multi")
    with pytest.raises(DataError, match="several labels per image, and mae probe reads one"):
        probe(str(weights), data=str(shards), out=str(tmp_path / "p.json"))


def test_probe_missing_split_names_those_there_are(weights, shards, tmp_path):
    with pytest.raises(DataError, match=r"no split 'val'; it has train, test"):
        probe(str(weights), data=str(shards), split="val")


def test_probe_run_that_does_not_exist_is_refused_and_nothing_is_made(shards, tmp_path):
    with pytest.raises(WeightsError, match="does not exist"):
        probe(str(tmp_path / "nowhere" / "run"), data=str(shards))
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"labels": "ten"}, "label budget 'ten'"),
        ({"poolings": "clss"}, "did you mean 'cls'"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"out": "."}, "is a directory"),
    ],
)
def test_probe_impossible_option_is_refused_before_anything_is_loaded(option, message):
    with pytest.raises(ConfigError, match=message):
        probe("no-run", data="no-data", **option)
