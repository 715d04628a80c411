"""``mae finetune``: encoder and head on labelled images."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mae.commands import packing
from mae.commands.config_keys import (
    config_files,
    is_given,
    own_options,
    refuse_lone_reset,
    split_arguments,
)
from mae.commands.run_directory import CONFIG_FILE, RunStart, choose_run
from mae.errors import ConfigError

if TYPE_CHECKING:
    from lightning.pytorch.cli import LightningArgumentParser

    from mae.commands.training import TrainingCLI


def finetune(arguments: Sequence[str]) -> Path:
    """Run ``mae finetune`` and return the run directory.

    Args:
        arguments: Command line after the verb.

    Raises:
        MAEError: If settings, data or weights are impossible, before the first step.
    """
    parser = _parser()
    mine, flags = split_arguments(arguments, own_options(parser))
    options = parser.parse_args(mine)
    refuse_lone_reset(options)
    start = choose_run(out=options.out, resume=options.resume, name="finetune")
    own = start.directory / CONFIG_FILE
    settings = config_files(own, recipe=options.recipe, further=options.config)
    if options.weights:
        settings += _start_from(options.weights)
    elif not own.is_file():
        raise ConfigError("name the weights to start from, or a run with --resume")
    settings += _labelled(options.data)
    if not is_given("data.data_dir", [*settings, *flags]):
        raise ConfigError("no labelled images: give --data SHARDS, a folder of classes, or a CSV")
    cli = configure([*settings, *flags], start, own=own_options(parser))
    cli.datamodule.data_reset = options.data_reset
    packing.require_single_labels(cli.datamodule, "mae finetune")
    return _train(cli, start, arguments=arguments)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mae finetune",
        description="Train encoder and classification head on labelled images.",
        epilog="Every key of the recipe is a flag: --model.start random --model.optim.blr 5e-4",
        allow_abbrev=False,
    )
    parser.add_argument("weights", nargs="?", help="run, checkpoint or encoder file to start from")
    parser.add_argument("--data", help="labelled shards, folder of class folders, or CSV")
    parser.add_argument("--recipe", default="finetune/small", help="recipe or YAML file")
    parser.add_argument("--config", action="append", default=[], help="YAML over the recipe")
    parser.add_argument("--out", help="run directory (default: runs/finetune)")
    parser.add_argument("--resume", help="auto, a run directory, or a checkpoint")
    parser.add_argument(
        "--data-reset",
        action="store_true",
        help="with --resume: go on with other data, seed, lanes or window",
    )
    return parser


def _start_from(weights: str) -> list[str]:
    """Return the settings that the weights decide."""
    from mae.weights import load_encoder

    height, width = load_encoder(weights).encoder.img_size
    path = str(Path(weights).absolute())
    return ["--model.weights", path, "--data.img_size", f"[{height},{width}]"]


def _labelled(data: str | None) -> list[str]:
    return ["--data.data_dir", packing.packed_labels(data)] if data else []


def configure(args: list[str], start: RunStart, *, own: set[str]) -> TrainingCLI:
    """Build task, data and trainer from all settings, the last one winning."""
    from datamodules import LabeledShards
    from mae.commands.training import TrainingCLI
    from mae.tasks.finetune import FinetuneTask

    return TrainingCLI(
        FinetuneTask, LabeledShards, args=args, run_dir=start.directory, own=own, link=_link
    )


def _link(parser: LightningArgumentParser) -> None:
    """Take the number of classes from the data."""
    parser.link_arguments("data.classes", "model.num_classes", len, apply_on="instantiate")


def _train(cli: TrainingCLI, start: RunStart, *, arguments: Sequence[str]) -> Path:
    """Train, and measure on the test split once."""
    from mae.commands.training import fit

    seconds = fit(cli, start, arguments=["finetune", *arguments])
    lines = [f"{cli.trainer.global_step:,} steps from {cli.model.start} in {seconds:,.0f} s"]
    if "test" in cli.datamodule.manifest.splits:
        cli.trainer.test(cli.model, datamodule=cli.datamodule, verbose=False)  # on all processes
        values = {name: float(value) for name, value in cli.trainer.callback_metrics.items()}
        lines.append(
            f"test: balanced accuracy {values['test/balanced_accuracy']:.3f}, "
            f"accuracy {values['test/accuracy']:.3f}"
        )
    else:
        lines.append("no test split in the labelled shards: nothing to measure on")
    if cli.trainer.is_global_zero:
        print(*lines, sep="\n")
    return start.directory
