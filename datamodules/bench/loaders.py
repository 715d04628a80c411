"""Whole loaders, with workers and without."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import DataLoader

from datamodules.bench.images import ImageSet
from datamodules.bench.timing import Run
from datamodules.bench.views import BATCH, StackedViews, webdataset_stream
from datamodules.decode.jpeg import Backend
from datamodules.loading import BatchLoader
from datamodules.records import Decode
from datamodules.samplers import Seat, StreamSampler


def loader_cases(
    images: ImageSet, *, workers: int, num_samples: int, with_fast: bool
) -> dict[str, Run]:
    """Return loaders that hand over about `num_samples` views and end, by name.

    Starting and ending workers counts on both sides.

    Args:
        images: What to measure with.
        workers: Worker processes.
        num_samples: Views per run, over several passes.
        with_fast: Whether simplejpeg is there.
    """
    passes = max(num_samples // images.num_samples, 1)
    cases = {
        name_default(workers): _ours(images, workers, passes, "pillow", "exact"),
        name_webdataset(workers): _webdataset(images, workers, passes),
    }
    if with_fast:
        cases[name_fast(workers)] = _ours(images, workers, passes, "simplejpeg", "scaled")
    return cases


def name_default(workers: int) -> str:
    """Return the name of our loader without extras."""
    return f"loader, {workers} workers, default"


def name_fast(workers: int) -> str:
    """Return the name of our loader at its fastest."""
    return f"loader, {workers} workers, [fast], scaled"


def name_webdataset(workers: int) -> str:
    """Return the name of the other side's loader."""
    return f"loader, {workers} workers, webdataset + Pillow"


def _ours(images: ImageSet, workers: int, passes: int, backend: Backend, decode: Decode) -> Run:
    num_batches = -(-passes * images.num_samples // BATCH)
    dataset = StackedViews(images, backend=backend, decode=decode).stream()

    def run() -> int:
        sampler = StreamSampler(
            start=0, num_batches=num_batches, num_total=num_batches, batch_size=BATCH, seat=Seat()
        )
        loader = BatchLoader(dataset, sampler, num_workers=workers, multiprocessing_context=None)
        return _drain(iter(loader))

    return run


def _webdataset(images: ImageSet, workers: int, passes: int) -> Run:
    def run() -> int:
        stream = webdataset_stream(images).repeat(passes).batched(BATCH)
        loader: DataLoader[Any] = DataLoader(
            stream, batch_size=None, num_workers=workers, pin_memory=torch.cuda.is_available()
        )
        return _drain(iter(loader))

    return run


def _drain(batches: Any) -> int:
    """Take all batches and end the workers, so that what they used is counted."""
    total = 0
    for batch in batches:
        total += len(batch["image"] if isinstance(batch, dict) else batch[0])
    return total
