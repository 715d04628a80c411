"""Read what a run directory holds, for its report.

Only files are read, no model is loaded and nothing is measured again: the page says what was
measured where.  What is missing stays None, and what cannot be read is kept as a sentence.
"""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from mae.errors import DataError

Series = Mapping[int, float]


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A reconstruction picture and the numbers beside it."""

    name: str
    png: bytes
    numbers: Mapping[str, Any] | None


@dataclass(frozen=True, kw_only=True)
class Export:
    """A folder of exported encoder weights and its proof of equality."""

    name: str
    parity: Mapping[str, Any] | None


@dataclass(frozen=True, kw_only=True)
class RunFiles:
    """The readable contents of a run directory.

    Attributes:
        path: The directory.
        config: ``config.yaml``.
        config_text: The same file as it stands there.
        environment: ``environment.json``.
        metrics: By name, value by step, from ``metrics.csv``.
        probe: ``probe.json``.
        pictures: ``reconstruct/*.png`` with their ``.json``.
        exports: Folders of ``encoder/`` that hold a ``parity.json``.
        data_dir: Where the configuration says the shards are.
        manifest: ``manifest.json`` of the shards, if they are still there.
        problems: Sentences about files that exist but cannot be read.
    """

    path: Path
    config: Mapping[str, Any] | None = None
    config_text: str = ""
    environment: Mapping[str, Any] | None = None
    metrics: Mapping[str, Series] = field(default_factory=dict)
    probe: Mapping[str, Any] | None = None
    pictures: tuple[Picture, ...] = ()
    exports: tuple[Export, ...] = ()
    data_dir: str | None = None
    manifest: Mapping[str, Any] | None = None
    problems: tuple[str, ...] = ()


def collect(run: Path) -> RunFiles:
    """Read a run directory.

    Raises:
        DataError: If `run` is no run directory: neither config.yaml nor metrics.csv is in it.
    """
    if not run.is_dir():
        raise DataError(f"{run} is no directory; give a run directory written by `mae pretrain`")
    if not any((run / name).is_file() for name in ("config.yaml", "metrics.csv")):
        raise DataError(
            f"{run} has neither config.yaml nor metrics.csv, so it is no run directory; give one "
            f"written by `mae pretrain`"
        )
    problems: list[str] = []
    config = _read(run / "config.yaml", yaml.safe_load, problems)
    data_dir = _data_dir(config)
    manifest = None
    if data_dir is not None:
        manifest = _read(Path(data_dir) / "manifest.json", json.loads, problems)
    return RunFiles(
        path=run,
        config=config,
        config_text=_text(run / "config.yaml") or "",
        environment=_read(run / "environment.json", json.loads, problems),
        metrics=_metrics(run / "metrics.csv", problems),
        probe=_read(run / "probe.json", json.loads, problems),
        pictures=tuple(
            Picture(
                name=path.stem,
                png=path.read_bytes(),
                numbers=_read(path.with_suffix(".json"), json.loads, problems),
            )
            for path in sorted((run / "reconstruct").glob("*.png"), key=lambda path: path.stem)
        ),
        exports=tuple(
            Export(name=path.parent.name, parity=_read(path, json.loads, problems))
            for path in sorted((run / "encoder").glob("*/parity.json"))
        ),
        data_dir=data_dir,
        manifest=manifest,
        problems=tuple(problems),
    )


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None


def _read(path: Path, parse: Any, problems: list[str]) -> Mapping[str, Any] | None:
    """Return the mapping that a file holds, None if there is no file or it cannot be read."""
    try:
        text = _text(path)
        found = None if text is None else parse(text)
    except (OSError, ValueError, yaml.YAMLError) as error:
        problems.append(f"{path.name} cannot be read: {str(error).splitlines()[0]}")
        return None
    if found is None or isinstance(found, Mapping):
        return found
    problems.append(f"{path.name} holds a {type(found).__name__} where named values are expected")
    return None


def _data_dir(config: Mapping[str, Any] | None) -> str | None:
    data = (config or {}).get("data")
    if not isinstance(data, Mapping):
        return None
    # LightningCLI nests the arguments of a class chosen by path under init_args.
    directory = data.get("data_dir") or (data.get("init_args") or {}).get("data_dir")
    return None if directory is None else str(directory)


def _metrics(path: Path, problems: list[str]) -> Mapping[str, Series]:
    """Read ``step,name,value`` rows; of two rows for one step the later one counts (a resume)."""
    text = _text(path)
    if text is None:
        return {}
    metrics: dict[str, dict[int, float]] = defaultdict(dict)
    bad = 0
    for row in csv.DictReader(text.splitlines()):
        try:
            metrics[row["name"]][int(row["step"])] = float(row["value"])
        except (KeyError, TypeError, ValueError):
            bad += 1
    if bad:
        problems.append(f"metrics.csv has {bad} rows that are no step, name and number; left out")
    return {name: dict(sorted(series.items())) for name, series in metrics.items()}
