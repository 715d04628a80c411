"""What shards are, compared with what their manifest says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

import numpy as np

from datamodules.inspection.findings import Findings, Seen
from datamodules.manifest import Manifest
from datamodules.packing.results import Kind

# Choice: statistics are summed in another order than when the shards were made; that changes the
# last digits, which nobody's training can tell.
_CLOSE = 1e-6


def differences(
    findings: Findings, manifest: Manifest | None, *, kind: Kind | None, is_deep: bool
) -> Iterator[str]:
    """Yield a sentence for each difference from the manifest, and for each unusable image.

    Args:
        findings: What was seen.
        manifest: What should be there; without it only the shards themselves are judged.
        kind: Channels and depth that all images should have.
        is_deep: Whether everything was seen.
    """
    found = [*findings.unusable]
    for seen in findings.shards:
        found += [*seen.faults, *seen.measured.faults, *_of_shard(seen, manifest)]
    found += findings.halved()
    found += [entry.message for _, entry in findings.bad(kind)]
    yield from found
    # Numbers of damaged images differ too, and a new manifest would only seal the damage in.
    if manifest is not None and is_deep and not found and kind is not None:
        yield from _of_whole(findings, manifest, kind)


def kind_of_spec(manifest: Manifest) -> Kind:
    """Return the channels and depth that a manifest declares."""
    return Kind(manifest.spec.num_channels, manifest.spec.dtype, "the manifest")


def class_counts(findings: Findings, manifest: Manifest | None) -> dict[str, dict[str, int]]:
    """Return the samples that were read by split and class; numbers without a name stay numbers."""
    names = dict(enumerate((manifest and manifest.classes) or ()))
    return {
        split: {names.get(number, str(number)): count for number, count in sorted(counts.items())}
        for split, counts in findings.classes().items()
        if counts
    }


def _of_shard(seen: Seen, manifest: Manifest | None) -> Iterator[str]:
    info, name = seen.shard.info, seen.shard.name
    if info is None or manifest is None:
        return
    if seen.index_sha256 != info.index_sha256:
        yield (
            f"shard {name} is not what its manifest says: names, sizes or checksums of its members "
            f"differ ({seen.num_samples:,} samples found, {info.num_samples:,} expected); copy it "
            f"again"
        )
    elif seen.num_samples != info.num_samples:
        yield (
            f"shard {name} has {seen.num_samples:,} samples, the manifest says "
            f"{info.num_samples:,}; copy both again"
        )
    elif seen.sha256 not in ("", info.sha256):
        yield (
            f"shard {name} has another SHA-256 than the manifest says, though names and contents "
            f"of its members are the same; its headers were changed: copy it again"
        )
    num_labels = seen.suffixes["cls"]
    if manifest.classes is not None and not manifest.multilabel and num_labels != seen.num_samples:
        yield (
            f"shard {name} has {num_labels:,} members .cls for {seen.num_samples:,} samples, but "
            f"the manifest has classes; make the manifest again"
        )


def _of_whole(findings: Findings, manifest: Manifest, kind: Kind) -> Iterator[str]:
    """Compare counts and statistics, which need every image."""
    found = class_counts(findings, manifest) if manifest.classes is not None else {}
    for split in sorted(manifest.class_counts.keys() | found.keys()):
        here, there = Counter(found.get(split)), Counter(manifest.class_counts.get(split))
        if +here != +there:
            yield (
                f"classes in {split}: found {_listed(here - there) or 'nothing'} more and "
                f"{_listed(there - here) or 'nothing'} fewer than the manifest says; make the "
                f"manifest again"
            )
    sizes = findings.sizes(kind)
    if not len(sizes):
        return
    extremes = (tuple(sizes.min(axis=0).tolist()), tuple(sizes.max(axis=0).tolist()))
    if extremes != (tuple(manifest.min_size), tuple(manifest.max_size)):
        yield (
            f"images have {extremes[0]} … {extremes[1]} px, the manifest says {manifest.min_size} "
            f"… {manifest.max_size}; make the manifest again"
        )
    stats = findings.stats(kind, ["train"]) or findings.stats(kind, findings.splits)
    if stats is None:
        return
    spec = manifest.spec
    close = _CLOSE * np.maximum(stats.std, 1e-12)
    std = np.where(stats.std > 0, stats.std, 1.0)  # as the manifest has it
    for place, name in enumerate(spec.channels):
        seen_is = (float(stats.mean[place]), float(std[place]))
        said_is = (spec.mean[place], spec.std[place])
        pairs = zip(seen_is, said_is, strict=True)
        if any(abs(a - b) > close[place] + 1e-9 * abs(b) for a, b in pairs):
            yield (
                f"channel {name} has mean {seen_is[0]:.9g} and std {seen_is[1]:.9g}, the manifest "
                f"says {said_is[0]:.9g} and {said_is[1]:.9g}; make the manifest again"
            )


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in list(counts.items())[:5])
