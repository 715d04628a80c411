"""What was seen in all shards, and what can be said of them together."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from datamodules.guard import IMAGE_SUFFIXES
from datamodules.inspection.blocks import BadSample, Measured
from datamodules.inspection.histogram import Counts
from datamodules.inspection.repeats import Digests, Repeats, digest, find_repeats
from datamodules.inspection.survey import Opened, Shard
from datamodules.packing.results import Kind
from datamodules.statistics import ChannelStats
from datamodules.tarindex import TarIndex

OTHER_KIND = "other channels or depth"


class _End(NamedTuple):
    """The first or last sample of a shard."""

    key: str
    suffixes: frozenset[str]


@dataclass(frozen=True, kw_only=True)
class Seen:
    """One shard that could be opened, without its index.

    Attributes:
        shard: The shard.
        num_samples: Its samples.
        num_bytes: Size of the file.
        sha256: Digest of the file, if it was taken.
        index_sha256: Digest of its index.
        suffixes: Members by suffix.
        image_bytes: ``(samples,)`` bytes of each image.
        image_marks: ``(samples, 2)`` bytes and checksum of each image.
        key_digests: ``(samples, 2)``.
        ends: First and last sample; none of an empty shard.
        faults: What is wrong with its samples.
        measured: What was seen of its samples.
    """

    shard: Shard
    num_samples: int
    num_bytes: int
    sha256: str
    index_sha256: str
    suffixes: Counter[str]
    image_bytes: NDArray[np.int64]
    image_marks: Digests
    key_digests: Digests
    ends: tuple[_End, ...]
    faults: tuple[str, ...]
    measured: Measured
    joined_keys: str

    @property
    def keys(self) -> list[str]:
        """Keys of its samples."""
        return self.joined_keys.split("\n") if self.num_samples else []


@dataclass
class Findings:
    """What was seen, shard by shard.

    Attributes:
        shards: Those that could be opened, in order.
        unusable: Why the others could not be.
        values: How often each value occurs, by kind.
    """

    shards: list[Seen] = field(default_factory=list)
    unusable: list[str] = field(default_factory=list)
    values: dict[Kind, Counts] = field(default_factory=dict)

    def add(self, shard: Shard, opened: Opened, measured: Measured) -> None:
        """Take in one shard."""
        if opened.index is None:
            self.unusable.append(opened.fault)
            return
        for kind, values in measured.values.items():
            self.values[kind] = values + self.values.get(kind, 0)
        measured.values = {}
        self.shards.append(_seen(shard, opened, opened.index, measured))

    @property
    def splits(self) -> list[str]:
        """Names of the splits, in the order of the shards."""
        return list(dict.fromkeys(seen.shard.split for seen in self.shards))

    @property
    def num_samples(self) -> int:
        """Number of samples."""
        return sum(seen.num_samples for seen in self.shards)

    def of_split(self, split: str) -> list[Seen]:
        """Return the shards of one split."""
        return [seen for seen in self.shards if seen.shard.split == split]

    def kinds(self) -> Counter[Kind]:
        """Return the number of images of each kind."""
        found: Counter[Kind] = Counter()
        for seen in self.shards:
            for kind, sizes in seen.measured.sizes.items():
                found[kind] += sum(map(len, sizes))
        return found

    def stats(self, kind: Kind, splits: Sequence[str]) -> ChannelStats | None:
        """Return the statistics of the images of a kind in some splits; None without any."""
        merged: ChannelStats | None = None
        for seen in self.shards:
            found = seen.measured.stats.get(kind)
            if found is not None and seen.shard.split in splits:
                merged = found if merged is None else merged.merge(found)
        return merged

    def sizes(self, kind: Kind) -> NDArray[np.int64]:
        """Return ``(images, 2)`` heights and widths of the images of a kind."""
        parts = [s[:, 1:] for seen in self.shards for s in seen.measured.sizes.get(kind, [])]
        return np.concatenate([np.empty((0, 2), np.int64), *parts])

    def bad(self, kind: Kind | None) -> Iterator[tuple[Seen, BadSample]]:
        """Yield the samples whose images cannot be used in a set of this kind."""
        for seen in self.shards:
            found = list(seen.measured.bad)
            for other, sizes in seen.measured.sizes.items():
                if other != kind:
                    found += _of_other_kind(seen, other, kind, np.concatenate(sizes)[:, 0].tolist())
            yield from ((seen, entry) for entry in sorted(found))

    @property
    def is_complete(self) -> bool:
        """Whether every sample was read."""
        return all(sum(map(len, s.measured.digests)) == s.num_samples for s in self.shards)

    def repeated_images(self) -> Repeats:
        """Return which images have equal bytes; equal size and checksum where not all were read."""
        if self.is_complete:
            return self._repeats(
                np.concatenate(s.measured.digests) for s in self.shards if s.num_samples
            )
        return self._repeats(seen.image_marks for seen in self.shards)

    def repeated_keys(self) -> Repeats:
        """Return which samples have equal keys."""
        return self._repeats(seen.key_digests for seen in self.shards)

    def halved(self) -> Iterator[str]:
        """Yield a sentence for each sample whose members stand in two shards."""
        for split in self.splits:
            shards = [seen for seen in self.of_split(split) if seen.ends]
            for one, other in itertools.pairwise(shards):
                last, first = one.ends[1], other.ends[0]
                if last.key == first.key and not last.suffixes & first.suffixes:
                    yield (
                        f"sample {last.key!r} is cut in two: {', '.join(sorted(last.suffixes))} at "
                        f"the end of {one.shard.name}, {', '.join(sorted(first.suffixes))} at the "
                        f"beginning of {other.shard.name}; write these shards again"
                    )

    def name_of(self, number: int) -> str:
        """Return shard and key of a sample, numbered through all shards."""
        for seen in self.shards:
            if number < seen.num_samples:
                return f"{seen.shard.name}: {seen.keys[number]}"
            number -= seen.num_samples
        raise IndexError(number)

    def groups(self) -> dict[str, Counter[str]]:
        """Return the samples by group, of each split."""
        found: dict[str, Counter[str]] = {}
        for seen in self.shards:
            found.setdefault(seen.shard.split, Counter()).update(seen.measured.groups)
        return found

    def classes(self) -> dict[str, Counter[int]]:
        """Return the samples by class index, of each split."""
        found: dict[str, Counter[int]] = {}
        for seen in self.shards:
            found.setdefault(seen.shard.split, Counter()).update(seen.measured.classes)
        return found

    def _repeats(self, digests: Iterable[Digests]) -> Repeats:
        splits = self.splits
        codes = [splits.index(seen.shard.split) for seen in self.shards]
        split_of = np.repeat(codes, [seen.num_samples for seen in self.shards]).astype(np.int64)
        return find_repeats(
            np.concatenate([np.empty((0, 2), np.uint64), *digests]), split_of, splits
        )


def _seen(shard: Shard, opened: Opened, index: TarIndex, measured: Measured) -> Seen:
    suffixes = np.array(index.suffixes, dtype=str)
    images = np.flatnonzero(np.isin(suffixes, IMAGE_SUFFIXES))
    sample_of = np.searchsorted(index.first, images, side="right") - 1
    counts = np.bincount(sample_of, minlength=index.num_samples)
    of_image = np.zeros((index.num_samples, 2), dtype=np.uint64)
    # Of several images the first one counts, as it does where samples are measured.
    of_image[sample_of[::-1]] = np.stack([index.sizes, index.crcs], axis=1)[images[::-1]]
    return Seen(
        shard=shard,
        num_samples=index.num_samples,
        num_bytes=index.num_bytes,
        sha256=opened.sha256,
        index_sha256=index.digest,
        suffixes=Counter(index.suffixes),
        image_bytes=of_image[:, 0].astype(np.int64),
        image_marks=of_image,
        key_digests=np.array([digest(key.encode()) for key in index.keys], dtype=np.uint64).reshape(
            -1, 2
        ),
        ends=tuple(_end(index, place) for place in (0, -1)) if index.num_samples else (),
        faults=tuple(
            f"{shard.name}: sample {index.keys[place]!r} has {counts[place]} images; allowed: "
            f"exactly one of .{', .'.join(IMAGE_SUFFIXES)}"
            for place in np.flatnonzero(counts != 1)
        ),
        measured=measured,
        joined_keys="\n".join(index.keys),
    )


def _end(index: TarIndex, place: int) -> _End:
    place %= index.num_samples
    members = index.suffixes[index.first[place] : index.first[place + 1]]
    return _End(index.keys[place], frozenset(members))


def _of_other_kind(
    seen: Seen, other: Kind, kind: Kind | None, places: Sequence[int]
) -> Iterator[BadSample]:
    keys = seen.keys
    for place in places:
        yield BadSample(
            place,
            keys[place],
            OTHER_KIND,
            f"{seen.shard.name}: {keys[place]} has {other} (channels x depth), most others have "
            f"{kind}; convert it, or keep the two kinds in shards of their own",
        )
