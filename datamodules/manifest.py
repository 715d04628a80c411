"""``manifest.json``: what a shard directory holds.

The manifest is the contract of a data set: which shards, how many samples and bytes, what the
pixels mean, which classes.  Its digest goes into every fingerprint, so a run cannot be resumed on
other data.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from dataclasses import fields as dataclass_fields
from functools import cached_property
from pathlib import Path
from typing import Any

from datamodules.fields import (
    Fields,
    is_count,
    is_counts,
    is_list,
    is_name,
    is_number,
    is_path,
    is_shallow,
    is_text,
    parse,
)
from datamodules.locations import is_url, join, shown
from mae.errors import DataError, did_you_mean
from mae.spec import ImageSpec

FORMAT = "domain-mae-shards"
VERSION = 2
FILE_NAME = "manifest.json"
_FIELDS = (
    *("format", "version", "spec", "classes", "multilabel", "class_counts", "num_bytes_images"),
    *("min_size", "max_size", "left_out", "options", "source", "shards"),
)
_MAX_SHOWN = 100  # letters of a value in a message
_MAX_DEPTH = 8  # of what options hold
_MEMBER_BYTES = 512  # of a sample in a tar at least: its header
_MAX_BYTES = 2**30  # of a remote manifest: some three million shards


@dataclass(frozen=True, kw_only=True)
class ShardInfo:
    """One shard and what it must contain.

    Args:
        path: Relative to the manifest, or absolute, or a URL.
        split: Name of its split.
        num_samples: Number of samples.
        num_bytes: Size of the file.
        sha256: Digest of the file.
        index_sha256: `TarIndex.digest` of its index, which holds a checksum of each member.
    """

    path: str
    split: str
    num_samples: int
    num_bytes: int
    sha256: str
    index_sha256: str


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """A shard directory's table of contents.

    Args:
        spec: What the pixels mean; mean and std of the train split.
        shard_list: All shards in order.
        classes: Class names, the place being the class index; None if unlabelled.
        multilabel: Whether a sample may have several labels, or none.
        class_counts: Samples by split and class name.
        num_bytes_images: Bytes of the images alone.
        min_size: Smallest ``(height, width)`` among all images, each axis by itself.
        max_size: Largest ``(height, width)``, each axis by itself.
        left_out: Images that were not packed, counted by reason.
        options: The packing options that shaped the shards.
        source: Where the images came from, as the user named it; not part of the digest.
        root: The directory or its URL; not stored.
    """

    spec: ImageSpec
    shard_list: tuple[ShardInfo, ...]
    classes: tuple[str, ...] | None = None
    multilabel: bool = False
    class_counts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    num_bytes_images: int = 0
    min_size: tuple[int, int] = (0, 0)
    max_size: tuple[int, int] = (0, 0)
    left_out: Mapping[str, int] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    source: str = ""
    root: str = field(default=".", compare=False)

    @classmethod
    def load(cls, directory: Path | str) -> Manifest:
        """Read the manifest of a shard directory.

        Args:
            directory: Path, or URL of a directory in an object store or on a web server.

        Raises:
            DataError: If there is none, or it is not of this format and version.
        """
        root = str(directory)
        place = join(root, FILE_NAME)
        try:
            data = _read(place)
        except (FileNotFoundError, NotADirectoryError):
            raise DataError(_no_manifest(root)) from None
        except (OSError, ValueError) as error:
            raise DataError(
                f"{shown(place)} cannot be read ({error}); pack the images again"
            ) from error
        return cls.from_dict(parse(data, place=shown(place)), root=root)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any], *, root: str) -> Manifest:
        """Build from `to_dict`'s output.

        Raises:
            DataError: If format or version differ, or a field is missing, unknown or not what it
                must be; names file and field.
        """
        place = shown(join(root, FILE_NAME))
        found = (fields.get("format"), fields.get("version")) if isinstance(fields, dict) else ()
        if found != (FORMAT, VERSION):
            raise DataError(
                f"{place} says format and version {repr(found)[:_MAX_SHOWN]}; allowed: "
                f"{(FORMAT, VERSION)}. Pack the images with this version of `mae pack`"
            )
        whole = Fields(fields, _FIELDS, place=place)
        classes = None if whole.values["classes"] is None else whole.texts("classes")
        shards = whole.take("shards", lambda v: isinstance(v, list), "a list of objects")
        return cls(
            spec=_spec(whole),
            shard_list=tuple(_shard(shard, n, place) for n, shard in enumerate(shards)),
            classes=classes,
            multilabel=whole.flag("multilabel"),
            class_counts=_class_counts(whole, classes),
            num_bytes_images=whole.count("num_bytes_images"),
            min_size=whole.size("min_size"),
            max_size=whole.size("max_size"),
            left_out=whole.counts("left_out"),
            options=_options(whole),
            source=whole.text("source"),
            root=root,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-able dictionary."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "spec": self.spec.to_dict(),
            "classes": None if self.classes is None else list(self.classes),
            "multilabel": self.multilabel,
            "class_counts": {split: dict(n) for split, n in self.class_counts.items()},
            "num_bytes_images": self.num_bytes_images,
            "min_size": list(self.min_size),
            "max_size": list(self.max_size),
            "left_out": dict(self.left_out),
            "options": dict(self.options),
            "source": self.source,
            "shards": [asdict(shard) for shard in self.shard_list],
        }

    def to_json(self) -> str:
        """Return the file's text."""
        return json.dumps(self.to_dict(), indent=1, ensure_ascii=True) + "\n"

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the contents; where the shards or their source lie does not matter."""
        fields = {k: v for k, v in self.to_dict().items() if k != "source"}
        fields["shards"] = [
            {k: v for k, v in shard.items() if k != "path"} for shard in fields["shards"]
        ]
        return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()

    @property
    def shown_root(self) -> str:
        """Directory or URL as it may be shown: without the secrets of a URL."""
        return shown(self.root)

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits that have samples, in the order of the shards."""
        return tuple(dict.fromkeys(s.split for s in self.shard_list if s.num_samples))

    def shards(self, split: str) -> tuple[ShardInfo, ...]:
        """Return the shards of one split.

        Raises:
            DataError: If the split has no samples.
        """
        found = tuple(s for s in self.shard_list if s.split == split and s.num_samples)
        if not found:
            raise DataError(
                f"{self.shown_root} has no samples in split {split!r}"
                f"{did_you_mean(split, self.splits)}; "
                f"it has: {', '.join(self.splits) or 'none at all'}"
            )
        return found

    def num_samples(self, split: str) -> int:
        """Number of samples of one split, 0 if it does not exist."""
        return sum(s.num_samples for s in self.shard_list if s.split == split)

    def location(self, shard: ShardInfo) -> str:
        """Return the path or URL of a shard."""
        return join(self.root, shard.path)

    @property
    def ignored_suffixes(self) -> tuple[str, ...]:
        """Suffixes of members that are no part of a sample; `mae index` writes them down."""
        return tuple(self.options.get("ignore_suffixes", ()))

    def verify_sizes(self, shards: Sequence[ShardInfo]) -> None:
        """Compare local shard files with the manifest by size; costs one ``stat`` per shard.

        Remote ones are compared when they are fetched.

        Raises:
            DataError: If a shard is missing or has another size; the message has both numbers.
        """
        for shard in shards:
            location = self.location(shard)
            if is_url(location):
                continue
            try:
                found = Path(location).stat().st_size
            except OSError as error:
                raise DataError(
                    f"shard {location} cannot be opened ({error.strerror}), but the manifest lists "
                    f"it; copy it there, or pack or index again"
                ) from error
            if found != shard.num_bytes:
                raise DataError(
                    f"shard {location} has {found:,} bytes, the manifest says "
                    f"{shard.num_bytes:,}; the copy is incomplete or the shard was changed: copy "
                    f"it again"
                )


def _read(place: str) -> bytes:
    if is_url(place):
        from datamodules.remote import read_bytes  # needs the extra [remote]

        return read_bytes(place, max_bytes=_MAX_BYTES)
    return Path(place).read_bytes()


def _shard(values: object, number: int, place: str) -> ShardInfo:
    names = tuple(field.name for field in dataclass_fields(ShardInfo))
    shard = Fields(values, names, place=place, name=f"shards[{number}].")
    allowed = "a path below the manifest, without '..', or an absolute path, or a URL"
    return ShardInfo(
        path=shard.take("path", is_path, allowed),
        split=shard.take("split", is_name, "a text"),
        num_samples=shard.take(
            "num_samples",
            lambda v: is_count(v) and v * _MEMBER_BYTES <= shard.count("num_bytes"),
            f"a whole number from 0 to num_bytes / {_MEMBER_BYTES}",
        ),
        num_bytes=shard.count("num_bytes"),
        sha256=shard.digest("sha256"),
        index_sha256=shard.digest("index_sha256"),
    )


def _spec(whole: Fields) -> ImageSpec:
    values = whole.take("spec", lambda v: isinstance(v, dict), "an object")
    if {field.name for field in dataclass_fields(ImageSpec)} == set(values):
        spec = Fields(values, tuple(values), place=whole.place, name="spec.")
        num_channels = len(spec.texts("channels"))
        for field, length in (("mean", num_channels), ("std", num_channels), ("value_range", 2)):
            spec.numbers(field, length)
        for field in ("scale", "offset"):
            spec.take(field, is_number, "a number")
        spec.text("dtype")
        spec.text("unit")
        spec.take("nodata", lambda v: v is None or is_number(v), "a number or null")
    try:
        return ImageSpec.from_dict(values)
    except DataError as error:
        raise DataError(f"{whole.place}: {error}") from error


def _class_counts(
    whole: Fields, classes: tuple[str, ...] | None
) -> Mapping[str, Mapping[str, int]]:
    found: Mapping[str, Mapping[str, int]] = whole.take(
        "class_counts",
        lambda v: (
            isinstance(v, dict)
            and all(is_counts(n) and set(n) == set(classes or ()) for n in v.values())
            and not (v and classes is None)
        ),
        "of each split, the number of samples of each class; nothing without classes",
    )
    return found


def _options(whole: Fields) -> Mapping[str, Any]:
    allowed = f"an object, nested {_MAX_DEPTH} deep at most, ignore_suffixes in it a list of texts"
    found: Mapping[str, Any] = whole.take(
        "options",
        lambda v: (
            isinstance(v, dict)
            and is_shallow(v, _MAX_DEPTH)
            and is_list(v.get("ignore_suffixes", []), is_text)
        ),
        allowed,
    )
    return found


def _no_manifest(root: str) -> str:
    if is_url(root):
        return (
            f"{shown(join(root, FILE_NAME))} does not exist; copy a directory written by "
            f"`mae pack` there, or run `mae index` on the list of its shards"
        )
    directory = Path(root)
    if not directory.exists():
        return f"{directory} does not exist; give a directory written by `mae pack`"
    if not directory.is_dir():
        return f"{directory} is a file; give a directory written by `mae pack`"
    names = sorted(path.name for path in directory.iterdir())
    seen = ", ".join(names[:3]) or "nothing"
    if any(name.endswith(".tar") for name in names):
        return (
            f"{directory} has no {FILE_NAME} (it holds: {seen}); run `mae index {directory}` to "
            f"read these shards as they are"
        )
    return (
        f"{directory} has no {FILE_NAME}, so it is no shard directory (it holds: {seen}); run "
        f"`mae pack {directory} OUT` and give OUT"
    )
