"""``mae bench data``: prints, writes, and refuses early."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from datamodules.bench import data
from datamodules.bench.report import Figure, Report
from datamodules.bench.timing import Ratio, Timing
from mae.commands.bench import bench
from mae.commands.signature import call_with_arguments
from mae.errors import ConfigError, OutputError


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Return what the measuring was called with; it answers at once."""
    found: list[dict[str, Any]] = []

    def measured(shards: str | None, **options: Any) -> Report:
        options.pop("on_step")("a step")
        found.append({"shards": shards, **options})
        report = Report({"processor": "a chip"}, ["8 of set"])
        report.timings["reading"] = {"raw": [Timing(10, 1e-4, 2e-4)]}
        report.figures = [Figure(name="raw", cpu=Ratio(1, 1, 1), target=1.5, better="smaller")]
        return report

    monkeypatch.setattr(data, "bench_data", measured)
    return found


def run(*arguments: str) -> None:
    call_with_arguments(bench, arguments, prog="mae bench")


def test_bench_data_prints_the_report_and_writes_the_timings(
    calls: list[dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "new" / "bench.json"
    run("data", "some/shards", "--workers", "3", "--quick", "--json", str(out))
    assert calls == [{"shards": "some/shards", "workers": 3, "effort": data.QUICK}]
    said = capsys.readouterr().out
    assert "processor: a chip" in said
    assert "<= 1.5x" in said
    assert f"timings: {out}" in said
    assert json.loads(out.read_text())["timings"]["reading"]["raw"][0]["num_samples"] == 10


def test_bench_data_without_options_measures_in_full(calls: list[dict[str, Any]]) -> None:
    run("data")
    assert calls[0]["shards"] is None
    assert calls[0]["effort"] == data.Effort()
    assert calls[0]["workers"] >= 1


def test_bench_that_cannot_be_is_refused_before_measuring(
    calls: list[dict[str, Any]], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="workers is -1"):
        run("data", "--workers=-1")
    with pytest.raises(ConfigError):
        run("dta")
    with pytest.raises(OutputError, match="cannot be written"):
        run("data", "--json", str(tmp_path))
    assert calls == []
