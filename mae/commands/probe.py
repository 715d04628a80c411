"""``mae probe``: what the frozen encoder knows, beside everything it must beat."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from mae.errors import ConfigError, DataError

if TYPE_CHECKING:
    from datamodules.labeled import LabeledShards
    from datamodules.ledger import BadImages
    from mae.evaluate.probe import ProbeFeatures
    from mae.evaluate.result import ProbeResult
    from mae.weights import LoadedEncoder

FILE_NAME = "probe.json"


def probe(
    run: str,
    *,
    data: str,
    labels: str | list[str] = "10-per-class,2000",
    split: Literal["test", "val"] = "test",
    poolings: str | list[str] = "cls,mean",
    seed: int = 0,
    out: str | None = None,
    batch_size: int = 256,
    num_workers: int = 0,
) -> Path:
    """Read frozen features with logistic regression and kNN, beside pixels and random weights.

    Settings are chosen on training labels alone. Each number has a 95 % interval by bootstrap over
    groups, and each difference to random weights and to the best row without a network has its own.

    Args:
        run: Run directory (its newest good checkpoint is taken), checkpoint or encoder file.
        data: Labelled shards, a folder of class folders, or a CSV.
        labels: Label budgets with commas: 10-per-class, a total such as 2000, or all.
        split: The split that is read; val while you still choose between runs.
        poolings: cls, mean and concat (both vectors side by side), with commas.
        seed: Draws the labels and the random weights.
        out: File to write; by default RUN/probe.json.
        batch_size: Images at a time.
        num_workers: Processes that read and decode; 0 reads in the main process.

    Raises:
        MAEError: If weights, data and options do not fit together.
    """
    from mae.evaluate.probe import check_poolings
    from mae.evaluate.result import save_probe
    from mae.evaluate.splits import parse_budgets
    from mae.weights import load_encoder

    parse_budgets(labels)  # refuses typos before anything is loaded
    chosen_poolings = poolings.split(",") if isinstance(poolings, str) else poolings
    check_poolings(chosen_poolings)
    if batch_size < 1:
        raise ConfigError(f"batch_size is {batch_size}; allowed: 1 or more")
    path = _result_file(Path(run), out)
    loaded = load_encoder(run)
    shards = _open(loaded, data, split)
    features = _read_features(loaded, shards, split, seed, batch_size, num_workers)
    result = _fit(features, labels, chosen_poolings, seed)
    _say(result, shards.notes)
    save_probe(result, path)
    print(f"numbers: {path}")
    return path


def _result_file(run: Path, out: str | None) -> Path:
    from mae.commands.run_directory import require_writable
    from mae.commands.run_paths import run_directory_of

    if out is not None:
        path = Path(out)
        if path.is_dir():
            raise ConfigError(f"out {out!r} is a directory; give a file, e.g. {path / FILE_NAME}")
    else:
        home = run_directory_of(run) if run.exists() else run.absolute().parent
        path = (home or run.absolute().parent) / FILE_NAME
    if run.exists():  # else loading says what is missing
        require_writable(path.parent)
    return path


def _open(loaded: LoadedEncoder, data: str, split: str) -> LabeledShards:
    """Open the labelled data and hold its pixels against the encoder's."""
    from datamodules.labeled import LabeledShards
    from mae.commands.packing import packed_labels, require_single_labels

    shards = LabeledShards(data_dir=packed_labels(data), img_size=loaded.encoder.img_size)
    require_single_labels(shards, "mae probe")
    loaded.spec.require_match(shards.spec, here="the encoder", there=data)
    if split not in shards.manifest.splits:
        raise DataError(
            f"{data} has no split {split!r}; it has {', '.join(shards.manifest.splits)}. Choose "
            f"one with --split, or pack again with a share for it"
        )
    return shards


def _read_features(
    loaded: LoadedEncoder,
    shards: LabeledShards,
    split: str,
    seed: int,
    batch_size: int,
    num_workers: int,
) -> ProbeFeatures:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    from datamodules.ledger import BadImages
    from mae.evaluate.probe import extract_probe

    views = {name: shards.dataset(name) for name in ("train", split)}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    console = Console(stderr=True)
    with Progress(*columns, TimeRemainingColumn(), console=console) as progress:
        bars = {
            name: progress.add_task(f"features of {name}", total=len(views[name])) for name in views
        }
        bad = {name: BadImages() for name in views}
        train, test = (
            _noting_bad(view.loader(batch_size=batch_size, num_workers=num_workers), bad[name])
            for name, view in views.items()
        )
        features = extract_probe(
            loaded.encoder,
            loaded.spec,
            train=train,
            test=test,
            classes=shards.classes,
            data_digest=shards.manifest.digest,
            seeds=(seed,),
            split=split,
            on_batch=lambda name, done: progress.update(bars[name], completed=done),
        )
    for name, found in bad.items():
        if found.total():
            print(f"{found.total()} images of {name} cannot be decoded and are left out: {found}")
            found.require_few(len(views[name]), max_fraction=shards.max_bad_fraction)
    return features


def _noting_bad(batches: Iterable[dict[str, Any]], bad: BadImages) -> Iterator[dict[str, Any]]:
    for batch in batches:
        bad.add(batch["bad"])
        yield batch


def _fit(
    features: ProbeFeatures, labels: str | list[str], poolings: list[str], seed: int
) -> ProbeResult:
    from rich.console import Console

    from mae.evaluate.probe import run_probe

    with Console(stderr=True).status("fitting heads") as status:
        return run_probe(
            features,
            labels=labels,
            poolings=poolings,
            seed=seed,
            on_row=lambda budget, name: status.update(f"labels {budget}: {name}"),
        )


def _say(result: ProbeResult, data_notes: Sequence[str]) -> None:
    from rich.console import Console

    from mae.evaluate.table import probe_notes, probe_tables

    console = Console(highlight=False)
    for table in probe_tables(result):
        console.print(table)
        console.print()
    notes = [*data_notes, *probe_notes(result)]
    for line in [*(f"note: {note}" for note in notes), *result.sentences]:
        console.print(line, markup=False)
