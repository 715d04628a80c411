"""Shards as an endless, exactly resumable stream for pretraining.

The order is a `Plan` over the manifest's shards, the reading a stock map-style loader: any number
of shards serves any number of processes and workers, and a position says all about a sample.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from datamodules.augment import Augment, Crop, Flips
from datamodules.guard import MAX_PIXELS
from datamodules.loading import BatchLoader, EvalBatches, EvalViews, TrainStream
from datamodules.manifest import Manifest
from datamodules.module import ImageDataModule, StartMethod
from datamodules.plan import Plan
from datamodules.reader import Verify
from datamodules.records import Decode, SplitRecords
from datamodules.samplers import EvalSampler, Seat, StreamSampler
from datamodules.shardfiles import (
    CACHE_GIB,
    LocalShards,
    ShardFiles,
    is_remote,
    open_cache,
    open_files,
)
from mae.errors import ConfigError, unknown_name

if TYPE_CHECKING:
    from datamodules.remote import CachedShards, Prefetcher

_BATCHES_AHEAD = 2  # that torch's loader asks each worker for


class UnlabeledShards(ImageDataModule):
    """Read shards written by ``mae pack``, or indexed by ``mae index``, for pretraining.

    Exactly one of `steps`, `samples`, `epochs` says how long the run is.  A batch holds ``image``
    (float32, normalised, after transfer), ``sample`` (position in the stream), ``key``,
    ``is_padding`` and, where labelled, ``label``.

    Args:
        data_dir: Shard directory, or its URL (``s3://``, ``gs://``, ``https://``).
        img_size: Height and width of the views in px; one number for squares.
        batch_size: Images per device and micro-batch.
        seed: Order, crops and flips depend on it and the position alone.
        num_workers: Processes that read and decode; 0 reads in the main process.
        steps: Length of the run in optimizer steps.
        samples: Length in images, over all devices.
        epochs: Length in passes over the data; fractions are allowed.
        crop: ``random_resized``, ``random`` (stored scale) or ``center``.
        scale: Smallest and largest share of the area for ``random_resized``.
        flips: ``none``, ``horizontal``, or ``dihedral`` for all eight rotations and flips.
        window: Shards whose samples are shuffled together.
        lanes: Sequences of shards that take turns; a multiple of the number of nodes lets each
            node fetch its own shards only.
        verify: When contents are compared with their checksums: ``open``, ``first``, ``always``.
        decode: ``scaled`` decodes training JPEGs no larger than the crop needs: faster, softer.
        val_batch_size: Images per device and validation batch; `batch_size` without a value.
        max_bad_fraction: Share of undecodable images, which are replaced, before the run stops.
        max_pixels: Largest height x width of a stored image.
        shard_cache: Folder for remote shards; one in the user's cache without a value.
        shard_cache_gib: Disk that remote shards may take there.
        cache_mib: Memory per process for training images that stay decoded, for small sets.
        multiprocessing_context: How workers start; the platform's way without a value.

    Raises:
        ConfigError: If a setting is outside its range, or the budgets are none or several.
        DataError: If the directory is no shard directory or has no train split.
    """

    def __init__(
        self,
        *,
        data_dir: str,
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
        window: int = 16,
        lanes: int = 1,
        verify: Verify = "first",
        decode: Decode = "exact",
        val_batch_size: int | None = None,
        max_bad_fraction: float = 0.001,
        max_pixels: int = MAX_PIXELS,
        shard_cache: str | None = None,
        shard_cache_gib: float = CACHE_GIB,
        cache_mib: int = 0,
        multiprocessing_context: StartMethod | None = None,
    ):
        super().__init__(
            img_size=img_size,
            batch_size=batch_size,
            seed=seed,
            num_workers=num_workers,
            steps=steps,
            samples=samples,
            epochs=epochs,
            val_batch_size=val_batch_size,
            max_bad_fraction=max_bad_fraction,
            multiprocessing_context=multiprocessing_context,
        )
        if cache_mib < 0:
            raise ConfigError(f"cache_mib is {cache_mib}; allowed: 0 or more")
        if shard_cache_gib <= 0:
            raise ConfigError(f"shard_cache_gib is {shard_cache_gib}; allowed: above 0")
        if decode not in get_args(Decode):
            raise unknown_name("decode", decode, get_args(Decode))
        if decode == "scaled" and cache_mib:
            raise ConfigError(
                "decode: scaled makes the pixels of one view, and cache_mib keeps whole images; "
                "use one of them"
            )
        self.max_pixels, self.verify, self.cache_mib = max_pixels, verify, cache_mib
        self.decode = decode
        self.shard_cache = Path(shard_cache) if shard_cache else None
        self.shard_cache_gib = shard_cache_gib
        self._prefetcher: Prefetcher | None = None
        self._remote_stream: CachedShards | None = None
        self.augment = Augment(self.img_size, crop=crop, scale=scale, flips=flips)
        self.manifest = Manifest.load(data_dir)
        self.spec, self.source = self.manifest.spec, self.manifest.shown_root
        self.digest, self.splits = self.manifest.digest, self.manifest.splits
        sizes = [shard.num_samples for shard in self.manifest.shards("train")]
        self.plan = Plan(sizes, seed=seed, lanes=lanes, window=window)
        self.num_samples = self.plan.num_samples
        others = [split for split in self.splits if split != "train"]
        self.num_evaluated = sum(self.manifest.num_samples(split) for split in others)
        self._check_crop_fits(crop)

    def setup(self, stage: str) -> None:
        """Check all local shard files by size before the first step."""
        del stage
        self.manifest.verify_sizes(self.manifest.shard_list)

    def train_dataloader(self) -> BatchLoader:
        """Return the loader over what is left of the run; its length is the whole run."""
        total, files = self.num_batches, self._train_files()
        records = self._records(
            "train", files=files, cache_bytes=self.cache_mib * 2**20, decode=self.decode
        )
        sampler = StreamSampler(
            start=self.samples_consumed,
            num_batches=total - self.batches_consumed,
            num_total=total,
            batch_size=self.batch_size,
            seat=self._seat,
        )
        return self._loader(TrainStream(records, self.plan, self.augment), sampler)

    def teardown(self, stage: str) -> None:
        """Stop fetching ahead."""
        del stage
        if self._prefetcher is not None:
            self._prefetcher.stop()
            self._prefetcher = None

    def val_dataloader(self) -> BatchLoader | list[Any]:
        """Return the loader over the fixed views of the val split; nothing if there is none."""
        if "val" in self.splits:
            return self._eval_loader("val")
        # Lightning asks whether an empty list was meant; it was.
        warnings.filterwarnings("ignore", message="Total length of `list` across ranks is zero")
        return []

    def dataset(self, split: str) -> EvalViews:
        """Return the fixed views of one split as a map-style dataset.

        Raises:
            DataError: If the split has no samples.
        """
        return EvalViews(self._records(split), self.img_size)

    def fingerprint(self) -> dict[str, Any]:
        """Return everything that the order of samples depends on."""
        # Which images are replaced depends on the limit of pixels.
        data: dict[str, Any] = {"data": self.digest, "split": "train", "decode": self.decode}
        data["max_pixels"] = self.max_pixels
        return data | self.plan.fingerprint()

    def _train_files(self) -> ShardFiles:
        """Return the shards of the stream; remote ones are fetched in its order from now on."""
        shards, seat = self.manifest.shards("train"), self._seat
        if not is_remote(self.manifest, shards):
            return LocalShards(self.manifest, shards)
        from datamodules.remote import CachedShards, Prefetcher

        per_step = self.batch_size * seat.world_size
        files = CachedShards(
            self.manifest.root,
            shards,
            open_cache(self.shard_cache, self.shard_cache_gib),
            plan=self.plan,
            lanes=seat.lanes(self.plan),
            lag=(_BATCHES_AHEAD * self.num_workers + 1) * per_step,
            ignore=self.manifest.ignored_suffixes,
        )
        self._remote_stream = files
        if seat.is_first_of_node:
            self.teardown("")
            val = [shard.num_bytes for shard in self.manifest.shard_list if shard.split == "val"]
            self._prefetcher = Prefetcher(
                files, position=lambda: self.samples_consumed, reserved_bytes=sum(val)
            ).start()
        return files

    def _eval_files(self, split: str) -> ShardFiles:
        """Return the shards of a split; fetching them leaves in the cache what training needs."""
        shards = self.manifest.shards(split)
        cache, gib = self.shard_cache, self.shard_cache_gib
        if self._remote_stream is None or not is_remote(self.manifest, shards):
            return open_files(self.manifest, shards, cache=cache, cache_gib=gib)
        from datamodules.remote import CachedShards

        return CachedShards(
            self.manifest.root,
            shards,
            open_cache(cache, gib),
            ignore=self.manifest.ignored_suffixes,
            protected=self._remote_stream,
        )

    def _records(
        self,
        split: str,
        *,
        files: ShardFiles | None = None,
        cache_bytes: int = 0,
        decode: Decode = "exact",
    ) -> SplitRecords:
        return SplitRecords(
            self.manifest,
            split,
            files=files or self._eval_files(split),
            verify=self.verify,
            max_open=2 * self.plan.window * self.plan.lanes,  # this window, and the next one
            max_pixels=self.max_pixels,
            cache_bytes=cache_bytes,
            decode=decode,
        )

    def _eval_loader(self, split: str) -> BatchLoader:
        views = self.dataset(split)
        sampler = EvalSampler(
            num_samples=len(views),
            batch_size=self.val_batch_size,
            rank=self._rank,
            world_size=self._world_size,
            position=lambda: self.samples_consumed,
        )
        return self._loader(EvalBatches(views), sampler)

    @property
    def _seat(self) -> Seat:
        if self.trainer is None:
            return Seat()
        return Seat(
            rank=self._rank,
            world_size=self._world_size,
            node=self.trainer.node_rank,
            num_nodes=self.trainer.num_nodes,
        )

    def _check_crop_fits(self, crop: Crop) -> None:
        smallest = self.manifest.min_size
        if crop == "random" and (smallest[0] < self.img_size[0] or smallest[1] < self.img_size[1]):
            raise ConfigError(
                f"crop 'random' cuts {self.img_size[0]} x {self.img_size[1]} px at the stored "
                f"scale, but the smallest images have {smallest[0]} x {smallest[1]} px; use a "
                f"smaller img_size, or crop: random_resized"
            )
