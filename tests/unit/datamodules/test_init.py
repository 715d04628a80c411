"""The package imports quickly: nothing heavy before a data module is asked for."""

from __future__ import annotations

import subprocess
import sys

import pytest

import datamodules

LIGHT = (
    "pack", "manifest", "tarindex", "plan", "reader", "shardfiles", "guard", "decode", "indexing",
    "inspection.look", "stream.body",
)  # fmt: skip


def test_import_light_modules_without_torch_or_lightning() -> None:
    code = (
        "import sys\n"
        + "".join(f"import datamodules.{name}\n" for name in LIGHT)
        + "import mae.commands.pack\n"
        + "print(sorted({'torch', 'lightning', 'webdataset'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_getattr_data_modules_come_when_asked_for() -> None:
    assert datamodules.UnlabeledShards.__name__ == "UnlabeledShards"
    assert datamodules.LabeledShards.__name__ == "LabeledShards"
    with pytest.raises(AttributeError, match="Labelled"):
        _ = datamodules.LabelledShards  # type: ignore[attr-defined]
