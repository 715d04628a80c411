"""Turns are fair, and ratios are formed within a turn."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from datamodules.bench.timing import Timing, measure, ratio, take_turns


def timings(*seconds: float) -> list[Timing]:
    return [Timing(10, cpu_s=s, wall_s=2 * s) for s in seconds]


def test_take_turns_runs_every_case_once_per_round_and_every_other_backwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gc.collect", lambda: 0)  # takes its time beside a thousand tests
    ran: list[str] = []
    said: list[str] = []

    def case(name: str) -> int:
        ran.append(name)
        return len(ran)

    cases = {name: (lambda name=name: case(name)) for name in "abc"}
    found = take_turns(cases, rounds=3, on_run=said.append)
    assert "".join(ran) == "abcabccbaabc"
    assert said == ran
    assert {name: [t.num_samples for t in of] for name, of in found.items()} == {
        "a": [4, 9, 10],
        "b": [5, 8, 11],
        "c": [6, 7, 12],
    }
    ran.clear()
    take_turns(cases, rounds=1, warm_up=False)
    assert "".join(ran) == "abc"


def test_ratio_is_formed_round_by_round_per_sample() -> None:
    # The median of 4/1, 9/3, 4/4 is not the ratio of the medians, 4/3.
    assert ratio(timings(4, 9, 4), timings(1, 3, 4), "cpu") == (3, 1, 4)
    halves = [timing._replace(num_samples=5) for timing in timings(1)]
    assert ratio(halves, timings(1), "wall") == (2, 2, 2)


def test_timing_per_sample_is_in_microseconds() -> None:
    assert timings(3)[0].per_sample_us("cpu") == pytest.approx(300_000)
    assert timings(3)[0].per_sample_us("wall") == pytest.approx(600_000)


def test_measure_counts_what_child_processes_used() -> None:
    busy = "import time; end = time.process_time() + 0.2\nwhile time.process_time() < end: pass"

    def run() -> int:
        subprocess.run([sys.executable, "-c", busy], check=True)
        return 7

    found = measure(run)
    assert found.num_samples == 7
    assert found.cpu_s > 0.2


def test_measure_waiting_takes_time_but_no_processor() -> None:
    found = measure(lambda: time.sleep(0.1) or 1)
    assert found.cpu_s < found.wall_s
    assert found.wall_s >= 0.1
