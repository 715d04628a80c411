"""``mae demo``: the whole path on real satellite imagery, by the verbs that a user would type."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from mae.errors import MAEError
from mae.files import atomic_write

RECIPE = "demo/satellite-cpu"
LOG_FILE = "seconds.json"
NEXT = """\
On your own images:
  mae pretrain {recipe} --images YOUR_IMAGES --out runs/mine   (or a recipe of mae recipes list)
  mae probe runs/mine --data YOUR_LABELLED_FOLDER
  mae report runs/mine"""


def demo(*, out: str = "demo") -> None:
    """Pack, pretrain, probe, reconstruct, export and report on NASA's Blue Marble.

    The labels are five climate groups of the Köppen-Geiger map. Takes minutes on a CPU. Results
    that are there already are kept; an interrupted demo goes on where it stopped.

    Args:
        out: Directory for tiles, shards and the run.

    Raises:
        MAEError: If a step fails; what was finished stays.
    """
    root = Path(out)
    log = root / LOG_FILE
    seconds: dict[str, float] = json.loads(log.read_text("utf-8")) if log.is_file() else {}
    steps = (*data_steps(root), *run_steps(root))
    if seconds and all(step.product.exists() for step in steps):
        print(f"The demo was run before; its results stand. To run it anew: rm -r {root}\n")
    else:
        seconds |= _timed("tiles", partial(write_tiles, root))
        for step in steps:
            if step.product.exists():
                print(f"\n[{step.name}] {step.product} is there already")
                continue
            seconds |= _timed(step.name, partial(run_verb, step.command))
            text = json.dumps(seconds, indent=2) + "\n"
            atomic_write(log, lambda file, text=text: file.write_text(text, "utf-8"))  # type: ignore[misc]
    _last_screen(root, sum(seconds.values()))


class Step(NamedTuple):
    """A verb's command line and what it leaves behind when it has succeeded."""

    name: str
    command: list[str]
    product: Path


def data_steps(root: Path) -> list[Step]:
    """Return the commands that make shards of the tiles."""
    return [
        Step(
            f"pack {part}",
            ["pack", f"{root}/tiles/{part}.csv", f"{root}/shards/{part}"],
            root / "shards" / part / "manifest.json",
        )
        for part in ("unlabeled", "labeled")
    ]


def run_steps(root: Path) -> list[Step]:
    """Return the commands from shards to the report."""
    shards, run = root / "shards", root / "run"
    pretrain = ["pretrain", RECIPE, "--data", f"{shards}/unlabeled", "--out", str(run)]
    return [
        Step("pretrain", [*pretrain, "--resume", "auto"], run / "encoder" / "encoder.safetensors"),
        Step("probe", ["probe", str(run), "--data", f"{shards}/labeled"], run / "probe.json"),
        Step(
            "reconstruct",
            ["reconstruct", str(run)],
            run / "reconstruct" / "val-mask75-seed0.png",
        ),
        Step("export", ["export", str(run), "--format", "timm"], run / "encoder" / "timm"),
        Step("report", ["report", str(run)], run / "report" / "index.html"),
    ]


def write_tiles(root: Path) -> None:
    """Cut the demo's images from the installed data packages.

    Raises:
        DataError: If the packages are missing; names the extra.
    """
    from datamodules.samples.koppen import write_koppen

    print("[tiles] NASA Blue Marble and the Köppen-Geiger map, cut into PNG files and two CSVs")
    summary = write_koppen(root / "tiles")
    num_labeled = {split: sum(counts.values()) for split, counts in summary.labeled.items()}
    print(f"unlabelled tiles: {dict(summary.unlabeled)}; labelled tiles: {num_labeled}")


def run_verb(command: list[str]) -> None:
    """Print a command as the user would type it, and run it.

    Raises:
        MAEError: If it fails.
    """
    from mae.cli import main

    print(f"\n$ mae {shlex.join(command)}", flush=True)
    if status := main(command):
        raise MAEError(
            f"`mae {shlex.join(command)}` ended with status {status}; what was finished before "
            f"stays, and the same command as before goes on from there"
        )


def _timed(name: str, step: Callable[[], None]) -> dict[str, float]:
    """Run a step, print how long it took, and return that by name."""
    began = time.monotonic()
    step()
    seconds = round(time.monotonic() - began, 1)
    print(f"[{name}] {seconds:.0f} s", flush=True)
    return {name: seconds}


def _last_screen(root: Path, seconds: float) -> None:
    from rich.console import Console

    from mae.evaluate.result import load_probe
    from mae.evaluate.table import probe_tables

    run = root / "run"
    result = load_probe(run / "probe.json")
    console = Console(highlight=False)
    for table in probe_tables(result):
        console.print(table)
    for sentence in result.sentences:
        console.print(sentence, markup=False)
    print(f"\nreport:   {run / 'report' / 'index.html'}")
    for picture in sorted((run / "reconstruct").glob("*.png")):
        print(f"picture:  {picture}")
    print(f"encoder:  {run / 'encoder' / 'timm'}  (for timm, with parity.json)")
    print(f"time:     {seconds:,.0f} s")
    print("\n" + NEXT.format(recipe=RECIPE))
