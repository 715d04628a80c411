"""What the page says, section by section, as plain values for the template.

Every function takes what `collect` found and returns None where the run has nothing to say.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from itertools import zip_longest
from math import isfinite
from statistics import median
from typing import Any

from markupsafe import Markup

from mae.report.charts import Line, line_chart, thin
from mae.report.collect import Export, Picture, RunFiles, Series
from mae.report.words import Rows, duration, flatten, number

# The baselines of the loss, by the names that a run logs.
BASELINES = {"predict_zero": "predict zero", "predict_patch_mean": "predict the patch mean"}


def model_sentence(files: RunFiles) -> str | None:
    """Describe the architecture in one sentence, from the configuration."""
    model = (files.config or {}).get("model")
    needed = ("img_size", "patch_size", "embed_dim", "depth", "num_heads")
    if not isinstance(model, Mapping) or any(key not in model for key in needed):
        return None
    sentence = (
        f"Masked autoencoder on images of {_size(model['img_size'])} px: ViT encoder of "
        f"{model['depth']} blocks, width {model['embed_dim']}, {model['num_heads']} heads and "
        f"patches of {_size(model['patch_size'])} px"
    )
    if "decoder_depth" in model and "decoder_embed_dim" in model:
        sentence += (
            f"; decoder of {model['decoder_depth']} blocks, width {model['decoder_embed_dim']}"
        )
    if "mask_ratio" in model:
        sentence += f"; {number(100 * model['mask_ratio'])} % of the patches removed"
    return sentence + "."


def facts(files: RunFiles) -> Rows:
    """Return the handful of numbers that stand at the top."""
    rows: Rows = []
    steps = [step for series in files.metrics.values() for step in series]
    if steps:
        rows.append(("last step logged", f"{max(steps):,}"))
    loss = files.metrics.get("val/loss")
    if loss:
        first, *_, last = [*loss.values()] * 2
        rows.append(("loss on fixed masks", f"{first:.3f} → {last:.3f}"))
    speed = files.metrics.get("train/images_per_s")
    if speed:
        rows.append(("images per second, median", f"{median(speed.values()):,.0f}"))
    seconds = [start["seconds"] for start in _starts(files) if "seconds" in start]
    if seconds:
        rows.append(("time", duration(float(sum(seconds)))))
    memory = [start["peak_memory_mib"] for start in _starts(files) if "peak_memory_mib" in start]
    if memory:
        rows.append(("peak memory", f"{max(memory):,.0f} MiB"))
    return rows


def loss_section(files: RunFiles) -> dict[str, Any] | None:
    """Return the loss chart, its legend and the table behind it."""
    train, val = (files.metrics.get(name, {}) for name in ("train/loss", "val/loss"))
    curve, bin_size = thin(_points(train))
    fixed, _ = thin(_points(val), at_most=len(val) or 1)
    lines = [
        Line(name=name, points=points, style=style)
        for name, points, style in (
            ("training", curve, "train"),
            ("validation, fixed masks", fixed, "val"),
        )
        if points
    ]
    if not lines:
        return None
    references = _loss_references(files.metrics)
    said = [f"{line.name}: {line.points[0][1]:.3f} to {line.points[-1][1]:.3f}" for line in lines]
    said += [f"{name}: {value:.3f}" for name, value in references.items()]
    return {
        "chart": line_chart(
            lines,
            references=references,
            x_label="optimizer steps",
            y_label="loss on removed patches",
            description="Loss over optimizer steps. " + "; ".join(said) + ".",
        ),
        "lines": lines,
        "bin_size": bin_size,
        "num_left_out": sum(not isfinite(y) for series in (train, val) for y in series.values()),
        "table": [(f"{step:,}", f"{value:.4f}") for step, value in val.items()],
    }


def picture(found: Picture) -> dict[str, Any]:
    """Return a picture as a data URI with its words."""
    numbers = found.numbers or {}
    said = " ".join(numbers.get("sentences", ()))
    title = str(numbers.get("title", found.name))
    return {
        "uri": Markup("data:image/png;base64,") + base64.b64encode(found.png).decode(),
        "title": title,
        "caption": said,
        "alarms": [
            *(["Uses the target's statistics."] if numbers.get("statistics") == "target" else []),
            *([numbers["warning"]] if numbers.get("warning") else []),
        ],
        "alt": (
            f"{title}. One row per image, from left to right: input, visible patches, "
            f"reconstruction, error. {said or 'No numbers lie beside this picture.'}"
        ),
        "images": numbers.get("images", ()),
    }


def export_rows(exports: Iterable[Export]) -> list[dict[str, str]]:
    """Return one row per export and kind of images that were compared."""
    rows = []
    for export in exports:
        parity = export.parity or {}
        for kind, measured in parity.get("compared", {}).items():
            worst = max(measured["max_abs_difference"].values())
            rows.append(
                {
                    "name": export.name,
                    "images": f"{measured['num_images']:,} {kind}",
                    "difference": f"{worst:.2g}",
                    "tolerance": f"{parity['tolerance']:g}",
                    "holds": "yes" if worst <= parity["tolerance"] else "no",
                    "loaded_by": str(parity.get("loaded_by", "")),
                }
            )
    return rows


def data_section(files: RunFiles) -> dict[str, Any] | None:
    """Return what the manifest says about the images."""
    manifest = files.manifest
    if manifest is None:
        return None
    spec = manifest.get("spec", {})
    splits: dict[str, int] = {}
    for shard in manifest.get("shards", ()):
        splits[shard["split"]] = splits.get(shard["split"], 0) + shard["num_samples"]
    rows: Rows = [("source", str(manifest.get("source", ""))), ("shards", str(files.data_dir))]
    rows += [(f"images, {split}", f"{count:,}") for split, count in splits.items()]
    rows.append(("pixels", f"{spec.get('dtype', '')} {spec.get('unit', '')}".strip()))
    rows += [(f"left out: {why}", f"{n:,}") for why, n in manifest.get("left_out", {}).items()]
    # A damaged manifest may lack values; no channel is dropped for that.
    channels = zip_longest(*(spec.get(key, ()) for key in ("channels", "mean", "std")))
    return {
        "rows": [row for row in rows if row[1]],
        "channels": [
            (name or "missing", number(mean) or "missing", number(std) or "missing")
            for name, mean, std in channels
        ],
    }


def environment_section(files: RunFiles) -> list[Rows] | None:
    """Return the facts about each start of the run, nested values written out."""
    starts = _starts(files)
    if not starts:
        return [flatten(files.environment)] if files.environment else None
    return [flatten(start) for start in starts]


def _points(series: Series) -> list[tuple[float, float]]:
    return [(float(step), value) for step, value in series.items()]


def _starts(files: RunFiles) -> list[Mapping[str, Any]]:
    starts = (files.environment or {}).get("starts", ())
    return [start for start in starts if isinstance(start, Mapping)]


def _loss_references(metrics: Mapping[str, Series]) -> dict[str, float]:
    """Return the losses of trivial answers; equal ones (with norm_pix_loss) share a line."""
    references: dict[str, float] = {}
    for key, words in BASELINES.items():
        series = metrics.get(f"val/{key}") or metrics.get(f"baseline/{key}")
        if not series:
            continue
        value = [*series.values()][-1]
        twin = next((name for name, other in references.items() if abs(other - value) < 1e-4), None)
        if twin is not None:
            references[f"{twin} or {words.removeprefix('predict ')}"] = references.pop(twin)
        else:
            references[words] = value
    return {name: value for name, value in references.items() if isfinite(value)}


def _size(side: Any) -> str:
    return "x".join(map(str, side)) if isinstance(side, list | tuple) else str(side)
