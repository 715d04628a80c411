"""Bytes of samples: this reader, a raw read of the same files, and webdataset."""

from __future__ import annotations

from pathlib import Path

from datamodules.bench.images import ImageSet
from datamodules.bench.timing import Run
from datamodules.plan import Plan
from datamodules.reader import ShardReader, Verify
from datamodules.records import SplitRecords
from datamodules.shardfiles import LocalShards

_BLOCK_BYTES = 2**20
_BATCH = 64
SHUFFLE = 100  # webdataset's buffer of samples, the size of its own examples

RAW = "raw sequential read"
OURS_OPEN = "index + pread, shuffled, verify: open"
OURS_FIRST = "the same, first pass of verify: first"
OURS_ALWAYS = "the same, verify: always"
OURS_COLD = "the same, opening with verify: open"
WEBDATASET = "webdataset + shuffle(100), bytes"


def reading_cases(images: ImageSet, *, passes: int) -> dict[str, Run]:
    """Return what reads the bytes of all samples `passes` times, by name."""
    opened, always = _reader(images, "open"), _reader(images, "always")

    def fresh(verify: Verify) -> int:
        return sum(_read_all(_reader(images, verify), number) for number in range(passes))

    return {
        RAW: lambda: sum(_read_raw(images) for _ in range(passes)),
        OURS_OPEN: lambda: sum(_read_all(opened, number) for number in range(passes)),
        OURS_FIRST: lambda: fresh("first"),
        OURS_ALWAYS: lambda: sum(_read_all(always, number) for number in range(passes)),
        OURS_COLD: lambda: fresh("open"),
        WEBDATASET: lambda: sum(_read_webdataset(images) for _ in range(passes)),
    }


def _reader(images: ImageSet, verify: Verify) -> ShardReader:
    shards = images.manifest.shards("train")
    return ShardReader(LocalShards(images.manifest, shards), shards, verify=verify)


def _read_all(reader: ShardReader, seed: int) -> int:
    """Read every sample once in the order of a plan, which is computed on the way."""
    plan = Plan([shard.num_samples for shard in reader.shards], seed=seed)
    for start in range(0, plan.num_samples, _BATCH):
        places = plan.at(start, min(_BATCH, plan.num_samples - start))
        for shard, index in zip(places.shard.tolist(), places.index_in_shard.tolist(), strict=True):
            reader.read(shard, index)
    return plan.num_samples


def _read_raw(images: ImageSet) -> int:
    for path in images.paths:
        with Path(path).open("rb", buffering=0) as file:
            while file.read(_BLOCK_BYTES):
                pass
    return images.num_samples


def _read_webdataset(images: ImageSet) -> int:
    import webdataset

    paths = images.paths
    stream = webdataset.WebDataset(paths, shardshuffle=len(paths), seed=0).shuffle(SHUFFLE)
    return sum(1 for _ in stream)


def image_bytes(images: ImageSet) -> list[bytes]:
    """Return the files of all images, in memory."""
    records: SplitRecords = images.records()
    found = []
    for number in range(len(records)):
        _, members = records.reader.read(*records.locate(number))
        found.append(next(data for suffix, data in members.items() if suffix != "json"))
    return found
