"""Counts by reason and shard, over processes and resumes."""

from __future__ import annotations

import csv
from pathlib import Path

from datamodules.ledger import BadImage, BadImages


def image(reason: str, shard: str, key: str) -> BadImage:
    return BadImage(reason, shard, key, f"{shard}: {key} is {reason}")


def test_add_counts_by_reason_and_shard_and_keeps_the_first_example(tmp_path: Path) -> None:
    bad = BadImages()
    bad.add([image("damaged", "s0", "a"), image("damaged", "s0", "b")])
    bad.add([image("damaged", "s1", "c"), image("empty", "s0", "\udcff,\n")])
    assert bad.total() == 4
    assert bad.by_reason() == {"damaged": 3, "empty": 1}
    assert str(bad) == "3 x damaged, 1 x empty"
    bad.save(tmp_path)
    with (tmp_path / "bad_images.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["reason", "shard", "count", "example", "message"]
    assert [row[:4] for row in rows[1:]] == [
        ["damaged", "s0", "2", "a"],
        ["damaged", "s1", "1", "c"],
        ["empty", "s0", "1", "\\udcff,\n"],
    ]


def test_merge_state_adds_up() -> None:
    one, other = BadImages(), BadImages()
    one.add([image("damaged", "s0", "a")])
    other.add([image("damaged", "s0", "b"), image("empty", "s1", "c")])
    together = BadImages()
    together.merge(one.state())
    together.merge(other.state())
    assert together.state() == [
        ["damaged", "s0", 2, "a", "s0: a is damaged"],
        ["empty", "s1", 1, "c", "s1: c is empty"],
    ]
