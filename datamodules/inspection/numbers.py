"""An inspection as one JSON-able dictionary; what is printed is taken from it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datamodules import tally
from datamodules.inspection.check import class_counts
from datamodules.inspection.findings import Findings
from datamodules.inspection.histogram import equal_bins, percentiles
from datamodules.inspection.look import Inspection
from datamodules.packing.results import Kind

FORMAT = "domain-mae-inspection"
VERSION = 1

PERCENTILES = (1, 5, 25, 50, 75, 95, 99)
NUM_BINS = 64


def numbers_of(inspection: Inspection) -> dict[str, Any]:
    """Return everything that is known of the shards."""
    findings, manifest = inspection.findings, inspection.manifest
    kind, kinds = inspection.kind, findings.kinds()
    bad = list(findings.bad(kind))
    num_decoded = kinds.total() + sum(len(seen.measured.bad) for seen in findings.shards)
    return {
        "format": FORMAT,
        "version": VERSION,
        "source": inspection.source,
        "manifest_sha256": None if manifest is None else manifest.digest,
        "deep": inspection.is_deep,
        **_counts(inspection),
        "num_shards_opened": len(findings.shards),
        "members": dict(sorted(_members(findings).items())),
        "image_bytes": _span([seen.image_bytes for seen in findings.shards]),
        "num_decoded": num_decoded,
        "kinds": {str(kind): count for kind, count in kinds.most_common()},
        "height_px": _span([findings.sizes(kind)[:, 0]] if kind else []),
        "width_px": _span([findings.sizes(kind)[:, 1]] if kind else []),
        "channels": _channels(inspection, kind) if kind in kinds and kind is not None else [],
        "broken": [
            {"shard": seen.shard.name, "key": e.key, "reason": e.reason, "message": e.message}
            for seen, e in bad
        ],
        "constant": [
            {"shard": seen.shard.name, "key": key}
            for seen in findings.shards
            for key in seen.measured.constant
        ],
        "duplicates": _repeats(findings, keys=False),
        "repeated_keys": _repeats(findings, keys=True),
        **_labels(inspection),
        "groups": _groups(findings),
        "notes": list(inspection.notes),
        "problems": list(inspection.problems),
    }


def channel_names(inspection: Inspection, kind: Kind) -> tuple[str, ...]:
    """Return the manifest's names of the channels, or what they usually are."""
    if inspection.manifest is not None:
        return inspection.manifest.spec.channels
    return tally.channel_names(kind.num_channels)


def _counts(inspection: Inspection) -> dict[str, Any]:
    """Return what the manifest says, or else what was found."""
    manifest, findings = inspection.manifest, inspection.findings
    if manifest is not None:
        rows = [
            (manifest.location(i), i.split, i.num_samples, i.num_bytes) for i in manifest.shard_list
        ]
    else:
        rows = [(s.shard.name, s.shard.split, s.num_samples, s.num_bytes) for s in findings.shards]
    splits: dict[str, dict[str, int]] = {}
    for _, split, num_samples, num_bytes in rows:
        of_split = splits.setdefault(split, {"num_shards": 0, "num_samples": 0, "num_bytes": 0})
        of_split["num_shards"] += 1
        of_split["num_samples"] += num_samples
        of_split["num_bytes"] += num_bytes
    names = ("path", "split", "num_samples", "num_bytes")
    return {
        "num_samples": sum(row[2] for row in rows),
        "num_bytes": sum(row[3] for row in rows),
        "splits": splits,
        "shards": [dict(zip(names, row, strict=True)) for row in rows],
    }


def _members(findings: Findings) -> Counter[str]:
    found: Counter[str] = Counter()
    for seen in findings.shards:
        found += seen.suffixes
    return found


def _span(parts: list[NDArray[np.int64]]) -> dict[str, float] | None:
    values = np.concatenate([np.empty(0, np.int64), *parts])
    if not len(values):
        return None
    return {
        "min": int(values.min()),
        "median": float(np.median(values)),
        "max": int(values.max()),
        "total": int(values.sum()),
    }


def _channels(inspection: Inspection, kind: Kind) -> list[dict[str, Any]]:
    findings = inspection.findings
    stats, values = findings.stats(kind, findings.splits), findings.values[kind]
    if stats is None:
        return []
    found = []
    for place, name in enumerate(channel_names(inspection, kind)):
        low, high = float(stats.low[place]), float(stats.high[place])
        shares = np.clip(percentiles(values[place], kind.dtype, list(PERCENTILES)), low, high)
        counts = equal_bins(values[place], kind.dtype, low, high, NUM_BINS)
        end = high if kind.dtype == "float32" else high + 1
        found.append(
            {
                "name": name,
                "mean": float(stats.mean[place]),
                "std": float(stats.std[place]),
                "min": low,
                "max": high,
                "percentiles": {str(p): float(v) for p, v in zip(PERCENTILES, shares, strict=True)},
                "histogram": {
                    "edges": np.linspace(low, end, len(counts) + 1).tolist(),
                    "counts": counts.tolist(),
                },
            }
        )
    return found


def _repeats(findings: Findings, *, keys: bool) -> dict[str, Any]:
    found = findings.repeated_keys() if keys else findings.repeated_images()

    def named(pairs: tuple[tuple[int, int], ...]) -> list[list[str]]:
        return [[findings.name_of(number) for number in pair] for pair in pairs]

    within = {"within": found.within, "within_examples": named(found.within_examples)}
    if keys:  # tools number from 0 in every split: a key that stands in two of them says nothing
        return within
    return {
        "compared": "bytes" if findings.is_complete else "size and CRC-32",
        **within,
        "across": found.across,
        "across_examples": named(found.across_examples),
    }


def _labels(inspection: Inspection) -> dict[str, Any]:
    """Return classes by split: all that were counted, or else what the manifest says."""
    manifest, findings = inspection.manifest, inspection.findings
    if manifest is not None and not inspection.is_deep:
        counts = {split: dict(of_split) for split, of_split in manifest.class_counts.items()}
        return {"classes": counts, "classes_from": "manifest"}
    counted = class_counts(findings, manifest)
    return {"classes": counted, "classes_from": "all" if findings.is_complete else "decoded"}


def _groups(findings: Findings) -> dict[str, Any]:
    """Return the number of groups and the largest, by split, among the images that were decoded."""
    by_split = findings.groups()
    shared = Counter(group for of_split in by_split.values() for group in of_split)
    crossing = sorted(group for group, count in shared.items() if count > 1)
    return {
        "counted": "all" if findings.is_complete else "decoded",
        "splits": {
            split: {
                "num_groups": len(groups),
                "largest": min(groups, key=lambda group: (-groups[group], group)),
                "largest_num_samples": max(groups.values()),
            }
            for split, groups in by_split.items()
            if groups
        },
        "num_in_several_splits": len(crossing),
        "in_several_splits": crossing[:3],
    }
