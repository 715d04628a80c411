"""Shards and manifests on servers: ``https://``, ``s3://``, ``gs://`` (extra ``[remote]``).

A shard is fetched whole into a cache on a local disk, verified, and then read like any other.  So
what holds for local shards, random access, exact resume, checks, holds for remote ones.
"""

from __future__ import annotations

from datamodules.remote.cache import ShardCache, Wanted
from datamodules.remote.fetch import Patience, read_bytes
from datamodules.remote.prefetch import Prefetcher
from datamodules.remote.shards import CachedShards

__all__ = ["CachedShards", "Patience", "Prefetcher", "ShardCache", "Wanted", "read_bytes"]
