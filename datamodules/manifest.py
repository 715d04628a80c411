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
from functools import cached_property
from pathlib import Path
from typing import Any

from mae.errors import DataError, did_you_mean
from mae.spec import ImageSpec

FORMAT = "domain-mae-shards"
VERSION = 1
FILE_NAME = "manifest.json"


@dataclass(frozen=True, kw_only=True)
class ShardInfo:
    """One shard: `path` relative to the manifest, its split, and what it must contain."""

    path: str
    split: str
    num_samples: int
    num_bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """A shard directory's table of contents.

    Args:
        spec: What the pixels mean; mean and std of the train split.
        shard_list: All shards in order.
        classes: Class names, the place being the class index; None if unlabelled.
        class_counts: Samples by split and class name.
        num_bytes_images: Bytes of the images alone.
        min_size: Smallest ``(height, width)`` among all images, each axis by itself.
        max_size: Largest ``(height, width)``, each axis by itself.
        left_out: Images that were not packed, counted by reason.
        options: The packing options that shaped the shards.
        source: Where the images came from, as the user named it; not part of the digest.
        root: The directory; not stored.
    """

    spec: ImageSpec
    shard_list: tuple[ShardInfo, ...]
    classes: tuple[str, ...] | None = None
    class_counts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    num_bytes_images: int = 0
    min_size: tuple[int, int] = (0, 0)
    max_size: tuple[int, int] = (0, 0)
    left_out: Mapping[str, int] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    source: str = ""
    root: Path = field(default=Path(), compare=False)

    @classmethod
    def load(cls, directory: Path | str) -> Manifest:
        """Read the manifest of a shard directory.

        Raises:
            DataError: If there is none, or it is not of this format and version.
        """
        path = Path(directory) / FILE_NAME
        try:
            fields = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise DataError(_no_manifest(Path(directory))) from None
        except (OSError, ValueError) as error:
            raise DataError(f"{path} cannot be read ({error}); pack the images again") from error
        return cls.from_dict(fields, root=Path(directory))

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any], *, root: Path) -> Manifest:
        """Build from `to_dict`'s output.

        Raises:
            DataError: If format or version differ, or a field is missing.
        """
        found = (fields.get("format"), fields.get("version")) if isinstance(fields, dict) else ()
        if found != (FORMAT, VERSION):
            raise DataError(
                f"{root / FILE_NAME} says format and version {found}; allowed: "
                f"{(FORMAT, VERSION)}. Pack the images with this version of `mae pack`"
            )
        try:
            classes = fields["classes"]
            return cls(
                spec=ImageSpec.from_dict(fields["spec"]),
                shard_list=tuple(ShardInfo(**shard) for shard in fields["shards"]),
                classes=None if classes is None else tuple(classes),
                class_counts=fields["class_counts"],
                num_bytes_images=fields["num_bytes_images"],
                min_size=tuple(fields["min_size"]),
                max_size=tuple(fields["max_size"]),
                left_out=fields["left_out"],
                options=fields["options"],
                source=fields["source"],
                root=root,
            )
        except (KeyError, TypeError) as error:
            raise DataError(
                f"{root / FILE_NAME} lacks or misspells a field ({error}); pack the images again"
            ) from error

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-able dictionary."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "spec": self.spec.to_dict(),
            "classes": None if self.classes is None else list(self.classes),
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
        """SHA-256 of the contents; where the directory or the source lies does not matter."""
        fields = {k: v for k, v in self.to_dict().items() if k != "source"}
        return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()

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
                f"{self.root} has no samples in split {split!r}{did_you_mean(split, self.splits)}; "
                f"it has: {', '.join(self.splits) or 'none at all'}"
            )
        return found

    def num_samples(self, split: str) -> int:
        """Number of samples of one split, 0 if it does not exist."""
        return sum(s.num_samples for s in self.shard_list if s.split == split)

    def verify_sizes(self, shards: Sequence[ShardInfo]) -> None:
        """Compare the shard files with the manifest by size; costs one ``stat`` per shard.

        Raises:
            DataError: If a shard is missing or has another size; the message has both numbers.
        """
        for shard in shards:
            path = self.root / shard.path
            try:
                found = path.stat().st_size
            except OSError as error:
                raise DataError(
                    f"shard {path} cannot be opened ({error.strerror}), but the manifest lists it; "
                    f"copy it here or pack again"
                ) from error
            if found != shard.num_bytes:
                raise DataError(
                    f"shard {path} has {found:,} bytes, the manifest says {shard.num_bytes:,}; "
                    f"the copy is incomplete or the shard was changed: copy it again"
                )


def _no_manifest(directory: Path) -> str:
    if not directory.exists():
        return f"{directory} does not exist; give a directory written by `mae pack`"
    if not directory.is_dir():
        return f"{directory} is a file; give a directory written by `mae pack`"
    seen = sorted(p.name for p in directory.iterdir())[:3]
    return (
        f"{directory} has no {FILE_NAME}, so it is no shard directory (it holds: "
        f"{', '.join(seen) or 'nothing'}); run `mae pack {directory} OUT` and give OUT"
    )
