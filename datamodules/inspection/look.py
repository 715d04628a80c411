"""Look into shards: all of their members, some or all of their images, and their manifest.

Without `deep` the indices are read and an equal share of images of each shard is decoded; with it
every byte is read, every checksum compared and every image decoded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from datamodules.guard import MAX_PIXELS
from datamodules.inspection.blocks import Block, blocks_of
from datamodules.inspection.check import differences, kind_of_spec
from datamodules.inspection.findings import Findings
from datamodules.inspection.loose import LooseShard
from datamodules.inspection.survey import Shard, not_shown, sensible_workers, survey
from datamodules.locations import is_url
from datamodules.manifest import FILE_NAME, Manifest
from datamodules.packing.results import Kind
from datamodules.packing.workers import team_of
from datamodules.shardfiles import CACHE_GIB, open_files
from datamodules.shardlist import is_tar, list_shards
from datamodules.shardnames import splits_of
from datamodules.tarindex import TarIndex
from mae.errors import ConfigError, DataError

NUM_IMAGES = 512
_NUM_REMOTE = 4  # shards that are fetched for a look at some images
_WEIGHTS = frozenset({".safetensors", ".ckpt", ".pt", ".pth", ".bin", ".onnx", ".npz"})


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """What was seen.

    Attributes:
        source: What was looked at.
        manifest: Its manifest, if there is one.
        is_deep: Whether everything was read.
        findings: Of the shards that were opened.
        problems: Differences from the manifest, and images that cannot be used; a sentence each.
        notes: Sentences about the list of shards.
        sheet: Samples for a contact sheet, spread over the shards.
    """

    source: str
    manifest: Manifest | None
    is_deep: bool
    findings: Findings
    problems: tuple[str, ...]
    notes: tuple[str, ...] = ()
    sheet: tuple[Block, ...] = ()

    @property
    def kind(self) -> Kind | None:
        """Channels and depth that all images should have; None if there is no image."""
        return _kind(self.findings, self.manifest)


@dataclass
class _Choice:
    """Which samples of each shard are decoded, and which are kept for the contact sheet."""

    shards: Sequence[Shard]
    decoded: dict[int, int] | None  # by shard; None for all
    drawn: dict[int, int]
    max_pixels: int
    sheet: list[Block] = field(default_factory=list)

    def places(self, number: int, index: TarIndex) -> Sequence[int]:
        """Return the places to decode."""
        drawn = _spread(index.num_samples, self.drawn.get(number, 0))
        files = self.shards[number].files
        self.sheet += blocks_of(number, files, index, drawn, max_pixels=self.max_pixels)
        if self.decoded is None:
            return range(index.num_samples)
        return _spread(index.num_samples, self.decoded.get(number, 0))


def inspect_shards(
    source: str,
    *,
    deep: bool = False,
    num_images: int = NUM_IMAGES,
    num_sheet: int = 0,
    ignore: Sequence[str] = (),
    max_pixels: int = MAX_PIXELS,
    cache: Path | None = None,
    cache_gib: float = CACHE_GIB,
    workers: int | None = 1,
    on_progress: Callable[[float], object] = not_shown,
) -> Inspection:
    """Look into shards; what is wrong with them is reported, not raised.

    Args:
        source: Directory or URL with a manifest; or tars without one, see
            `datamodules.shardlist.list_shards`.
        deep: Read every byte and decode every image.
        num_images: How many are decoded otherwise.
        num_sheet: How many are chosen for a contact sheet.
        ignore: Suffixes of members that are passed over, where there is no manifest.
        max_pixels: Largest height x width of an image.
        cache: Folder for remote shards; see `datamodules.shardfiles.open_files`.
        cache_gib: Disk that they may take there.
        workers: Processes; None takes as many as are worth it.
        on_progress: Called with the share that is done, in [0, 1].

    Raises:
        DataError: If there are no shards.
        ConfigError: If an option is impossible.
    """
    if num_images < 1 or num_sheet < 0:
        raise ConfigError(f"num_images is {num_images}; allowed: 1 or more")
    manifest = _manifest(source)
    if manifest is not None:
        shards = [
            Shard(
                files=open_files(manifest, [info], cache=cache, cache_gib=cache_gib),
                split=info.split,
                info=info,
                ignore=manifest.ignored_suffixes,
                is_deep=deep,
            )
            for info in manifest.shard_list
        ]
        notes: tuple[str, ...] = _strangers(manifest)
    else:
        shards, notes = _loose_shards(source, tuple(suffix.lower() for suffix in ignore))
    opened = _to_open(shards, deep=deep)
    choice = _Choice(
        opened,
        None if deep else _shares(len(opened), num_images),
        _shares(len(opened), num_sheet),
        max_pixels,
    )
    findings = Findings()
    num_bytes = sum(map(_num_bytes, opened))
    if manifest is not None and not deep:
        num_samples = sum(info.num_samples for info in manifest.shard_list)
        num_bytes = num_bytes * num_images // max(num_images, num_samples)
    with team_of(sensible_workers(workers, num_bytes)) as team:
        for seen in survey(
            opened,
            choice.places,
            team,
            on_progress=on_progress,
            max_pixels=max_pixels,
            with_values=True,
        ):
            findings.add(*seen)
    problems = differences(findings, manifest, kind=_kind(findings, manifest), is_deep=deep)
    return Inspection(
        source=source,
        manifest=manifest,
        is_deep=deep,
        findings=findings,
        problems=tuple(problems),
        notes=notes,
        sheet=tuple(choice.sheet),
    )


def _manifest(source: str) -> Manifest | None:
    """Return the manifest of a directory; None for tars without one."""
    path = Path(source)
    if is_url(source):
        return None if is_tar(source) or "::" in source else Manifest.load(source)
    if path.is_file() and path.suffix in _WEIGHTS:
        raise ConfigError(
            f"{source} holds weights; `mae inspect` looks into shards and cannot look into weights "
            f"and checkpoints yet. Give a shard directory or tars"
        )
    if path.name == FILE_NAME and path.is_file():
        path = path.parent
    return Manifest.load(path) if (path / FILE_NAME).is_file() else None


def _loose_shards(source: str, ignore: tuple[str, ...]) -> tuple[list[Shard], tuple[str, ...]]:
    listing = list_shards(source, allow_gaps=True)
    notes = listing.notes
    if any(map(is_url, listing.locations)):
        raise ConfigError(
            f"{source} lies on a server and has no manifest here; run `mae index {source} OUT` and "
            f"inspect OUT"
        )
    try:
        splits = splits_of(listing.names, "names")
    except DataError as error:
        splits = ["all"] * len(listing.names)
        notes += (f"splits are not told apart: {error}",)
    shards = [
        Shard(files=LooseShard(location, ignore), split=split, ignore=ignore)
        for location, split in zip(listing.locations, splits, strict=True)
    ]
    return shards, notes


def _strangers(manifest: Manifest) -> tuple[str, ...]:
    """Return a note about tars beside the manifest that it does not list."""
    if is_url(manifest.root):
        return ()
    listed = {manifest.location(info) for info in manifest.shard_list}
    others = sorted(p.name for p in Path(manifest.root).glob("*.tar") if str(p) not in listed)
    if not others:
        return ()
    return (
        f"{len(others)} tars lie in {manifest.root} that the manifest does not list, first "
        f"{others[0]}",
    )


def _num_bytes(shard: Shard) -> int:
    if shard.info is not None:
        return shard.info.num_bytes
    return shard.files.path(0).stat().st_size


def _to_open(shards: Sequence[Shard], *, deep: bool) -> list[Shard]:
    """Return the shards to open: all, but of remote ones only some unless asked for all."""
    remote = [number for number, shard in enumerate(shards) if is_url(shard.name)]
    if deep or len(remote) <= _NUM_REMOTE:
        return list(shards)
    kept = {remote[place] for place in _spread(len(remote), _NUM_REMOTE)}
    return [s for number, s in enumerate(shards) if not is_url(s.name) or number in kept]


def _shares(num_shards: int, num_images: int) -> dict[int, int]:
    """Return how many images to take of each shard: equally many, spread over all."""
    chosen = _spread(num_shards, num_images)
    return {
        number: num_images // len(chosen) + (place < num_images % len(chosen))
        for place, number in enumerate(chosen)
    }


def _spread(count: int, wanted: int) -> list[int]:
    """Return up to `wanted` of the numbers below `count`, equally spaced."""
    wanted = min(wanted, count)
    return [int(place) for place in (2 * np.arange(wanted) + 1) * count // max(1, 2 * wanted)]


def _kind(findings: Findings, manifest: Manifest | None) -> Kind | None:
    if manifest is not None:
        return kind_of_spec(manifest)
    kinds = findings.kinds()
    return kinds.most_common(1)[0][0] if kinds else None
