"""Images that could not be used while reading: counted by reason and shard, one example each.

A bad image is never skipped in silence.  It is replaced, counted here, and the counts travel in
checkpoints and stand as ``bad_images.csv`` in the run directory.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from mae.errors import DataError
from mae.files import atomic_write

_ALLOWANCE = 8  # so that the first bad image of a young run does not end it
LEDGER_FILE = "bad_images.csv"


class BadImage(NamedTuple):
    """One image that could not be used.

    Attributes:
        reason: A few words, the same for all images with this fault.
        shard: Path or URL of its shard.
        key: Key of the sample.
        message: The full sentence.
    """

    reason: str
    shard: str
    key: str
    message: str


class BadImages:
    """Counts by (reason, shard); the first image of each stands as the example."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()
        self._examples: dict[tuple[str, str], BadImage] = {}

    def add(self, images: Iterable[BadImage]) -> None:
        """Count further images."""
        for image in images:
            place = (image.reason, image.shard)
            self._counts[place] += 1
            self._examples.setdefault(place, image)

    def merge(self, state: Iterable[Sequence[str | int]]) -> None:
        """Add what another process, or the run before its resume, has counted."""
        for reason, shard, count, key, message in state:
            place = (str(reason), str(shard))
            self._counts[place] += int(count)
            self._examples.setdefault(place, BadImage(*place, str(key), str(message)))

    def state(self) -> list[list[str | int]]:
        """Return rows ``reason, shard, count, key, message``; the commonest first."""
        return [
            [*place, count, self._examples[place].key, self._examples[place].message]
            for place, count in sorted(self._counts.items(), key=lambda item: (-item[1], item[0]))
        ]

    def total(self) -> int:
        """Return the number of bad images."""
        return self._counts.total()

    def by_reason(self) -> Counter[str]:
        """Return the number of bad images by reason."""
        found: Counter[str] = Counter()
        for (reason, _), count in self._counts.items():
            found[reason] += count
        return found

    def require_few(self, seen: int, *, max_fraction: float) -> None:
        """Refuse to go on if too many images are bad.

        Args:
            seen: Images that were looked at, good and bad.
            max_fraction: Share that may be bad; a few may be in any case.

        Raises:
            DataError: With counts, the commonest reasons and an example.
        """
        allowed = max(_ALLOWANCE, int(max_fraction * seen))
        if self.total() > allowed:
            example = next(iter(self._examples.values())).message
            raise DataError(
                f"{self.total()} of {seen:,} images could not be decoded ({self}); allowed: "
                f"{allowed} (max_bad_fraction {max_fraction}). Pack or copy them again, or raise "
                f"data.max_bad_fraction; e.g. {example}"
            )

    def __str__(self) -> str:
        return ", ".join(f"{count} x {reason}" for reason, count in self.by_reason().most_common(3))

    def save(self, directory: Path) -> None:
        """Write ``bad_images.csv``.

        Raises:
            OutputError: If the directory cannot be written.
        """

        def write(path: Path) -> None:
            with path.open("w", newline="", encoding="utf-8", errors="backslashreplace") as file:
                writer = csv.writer(file)
                writer.writerow(("reason", "shard", "count", "example", "message"))
                writer.writerows(self.state())

        atomic_write(directory / LEDGER_FILE, write)
