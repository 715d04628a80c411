"""Which labels tars have: a ``cls`` member each, or lists of classes in our own sidecars."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from datamodules.inspection.blocks import Measured
from datamodules.inspection.findings import Findings, Seen
from mae.errors import DataError

_NUM_NAMED = 5


@dataclass(frozen=True)
class Labels:
    """Labels of a set.

    Attributes:
        classes: Names of the classes; None without labels.
        multilabel: Whether a sample may have several, or none.
        notes: Sentences for the user.
    """

    classes: tuple[str, ...] | None = None
    multilabel: bool = False
    notes: tuple[str, ...] = ()

    def counts(self, measured: Measured) -> Mapping[str, int]:
        """Return the samples of one shard by class name."""
        if self.classes is None:
            return {}
        return {self.classes[number]: n for number, n in sorted(measured.classes.items())}

    def num_unlabelled(self, seen: Seen) -> int:
        """Return the samples of one shard whose list of classes is empty."""
        return seen.measured.num_empty if self.multilabel else 0


def find_labels(findings: Findings, names: tuple[str, ...] | None) -> Labels:
    """Return the labels of all samples.

    Args:
        findings: What was seen.
        names: Class names that the user gives.

    Raises:
        DataError: If only some samples have labels, or there are more classes than names.
    """
    total = Measured()
    for seen in findings.shards:
        total.classes += seen.measured.classes
        total.num_labelled += seen.measured.num_labelled
        total.num_multilabel += seen.measured.num_multilabel
        for number, name in seen.measured.names.items():
            total.name_class(number, name)
    multilabel = not total.num_labelled and total.num_multilabel == findings.num_samples
    if not total.num_labelled and not multilabel:
        notes = []
        if total.num_multilabel:
            notes.append(
                f"{total.num_multilabel:,} of {findings.num_samples:,} samples have lists of "
                f"classes in their .json; as not all have, they are taken as unlabelled"
            )
        if names is not None:
            notes.append("no sample has a .cls, so the class names are not used")
        return Labels(notes=tuple(notes))
    if not multilabel:
        _refuse_partly_labelled(findings, total.num_labelled)
    num_classes = max(total.classes, default=-1) + 1
    if names is not None and len(names) < num_classes:
        raise DataError(
            f"the samples have classes up to {num_classes - 1}, but {len(names)} names are given; "
            f"give {num_classes} names, one per line"
        )
    if multilabel:
        return Labels(_listed_names(total.names, num_classes, names), multilabel=True)
    return Labels(names or _own_names(total.names, num_classes))


def _refuse_partly_labelled(findings: Findings, num_labelled: int) -> None:
    partly = [
        f"{seen.shard.name}: {seen.num_samples - seen.measured.num_labelled:,} of "
        f"{seen.num_samples:,}"
        for seen in findings.shards
        if seen.measured.num_labelled != seen.num_samples
    ]
    if partly:
        more = f" … ({len(partly)} shards)" if len(partly) > _NUM_NAMED else ""
        raise DataError(
            f"{num_labelled:,} of {findings.num_samples:,} samples have a .cls; samples without "
            f"one: {'; '.join(partly[:_NUM_NAMED])}{more}. Add what is missing, index labelled and "
            f"unlabelled shards apart, or leave labels out with --ignore cls"
        )


def _listed_names(
    found: Mapping[int, str], num_classes: int, names: tuple[str, ...] | None
) -> tuple[str, ...]:
    """Return the names of classes whose sidecars hold names and indices.

    Raises:
        DataError: If they contradict each other, or the names that are given.
    """
    own = tuple(found.get(number, str(number)) for number in range(num_classes))
    if "" in own or len(set(own)) < num_classes:
        raise DataError(
            "the .json of some samples give one class two names, or two classes one name; correct "
            "their labels and classes, or leave them out with --ignore json"
        )
    for number, name in found.items():
        if names is not None and names[number] != name:
            raise DataError(
                f"class {number} is called {name!r} by the .json of its samples and "
                f"{names[number]!r} by the names that are given; leave the names out, or make them "
                f"agree"
            )
    return names or own


def _own_names(names: Mapping[int, str], num_classes: int) -> tuple[str, ...]:
    """Return the names that the sidecars give without a contradiction, or else the numbers."""
    found = [names.get(number, "") for number in range(num_classes)]
    if all(found) and len(set(found)) == num_classes:
        return tuple(found)
    return tuple(map(str, range(num_classes)))
