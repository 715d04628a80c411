"""``mae report``: one page about a run."""

from __future__ import annotations

from pathlib import Path


def report(run: str, *, out: str | None = None) -> Path:
    """Write one self-contained HTML page about a run.

    Args:
        run: Run directory written by ``mae pretrain``.
        out: File to write; by default RUN/report/index.html.

    Raises:
        DataError: If `run` is no run directory, or the page cannot be written.
    """
    from mae.report.page import write_report

    written = write_report(Path(run), out=None if out is None else Path(out))
    print(f"report: {written}")
    return written
