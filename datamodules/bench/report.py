"""What was measured: conditions, timings, and the figures beside their targets."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any, Literal

from datamodules.bench.timing import Clock, Ratio, Timing

_PACKAGES = ("torch", "torchvision", "pillow", "simplejpeg", "webdataset", "numpy", "isal")


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One number that has a target, or none.

    Args:
        name: What is compared.
        cpu: Ratio by processor time, or of memory; None where only time on the wall counts.
        wall: Ratio, or difference, by time on the wall.
        control: The other side against itself, by the clock that counts.
        target: Number to reach.
        better: Whether larger or smaller numbers reach it.
        unit: ``x`` for ratios, ``s`` for seconds.
    """

    name: str
    cpu: Ratio | None = None
    wall: Ratio | None = None
    control: Ratio | None = None
    target: float | None = None
    better: Literal["larger", "smaller"] = "larger"
    unit: Literal["x", "s"] = "x"

    @property
    def value(self) -> float:
        """The number that is compared with the target."""
        counts = self.cpu or self.wall
        return counts.median if counts is not None else float("nan")

    @property
    def is_reached(self) -> bool | None:
        """Whether the target is reached; None without one."""
        if self.target is None:
            return None
        return self.value >= self.target if self.better == "larger" else self.value <= self.target


@dataclass
class Report:
    """All that one run of the benchmark found.

    Args:
        conditions: Machine, versions, load, settings; names and texts.
        images: What was measured with, a line each.
        timings: By group and case, one per round.
        figures: What is compared.
    """

    conditions: dict[str, str]
    images: list[str] = field(default_factory=list)
    timings: dict[str, dict[str, list[Timing]]] = field(default_factory=dict)
    figures: list[Figure] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-able dictionary with every single timing."""
        return {
            "conditions": self.conditions,
            "images": self.images,
            "figures": [asdict(f) | {"is_reached": f.is_reached} for f in self.figures],
            "timings": {
                group: {name: [t._asdict() for t in found] for name, found in cases.items()}
                for group, cases in self.timings.items()
            },
        }

    def lines(self) -> list[str]:
        """Return the report as text."""
        found = [f"{name}: {text}" for name, text in self.conditions.items()]
        found += [f"images: {line}" for line in self.images]
        for group, cases in self.timings.items():
            found += ["", *_timing_table(group, cases)]
        return [*found, "", *_figure_table(self.figures)]


def machine() -> dict[str, str]:
    """Return what the numbers depend on and stays the same during a run."""
    versions = [f"{name} {_version(name)}" for name in _PACKAGES]
    return {
        "processor": f"{_processor()}, {num_processors()} to use",
        "system": f"{platform.system()} {platform.release()}, Python {platform.python_version()}",
        "packages": ", ".join(versions),
    }


def num_processors() -> int:
    """Return on how many processors this process may run."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def load_average() -> str:
    """Return the load of the last minute, which the benchmark itself is part of."""
    return f"{os.getloadavg()[0]:.2f}" if hasattr(os, "getloadavg") else "not known"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "(none)"


def _timing_table(group: str, cases: Mapping[str, Sequence[Timing]]) -> list[str]:
    width = max(len(group), *map(len, cases))
    head = f"{group:<{width}}  {'CPU, us each':>24}  {'wall, us each':>24}"
    return [head] + [
        f"{name:<{width}}  {_spread(found, 'cpu')}  {_spread(found, 'wall')}"
        for name, found in cases.items()
    ]


def _spread(timings: Sequence[Timing], clock: Clock) -> str:
    values = [timing.per_sample_us(clock) for timing in timings]
    middle, low, high = (
        f"{us:,.1f}" if us < 1000 else f"{us:,.0f}"
        for us in (median(values), min(values), max(values))
    )
    return f"{f'{middle} [{low}, {high}]':>24}"


def _figure_table(figures: Sequence[Figure]) -> list[str]:
    width = max(len(figure.name) for figure in figures)
    columns = [
        (
            _ratio(f.cpu, f.unit),
            _ratio(f.wall, f.unit),
            _ratio(f.control, f.unit),
            _target(f),
            {True: "yes", False: "no", None: ""}[f.is_reached],
        )
        for f in figures
    ]
    head = ("CPU time", "wall time", "control", "target", "reached")
    widths = [max(map(len, column)) for column in zip(head, *columns, strict=True)]
    lines = []
    for name, cells in zip(
        ("figures: median [lowest, highest]", *(f.name for f in figures)),
        (head, *columns),
        strict=True,
    ):
        padded = (f"{cell:<{w}}" for cell, w in zip(cells, widths, strict=True))
        lines.append(f"{name:<{width}}  {'  '.join(padded)}".rstrip())
    return lines


def _ratio(found: Ratio | None, unit: str) -> str:
    if found is None:
        return ""
    return f"{found.median:.2f}{unit} [{found.low:.2f}, {found.high:.2f}]"


def _target(figure: Figure) -> str:
    if figure.target is None:
        return ""
    sign = ">=" if figure.better == "larger" else "<="
    return f"{sign} {figure.target:g}{figure.unit}"
