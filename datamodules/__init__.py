"""Images as WebDataset shards, and the Lightning data modules that read them.

Works in any Lightning project: nothing here knows the model.  The two data modules are imported on
first use, because ``mae pack`` should not wait for torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datamodules.labeled import LabeledShards
    from datamodules.unlabeled import UnlabeledShards

__all__ = ["LabeledShards", "UnlabeledShards"]


def __getattr__(name: str) -> Any:
    """Import a data module when it is first asked for."""
    if name == "UnlabeledShards":
        from datamodules.unlabeled import UnlabeledShards

        return UnlabeledShards
    if name == "LabeledShards":
        from datamodules.labeled import LabeledShards

        return LabeledShards
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
