"""The benchmark of the data plane, from images to figures."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from datamodules.bench import figures, lasting, loaders, packing, reading, views
from datamodules.bench.images import ImageSet, made_sets, users_set
from datamodules.bench.report import Report, load_average, machine, num_processors
from datamodules.bench.timing import Run, Timing, take_turns
from datamodules.decode.jpeg import fast_decoder

OnStep = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How much is measured.

    Args:
        rounds: Turns of all cases; the median over them is reported.
        num_small: Images of 500 x 375 px, or of the user's own.
        num_large: Images of 2000 x 1500 px.
        reading_passes: Passes over the bytes per turn.
        loader_samples: Views that a loader hands over per turn.
        packing_rounds: Turns of packing; 0 leaves it out.
        packing_copies: How often each large image is packed per turn.
    """

    rounds: int = 5
    num_small: int = 256
    num_large: int = 24
    reading_passes: int = 4
    loader_samples: int = 512
    packing_rounds: int = 2
    packing_copies: int = 6


QUICK = Effort(
    rounds=3,
    num_small=64,
    num_large=8,
    loader_samples=128,
    packing_rounds=0,
)


def bench_data(
    shards: str | None, *, effort: Effort, workers: int, on_step: OnStep = lambda _: None
) -> Report:
    """Measure reading, decoding, augmenting, loading, resuming and packing.

    Args:
        shards: The user's own shard directory; images made for it without a value.
        effort: How much is measured.
        workers: Worker processes of the loaders, beside a measurement without any.
        on_step: Called with what is being done.

    Raises:
        DataError: If the user's shards cannot be used.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in a loader's worker
    try:
        with tempfile.TemporaryDirectory(prefix="mae-bench-") as scratch:
            return _Bench(Path(scratch), effort, workers, on_step).run(shards)
    finally:
        torch.set_num_threads(threads)


@dataclass
class _Bench:
    scratch: Path
    effort: Effort
    workers: int
    on_step: OnStep

    def __post_init__(self) -> None:
        self.with_fast = fast_decoder("auto") is not None

    def run(self, shards: str | None) -> Report:
        before = load_average()
        sets = self._sets(shards)
        report = Report(machine())
        report.images = [
            f"{images.num_samples} of {images.name}, {images.bytes_per_image / 1e3:,.0f} kB each, "
            f"from {images.source}"
            for images in sets
        ]
        self._reading(report, sets[0])
        for images in sets:
            self._views(report, images)
        for workers in dict.fromkeys((0, self.workers)):
            self._loaders(report, sets[0], workers)
        self._lasting(report, sets[0])
        self._packing(report, sets[-1])
        report.conditions |= {
            "load average": f"{before} before, {load_average()} after",
            "conditions": "files in the page cache; one thread per process; "
            f"{self.effort.rounds} rounds, every case once per round, every other round backwards",
        }
        return report

    def _sets(self, shards: str | None) -> list[ImageSet]:
        self.on_step("making images")
        if shards is not None:
            return [users_set(self.scratch, shards, num_images=self.effort.num_small)]
        return made_sets(
            self.scratch, num_small=self.effort.num_small, num_large=self.effort.num_large
        )

    def _reading(self, report: Report, images: ImageSet) -> None:
        cases = reading.reading_cases(images, passes=self.effort.reading_passes)
        found = self._turns(cases, again=(reading.RAW, reading.WEBDATASET))
        report.timings[f"reading, {images.name}"] = found
        report.figures += figures.reading_figures(found)

    def _views(self, report: Report, images: ImageSet) -> None:
        cases = views.view_cases(images, with_fast=self.with_fast)
        found = self._turns(cases, again=(views.PIPELINE_WEBDATASET,), label=images.name)
        report.timings[f"views of {views.IMG_SIZE[0]} px, {images.name}"] = found
        report.figures += figures.view_figures(found, images)

    def _loaders(self, report: Report, images: ImageSet, workers: int) -> None:
        cases = loaders.loader_cases(
            images,
            workers=workers,
            num_samples=self.effort.loader_samples,
            with_fast=self.with_fast,
        )
        found = self._turns(cases, again=(loaders.name_webdataset(workers),))
        report.timings[f"loaders with {workers} workers, {images.name}"] = found
        report.figures += figures.loader_figures(found, workers)

    def _lasting(self, report: Report, images: ImageSet) -> None:
        cases = lasting.starting_cases(images)
        found = self._turns(cases, again=(lasting.FIRST_BATCH, lasting.FIRST_PLACES))
        report.timings["starting anew"] = found
        report.figures += figures.starting_figures(found)
        self.on_step("memory over five epochs")
        resident = lasting.resident_bytes(images)
        if resident:
            report.conditions["resident memory"] = (
                ", ".join(f"{size / 2**20:.1f}" for size in resident) + " MiB after each epoch"
            )
        report.figures += figures.memory_figure(resident)

    def _packing(self, report: Report, images: ImageSet) -> None:
        if not self.effort.packing_rounds or num_processors() < 2:
            return  # a second writer would have nothing to run on
        cases = packing.packing_cases(images, self.scratch, copies=self.effort.packing_copies)
        found = take_turns(
            cases, rounds=self.effort.packing_rounds, on_run=self.on_step, warm_up=False
        )
        report.timings[f"packing, {images.name}"] = found
        report.figures += figures.packing_figures(found)

    def _turns(
        self, cases: Mapping[str, Run], *, again: tuple[str, ...], label: str = ""
    ) -> dict[str, list[Timing]]:
        """Measure all cases, those of `again` twice as controls."""
        controls = {name + figures.CONTROL: cases[name] for name in again}
        return take_turns(
            {**cases, **controls},
            rounds=self.effort.rounds,
            on_run=lambda name: self.on_step(f"{label}: {name}" if label else name),
        )
