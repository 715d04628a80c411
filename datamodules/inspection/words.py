"""An inspection in lines for a terminal, taken from its numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

_BARS = {True: " ▁▂▃▄▅▆▇█", False: " .:-=+*#@"}  # by "can show more than ASCII"
_NUM_BARS = 32
_NUM_SHARDS = 20
_NUM_CHANNELS = 20
_NUM_CLASSES = 20
_NUM_EXAMPLES = 5
_SHOWN_PERCENTILES = ("1", "50", "99")


def lines(numbers: Mapping[str, Any], *, is_unicode: bool = True) -> list[str]:
    """Return the lines of an inspection.

    Args:
        numbers: From `datamodules.inspection.numbers.numbers_of`.
        is_unicode: Whether the terminal shows more than ASCII.
    """
    return [
        *_head(numbers),
        *_splits(numbers),
        *_shards(numbers),
        *_images(numbers),
        *_channels(numbers, is_unicode=is_unicode),
        *_odd_images(numbers),
        *_repeats(numbers),
        *_labels(numbers),
        *_groups(numbers),
        *(f"note: {note}" for note in numbers["notes"]),
        _verdict(numbers),
    ]


def _head(numbers: Mapping[str, Any]) -> Iterator[str]:
    yield (
        f"{numbers['source']}: {numbers['num_samples']:,} samples in {len(numbers['shards']):,} "
        f"shards, {_megabytes(numbers['num_bytes'])} MB"
    )


def _splits(numbers: Mapping[str, Any]) -> Iterator[str]:
    yield from _table(
        ["split", "shards", "samples", "MB"],
        [
            [split, f"{n['num_shards']:,}", f"{n['num_samples']:,}", _megabytes(n["num_bytes"])]
            for split, n in numbers["splits"].items()
        ],
    )


def _shards(numbers: Mapping[str, Any]) -> Iterator[str]:
    rows = [
        [s["path"].rpartition("/")[2], s["split"], f"{s['num_samples']:,}", f"{s['num_bytes']:,}"]
        for s in numbers["shards"][:_NUM_SHARDS]
    ]
    yield from _table(["shard", "split", "samples", "bytes"], rows, num_left=2)
    if len(numbers["shards"]) > _NUM_SHARDS:
        yield f"… and {len(numbers['shards']) - _NUM_SHARDS:,} more shards; --json has all"


def _images(numbers: Mapping[str, Any]) -> Iterator[str]:
    num_opened, num_shards = numbers["num_shards_opened"], len(numbers["shards"])
    members = ", ".join(f"{count:,} .{suffix}" for suffix, count in numbers["members"].items())
    of = f" in {num_opened:,} of {num_shards:,} shards" if num_opened < num_shards else ""
    yield f"members{of}: {members or 'none'}"
    size = numbers["image_bytes"]
    if size:
        yield f"bytes of an image: {size['min']:,} … {size['max']:,}, median {size['median']:,.0f}"
    if numbers["num_decoded"] < numbers["num_samples"]:
        rest = "" if numbers["deep"] else ", spread over the shards; --deep decodes all"
        yield f"decoded: {numbers['num_decoded']:,} of {numbers['num_samples']:,} images{rest}"
    else:
        yield f"decoded: all {numbers['num_decoded']:,} images"
    height, width = numbers["height_px"], numbers["width_px"]
    if height:
        yield (
            f"height {height['min']:,} … {height['max']:,} px, median {height['median']:,.0f}; "
            f"width {width['min']:,} … {width['max']:,} px, median {width['median']:,.0f}"
        )
    kinds = ", ".join(f"{kind} ({count:,})" for kind, count in numbers["kinds"].items())
    yield f"channels x depth: {kinds or 'no image could be decoded'}"


def _channels(numbers: Mapping[str, Any], *, is_unicode: bool) -> Iterator[str]:
    channels = numbers["channels"]
    if not channels:
        return
    titles = ["channel", "mean", "std", "min"]
    titles += [*(f"{share} %" for share in _SHOWN_PERCENTILES), "max", "histogram"]
    rows = []
    for channel in channels[:_NUM_CHANNELS]:
        shown = [channel["mean"], channel["std"], channel["min"]]
        shown += [*(channel["percentiles"][share] for share in _SHOWN_PERCENTILES), channel["max"]]
        bars = _bars(channel["histogram"]["counts"], _BARS[is_unicode])
        rows.append([channel["name"], *(f"{value:.5g}" for value in shown), f"|{bars}|"])
    yield from _table(titles, rows)
    if len(channels) > _NUM_CHANNELS:
        yield f"… and {len(channels) - _NUM_CHANNELS:,} more channels; --json has all"


def _odd_images(numbers: Mapping[str, Any]) -> Iterator[str]:
    broken, constant = numbers["broken"], numbers["constant"]
    reasons = Counter(entry["reason"] for entry in broken).most_common()
    yield "broken: " + (", ".join(f"{n:,} x {reason}" for reason, n in reasons) or "none")
    if constant:
        named = ", ".join(entry["key"] for entry in constant[:_NUM_EXAMPLES])
        yield f"constant (all pixels equal): {len(constant):,}, such as {named}"
    else:
        yield "constant (all pixels equal): none"


def _repeats(numbers: Mapping[str, Any]) -> Iterator[str]:
    found = numbers["duplicates"]
    hint = "" if found["compared"] == "bytes" else " (--deep compares bytes)"
    of = f"duplicates, by {found['compared']}{hint}"
    counts = [f"{count:,} in {split}" for split, count in found["within"].items()]
    if found["across"]:
        counts.append(f"{found['across']:,} across splits")
    yield f"{of}: {', '.join(counts) or 'none'}"
    for one, other in [*found["within_examples"], *found["across_examples"]][:_NUM_EXAMPLES]:
        yield f"  {one} = {other}"
    if found["across"]:
        yield "  images that stand in several splits make what is measured on them too good"
    keys = numbers["repeated_keys"]
    if keys["within"]:
        one, other = keys["within_examples"][0]
        yield f"keys in several shards: {sum(keys['within'].values()):,}, such as {one} and {other}"


def _labels(numbers: Mapping[str, Any]) -> Iterator[str]:
    of = {"manifest": ", by the manifest", "decoded": ", of the decoded ones", "all": ""}
    for split, counts in numbers["classes"].items():
        named = ", ".join(f"{name} {n:,}" for name, n in list(counts.items())[:_NUM_CLASSES])
        more = f" … ({len(counts):,} classes)" if len(counts) > _NUM_CLASSES else ""
        yield f"classes in {split}{of[numbers['classes_from']]}: {named}{more}"
    if not numbers["classes"]:
        yield "classes: none"


def _groups(numbers: Mapping[str, Any]) -> Iterator[str]:
    groups = numbers["groups"]
    of = "" if groups["counted"] == "all" else ", of the decoded images"
    for split, found in groups["splits"].items():
        yield (
            f"groups in {split}{of}: {found['num_groups']:,}, the largest is {found['largest']!r} "
            f"with {found['largest_num_samples']:,} images"
        )
    if not groups["splits"]:
        yield f"groups{of}: none"
    if groups["num_in_several_splits"]:
        yield (
            f"  {groups['num_in_several_splits']:,} groups stand in several splits, such as "
            f"{groups['in_several_splits'][0]!r}: what is measured on them is too good"
        )


def _verdict(numbers: Mapping[str, Any]) -> str:
    if numbers["problems"]:
        return f"problems: {len(numbers['problems']):,}"
    if numbers["manifest_sha256"] is None:
        return "there is no manifest to compare with; `mae index` makes one"
    if numbers["deep"]:
        return "the shards are what their manifest says, every byte of them"
    return "sizes and indices are what the manifest says; --deep compares every byte"


def _table(
    titles: Sequence[str], rows: Sequence[Sequence[str]], *, num_left: int = 1
) -> Iterator[str]:
    """Yield aligned lines; the first columns to the left, the others to the right."""
    table = [titles, *rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        cells = [
            cell.ljust(width) if place < num_left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()


def _bars(counts: Sequence[int], bars: str) -> str:
    """Return a histogram in one line; whatever is there at all is shown."""
    edges = np.linspace(0, len(counts), min(_NUM_BARS, len(counts)) + 1).astype(int)
    joined = np.add.reduceat(np.array(counts), edges[:-1])
    heights = np.ceil(joined / max(1, joined.max()) * (len(bars) - 1)).astype(int)
    return "".join(bars[height] for height in heights)


def _megabytes(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:,.1f}"
