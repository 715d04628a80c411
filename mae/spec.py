"""What the pixels of a data set mean.

An `ImageSpec` is measured once, by ``mae pack``, and travels from the manifest into the checkpoint
and from there into every export.  Wherever two specs meet, `ImageSpec.require_match` compares them
and names both sides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from mae.errors import DataError

PixelType = Literal["uint8", "uint16", "int16", "float32"]


@dataclass(frozen=True, kw_only=True)
class ImageSpec:
    """Meaning of the pixel values, per channel.

    Args:
        channels: Channel names in storage order, e.g. ``("red", "green", "blue")``.
        dtype: Native depth of the stored pixels; values are never rescaled on the way to the model.
        mean: Mean of each channel over all valid pixels, in stored units.
        std: Standard deviation of each channel, in stored units, > 0.
        value_range: Smallest and largest value that the depth or the sensor allows.
        scale: Physical value = stored value x `scale` + `offset`.
        offset: See `scale`.
        unit: Unit of the physical value, e.g. ``"HU"`` or ``"reflectance"``; empty if unknown.
        nodata: Stored value that marks missing pixels, or None.
    """

    channels: tuple[str, ...]
    dtype: PixelType
    mean: tuple[float, ...]
    std: tuple[float, ...]
    value_range: tuple[float, float]
    scale: float = 1.0
    offset: float = 0.0
    unit: str = ""
    nodata: float | None = None

    def __post_init__(self) -> None:
        if not self.channels:
            raise DataError("an ImageSpec needs at least one channel name; got none")
        for name, values in (("mean", self.mean), ("std", self.std)):
            if len(values) != len(self.channels):
                raise DataError(
                    f"ImageSpec.{name} has {len(values)} values for {len(self.channels)} channels "
                    f"{self.channels}; give one per channel"
                )
        if min(self.std) <= 0:
            raise DataError(f"ImageSpec.std must be > 0 in every channel; got {self.std}")
        if self.dtype not in get_args(PixelType):
            raise DataError(
                f"ImageSpec.dtype is {self.dtype!r}; allowed: {', '.join(get_args(PixelType))}"
            )

    @property
    def num_channels(self) -> int:
        """Number of channels."""
        return len(self.channels)

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-able dictionary; `from_dict` reads it back."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> ImageSpec:
        """Build a spec from `to_dict`'s output.

        Raises:
            DataError: If a key is missing or unknown, or a value is not allowed.
        """
        values: dict[str, Any] = {
            k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()
        }
        try:
            return cls(**values)
        except TypeError as error:
            raise DataError(f"not an ImageSpec: {error}; found keys {sorted(fields)}") from error

    def require_match(self, other: ImageSpec, *, here: str, there: str) -> None:
        """Refuse if `other` gives stored values another meaning.

        Mean and std may differ: they are statistics of a data set, and the model's own are the
        ones that count.

        Args:
            other: The spec to compare with.
            here: Name of this side for the message, e.g. ``"run runs/x"``.
            there: Name of the other side.

        Raises:
            DataError: If channels, depth, scale, unit or no-data differ; the message has both.
        """
        fields = ("channels", "dtype", "scale", "offset", "unit", "nodata")
        differing = [f for f in fields if getattr(self, f) != getattr(other, f)]
        if differing:
            sides = "; ".join(
                f"{f}: {getattr(self, f)!r} in {here}, {getattr(other, f)!r} in {there}"
                for f in differing
            )
            raise DataError(
                f"pixels do not mean the same ({sides}); pack the data with the channels and "
                f"depth of {here}, or pretrain on data like {there}"
            )
