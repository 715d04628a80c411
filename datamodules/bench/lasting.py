"""What shows only in long runs: starting far inside the stream, and memory that grows."""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from datamodules.bench.images import ImageSet
from datamodules.bench.timing import Run
from datamodules.bench.views import BATCH, augment
from datamodules.loading import BatchLoader, TrainStream
from datamodules.manifest import Manifest
from datamodules.plan import Plan
from datamodules.records import SplitRecords
from datamodules.samplers import Seat, StreamSampler

FAR = 10**9
_MANY_SHARDS, _SHARD_SIZE = 100_000, 1_000
EPOCHS = 5

FIRST_BATCH = "first batch at sample 0"
FIRST_BATCH_FAR = "first batch at sample 10^9"
FIRST_PLACES = "order of 10^8 samples in 10^5 shards, at sample 0"
FIRST_PLACES_FAR = "order of 10^8 samples in 10^5 shards, at sample 10^9"


def starting_cases(images: ImageSet) -> dict[str, Run]:
    """Return what opens everything anew and takes one batch, by name."""
    root = images.manifest.root
    sizes = [_SHARD_SIZE] * _MANY_SHARDS

    def first_batch(position: int) -> Run:
        def run() -> int:
            _stream(root)[range(position, position + BATCH)]
            return 1

        return run

    def first_places(position: int) -> Run:
        def run() -> int:
            Plan(sizes, seed=0).at(position, BATCH)
            return 1

        return run

    return {
        FIRST_BATCH: first_batch(0),
        FIRST_BATCH_FAR: first_batch(FAR),
        FIRST_PLACES: first_places(0),
        FIRST_PLACES_FAR: first_places(FAR),
    }


def resident_bytes(images: ImageSet) -> list[int]:
    """Return the largest resident memory of each of five epochs, in a process of its own.

    Returns:
        Bytes, looked at after every batch; nothing where the system does not say, as outside Linux.
    """
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(_read_epochs, images.manifest.root).result()


def _read_epochs(root: str) -> list[int]:
    import torch

    torch.set_num_threads(1)
    stream = _stream(root)
    num_batches = -(-stream.plan.num_samples // BATCH)
    found = []
    for epoch in range(EPOCHS):
        sampler = StreamSampler(
            start=epoch * num_batches * BATCH,
            num_batches=num_batches,
            num_total=num_batches,
            batch_size=BATCH,
            seat=Seat(),
        )
        loader = BatchLoader(stream, sampler, num_workers=0, multiprocessing_context=None)
        found.append(max(_resident() for _ in loader))
    return found if min(found) else []


def _resident() -> int:
    """Return the resident memory of this process, 0 where it is not known."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def _stream(root: str) -> TrainStream:
    records = SplitRecords(Manifest.load(root), "train")
    return TrainStream(records, Plan(records.shard_sizes, seed=0), augment())
