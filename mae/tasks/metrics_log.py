"""`metrics.csv`: every logged number of a run, appended as it comes.

Long format, ``step,name,value``, so that a new metric never rewrites the file, a killed run loses
at most its last line, and a resumed one goes on in the same file.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities import rank_zero_only

from mae.errors import DataError

FILE_NAME = "metrics.csv"
HEADER = ("step", "name", "value")


class MetricsLog(Logger):
    """Lightning logger that appends to ``RUN/metrics.csv``.

    Args:
        run_dir: The run's directory; it exists.

    Attributes:
        trainer: Knows how many optimizer steps are done.  Lightning's own number does not do: it
            is one too small in the middle of training.
    """

    def __init__(self, run_dir: Path) -> None:
        super().__init__()
        self.path = run_dir / FILE_NAME
        self.trainer: Trainer | None = None

    @property
    def name(self) -> str:
        """Name of the run: its directory's."""
        return self.path.parent.name

    @property
    def version(self) -> str:
        """Unused; a run directory holds one version."""
        return ""

    @property
    def save_dir(self) -> str:
        """The run directory."""
        return str(self.path.parent)

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing: `config.yaml` holds them."""

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Append one line per metric.

        Args:
            metrics: Values by ``split/name``; Lightning's own ``epoch`` is dropped.
            step: Optimizer steps done; the trainer's own count wins.
        """
        done = (step or 0) if self.trainer is None else self.trainer.global_step
        is_new = not self.path.exists()
        with self.path.open("a", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            if is_new:
                writer.writerow(HEADER)
            writer.writerows(
                (done, name, repr(float(value)))
                for name, value in metrics.items()
                if name != "epoch"
            )

    def drop_after(self, step: int) -> None:
        """Forget what was logged after `step`, because a resumed run does it again."""
        if not self.path.exists():
            return
        kept = [row for row in read_metrics(self.path.parent) if row[0] <= step]
        temporary = self.path.with_suffix(".tmp")
        with temporary.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(HEADER)
            writer.writerows((at, name, repr(value)) for at, name, value in kept)
        temporary.replace(self.path)


def read_metrics(run_dir: Path) -> Iterator[tuple[int, str, float]]:
    """Yield (step, name, value) in the order of logging; a torn last line is left out.

    Raises:
        DataError: If the run has no `metrics.csv`.
    """
    path = run_dir / FILE_NAME
    if not path.is_file():
        raise DataError(f"{path} does not exist; is {run_dir} the directory of a run?")
    text = path.read_text(encoding="utf-8")
    whole = text[: text.rfind("\n") + 1]  # what follows was torn, even if it looks like a number
    for row in csv.reader(whole.splitlines()):
        if len(row) == len(HEADER) and row[0].isdigit():
            yield int(row[0]), row[1], float(row[2])
