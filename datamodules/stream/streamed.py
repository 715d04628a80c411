"""Tars without index or manifest as an endless stream for pretraining.

For what cannot be read at random: a list of URLs, a command's output, somebody's tars.  Everything
that `UnlabeledShards` promises holds but one thing: after a resume the images come in another order
than they would have without the interruption.  ``mae index`` makes a manifest, and then that holds
too.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from datamodules.augment import Augment, Crop, Flips
from datamodules.guard import MAX_PIXELS
from datamodules.loading import BatchLoader
from datamodules.locations import PIPE, expand, is_url, shown
from datamodules.module import ImageDataModule, StartMethod, check_positive
from datamodules.records import Decode
from datamodules.samplers import Seat, StreamSampler
from datamodules.stream.batches import StreamBatches, covers, measure
from datamodules.stream.body import check_location
from datamodules.stream.samples import SHUFFLE_MIB, Reader, ShardStream
from mae.errors import ConfigError, DataError
from mae.spec import ImageSpec

_EPOCHS_PER_LIFE = 2**32  # a run that was resumed goes on with epochs that it cannot have had


class StreamedShards(ImageDataModule):
    """Read tars of images from front to back, for pretraining.

    Exactly one of `steps` and `samples` says how long the run is.  Batches are those of
    `UnlabeledShards`; there is no validation split.  The order depends on seed, epoch, and the
    numbers of ranks and workers.

    Args:
        urls: Tars: paths, ``http(s)://`` URLs or ``pipe:COMMAND``, one or several; braces and
            ``::`` stand for lists, as in ``train-{000000..000099}.tar``.
        img_size: Height and width of the views in px; one number for squares.
        batch_size: Images per device and micro-batch.
        seed: Order, crops and flips depend on it.
        num_workers: Processes that read and decode; 0 reads in the main process.
        steps: Length of the run in optimizer steps.
        samples: Length in images, over all devices.
        epochs: Refused: nobody knows how many images a stream has.
        crop: ``random_resized``, ``random`` (stored scale) or ``center``.
        scale: Smallest and largest share of the area for ``random_resized``.
        flips: ``none``, ``horizontal``, or ``dihedral`` for all eight rotations and flips.
        shuffle_buffer: Samples, undecoded, among which each process draws the next one.
        shuffle_mib: MiB per process that these may take; fewer are held of large images.
        ignore_suffixes: Suffixes of members that are passed over instead of refused.
        allow_pipe: Whether ``pipe:COMMAND`` may run commands.
        measured_images: How many of the first images give depth, channels, mean and std.
        spec_file: JSON that gives these instead: a ``manifest.json``, or its part ``spec``.
        max_bad_fraction: Share of undecodable images, which are replaced, before the run stops.
        max_pixels: Largest height x width of a stored image.
        decode: ``exact``, or ``scaled``: JPEGs are decoded smaller where a view allows it.
        multiprocessing_context: How workers start; the platform's way without a value.

    Raises:
        ConfigError: If a setting is outside its range, the budgets are none or several, or a
            location is not allowed.
        DataError: If local shards do not exist.
    """

    def __init__(
        self,
        *,
        urls: str | list[str],
        img_size: int | tuple[int, int],
        batch_size: int = 64,
        seed: int = 0,
        num_workers: int = 0,
        steps: int | None = None,
        samples: int | None = None,
        epochs: float | None = None,
        crop: Crop = "random_resized",
        scale: tuple[float, float] = (0.2, 1.0),
        flips: Flips = "horizontal",
        shuffle_buffer: int = 1000,
        shuffle_mib: int = SHUFFLE_MIB,
        ignore_suffixes: list[str] | None = None,
        allow_pipe: bool = False,
        measured_images: int = 256,
        spec_file: str | None = None,
        max_bad_fraction: float = 0.001,
        max_pixels: int = MAX_PIXELS,
        decode: Decode = "exact",
        multiprocessing_context: StartMethod | None = None,
    ):
        if epochs is not None:
            raise ConfigError(
                f"epochs is {epochs:g}, but nobody knows how many images a stream has; give "
                f"samples = epochs x images, or steps = samples / (batch_size x accumulation x "
                f"devices), and epochs: null. `mae index` counts the images"
            )
        super().__init__(
            img_size=img_size,
            batch_size=batch_size,
            seed=seed,
            num_workers=num_workers,
            steps=steps,
            samples=samples,
            epochs=None,
            val_batch_size=None,
            max_bad_fraction=max_bad_fraction,
            multiprocessing_context=multiprocessing_context,
        )
        self.max_pixels, self.decode, self.measured_images = max_pixels, decode, measured_images
        check_positive(self, "measured_images", "max_pixels")
        self.augment = Augment(self.img_size, crop=crop, scale=scale, flips=flips)
        given = [urls] if isinstance(urls, str) else urls
        locations = [location for text in given for location in expand(text)]
        for location in locations:
            check_location(location, allow_pipe=allow_pipe)
        _check_files(locations)
        self.stream = ShardStream(
            locations,
            seed=seed,
            shuffle_buffer=shuffle_buffer,
            shuffle_mib=shuffle_mib,
            ignore_suffixes=ignore_suffixes or (),
        )
        further = f" and {len(locations) - 1:,} further shards" if len(locations) > 1 else ""
        self.source = shown(locations[0]) + further
        # Of the names of the shards; their contents are not known beforehand.
        names = json.dumps([shown(location) for location in locations])
        self.digest = hashlib.sha256(names.encode()).hexdigest()
        self.resumes = 0  # how often the run was interrupted
        self._spec = _read_spec(spec_file) if spec_file else None
        self._image_bytes: float | None = None  # mean of the first ones
        self._was_described = False

    @property
    def spec(self) -> ImageSpec:
        """What the pixels mean; measured when it is first asked for."""
        if self._spec is None:
            self._spec = self._measure()
        return self._spec

    @spec.setter
    def spec(self, spec: ImageSpec) -> None:
        self._spec = spec

    def setup(self, stage: str) -> None:
        """Measure the first images, and say what a stream does not promise and what it costs."""
        _ = self.spec
        if stage == "fit" and self._rank == 0 and not self._was_described:
            self._was_described = True
            print(*self._description(), sep="\n")

    def train_dataloader(self) -> BatchLoader:
        """Return the loader over what is left of the run; its length is the whole run."""
        total = self.num_batches
        sampler = StreamSampler(
            start=self.samples_consumed,
            num_batches=total - self.batches_consumed,
            num_total=total,
            batch_size=self.batch_size,
            seat=Seat(rank=self._rank, world_size=self._world_size),
        )
        batches = StreamBatches(
            self.stream,
            self.augment,
            spec=self.spec,
            max_pixels=self.max_pixels,
            decode=self.decode,
            first_epoch=self.resumes * _EPOCHS_PER_LIFE,
            rank=self._rank,
            world_size=self._world_size,
        )
        return self._loader(batches, sampler)

    def val_dataloader(self) -> list[Any]:
        """Return nothing: a stream has no validation split."""
        # Lightning asks whether an empty list was meant; it was.
        warnings.filterwarnings("ignore", message="Total length of `list` across ranks is zero")
        return []

    def fingerprint(self) -> dict[str, Any]:
        """Return the numbers that the order depends on, as far as it can be told."""
        return {"data": self.digest, "split": "stream", "seed": self.seed}

    def state_dict(self) -> dict[str, Any]:
        """Return how much was consumed, of what kind, and how often the run was resumed."""
        return super().state_dict() | {"spec": self.spec.to_dict(), "resumes": self.resumes}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on at the checkpoint's position, with other epochs than before.

        Raises:
            DataError: If the list of shards or the seed differs, or the first images are of another
                kind; the message has both sides.
            ConfigError: If the accumulation differs.
        """
        super().load_state_dict(state_dict)
        before = ImageSpec.from_dict(state_dict["spec"])
        if self._spec is not None:
            self._spec.require_match(before, here=self.source, there="the checkpoint")
        self.spec = before  # its mean and std are those that the model knows
        self.resumes = int(state_dict["resumes"]) + 1
        if self._rank == 0:
            print(
                f"resumed at image {self.samples_consumed:,} (resume number {self.resumes}): the "
                f"stream begins a new epoch in another order, so images may come again or late; "
                f"views and masks go on with the position"
            )

    def _measure(self) -> ImageSpec:
        with _bar(self.measured_images, is_shown=self._rank == 0) as advance:
            found = measure(
                self.stream,
                num_images=self.measured_images,
                max_pixels=self.max_pixels,
                on_image=advance,
            )
        if self.augment.crop == "random" and not covers(found.min_size, self.img_size):
            raise ConfigError(
                f"crop 'random' cuts {self.img_size[0]} x {self.img_size[1]} px at the stored "
                f"scale, but the smallest of the first {found.num_images} images have "
                f"{found.min_size[0]} x {found.min_size[1]} px; use a smaller img_size, or crop: "
                f"random_resized"
            )
        self._image_bytes = found.image_bytes
        if self._rank == 0:
            spec = found.spec
            mean, std = (" ".join(f"{v:.4g}" for v in values) for values in (spec.mean, spec.std))
            odd = f"; {found.num_left_out} others cannot be used" if found.num_left_out else ""
            print(
                f"measured on the first {found.num_images} images: {spec.num_channels} x "
                f"{spec.dtype} ({', '.join(spec.channels)}), mean {mean}, std {std}{odd}"
            )
        return found.spec

    def _description(self) -> Iterator[str]:
        num_shards, readers = (
            len(self.stream.locations),
            self._world_size * max(self.num_workers, 1),
        )
        yield (
            f"streaming {num_shards:,} shards: the order is not exactly resumable; for exact "
            f"resume run `mae index` on them"
        )
        yield self._memory(readers)
        times = Reader(0, readers).share(num_shards).members
        if times > 1:
            yield (
                f"{num_shards:,} shards for {readers} readers ({self._world_size} processes x "
                f"{max(self.num_workers, 1)} workers): each shard is read {times} times per epoch, "
                f"each image decoded once; more shards or fewer workers would save that"
            )

    def _memory(self, readers: int) -> str:
        """Return the sentence on the memory of the shuffle buffers, over all processes."""
        most, held = self.stream.shuffle_mib, self.stream.shuffle_buffer
        each, about = float(most), "up to"
        if self._image_bytes is not None:
            each, about = min(most, held * self._image_bytes / 2**20), "about"
        return (
            f"shuffling holds {held:,} undecoded images per reader (shuffle_buffer), at most "
            f"{most:,} MiB (shuffle_mib): {about} {each:,.0f} MiB in each of {readers} readers, "
            f"{each * readers:,.0f} MiB in all"
        )


def _check_files(locations: list[str]) -> None:
    """Refuse local shards that do not exist; remote ones show when they are opened.

    Raises:
        DataError: Names the first missing ones, and what lies there instead.
    """
    local = [Path(o) for o in locations if not (o.startswith(PIPE) or is_url(o))]
    missing = [path for path in local if not path.exists() or path.is_dir()]
    if missing:
        folder = missing[0].parent
        names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
        raise DataError(
            f"{len(missing):,} of {len(locations):,} shards are no files: "
            f"{', '.join(map(str, missing[:3]))}{' …' if len(missing) > 3 else ''}; {folder} holds "
            f"{', '.join(names[:3]) or 'nothing'}. Correct the list, or copy them there"
        )


def _read_spec(path: str) -> ImageSpec:
    """Return the spec of a manifest, or of a file that holds a spec alone.

    Raises:
        DataError: If the file cannot be read, or is neither.
    """
    try:
        fields = json.loads(Path(path).read_bytes())
    except (OSError, ValueError) as error:
        raise DataError(
            f"spec_file {path} cannot be read ({error}); give the manifest.json of a shard "
            f"directory, or nothing: the first images are measured then"
        ) from error
    if not isinstance(fields, dict):
        raise DataError(f"spec_file {path} holds a {type(fields).__name__}; allowed: an object")
    return ImageSpec.from_dict(fields.get("spec", fields))


@contextmanager
def _bar(total: int, *, is_shown: bool) -> Iterator[Any]:
    """Show on a terminal how many images are measured; yields what to call after each."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    console = Console(stderr=True)
    columns = ("measuring the first images", BarColumn(), MofNCompleteColumn())
    is_off = not (is_shown and console.is_terminal)
    with Progress(
        *columns, TimeRemainingColumn(), console=console, transient=True, disable=is_off
    ) as bar:
        task = bar.add_task("measuring", total=total)
        yield lambda: bar.advance(task)
