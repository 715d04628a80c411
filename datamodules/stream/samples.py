"""Shards as a stream of samples, by webdataset's own pipeline.

Listing and grouping are webdataset's.  Walking the tars, guarding what is let in, sharing among
processes and shuffling are ours: webdataset's end early and without an error on a cut tar, inflate
whatever is compressed, ask the environment which process they are in, and count samples whatever
memory they take.

The order depends on the seed, the epoch, and the number of readers.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from typing import IO, Any

import numpy as np

from datamodules.guard import (
    IMAGE_SUFFIXES,
    MEMBER_SUFFIXES,
    SampleKeys,
    check_member,
    split_member,
)
from datamodules.locations import shown
from datamodules.plan import keyed_words
from datamodules.remote.fetch import Patience
from datamodules.stream.body import open_shard
from datamodules.tarwalk import Member, walk
from mae.errors import ConfigError, DataError

_SHARD_ORDER, _SAMPLE_ORDER = 5, 6  # keep these words apart from the Plan's and others
SHUFFLE_MIB = 512
_CHUNK = 16 * 2**20  # bytes taken at once: a header may promise more than there is


@dataclass(frozen=True)
class StreamSample:
    """One undecoded sample.

    Args:
        shard: Its shard, as it may be shown.
        key: Its key.
        image: Bytes of its one image.
    """

    shard: str
    key: str
    image: bytes

    @property
    def name(self) -> str:
        """Shard and key, for messages."""
        return f"{self.shard}: {self.key}"


@dataclass(frozen=True)
class Reader:
    """Which of all reading processes this one is, by value.

    Args:
        number: 0 … `count` - 1.
        count: Readers over all ranks.
    """

    number: int = 0
    count: int = 1

    @classmethod
    def here(cls, *, rank: int, world_size: int) -> Reader:
        """Return the reader that this process is: a worker of torch's loader, or a rank itself.

        Args:
            rank: Number of the rank, from the Trainer.
            world_size: Number of ranks.
        """
        from torch.utils.data import get_worker_info

        info = get_worker_info()
        worker, num_workers = (0, 1) if info is None else (info.id, info.num_workers)
        return cls(rank + world_size * worker, world_size * num_workers)

    def share(self, num_shards: int) -> Share:
        """Return what this reader takes of an epoch.

        Shards are dealt to groups of readers, to as many groups as there can be of equal size.  The
        readers of a group read the same shards and take turns, sample by sample.
        """
        groups = max(n for n in range(1, min(num_shards, self.count) + 1) if not self.count % n)
        return Share(self.number % groups, groups, self.number // groups, self.count // groups)


@dataclass(frozen=True)
class Share:
    """What a reader takes: each `groups`-th shard, and of these each `members`-th sample.

    Args:
        group: First shard.
        groups: Distance between its shards.
        member: First sample.
        members: Distance between its samples: so often is each shard read.
    """

    group: int
    groups: int
    member: int
    members: int


@dataclass(frozen=True)
class Every:
    """A stage of the pipeline that passes on each `step`-th item from number `first` on."""

    first: int
    step: int

    def __call__(self, items: Iterable[Any]) -> Iterator[Any]:
        """Return the items that are passed on."""
        return islice(items, self.first, None, self.step)


@dataclass(frozen=True)
class Shuffle:
    """A stage of the pipeline that draws the next sample from those that it holds.

    A sample leaves as soon as there are `num_samples` or their images take more than `num_bytes`,
    so memory holds no more than that and one image.

    Args:
        num_samples: Samples that are held, that which leaves included.
        num_bytes: Bytes of their images, undecoded.
        seed: Another seed draws others.
    """

    num_samples: int
    num_bytes: int
    seed: int

    def __call__(self, samples: Iterable[StreamSample]) -> Iterator[StreamSample]:
        """Return the samples in another order."""
        draw = random.Random(self.seed)  # noqa: S311 (no secret)
        held: list[StreamSample] = []
        num_bytes = 0
        for sample in samples:
            held.append(sample)
            num_bytes += len(sample.image)
            while len(held) >= self.num_samples or num_bytes > self.num_bytes:
                drawn = _take(held, draw)
                num_bytes -= len(drawn.image)
                yield drawn
        while held:
            yield _take(held, draw)


class ShardStream:
    """Samples of tars that are read from front to back.

    Args:
        locations: Paths, URLs or commands, see `datamodules.stream.body`.
        seed: Another seed gives another order.
        shuffle_buffer: Samples, undecoded, among which the next one is drawn, in each process; 1
            keeps the order of the shards.
        shuffle_mib: MiB that the images of these samples may take; fewer are held then.
        ignore_suffixes: Suffixes of members that are passed over instead of refused.
        patience: How often a program is started that fails to deliver a shard.

    Raises:
        ConfigError: If there is no shard, one stands twice, or a setting is outside its range.
    """

    def __init__(
        self,
        locations: Sequence[str],
        *,
        seed: int,
        shuffle_buffer: int = 1000,
        shuffle_mib: int = SHUFFLE_MIB,
        ignore_suffixes: Collection[str] = (),
        patience: Patience | None = None,
    ):
        self.locations = tuple(locations)
        self.seed, self.shuffle_buffer, self.shuffle_mib = seed, shuffle_buffer, shuffle_mib
        self.ignore, self.patience = frozenset(ignore_suffixes), patience
        if not self.locations:
            raise ConfigError("there are no shards to stream; give paths or URLs of tars")
        seen: set[str] = set()
        for location in self.locations:
            if location in seen:
                raise ConfigError(
                    f"{shown(location)} stands twice in the list of shards, so its images would "
                    f"count twice; leave one out"
                )
            seen.add(location)
        if shuffle_buffer < 1:
            raise ConfigError(f"shuffle_buffer is {shuffle_buffer}; allowed: 1 or more samples")
        if shuffle_mib < 1:
            raise ConfigError(f"shuffle_mib is {shuffle_mib}; allowed: 1 MiB or more per process")
        if known := self.ignore & MEMBER_SUFFIXES:
            raise ConfigError(
                f"ignore_suffixes has {', '.join(sorted(known))}, which samples are made of; "
                f"allowed: suffixes other than {', '.join(sorted(MEMBER_SUFFIXES))}"
            )

    def epoch(self, number: int, reader: Reader) -> Iterator[StreamSample]:
        """Yield what one reader takes of one epoch; over all readers, each sample once.

        Args:
            number: The epoch; another one has another order.
            reader: Which reader this is.

        Raises:
            DataError: If a shard cannot be read to its end, or holds what it must not; names shard
                and byte or key.
        """
        from webdataset import SimpleShardList
        from webdataset.pipeline import DataPipeline

        words = keyed_words(self.seed, number, _SHARD_ORDER, 0, 0, len(self.locations))
        order = np.argsort(words, kind="stable").tolist()
        share = reader.share(len(self.locations))
        words = keyed_words(self.seed, number, _SAMPLE_ORDER, reader.number, reader.count, 1)
        # The first member changes with the epoch: a shard of few samples has some for everybody.
        turn = (share.member + number) % share.members
        return iter(
            DataPipeline(
                SimpleShardList([self.locations[place] for place in order]),
                Every(share.group, share.groups),
                self._samples,
                Every(turn, share.members),
                Shuffle(self.shuffle_buffer, self.shuffle_mib * 2**20, int(words[0])),
            )
        )

    def heads(self, count: int) -> Iterator[StreamSample]:
        """Yield the first `count` samples of each shard, in the order of the list.

        Raises:
            DataError: See `epoch`.
        """
        for location in self.locations:
            with closing(self._samples([{"url": location}])) as samples:
                yield from islice(samples, count)

    def _samples(self, shards: Iterable[dict[str, str]]) -> Generator[StreamSample, None, None]:
        from webdataset.tariterators import group_by_keys

        for sample in group_by_keys(self._members(shards)):
            yield _with_one_image(sample)

    def _members(self, shards: Iterable[dict[str, str]]) -> Iterator[dict[str, Any]]:
        """Yield members as webdataset does, an empty one behind each shard."""
        for shard in shards:
            location = shard["url"]
            name, keys = shown(location), SampleKeys()
            with open_shard(location, patience=self.patience) as file:
                for member in walk(file, where=name):
                    where = f"{name} at byte {member.header}"
                    key, suffix = split_member(member.name, where=where)
                    if suffix in self.ignore:
                        continue
                    check_member(member.name, suffix, member.size, where=where)
                    keys.add(key, suffix, where=where)
                    content = _content(file, member, where=where)
                    yield {"fname": member.name, "data": content, "__url__": name}
            if not keys.seen:
                passed = f" (.{', .'.join(sorted(self.ignore))} are ignored)" if self.ignore else ""
                raise DataError(f"{name} has no samples{passed}; take it out of the list of shards")
            yield {}


def _take(held: list[StreamSample], draw: random.Random) -> StreamSample:
    place = draw.randrange(len(held))
    held[place], held[-1] = held[-1], held[place]
    return held.pop()


def _content(file: IO[bytes], member: Member, *, where: str) -> bytes:
    parts, left = [], member.size
    while left:
        part = file.read(min(left, _CHUNK))
        if not part:
            raise DataError(
                f"{where}: the shard ends inside member {member.name!r}, {left:,} of "
                f"{member.size:,} bytes are missing; copy it again"
            )
        parts.append(part)
        left -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _with_one_image(sample: dict[str, Any]) -> StreamSample:
    shard, key = sample["__url__"], sample["__key__"]
    images = [suffix for suffix in sample if suffix in IMAGE_SUFFIXES]
    if len(images) != 1:
        members = ", ".join(sorted(name for name in sample if not name.startswith("__")))
        raise DataError(
            f"{shard}: {key} has {len(images)} images ({members}); allowed: exactly one of "
            f".{', .'.join(IMAGE_SUFFIXES)} per sample"
        )
    return StreamSample(shard, key, sample[images[0]])
