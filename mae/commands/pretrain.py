"""``mae pretrain``: from a recipe and shards to encoder weights."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lightning.pytorch.cli import LightningArgumentParser

from datamodules import UnlabeledShards
from mae.commands.config_keys import own_options, split_arguments
from mae.commands.run_directory import CONFIG_FILE, RunStart, choose_run
from mae.commands.training import TrainingCLI, fit
from mae.errors import ConfigError
from mae.recipe import find_recipe
from mae.tasks.metrics_log import MetricsLog
from mae.tasks.pretrain import PretrainTask
from mae.weights import init_from, save_encoder

if TYPE_CHECKING:
    from datamodules.pack import PackSummary

EPILOG = """\
Every key of the recipe is a flag: --model.mask_ratio 0.6 --model.optim.blr 3e-4
--data.batch_size 32 --trainer.precision bf16-mixed --trainer.accumulate_grad_batches 4
--checkpoint.every_n_steps 1000
"""


class PretrainCLI(TrainingCLI):
    """Parser of ``mae pretrain``: one seed and one image size for model and data."""

    def link(self, parser: LightningArgumentParser) -> None:
        """Let the seed key the masks, and the model's size be that of the views."""
        parser.link_arguments("seed_everything", "model.seed")
        parser.link_arguments("model.img_size", "data.img_size")


def pretrain(arguments: Sequence[str]) -> Path:
    """Run ``mae pretrain`` and return the run directory.

    Args:
        arguments: Command line after the verb.

    Raises:
        MAEError: If settings, data or weights are impossible, before the first step.
    """
    parser = _parser()
    mine, flags = split_arguments(arguments, own_options(parser))
    options = parser.parse_args(mine)
    name = Path(options.recipe).stem if options.recipe else "run"
    start = choose_run(out=options.out, resume=options.resume, name=name)
    cli = _configure(options, flags, start)
    cli.model.recipe = options.recipe or ""
    if start.checkpoint is None:
        MetricsLog(start.directory).drop_after(-1)  # a start that never reached a checkpoint
        if options.init_weights:
            print(init_from(options.init_weights, cli.model.model, spec=cli.datamodule.spec))
        _say_trivial_losses(cli)
    seconds = fit(cli, start, arguments=["pretrain", *arguments])
    if cli.trainer.is_global_zero:
        _hand_over(cli, start.directory, seconds)
    return start.directory


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mae pretrain",
        description="Pretrain a masked autoencoder on unlabelled images.",
        epilog=EPILOG,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("recipe", nargs="?", help="shipped recipe (mae recipes list) or YAML file")
    parser.add_argument("--data", help="directory of shards from mae pack")
    parser.add_argument("--images", help="directory of images, packed into a cache first")
    parser.add_argument("--config", action="append", default=[], help="YAML over the recipe")
    parser.add_argument("--out", help="run directory (default: runs/RECIPE)")
    parser.add_argument("--resume", help="auto, a run directory, or a checkpoint")
    parser.add_argument("--init-weights", help="start a new run from these weights")
    return parser


def _configure(options: argparse.Namespace, flags: list[str], start: RunStart) -> PretrainCLI:
    """Resolve all sources of settings: recipe or the run's own file, then files, then flags."""
    if options.data and options.images:
        raise ConfigError("--data and --images exclude each other; give shards or images")
    if options.init_weights and options.resume:
        raise ConfigError(
            "--init-weights starts a new run and --resume goes on with one; give one of them"
        )
    own = start.directory / CONFIG_FILE
    if not own.is_file() and not options.recipe:
        raise ConfigError("name a recipe (mae recipes list), or a run with --resume")
    args = ["--config", str(own if own.is_file() else find_recipe(options.recipe))]
    for path in options.config:
        args += ["--config", path]
    shards = _pack_images(options.images) if options.images else options.data
    if shards:
        args += ["--data.data_dir", str(Path(shards).absolute())]
    return PretrainCLI(
        PretrainTask,
        UnlabeledShards,
        args=args + flags,
        run_dir=start.directory,
        own=own_options(_parser()),
    )


def _pack_images(images: str) -> Path:
    from datamodules.pack import pack_into_cache
    from mae.commands.pack import describe

    def say(summary: PackSummary) -> None:
        print(*describe(summary)[:-1], sep="\n")  # the last line says to pretrain

    shards = pack_into_cache(images, on_packed=say)
    print(f"the images of {images} are packed in {shards}")
    return shards


def _say_trivial_losses(cli: TrainingCLI) -> None:
    """Validate once before the first step, so that later losses mean something."""
    if "val" not in cli.datamodule.manifest.splits:
        print("no val split in the shards: no loss on fixed masks (mae pack --val_fraction 0.02)")
        return
    cli.trainer.validate(cli.model, datamodule=cli.datamodule, verbose=False)
    values = {name: float(value) for name, value in cli.trainer.callback_metrics.items()}
    print(
        f"validation loss before training {values['val/loss']:.4f}; "
        f"predicting 0: {values['val/predict_zero']:.4f}; "
        f"predicting each patch's mean: {values['val/predict_patch_mean']:.4f}"
    )


def _hand_over(cli: TrainingCLI, run: Path, seconds: float) -> None:
    """Leave the encoder as a file of its own and say what comes next."""
    task = cli.model
    info = {
        "step": cli.trainer.global_step,
        "samples_seen": task.samples_seen,
        "recipe": task.recipe,
        "data_digest": cli.datamodule.manifest.digest,
    }
    encoder = save_encoder(
        run / "encoder" / "encoder.safetensors", task.model.encoder, task.image_spec, info=info
    )
    print(
        f"{cli.trainer.global_step:,} steps, {task.samples_seen:,} images, {seconds:,.0f} s\n"
        f"encoder: {encoder}\n"
        f"next: mae probe {run} --data LABELLED_SHARDS"
    )
