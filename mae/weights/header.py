"""What a file of weights says about itself.

The same fields stand in a checkpoint (key ``domain_mae``), in the JSON header of an encoder file
and in the ``config.json`` of a timm folder, so that no weights travel without what they expect.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mae import __version__
from mae.encoder import Encoder
from mae.errors import DataError, WeightsError
from mae.spec import ImageSpec

HEADER_KEY = "domain_mae"
FORMAT = 1
ENCODER_FIELDS = (
    "img_size",
    "patch_size",
    "in_chans",
    "embed_dim",
    "depth",
    "num_heads",
    "mlp_ratio",
)


@dataclass(frozen=True, kw_only=True)
class Header:
    """Description of weights.

    Attributes:
        architecture: Keyword arguments of `MaskedAutoencoder`, or of `Encoder` alone.
        spec: What the pixels mean that the weights were trained on.
        info: The rest: ``step``, ``samples_seen``, ``recipe``, ``version`` and what a format adds.
    """

    architecture: dict[str, Any]
    spec: ImageSpec
    info: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Return primitives only: JSON and ``torch.load(weights_only=True)`` both read them."""
        return {
            **self.info,
            "format": FORMAT,
            "version": self.info.get("version", __version__),
            "architecture": plain(self.architecture),
            "image_spec": self.spec.to_dict(),
        }

    @classmethod
    def from_dict(cls, fields: object, *, source: str) -> Header:
        """Read what `to_dict` wrote.

        Raises:
            WeightsError: If fields are missing or the format is newer than this version.
        """
        if not isinstance(fields, Mapping):
            raise WeightsError(f"{source}: its {HEADER_KEY!r} entry is not a table; not our file")
        missing = [
            k for k in ("architecture", "image_spec") if not isinstance(fields.get(k), Mapping)
        ]
        if missing:
            raise WeightsError(f"{source}: its description lacks {', '.join(missing)}")
        if fields.get("format") != FORMAT:
            raise WeightsError(
                f"{source} has format {fields.get('format')!r}, written by domain-mae "
                f"{fields.get('version', '(unknown)')}; {__version__} reads format {FORMAT}: "
                f"install the version that wrote it"
            )
        try:
            spec = ImageSpec.from_dict(fields["image_spec"])
        except DataError as error:
            raise WeightsError(f"{source}: {error}") from error
        in_chans = fields["architecture"].get("in_chans", spec.num_channels)
        if in_chans != spec.num_channels:
            raise WeightsError(
                f"{source}: its architecture reads {in_chans} channels, but its images have "
                f"{spec.num_channels} ({', '.join(spec.channels)}); the description was changed"
            )
        known = ("format", "architecture", "image_spec")
        return cls(
            architecture=dict(fields["architecture"]),
            spec=spec,
            info={k: v for k, v in fields.items() if k not in known},
        )

    def encoder_architecture(self, *, source: str) -> dict[str, Any]:
        """Return the encoder's keyword arguments, sizes as (height, width) lists.

        Raises:
            WeightsError: If one is missing.
        """
        missing = [name for name in ENCODER_FIELDS if name not in self.architecture]
        if missing:
            raise WeightsError(f"{source}: its architecture lacks {', '.join(missing)}")
        found = {name: self.architecture[name] for name in ENCODER_FIELDS}
        for name in ("img_size", "patch_size"):
            size = found[name]
            found[name] = [size, size] if isinstance(size, int) else list(size)
        return found


def describe_encoder(encoder: Encoder) -> dict[str, Any]:
    """Return the keyword arguments that build `encoder` again, as primitives."""
    return {
        "img_size": list(encoder.img_size),
        "patch_size": list(encoder.patch_size),
        "in_chans": encoder.in_chans,
        "embed_dim": encoder.embed_dim,
        "depth": encoder.depth,
        "num_heads": encoder.num_heads,
        "mlp_ratio": encoder.mlp_ratio,
    }


def plain(value: Any) -> Any:
    """Return `value` with tuples as lists and mappings as dicts, as JSON would give it back."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value
