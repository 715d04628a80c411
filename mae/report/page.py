"""The report of a run: one HTML file that needs nothing else.

It is written from the run directory alone.  A part that the run does not have is named together
with the command that makes it; nothing is filled in.
"""

from __future__ import annotations

import os
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from jinja2 import Environment, PackageLoader, StrictUndefined

from mae import __version__
from mae.errors import DataError
from mae.report import sections, verdict
from mae.report.collect import RunFiles, collect
from mae.report.words import flatten

if TYPE_CHECKING:
    from mae.evaluate.result import ProbeResult

TEMPLATE = "template.html.j2"
MAX_BYTES = 5_000_000
_MEBIBYTE = 2**20


def write_report(run: Path, *, out: Path | None = None) -> Path:
    """Write the page about a run, at once or not at all.

    Args:
        run: Run directory.
        out: The file to write; None for ``RUN/report/index.html``.

    Returns:
        The file written.

    Raises:
        DataError: If `run` is no run directory, or the file cannot be written.
    """
    page = render(collect(run)).encode()
    target = out or run / "report" / "index.html"
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(page)
        temporary.replace(target)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()
        raise DataError(
            f"the report cannot be written to {target}: {error.strerror}; choose another place "
            f"with --out"
        ) from error
    return target


def render(files: RunFiles) -> str:
    """Return the page as HTML."""
    problems = list(files.problems)
    probe = _probe(files, problems)
    pictures, left_out = _pictures(files)
    template = _environment().get_template(TEMPLATE)
    return template.render(
        name=files.path.resolve().name,
        path=files.path,
        version=__version__,
        written=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        model=sections.model_sentence(files),
        facts=sections.facts(files),
        probe=None if probe is None else verdict.probe_section(probe),
        loss=sections.loss_section(files),
        pictures=pictures,
        pictures_left_out=left_out,
        exports=sections.export_rows(files.exports),
        data=sections.data_section(files),
        data_dir=files.data_dir,
        config=flatten(files.config or {}),
        config_text=files.config_text,
        environment=sections.environment_section(files),
        problems=problems,
    )


def _probe(files: RunFiles, problems: list[str]) -> ProbeResult | None:
    if files.probe is None:
        return None
    from mae.evaluate.result import ProbeResult  # a run without a probe need not wait for it

    try:
        return ProbeResult.from_dict(files.probe)
    except (DataError, KeyError, TypeError) as error:
        problems.append(f"probe.json cannot be shown: {error}")
        return None


def _pictures(files: RunFiles) -> tuple[list[dict[str, object]], list[str]]:
    """Return the pictures that fit into the page, and the names of those that do not."""
    room = (MAX_BYTES - _MEBIBYTE) * 3 // 4  # base64 makes four bytes of three
    shown, left_out = [], []
    for found in files.pictures:
        if len(found.png) > room:
            left_out.append(f"{found.name}.png")
            continue
        room -= len(found.png)
        shown.append(sections.picture(found))
    return shown, left_out


def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("mae.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
