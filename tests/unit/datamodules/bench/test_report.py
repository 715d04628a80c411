"""The report shows every number, as text and as JSON."""

from __future__ import annotations

import json

from datamodules.bench.report import Figure, Report, machine, num_processors
from datamodules.bench.timing import Ratio, Timing


def test_report_lines_show_every_number_and_its_target() -> None:
    report = Report({"processor": "a chip"}, ["8 of set"])
    report.timings["reading"] = {"raw": [Timing(10, 1e-4, 2e-4), Timing(10, 3e-4, 2e-2)]}
    spread = Ratio(1.504, 1.0, 2.0)
    report.figures = [
        Figure(name="raw", cpu=spread, control=spread, target=1.5, better="smaller"),
        Figure(name="later", wall=Ratio(0.1, 0, 0.2), target=1, better="smaller", unit="s"),
        Figure(name="no target", wall=spread),
    ]
    text = "\n".join(report.lines())
    assert "processor: a chip\nimages: 8 of set\n" in text
    assert "20.0 [10.0, 30.0]" in text
    assert "1,010 [20.0, 2,000]" in text
    rows = {line[:9].strip(): line for line in report.lines()[-3:]}
    assert rows["raw"].split() == [
        "raw", "1.50x", "[1.00,", "2.00]", "1.50x", "[1.00,", "2.00]", "<=", "1.5x", "no",
    ]  # fmt: skip
    assert rows["later"].split()[-3:] == ["<=", "1s", "yes"]
    assert rows["no target"].split()[-1] == "2.00]"


def test_report_to_dict_is_json_with_every_timing() -> None:
    report = Report({"a": "b"}, ["c"], {"g": {"n": [Timing(1, 2, 3)]}}, [Figure(name="f")])
    fields = json.loads(json.dumps(report.to_dict()))
    assert fields["timings"] == {"g": {"n": [{"num_samples": 1, "cpu_s": 2, "wall_s": 3}]}}
    assert fields["figures"][0]["name"] == "f"
    assert fields["figures"][0]["is_reached"] is None


def test_machine_names_what_the_numbers_depend_on() -> None:
    found = machine()
    assert str(num_processors()) in found["processor"]
    assert "pillow 1" in found["packages"]
    assert "Python 3" in found["system"]
