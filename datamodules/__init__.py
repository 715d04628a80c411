"""Images as WebDataset shards, and the Lightning data modules that read them.

Works in any Lightning project: nothing here knows the model.  The data modules are imported on
first use, because ``mae pack`` should not wait for torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datamodules.labeled import LabeledShards
    from datamodules.stream.streamed import StreamedShards
    from datamodules.unlabeled import UnlabeledShards

__all__ = ["LabeledShards", "StreamedShards", "UnlabeledShards"]

_MODULES = {
    "LabeledShards": "datamodules.labeled",
    "StreamedShards": "datamodules.stream.streamed",
    "UnlabeledShards": "datamodules.unlabeled",
}


def __getattr__(name: str) -> Any:
    """Import a data module when it is first asked for."""
    if name in _MODULES:
        return getattr(importlib.import_module(_MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
