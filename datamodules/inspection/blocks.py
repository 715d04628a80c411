"""Measure some samples of one shard: a piece of work that can be sent to another process.

What comes back adds up, and depends on the samples alone.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from datamodules.decode import decode
from datamodules.guard import IMAGE_SUFFIXES, MAX_PIXELS, BadImageError
from datamodules.inspection.histogram import Counts, count_values
from datamodules.inspection.repeats import Digests, digest
from datamodules.packing.results import Kind
from datamodules.shardfiles import ShardFiles
from datamodules.statistics import ChannelStats
from datamodules.tarindex import TarIndex, checksum
from mae.errors import DataError

BLOCK = 128  # samples; statistics are summed up block by block, so that workers change no digit
MAX_CLASSES = 1_000_000
_OPEN_ATTEMPTS = 3  # a remote shard may be removed from the cache between two samples


class BadSample(NamedTuple):
    """A sample whose image cannot be used: its place in the shard, and why."""

    place: int
    key: str
    reason: str
    message: str


class _Member(NamedTuple):
    suffix: str
    offset: int
    size: int
    crc: int


@dataclass(frozen=True)
class Block:
    """Some samples of one shard.

    Attributes:
        shard: Number of the shard.
        files: The shard alone.
        places: Place of each sample in it.
        keys: Key of each sample.
        members: Members of each sample.
        max_pixels: Largest height x width of an image.
        with_values: Whether values are counted.
    """

    shard: int
    files: ShardFiles
    places: tuple[int, ...]
    keys: tuple[str, ...]
    members: tuple[tuple[_Member, ...], ...]
    max_pixels: int = MAX_PIXELS
    with_values: bool = False


@dataclass
class Measured:
    """What was seen in some samples.

    Attributes:
        sizes: ``(images, 3)`` place, height and width of the usable images, by kind.
        stats: Statistics of the pixels, by kind.
        values: How often each value occurs, by kind; empty if that was not asked for.
        bad: Samples whose images cannot be used.
        constant: Keys of images without any difference between their pixels.
        digests: ``(samples, 2)``, of the images' bytes.
        faults: What makes a sample unusable as a whole: damaged bytes, labels that are none.
        classes: Samples by class index.
        names: Name of each class index by the sidecars; empty where they contradict each other.
        num_labelled: Samples with a class index in a member of its own.
        num_multilabel: Samples with a list of class indices in their sidecar.
        num_empty: Those of them whose list is empty.
        groups: Samples by group.
    """

    sizes: dict[Kind, list[NDArray[np.int64]]] = field(default_factory=dict)
    stats: dict[Kind, ChannelStats] = field(default_factory=dict)
    values: dict[Kind, Counts] = field(default_factory=dict)
    bad: list[BadSample] = field(default_factory=list)
    constant: list[str] = field(default_factory=list)
    digests: list[Digests] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    classes: Counter[int] = field(default_factory=Counter)
    names: dict[int, str] = field(default_factory=dict)
    num_labelled: int = 0
    num_multilabel: int = 0
    num_empty: int = 0
    groups: Counter[str] = field(default_factory=Counter)

    def merge(self, other: Measured) -> None:
        """Add what was seen in further samples."""
        for kind, sizes in other.sizes.items():
            self.sizes.setdefault(kind, []).extend(sizes)
        for kind, stats in other.stats.items():
            mine = self.stats.get(kind)
            self.stats[kind] = stats if mine is None else mine.merge(stats)
        for kind, values in other.values.items():
            self.values[kind] = values + self.values.get(kind, 0)
        self.bad += other.bad
        self.constant += other.constant
        self.digests += other.digests
        self.faults += other.faults
        self.classes += other.classes
        for number, name in other.names.items():
            self.name_class(number, name)
        self.num_labelled += other.num_labelled
        self.num_multilabel += other.num_multilabel
        self.num_empty += other.num_empty
        self.groups += other.groups

    def name_class(self, number: int, name: str) -> None:
        """Note what one sample calls its class."""
        if self.names.setdefault(number, name) != name:
            self.names[number] = ""


def blocks_of(
    shard: int, files: ShardFiles, index: TarIndex, places: Sequence[int], **options: Any
) -> Iterator[Block]:
    """Yield blocks of the samples at these places; for the options see `Block`."""
    first, offsets = index.first.tolist(), index.offsets.tolist()
    sizes, crcs = index.sizes.tolist(), index.crcs.tolist()
    for start in range(0, len(places), BLOCK):
        chosen = tuple(places[start : start + BLOCK])
        members = tuple(
            tuple(
                _Member(index.suffixes[i], offsets[i], sizes[i], crcs[i])
                for i in range(first[place], first[place + 1])
            )
            for place in chosen
        )
        keys = tuple(index.keys[place] for place in chosen)
        yield Block(shard, files, chosen, keys, members, **options)


def measure(block: Block) -> Measured:
    """Read and decode the samples of a block.

    Raises:
        DataError: If the shard cannot be opened.
    """
    measured, digests = Measured(), []
    handle = open_file(block.files)
    try:
        for place, key, members in zip(block.places, block.keys, block.members, strict=True):
            what = f"{block.files.name(0)}: {key}"
            contents = {m.suffix: os.pread(handle, m.size, m.offset) for m in members}
            digests.append(digest(_image(contents)))
            damaged = [m.suffix for m in members if checksum(contents[m.suffix]) != m.crc]
            if damaged:
                measured.faults.append(
                    f"{what}: member .{damaged[0]} is damaged (its checksum differs from the "
                    f"index); copy the shard again"
                )
                continue
            try:
                _note_text(measured, contents, what=what)
            except DataError as error:
                measured.faults.append(str(error))
            _note_image(measured, block, place, key, _image(contents), what=what)
    finally:
        os.close(handle)
    measured.sizes = {kind: [np.concatenate(sizes)] for kind, sizes in measured.sizes.items()}
    measured.digests.append(np.array(digests, dtype=np.uint64).reshape(-1, 2))
    return measured


def open_file(files: ShardFiles) -> int:
    """Return the handle of a shard that stands alone.

    Raises:
        DataError: If it cannot be opened.
    """
    for _ in range(_OPEN_ATTEMPTS - 1):
        try:
            return os.open(files.path(0), os.O_RDONLY)
        except FileNotFoundError:
            continue
    try:
        return os.open(files.path(0), os.O_RDONLY)
    except OSError as error:
        raise DataError(
            f"shard {files.name(0)} cannot be opened ({error.strerror}); copy it here again"
        ) from error


def _image(contents: Mapping[str, bytes]) -> bytes:
    return next((data for suffix, data in contents.items() if suffix in IMAGE_SUFFIXES), b"")


def _note_image(
    measured: Measured, block: Block, place: int, key: str, data: bytes, *, what: str
) -> None:
    try:
        pixels = decode(data, what=what, max_pixels=block.max_pixels)
    except BadImageError as error:
        measured.bad.append(BadSample(place, key, error.reason, str(error)))
        return
    kind, stats = Kind.of(pixels, what), ChannelStats.of(pixels)
    one = Measured(stats={kind: stats}, sizes={kind: [np.array([[place, *pixels.shape[1:]]])]})
    if block.with_values:
        one.values[kind] = count_values(pixels)
    if np.array_equal(stats.low, stats.high):
        one.constant.append(key)
    measured.merge(one)


def _note_text(measured: Measured, contents: Mapping[str, bytes], *, what: str) -> None:
    """Note class and group.

    Raises:
        DataError: If the class is no index, or the sidecar no object.
    """
    sidecar = _object(contents.get("json", b"{}"), what=what)
    group, label = sidecar.get("group"), sidecar.get("label")
    if group is not None:
        measured.groups[str(group)] += 1
    if "cls" in contents:
        number = _class_index(contents["cls"], what=what)
        measured.classes[number] += 1
        measured.num_labelled += 1
        measured.name_class(number, label if isinstance(label, str) else "")
        return
    numbers: Any = sidecar.get("classes")
    names: Any = sidecar.get("labels")
    if _is_multilabel(numbers, names):
        measured.num_multilabel += 1
        measured.num_empty += not numbers
        for number, name in zip(numbers, names, strict=True):
            measured.classes[number] += 1
            measured.name_class(number, name)


def _is_multilabel(numbers: Any, names: Any) -> bool:
    return (
        isinstance(numbers, list)
        and isinstance(names, list)
        and len(numbers) == len(names)
        and all(type(number) is int and 0 <= number < MAX_CLASSES for number in numbers)
        and all(isinstance(name, str) for name in names)
    )


def _object(text: bytes, *, what: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{what}: its .json cannot be read ({str(error)[:80]}); repair it, or add --ignore json"
        ) from error
    if not isinstance(found, dict):
        raise DataError(
            f"{what}: its .json holds a {type(found).__name__}; allowed: an object. Repair it, or "
            f"add --ignore json"
        )
    return found


def _class_index(text: bytes, *, what: str) -> int:
    digits = text.strip()
    if digits.isdigit() and len(digits) < 10 and int(digits) < MAX_CLASSES:
        return int(digits)
    raise DataError(
        f"{what}: its .cls holds {text[:20]!r}; allowed: a class index, 0 … {MAX_CLASSES - 1:,}. "
        f"Correct it, or leave labels out with --ignore cls"
    )
