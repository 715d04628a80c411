"""Manifest and indices for anybody's tars.

`index` surveys the tars and puts the manifest together, `labels` finds their classes, and `place`
is the directory that is written.
"""

from __future__ import annotations

from datamodules.indexing.index import IndexSummary, index_shards

__all__ = ["IndexSummary", "index_shards"]
