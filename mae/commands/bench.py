"""``mae bench``: how fast parts of this package are on this machine, beside their peers."""

from __future__ import annotations

import json as json_format
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from mae.commands.outputs import check_writable
from mae.errors import ConfigError
from mae.files import atomic_write


def bench(
    target: Literal["data"],
    shards: str | None = None,
    *,
    workers: int | None = None,
    quick: bool = False,
    json: str | None = None,
) -> None:
    """Measure the data plane beside webdataset + Pillow: reading, decoding, augmenting, loading.

    All cases run in one process, in turns; every ratio stands beside a control, which is the other
    side measured against itself. Takes three to four minutes on two idle cores. Without shards,
    images of 500 x 375 and 2000 x 1500 px are cut from NASA's Blue Marble (extra 'demo'), or from a
    made texture.

    Args:
        target: What to measure.
        shards: Shard directory whose images are used.
        workers: Worker processes of the loaders; as many as there are processors without a value.
        quick: Measure less, in half a minute; the numbers then scatter more.
        json: File for all timings.

    Raises:
        MAEError: If the shards cannot be used.
    """
    del target  # so far there is one
    if workers is not None and workers < 0:
        raise ConfigError(f"workers is {workers}; allowed: 0 or more")
    if json is not None:
        check_writable(Path(json))
    from datamodules.bench.data import QUICK, Effort, bench_data
    from datamodules.bench.report import num_processors

    with _progress() as on_step:
        report = bench_data(
            shards,
            effort=QUICK if quick else Effort(),
            workers=num_processors() if workers is None else workers,
            on_step=on_step,
        )
    print(*report.lines(), sep="\n")
    if json is not None:
        text = json_format.dumps(report.to_dict(), indent=1) + "\n"
        atomic_write(Path(json), lambda file: file.write_text(text, "utf-8"))
        print(f"\ntimings: {json}")


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """Show what is being measured, on a terminal; yields what to call with it."""
    from rich.console import Console
    from rich.progress import Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (TimeElapsedColumn(), TextColumn("{task.description}"))
    # No thread that redraws: it would be measured, and workers fork.
    with Progress(
        *columns,
        console=console,
        transient=True,
        auto_refresh=False,
        disable=not console.is_terminal,
    ) as shown:
        task = shown.add_task("", total=None)

        def on_step(step: str) -> None:
            shown.update(task, description=step, refresh=True)

        yield on_step
