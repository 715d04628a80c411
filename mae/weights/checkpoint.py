"""Read a training checkpoint, safely.

A checkpoint holds tensors and plain values only and is read with ``weights_only=True``, so nothing
in a file can run.  Its zip checksums are verified: torch itself does not look at them.
"""

from __future__ import annotations

import logging
import pickle
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mae.errors import WeightsError
from mae.spec import ImageSpec
from mae.weights.header import HEADER_KEY, Header

log = logging.getLogger(__name__)


def checkpoint_header(
    *, architecture: Mapping[str, Any], spec: ImageSpec, step: int, samples_seen: int, recipe: str
) -> dict[str, Any]:
    """Return the entry that a checkpoint carries under ``"domain_mae"``.

    Args:
        architecture: All keyword arguments of the `MaskedAutoencoder`.
        spec: Meaning of the training images.
        step: Optimizer steps done.
        samples_seen: Images consumed.
        recipe: Name of the recipe, or an empty string.
    """
    info = {"step": step, "samples_seen": samples_seen, "recipe": recipe}
    return Header(architecture=dict(architecture), spec=spec, info=info).to_dict()


def read_checkpoint(path: Path, *, verify: bool = True) -> dict[str, Any]:
    """Read a checkpoint of this package to the CPU.

    Args:
        path: The file.
        verify: Compare every stored checksum first; costs one pass over the file.

    Returns:
        The whole dictionary; tensors are mapped from the file and must be copied, not changed.

    Raises:
        WeightsError: If the file is damaged, holds other objects, or is not ours.
    """
    if verify:
        _require_intact(path)
    try:
        content = torch.load(path, weights_only=True, map_location="cpu", mmap=True)
    except pickle.UnpicklingError as error:
        found = re.search(r"GLOBAL (\S+)", str(error))
        what = f" ({found[1]})" if found else ""
        raise WeightsError(
            f"{path} holds objects other than tensors and plain values{what}; refused, and nothing "
            f"in it was run"
        ) from error
    except (RuntimeError, EOFError, ValueError, KeyError, OSError) as error:
        raise WeightsError(
            f"{path} cannot be read as a checkpoint, it is damaged or of another kind: "
            f"{str(error).splitlines()[0]}"
        ) from error
    if not isinstance(content, dict) or not {HEADER_KEY, "state_dict"} <= content.keys():
        keys = (
            sorted(map(str, content))[:5] if isinstance(content, dict) else type(content).__name__
        )
        raise WeightsError(
            f"{path} is no checkpoint of domain-mae: it needs {HEADER_KEY!r} and 'state_dict', "
            f"found {keys}"
        )
    return content


def state_and_header(path: Path) -> tuple[dict[str, Tensor], Header]:
    """Read the tensors and the description of a checkpoint.

    Raises:
        WeightsError: See `read_checkpoint`.
    """
    content = read_checkpoint(path)
    return content["state_dict"], Header.from_dict(content[HEADER_KEY], source=str(path))


def newest_checkpoint(run: Path) -> Path:
    """Return the good checkpoint of a run with the most steps; broken ones are said and skipped.

    Args:
        run: Run directory.

    Raises:
        WeightsError: If there is none.
    """
    folder = run / "checkpoints"
    files = sorted(folder.glob("*.ckpt"))
    steps: list[tuple[int, float, Path]] = []
    broken: list[str] = []
    for file in files:
        try:
            header = Header.from_dict(
                read_checkpoint(file, verify=False)[HEADER_KEY], source=str(file)
            )
        except WeightsError as error:
            broken.append(str(error))
        else:
            steps.append((int(header.info.get("step", 0)), file.stat().st_mtime, file))
    best = None
    for _, _, file in sorted(steps, reverse=True):
        try:
            _require_intact(file)
        except WeightsError as error:
            broken.append(str(error))
        else:
            best = file
            break
    for message in broken:
        log.warning("skipped a checkpoint: %s", message)
    if best is None:
        raise WeightsError(
            f"no good checkpoint in {folder}: {len(files)} *.ckpt files, {len(broken)} of them "
            f"broken; give the directory of a run that has saved at least once"
        )
    return best


def _require_intact(path: Path) -> None:
    """Refuse a file whose zip checksums do not hold."""
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
    except FileNotFoundError as error:
        raise WeightsError(f"{path} does not exist") from error
    except (zipfile.BadZipFile, OSError, EOFError) as error:
        raise WeightsError(
            f"{path} is truncated, damaged or no checkpoint at all: {error}"
        ) from error
    if damaged:
        raise WeightsError(f"{path} is damaged: the checksum of {damaged} does not hold")
