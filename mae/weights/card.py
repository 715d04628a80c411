"""The README.md of an exported folder: what the weights are and how to feed them."""

from __future__ import annotations

from pathlib import Path

from mae.spec import ImageSpec
from mae.weights.header import Header

_CARD = """\
# Encoder weights

A Vision Transformer pretrained as a masked autoencoder, exported by domain-mae {version}.

```python
{loading}
```

`DIR` is this folder. `images` are float32, ({batch_shape}),
normalised per channel as below. `parity.json` holds what was measured when this folder was
written: features computed by timm against those of the pretrained encoder.

| | |
|---|---|
| width, depth, heads | {embed_dim}, {depth}, {num_heads} |
| MLP ratio | {mlp_ratio:g} |
| image, patch (px) | {image}, {patch} |
| position table | {flavour}, grid {grid} |
| features | tokens after the final `norm`: CLS token, or mean of the patch tokens |
| recipe | {recipe} |
| optimizer steps | {step} |
| images seen | {samples_seen} |

For mean pooling by timm pass `global_pool="avg", fc_norm=False`: without `fc_norm=False` timm
puts a new, untrained norm in place of the pretrained one.

## Pixels

Stored as {dtype}, values {low:g} to {high:g}. {physical} {nodata}

| channel, in order | mean (stored units) | std (stored units) |
|---|---|---|
{channels}

{units}
"""


def loading_lines(folder: str | Path) -> str:
    """Return the three lines of Python that load the folder and compute features."""
    return (
        "import timm\n"
        f'encoder = timm.create_model("local-dir:{folder}", pretrained=True).eval()\n'
        "tokens = encoder.forward_features(images)  # (batch, 1 + patches, width), CLS first"
    )


def card(header: Header) -> str:
    """Return the text of the README.md for an encoder's header."""
    architecture = header.encoder_architecture(source="this encoder")
    spec, info = header.spec, header.info
    image, patch = architecture["img_size"], architecture["patch_size"]
    rows = zip(spec.channels, spec.mean, spec.std, strict=True)
    return _CARD.format(
        version=info.get("version", ""),
        loading=loading_lines("DIR"),
        batch_shape=f"batch, {architecture['in_chans']}, {image[0]}, {image[1]}",
        **{name: architecture[name] for name in ("embed_dim", "depth", "num_heads", "mlp_ratio")},
        image=_times(image),
        patch=_times(patch),
        flavour=info["pos_embed"]["flavour"],
        grid=_times(info["pos_embed"]["grid"]),
        recipe=info.get("recipe") or "not stated",
        step=info.get("step", "not stated"),
        samples_seen=info.get("samples_seen", "not stated"),
        dtype=spec.dtype,
        low=spec.value_range[0],
        high=spec.value_range[1],
        physical=_physical(spec),
        nodata="No value marks missing pixels."
        if spec.nodata is None
        else f"{spec.nodata:g} marks missing pixels.",
        channels="\n".join(f"| {name} | {mean:.6g} | {std:.6g} |" for name, mean, std in rows),
        units=_units(spec),
    )


def _units(spec: ImageSpec) -> str:
    if spec.dtype == "uint8":
        return (
            "`config.json` holds mean and std divided by 255, because timm's transforms scale "
            "8-bit images to 0..1 first."
        )
    return (
        "`config.json` holds the same values. timm has no transform for this depth: compute "
        "`(stored - mean) / std` in float32 yourself, without dividing the pixels first."
    )


def _physical(spec: ImageSpec) -> str:
    if spec.scale == 1 and spec.offset == 0 and not spec.unit:
        return "No physical unit is known."
    return f"Physical value = stored x {spec.scale:g} + {spec.offset:g} {spec.unit}".strip() + "."


def _times(sides: list[int]) -> str:
    return "x".join(map(str, sides))
