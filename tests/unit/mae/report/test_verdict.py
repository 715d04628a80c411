from __future__ import annotations

from mae.evaluate.result import ProbeResult
from mae.report import verdict
from mae.report.collect import collect


def test_probe_section_keeps_every_sentence_once(complete_run):
    probe = ProbeResult.from_dict(collect(complete_run).probe)
    shown = verdict.probe_section(probe)
    assert shown["sentences"] == probe.sentences[:1]
    assert shown["readings"] == probe.sentences[1:]


def test_probe_section_unknown_sentences_stay_in_sight(complete_run):
    probe = ProbeResult.from_dict({**collect(complete_run).probe, "sentences": ["Mind the gap."]})
    assert verdict.probe_section(probe)["sentences"] == ["Mind the gap."]


def test_probe_section_writes_values_in_percent_and_differences_in_points(complete_run):
    probe = ProbeResult.from_dict(collect(complete_run).probe)
    shown = verdict.probe_section(probe)["budgets"][0]
    row = next(row for row in shown["rows"] if row["name"] == "MAE, kNN mean")
    assert (row["value"], row["interval"], row["style"]) == ("53.0", "49.0 to 56.5", "mae")
    assert row["vs_random"] == {"value": "-5.0", "interval": "-8.0 to -2.0", "verdict": "behind"}
    assert row["vs_simple"]["verdict"] == "undecided"
    assert "MAE, kNN mean 53.0, from 49.0 to 56.5" in shown["chart"]
