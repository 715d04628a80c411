from __future__ import annotations

import pytest

from mae.errors import DataError
from mae.report.collect import collect


def test_collect_minimal_run_has_nothing_but_the_configuration(minimal_run):
    files = collect(minimal_run)
    assert files.config["model"]["embed_dim"] == 128
    assert files.environment is files.probe is files.manifest is None
    assert files.metrics == {}
    assert files.pictures == files.exports == files.problems == ()


def test_collect_complete_run_finds_every_part(complete_run):
    files = collect(complete_run)
    assert files.problems == ()
    assert list(files.metrics["val/loss"]) == [0, 150, 300, 450, 600, 750, 900]
    assert files.metrics["val/loss"][0] == 1.0
    assert [picture.name for picture in files.pictures] == ["val-mask75-seed0"]
    assert files.pictures[0].png.startswith(b"\x89PNG")
    assert files.exports[0].name == "timm"
    assert files.manifest["source"] == "blue-marble"
    assert files.probe["split"] == "test"


def test_collect_metrics_of_a_resumed_run_keeps_the_later_value(minimal_run):
    lines = ["step,name,value", "1,val/loss,0.9", "2,val/loss,0.8", "2,val/loss,0.7"]
    (minimal_run / "metrics.csv").write_text("\n".join(lines))
    assert collect(minimal_run).metrics == {"val/loss": {1: 0.9, 2: 0.7}}


def test_collect_broken_lines_are_counted_and_said(minimal_run):
    lines = ["step,name,value", "1,val/loss,0.9", "2,val/loss,zero", "3,val/lo"]
    (minimal_run / "metrics.csv").write_text("\n".join(lines))
    files = collect(minimal_run)
    assert files.metrics == {"val/loss": {1: 0.9}}
    assert files.problems == ("metrics.csv has 2 rows that are no step, name and number; left out",)


@pytest.mark.parametrize("name", ["probe.json", "environment.json", "config.yaml"])
def test_collect_damaged_file_is_said_and_the_rest_is_read(complete_run, name):
    (complete_run / name).write_text("{ [ half a")
    files = collect(complete_run)
    assert files.problems[0].startswith(f"{name} cannot be read: ")
    assert files.metrics


def test_collect_file_of_another_shape_is_said(complete_run):
    (complete_run / "probe.json").write_text("[1, 2]")
    assert collect(complete_run).problems == (
        "probe.json holds a list where named values are expected",
    )


def test_collect_picture_without_numbers_is_kept(complete_run):
    (complete_run / "reconstruct" / "val-mask75-seed0.json").unlink()
    assert collect(complete_run).pictures[0].numbers is None


def test_collect_shards_that_moved_leave_no_manifest(complete_run):
    (complete_run.parent / "shards").rename(complete_run.parent / "elsewhere")
    files = collect(complete_run)
    assert files.manifest is None
    assert files.data_dir.endswith("shards")


def test_collect_missing_directory_is_refused(tmp_path):
    with pytest.raises(DataError, match="is no directory; give a run directory"):
        collect(tmp_path / "nowhere")


def test_collect_other_directory_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"neither config\.yaml nor metrics\.csv"):
        collect(tmp_path)
