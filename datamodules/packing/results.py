"""What comes out of packing one shard, small enough to be sent home and written down as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, cast

from datamodules.decode import Pixels
from datamodules.manifest import ShardInfo
from datamodules.statistics import ChannelStats
from mae.spec import PixelType


@dataclass(frozen=True)
class Kind:
    """Number of channels and depth that all images of a set share; `example` is one of them."""

    num_channels: int
    dtype: PixelType
    example: str = field(compare=False)

    @classmethod
    def of(cls, pixels: Pixels, name: str) -> Kind:
        """Return the kind of one decoded image."""
        return cls(len(pixels), cast("PixelType", pixels.dtype.name), name)

    def __str__(self) -> str:
        return f"{self.num_channels} x {self.dtype}"


@dataclass(frozen=True)
class LeftOut:
    """An image that was not packed: its name, the reason in a few words, the full message."""

    name: str
    reason: str
    message: str


@dataclass(frozen=True, kw_only=True)
class ShardResult:
    """One written shard and what was measured on the way.

    Attributes:
        info: Its line in the manifest; without samples there is no file.
        stats: Statistics of its pixels, None without samples.
        left_out: Images that could not be packed.
        class_counts: Samples by class name; one with several labels counts for each.
        num_unlabelled: Samples with an empty list of labels.
        num_bytes_images: Bytes of the images as they are stored.
        num_reencoded: Images whose bytes are not those of the file.
        min_size: Smallest height and smallest width.
        max_size: Largest ones.
    """

    info: ShardInfo
    stats: ChannelStats | None
    left_out: tuple[LeftOut, ...]
    class_counts: Mapping[str, int]
    num_unlabelled: int
    num_bytes_images: int
    num_reencoded: int
    min_size: tuple[int, int]
    max_size: tuple[int, int]

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-able dictionary; `from_dict` reads it back, every bit the same."""
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return fields | {
            "info": asdict(self.info),
            "stats": None if self.stats is None else self.stats.to_dict(),
            "left_out": [asdict(entry) for entry in self.left_out],
            "class_counts": dict(self.class_counts),
        }

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> ShardResult:
        """Build from `to_dict`'s output.

        Raises:
            KeyError: If a field is missing.
            TypeError: If one is superfluous or of another kind.
        """
        stats = fields["stats"]
        return cls(
            **{
                **fields,
                "info": ShardInfo(**fields["info"]),
                "stats": None if stats is None else ChannelStats.from_dict(stats),
                "left_out": tuple(LeftOut(**entry) for entry in fields["left_out"]),
                "min_size": tuple(fields["min_size"]),
                "max_size": tuple(fields["max_size"]),
            }
        )
