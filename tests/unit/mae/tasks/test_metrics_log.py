from __future__ import annotations

from types import SimpleNamespace

import pytest

from mae.errors import DataError
from mae.tasks.metrics_log import MetricsLog, read_metrics


def test_log_metrics_appends_one_line_per_metric_under_one_header(tmp_path):
    MetricsLog(tmp_path).log_metrics({"train/loss": 0.5, "epoch": 0}, step=1)
    MetricsLog(tmp_path).log_metrics({"val/loss": 0.25, "val/feature_std": 1.0}, step=2)
    assert (tmp_path / "metrics.csv").read_text(encoding="utf-8").splitlines() == [
        "step,name,value",
        "1,train/loss,0.5",
        "2,val/loss,0.25",
        "2,val/feature_std,1.0",
    ]


def test_log_metrics_with_a_trainer_takes_the_steps_that_are_done(tmp_path):
    log = MetricsLog(tmp_path)
    log.trainer = SimpleNamespace(global_step=7)
    log.log_metrics({"val/loss": 1.0}, step=6)  # Lightning's number, one behind
    assert list(read_metrics(tmp_path)) == [(7, "val/loss", 1.0)]


def test_log_metrics_keeps_every_digit(tmp_path):
    MetricsLog(tmp_path).log_metrics({"a": 0.1 + 0.2, "b": float("nan"), "c": 1e-300}, step=0)
    values = [value for _, _, value in read_metrics(tmp_path)]
    assert values[0] == 0.1 + 0.2
    assert values[1] != values[1]
    assert values[2] == 1e-300


def test_drop_after_forgets_later_steps_only(tmp_path):
    log = MetricsLog(tmp_path)
    for step in range(1, 5):
        log.log_metrics({"train/loss": step / 3}, step=step)
    log.drop_after(2)
    assert list(read_metrics(tmp_path)) == [(1, "train/loss", 1 / 3), (2, "train/loss", 2 / 3)]
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.csv"]


def test_drop_after_without_a_log_does_nothing(tmp_path):
    MetricsLog(tmp_path).drop_after(2)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("torn", ["2", "2,train/lo", "2,train/loss,", "2,train/loss,-", "2,a,0.1"])
def test_read_metrics_leaves_a_torn_last_line_out(tmp_path, torn):
    MetricsLog(tmp_path).log_metrics({"train/loss": 0.5}, step=1)
    with (tmp_path / "metrics.csv").open("a", encoding="utf-8") as file:
        file.write(torn)
    assert list(read_metrics(tmp_path)) == [(1, "train/loss", 0.5)]


def test_drop_after_heals_a_torn_last_line_so_that_the_next_one_is_whole(tmp_path):
    log = MetricsLog(tmp_path)
    log.log_metrics({"train/loss": 0.5}, step=1)
    with (tmp_path / "metrics.csv").open("a", encoding="utf-8") as file:
        file.write("2,train/lo")
    log.drop_after(1)
    log.log_metrics({"train/loss": 0.25}, step=2)
    assert list(read_metrics(tmp_path)) == [(1, "train/loss", 0.5), (2, "train/loss", 0.25)]


def test_read_metrics_without_a_log_asks_whether_this_is_a_run(tmp_path):
    with pytest.raises(DataError, match=r"metrics\.csv does not exist; is .* the directory of a"):
        list(read_metrics(tmp_path))
