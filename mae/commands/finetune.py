"""``mae finetune``: encoder and head on labelled images."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from lightning.pytorch.cli import LightningArgumentParser

from datamodules import LabeledShards
from mae.commands.config_keys import own_options, split_arguments
from mae.commands.run_directory import CONFIG_FILE, RunStart, choose_run
from mae.commands.training import TrainingCLI, fit
from mae.errors import ConfigError
from mae.recipe import find_recipe
from mae.tasks.finetune import FinetuneTask
from mae.tasks.metrics_log import MetricsLog
from mae.weights import load_encoder


class FinetuneCLI(TrainingCLI):
    """Parser of ``mae finetune``: the number of classes comes from the labels."""

    def link(self, parser: LightningArgumentParser) -> None:
        """Take the number of classes from the data."""
        parser.link_arguments("data.classes", "model.num_classes", len, apply_on="instantiate")


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
    start = choose_run(out=options.out, resume=options.resume, name="finetune")
    cli = _configure(options, flags, start)
    task, data = cli.model, cli.datamodule
    if start.checkpoint is None:
        MetricsLog(start.directory).drop_after(-1)  # a start that never reached a checkpoint
    seconds = fit(cli, start, arguments=["finetune", *arguments])
    if not cli.trainer.is_global_zero:
        return start.directory
    print(f"{cli.trainer.global_step:,} steps from {task.start} in {seconds:,.0f} s")
    if "test" not in data.manifest.splits:
        print("no test split in the labelled shards: nothing to measure on")
        return start.directory
    cli.trainer.test(task, datamodule=data, verbose=False)
    values = {name: float(value) for name, value in cli.trainer.callback_metrics.items()}
    print(
        f"test: balanced accuracy {values['test/balanced_accuracy']:.3f}, "
        f"accuracy {values['test/accuracy']:.3f}"
    )
    return start.directory


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
    return parser


def _configure(options: argparse.Namespace, flags: list[str], start: RunStart) -> FinetuneCLI:
    own = start.directory / CONFIG_FILE
    args = ["--config", str(own if own.is_file() else find_recipe(options.recipe))]
    for path in options.config:
        args += ["--config", path]
    if options.weights:
        height, width = load_encoder(options.weights).encoder.img_size
        weights = str(Path(options.weights).absolute())
        args += ["--model.weights", weights, "--data.img_size", f"[{height},{width}]"]
    elif not own.is_file():
        raise ConfigError("name the weights to start from, or a run with --resume")
    if options.data:
        args += ["--data.data_dir", str(Path(options.data).absolute())]
    return FinetuneCLI(
        FinetuneTask,
        LabeledShards,
        args=args + flags,
        run_dir=start.directory,
        own=own_options(_parser()),
    )
