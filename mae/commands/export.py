"""``mae export``: the encoder in the format of another library, with a proof of equality."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from mae.errors import DataError, MAEError, WeightsError

if TYPE_CHECKING:
    from torch import Tensor

    from mae.weights import LoadedEncoder

NUM_REAL = 8
NUM_RANDOM = 8
PARITY_NAME = "parity.json"


def export(
    run: str,
    *,
    format: Literal["timm"] = "timm",  # noqa: A002 - the option's name
    out: str | None = None,
    data: str | None = None,
    overwrite: bool = False,
) -> Path:
    """Write a folder that timm loads by itself, and prove that it gives the same features.

    The folder is loaded by timm in this command and compared on real and random images; above a
    largest absolute difference of 1e-5 in float32 nothing is written.

    Args:
        run: Run directory (its newest good checkpoint is taken), checkpoint or encoder file.
        format: Library to write for.
        out: Folder to create; by default RUN/encoder/FORMAT.
        data: Shards with the real images of the comparison; by default the run's own.
        overwrite: Replace the folder if it exists.

    Raises:
        MAEError: If weights, data or folder are impossible, or the features differ.
    """
    from mae.files import atomic_folder
    from mae.weights import (
        load_encoder,
        measure_parity,
        require_parity,
        save_timm_folder,
    )

    folder = _folder(Path(run), out, format)
    if folder.exists() and not overwrite:
        raise WeightsError(f"{folder} exists already; choose another --out, or add --overwrite")
    loaded = load_encoder(run)
    images = _images(loaded, Path(run), data)
    with atomic_folder(folder, overwrite=overwrite) as temporary:
        save_timm_folder(temporary, loaded.encoder, loaded.spec, info=_travelling(loaded))
        parity = measure_parity(temporary, loaded.encoder, images)
        require_parity(parity)
        _write_json(temporary / PARITY_NAME, parity)
    _say(folder, loaded, parity)
    return folder


def _folder(run: Path, out: str | None, library: str) -> Path:
    from mae.commands.run_paths import run_directory_of

    if out is not None:
        return Path(out)
    directory = run_directory_of(run) if run.exists() else run  # loading says what is missing
    if directory is None:
        raise WeightsError(f"{run} lies in no run directory; say with --out where to write")
    return directory / "encoder" / library


def _images(loaded: LoadedEncoder, run: Path, data: str | None) -> dict[str, Tensor]:
    """Return normalised images to compare on; says aloud if there are no real ones."""
    import torch

    encoder = loaded.encoder
    shape = (NUM_RANDOM, encoder.in_chans, *encoder.img_size)
    images = {"random": torch.randn(shape, generator=torch.Generator().manual_seed(0))}
    try:
        return {"real": _real_images(loaded, _shards(run, data)), **images}
    except MAEError as error:
        if data is not None:
            raise
        print(f"comparing on random images only: {error}")
        return images


def _shards(run: Path, data: str | None) -> str:
    from mae.commands.run_paths import data_of_run, run_directory_of

    if data is not None:
        return data
    directory = run_directory_of(run)
    if directory is None:
        raise DataError(f"{run} lies in no run directory, so its data are unknown; give --data")
    return data_of_run(directory)


def _real_images(loaded: LoadedEncoder, shards: str) -> Tensor:
    """Return images spread over a split, normalised with the encoder's own mean and std."""
    import torch

    from datamodules.loading import EvalViews
    from datamodules.manifest import Manifest
    from datamodules.records import SplitRecords

    manifest = Manifest.load(shards)
    loaded.spec.require_match(manifest.spec, here="the encoder", there=str(shards))
    split = "val" if "val" in manifest.splits else manifest.splits[0]
    views = EvalViews(SplitRecords(manifest, split), loaded.encoder.img_size)
    count = min(NUM_REAL, len(views))
    batch = views.batch([i * len(views) // count for i in range(count)])
    stored: Tensor = batch["image"].float()
    mean, std = torch.tensor(loaded.spec.mean), torch.tensor(loaded.spec.std)
    return (stored - mean[:, None, None]) / std[:, None, None]


def _travelling(loaded: LoadedEncoder) -> dict[str, Any]:
    """Return what is written into the export about where the weights come from."""
    here_only = ("architecture", "source", "report")
    return {name: value for name, value in loaded.info.items() if name not in here_only}


def _write_json(path: Path, content: dict[str, Any]) -> None:
    import json

    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _say(folder: Path, loaded: LoadedEncoder, parity: dict[str, Any]) -> None:
    from mae.weights.card import loading_lines

    print(f"loaded: {loaded.info['report']}")
    for kind, measured in parity["compared"].items():
        worst = max(measured["max_abs_difference"].values())
        print(
            f"timm against mae on {measured['num_images']} {kind} images: largest difference "
            f"{worst:.2g} (allowed {parity['tolerance']:g})"
        )
    names = sorted(path.name for path in folder.iterdir())
    print(f"wrote {folder}: {', '.join(names)}\n")
    print(loading_lines(folder))
