"""Cases in turns, and ratios turn by turn."""

from __future__ import annotations

import gc
import resource
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Literal, NamedTuple

Clock = Literal["cpu", "wall"]
# Does the work once and returns the number of samples.
Run = Callable[[], int]


class Timing(NamedTuple):
    """One run of one case; seconds, of this process and the workers it started."""

    num_samples: int
    cpu_s: float
    wall_s: float

    def per_sample_us(self, clock: Clock) -> float:
        """Return microseconds per sample."""
        seconds = self.cpu_s if clock == "cpu" else self.wall_s
        return 1e6 * seconds / max(self.num_samples, 1)


class Ratio(NamedTuple):
    """How many times longer one case takes than another: median over the rounds, and the range."""

    median: float
    low: float
    high: float


def take_turns(
    cases: Mapping[str, Run],
    *,
    rounds: int,
    warm_up: bool = True,
    on_run: Callable[[str], None] = lambda _: None,
) -> dict[str, list[Timing]]:
    """Run every case once per round.

    # Choice: every other round goes backwards, so that a machine that gets warmer or busier is not
    # always so for the same case.

    Args:
        cases: What to run, by name.
        rounds: How often.
        warm_up: Whether every case runs once before, untimed.
        on_run: Called with the name before each run.

    Returns:
        Timings of each case, one per round.
    """
    timings: dict[str, list[Timing]] = {name: [] for name in cases}
    for name, run in cases.items() if warm_up else ():
        on_run(name)
        run()
    for number in range(rounds):
        names = list(cases) if number % 2 == 0 else list(cases)[::-1]
        for name in names:
            on_run(name)
            timings[name].append(measure(cases[name]))
    return timings


def measure(run: Run) -> Timing:
    """Run once; workers count if they have ended by then."""
    gc.collect()
    cpu, wall = _cpu_s(), time.perf_counter()
    num_samples = run()
    return Timing(num_samples, _cpu_s() - cpu, time.perf_counter() - wall)


def ratio(slower: Sequence[Timing], faster: Sequence[Timing], clock: Clock) -> Ratio:
    """Return how many times longer `slower` takes per sample, round by round."""
    values = [
        a.per_sample_us(clock) / max(b.per_sample_us(clock), 1e-9)
        for a, b in zip(slower, faster, strict=True)
    ]
    return Ratio(median(values), min(values), max(values))


def _cpu_s() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime
