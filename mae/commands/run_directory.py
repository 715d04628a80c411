"""The directory of a run, and the options by which training verbs choose one.

::

    RUN/config.yaml        reproduces the run
        environment.json   machine, versions, command
        metrics.csv        step,name,value
        checkpoints/       newest ones
        encoder/           encoder.safetensors, exports
        reconstruct/ report/ probe.json
"""

from __future__ import annotations

import json
import os
import platform
import sys
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from mae.errors import ConfigError, WeightsError
from mae.files import atomic_write

CONFIG_FILE = "config.yaml"
ENVIRONMENT_FILE = "environment.json"
METRICS_FILE = "metrics.csv"
PACKAGES = ("domain-mae", "torch", "torchvision", "timm", "lightning", "webdataset", "numpy")


@dataclass(frozen=True)
class RunStart:
    """Where a run goes and what it starts from.

    Attributes:
        directory: The run directory, writable.
        checkpoint: Checkpoint to go on from, None for a fresh start.
    """

    directory: Path
    checkpoint: Path | None


def choose_run(*, out: str | None, resume: str | None, name: str) -> RunStart:
    """Decide between a new run and going on with one.

    Args:
        out: ``--out``; None takes ``runs/NAME``.
        resume: ``--resume``: ``auto``, a run directory, a checkpoint, or None.
        name: Short name for a new run.

    Raises:
        ConfigError: If a new run's directory exists, a run to go on with has no configuration, or
            `out` is another directory than that of the run to go on with.
        WeightsError: If the checkpoint named does not exist or none is good.
    """
    directory = Path(out) if out else Path("runs") / name
    if resume and resume != "auto":
        start = _named_run(Path(resume))
        if out and directory.resolve() != start.directory.resolve():
            raise ConfigError(
                f"--resume goes on in {start.directory}, but --out is {out}; leave --out away, or "
                f"start a new run with --init-weights"
            )
        return start
    has_run = (directory / CONFIG_FILE).is_file()
    if resume == "auto" and has_run:
        from mae.weights import newest_checkpoint

        try:
            return RunStart(directory, newest_checkpoint(directory))
        except WeightsError as error:
            print(f"starting from the beginning: {error}")
            return RunStart(directory, None)
    # Further processes of one run start when the first has written its configuration.
    is_taken = directory.exists() and any(directory.iterdir()) and _is_first_process()
    if is_taken:
        what = "holds a run" if has_run else "is not empty"
        raise ConfigError(
            f"{directory} {what}; choose another --out"
            + (", or go on with it by --resume auto" if has_run else "")
        )
    require_writable(directory)
    return RunStart(directory, None)


def _named_run(path: Path) -> RunStart:
    from mae.weights import newest_checkpoint

    checkpoint = newest_checkpoint(path) if path.is_dir() else path
    if not checkpoint.is_file():
        raise WeightsError(f"{path} does not exist; --resume takes auto, a run or a checkpoint")
    directory = checkpoint.absolute().parent.parent
    if not (directory / CONFIG_FILE).is_file():
        raise ConfigError(
            f"{directory} has no {CONFIG_FILE}, so {checkpoint.name} cannot be continued; start a "
            f"new run from its weights with --init-weights"
        )
    require_writable(directory)
    return RunStart(path if path.is_dir() else directory, checkpoint)


def require_writable(directory: Path) -> None:
    """Create `directory` and try to write there.

    Raises:
        ConfigError: If that fails; says why.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        raise ConfigError(
            f"cannot write to the run directory {directory}: {error.strerror}; choose another --out"
        ) from error


def environment(arguments: list[str]) -> dict[str, Any]:
    """Return what a reader needs to judge times and numbers: machine, versions, command."""
    import torch

    devices = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": ["mae", *arguments],
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "devices": devices,
        "packages": {name: version(name) for name in PACKAGES},
    }


def write_environment(directory: Path, arguments: list[str]) -> None:
    """Write ``environment.json``; a resumed run appends to the list of its starts."""
    path = directory / ENVIRONMENT_FILE
    _write_starts(path, [*_read_starts(path), environment(arguments)])


def update_environment(directory: Path, **facts: Any) -> None:
    """Add facts about the latest start, e.g. how long it took."""
    path = directory / ENVIRONMENT_FILE
    *earlier, latest = _read_starts(path) or [{}]
    _write_starts(path, [*earlier, latest | facts])


def _read_starts(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        return []
    try:
        starts: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["starts"]
    except (ValueError, KeyError, TypeError):
        print(f"{path} is damaged; what it said about earlier starts is lost")
        return []
    return starts


def _write_starts(path: Path, starts: list[dict[str, Any]]) -> None:
    text = json.dumps({"starts": starts}, indent=2) + "\n"
    atomic_write(path, lambda file: file.write_text(text, encoding="utf-8"))


def _is_first_process() -> bool:
    """Whether this is rank 0, by the variables of torchrun, Lightning and SLURM."""
    ranks = (os.environ.get(name) for name in ("RANK", "LOCAL_RANK", "SLURM_PROCID"))
    return next((rank for rank in ranks if rank is not None), "0") == "0"


def forget_run(directory: Path) -> None:
    """Remove what a run writes before its first step."""
    for name in (CONFIG_FILE, ENVIRONMENT_FILE, METRICS_FILE):
        (directory / name).unlink(missing_ok=True)


def _processor() -> str:
    """Return the processor's name; Linux hides it in a file."""
    cpuinfo = Path("/proc/cpuinfo")
    if sys.platform == "linux" and cpuinfo.is_file():
        for line in cpuinfo.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()
