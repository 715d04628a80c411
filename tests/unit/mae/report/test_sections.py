from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from mae.report import sections
from mae.report.collect import Export, Picture, RunFiles, collect


def test_model_sentence_names_the_architecture(complete_run):
    assert sections.model_sentence(collect(complete_run)) == (
        "Masked autoencoder on images of 64 px: ViT encoder of 4 blocks, width 128, 4 heads and "
        "patches of 16 px; decoder of 2 blocks, width 64; 75 % of the patches removed."
    )


def test_model_sentence_of_an_oblong_image_has_both_sides():
    model = {"img_size": [64, 96], "patch_size": 8, "embed_dim": 4, "depth": 1, "num_heads": 1}
    assert "images of 64x96 px" in sections.model_sentence(
        RunFiles(path=Path("run"), config={"model": model})
    )


def test_facts_are_those_of_the_run(complete_run):
    assert sections.facts(collect(complete_run)) == [
        ("last step logged", "900"),
        ("loss on fixed masks", "1.000 → 0.572"),
        ("images per second, median", "603"),
        ("time", "3 min 31 s"),
        ("peak memory", "1,420 MiB"),
    ]


def test_facts_of_a_run_resumed_once_add_up_the_time():
    starts = [{"seconds": 60, "peak_memory_mib": 100}, {"seconds": 30, "peak_memory_mib": 90}]
    facts = dict(sections.facts(RunFiles(path=Path("run"), environment={"starts": starts})))
    assert facts == {"time": "1 min 30 s", "peak memory": "100 MiB"}


def test_loss_section_joins_equal_references(complete_run):
    loss = sections.loss_section(collect(complete_run))
    assert "predict zero or the patch mean: 0.9987" in loss["chart"]
    assert loss["bin_size"] == 4  # 899 logged values, at most 240 points
    assert loss["table"][0] == ("0", "1.0000")


def test_loss_section_keeps_different_references_apart():
    metrics = {
        "val/loss": {0: 1.0},
        "val/predict_zero": {0: 1.0},
        "val/predict_patch_mean": {0: 0.25},
    }
    chart = sections.loss_section(RunFiles(path=Path("run"), metrics=metrics))["chart"]
    assert "predict zero: 1<" in chart
    assert "predict the patch mean: 0.25<" in chart


def test_loss_section_without_finite_values_is_none():
    metrics = {"train/loss": {0: float("nan")}}
    assert sections.loss_section(RunFiles(path=Path("run"), metrics=metrics)) is None


def test_loss_section_counts_values_that_cannot_be_drawn():
    metrics = {"train/loss": {0: 1.0, 1: float("nan")}, "val/loss": {0: float("inf")}}
    loss = sections.loss_section(RunFiles(path=Path("run"), metrics=metrics))
    assert loss["num_left_out"] == 2


def test_picture_with_target_statistics_raises_the_alarm():
    numbers = {"statistics": "target", "warning": "Trained on.", "title": "T", "sentences": ["S."]}
    shown = sections.picture(Picture(name="x", png=b"png", numbers=numbers))
    assert shown["alarms"] == ["Uses the target's statistics.", "Trained on."]
    assert shown["uri"] == "data:image/png;base64,cG5n"
    assert shown["alt"].startswith("T. One row per image")


def test_export_rows_above_the_tolerance_do_not_hold():
    compared = {"real": {"num_images": 8, "max_abs_difference": {"tokens": 2e-5, "cls": 1e-7}}}
    export = Export(name="timm", parity={"tolerance": 1e-5, "compared": compared})
    (row,) = sections.export_rows([export])
    assert (row["difference"], row["holds"], row["images"]) == ("2e-05", "no", "8 real")


def test_data_section_counts_images_per_split(complete_run):
    data = sections.data_section(collect(complete_run))
    rows = dict(data["rows"])
    assert rows["images, train"] == "6,234"
    assert rows["images, val"] == "300"
    assert rows["left out: truncated"] == "2"
    assert data["channels"][2] == ("blue", "61.25", "44.12")


def test_data_section_of_a_manifest_that_lacks_values_still_names_every_channel(complete_run):
    files = collect(complete_run)
    spec = {"channels": ["red", "green"], "mean": [1.5], "std": []}
    damaged = replace(files, manifest={**files.manifest, "spec": spec})
    assert sections.data_section(damaged)["channels"] == [
        ("red", "1.5", "missing"),
        ("green", "missing", "missing"),
    ]
