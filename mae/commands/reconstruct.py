"""``mae reconstruct``: pictures of what the model fills in, on images it was not trained on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from mae.commands.run_paths import data_of_run, run_directory_of
from mae.errors import ConfigError

if TYPE_CHECKING:
    from datamodules.manifest import Manifest
    from mae.weights import LoadedModel

TRAINED_ON = "The model was trained on these images: this picture flatters it."
MAYBE_TRAINED_ON = "Images of a train split: the model may have been trained on them."


def reconstruct(
    run: str,
    *,
    data: str | None = None,
    split: str | None = None,
    num_images: int = 8,
    mask_ratio: float | None = None,
    statistics: Literal["visible", "target"] = "visible",
    seed: int = 0,
    out: str | None = None,
) -> Path:
    """Draw input, visible patches, reconstruction and error, and measure trivial fillings beside.

    Args:
        run: Run directory or checkpoint.
        data: Shard directory; by default the one that the run was trained on.
        split: Which images; by default val, or test where there is no val.
        num_images: How many, drawn from the split by `seed`.
        mask_ratio: Share of removed patches; by default the model's own.
        statistics: For models that predict normalised patches, where a removed patch's mean and
            std come from: visible estimates them from the visible patches; target takes the true
            ones, which the model cannot know.
        seed: Chooses images and masks.
        out: Picture to write, ending in .png; by default in RUN/reconstruct.

    Raises:
        MAEError: If run, data or an option is impossible.
    """
    from datamodules.manifest import Manifest
    from mae.files import atomic_write
    from mae.weights import load_run

    if num_images < 1:
        raise ConfigError(f"num_images is {num_images}; allowed: 1 or more")
    if out is not None and not out.endswith(".png"):
        raise ConfigError(f"out is {out!r}; give a file that ends in .png")
    loaded = load_run(run)
    home = run_directory_of(Path(run)) or Path(run).absolute().parent
    directory = data if data is not None else data_of_run(home)
    source = _Source.choose(Manifest.load(directory), split, loaded, own=data is None)
    ratio = loaded.model.mask_ratio if mask_ratio is None else mask_ratio
    picture, numbers = _draw(loaded, source, num_images, ratio, statistics, seed)

    name = f"{source.split}-mask{100 * ratio:g}-seed{seed}"
    name += "-target-statistics" if numbers["statistics"] == "target" else ""
    path = Path(out) if out is not None else home / "reconstruct" / f"{name}.png"
    atomic_write(path.with_suffix(".json"), lambda file: file.write_text(_json(numbers)))
    atomic_write(path, lambda file: file.write_bytes(picture))
    for line in (numbers["warning"], *numbers["sentences"], f"picture: {path}"):
        if line:
            print(line)
    print(f"numbers: {path.with_suffix('.json')}")
    return path


@dataclass(frozen=True)
class _Source:
    """Which images are shown, and what is known about them."""

    manifest: Manifest
    split: str
    warning: str

    @classmethod
    def choose(
        cls, manifest: Manifest, split: str | None, loaded: LoadedModel, *, own: bool
    ) -> _Source:
        """Take the split asked for, or the best there is; say so if it was trained on."""
        loaded.spec.require_match(manifest.spec, here="the run", there=manifest.shown_root)
        if split is None:
            split = next((s for s in ("val", "test") if s in manifest.splits), "train")
        manifest.shards(split)  # refuses a split without samples
        if split != "train":
            return cls(manifest, split, "")
        return cls(manifest, split, TRAINED_ON if own else MAYBE_TRAINED_ON)


def _draw(
    loaded: LoadedModel,
    source: _Source,
    num_images: int,
    ratio: float,
    statistics: Literal["visible", "target"],
    seed: int,
) -> tuple[bytes, dict[str, Any]]:
    """Return the picture and its numbers."""
    import torch

    from datamodules.loading import EvalViews
    from datamodules.records import SplitRecords
    from mae.inspect import pictures, summary
    from mae.inspect.reconstruct import reconstruct as fill_in
    from mae.masking import keyed_noise

    encoder = loaded.model.encoder
    views = EvalViews(SplitRecords(source.manifest, source.split), encoder.img_size)
    order = torch.randperm(len(views), generator=torch.Generator().manual_seed(seed))
    batch = views.batch(order[:num_images].sort().values.tolist())
    stored = batch["image"]
    record = fill_in(
        loaded.model,
        pictures.normalise(stored, loaded.spec),
        keyed_noise(seed, batch["sample"], encoder.num_patches),
        statistics=statistics,
        mask_ratio=ratio,
    )
    count = "1 image" if len(stored) == 1 else f"{len(stored)} images"
    numbers = {
        "title": (
            f"Reconstruction of {count} of split {source.split}, "
            f"{100 * ratio:g} % of the patches removed"
        ),
        "warning": source.warning,
        "data": source.manifest.shown_root,
        "split": source.split,
        "mask_ratio": ratio,
        "seed": seed,
        "display": pictures.display_rule(loaded.spec),
        **summary.numbers(record, batch["key"]),
    }
    figure = pictures.reconstruction_figure(
        record,
        stored,
        loaded.spec,
        title=numbers["title"],
        notes=[numbers["target"], *numbers["sentences"]],
        warning=source.warning,
        names=summary.captions(numbers),
    )
    alt = " ".join([numbers["title"], *numbers["sentences"]])
    return pictures.png(figure, alt=alt), numbers


def _json(numbers: dict[str, Any]) -> str:
    import json

    return json.dumps(numbers, indent=1) + "\n"
