"""``mae pretrain``: from a recipe and shards to encoder weights."""

from __future__ import annotations

import argparse
import inspect
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from datamodules.locations import absolute
from mae.commands.config_keys import (
    config_files,
    copy_without,
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

EPILOG = """\
Every key of the recipe is a flag: --model.mask_ratio 0.6 --model.optim.blr 3e-4
--data.batch_size 32 --trainer.precision bf16-mixed --trainer.accumulate_grad_batches 4
--checkpoint.every_n_steps 1000
"""


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
    if options.data and options.images:
        raise ConfigError("--data and --images exclude each other; give shards or images")
    if options.init_weights and options.resume:
        raise ConfigError(
            "--init-weights starts a new run and --resume goes on with one; give one of them"
        )
    refuse_lone_reset(options)
    name = Path(options.recipe).stem if options.recipe else "run"
    start = choose_run(out=options.out, resume=options.resume, name=name)
    own = start.directory / CONFIG_FILE
    settings = config_files(own, recipe=options.recipe, further=options.config)
    settings += _data_settings(options)
    cli = configure([*settings, *flags], start, own=own_options(parser))
    cli.model.recipe = options.recipe or ""
    cli.datamodule.data_reset = options.data_reset
    return _train(cli, start, init_weights=options.init_weights, arguments=arguments)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mae pretrain",
        description="Pretrain a masked autoencoder on unlabelled images.",
        epilog=EPILOG,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("recipe", nargs="?", help="shipped recipe (mae recipes list) or YAML file")
    parser.add_argument(
        "--data", help="directory of shards or its URL; or tars to stream: a brace list, URLs"
    )
    parser.add_argument("--images", help="directory of images, packed into a cache first")
    parser.add_argument("--config", action="append", default=[], help="YAML over the recipe")
    parser.add_argument("--out", help="run directory (default: runs/RECIPE)")
    parser.add_argument("--resume", help="auto, a run directory, or a checkpoint")
    parser.add_argument(
        "--data-reset",
        action="store_true",
        help="with --resume: go on with other data, seed, lanes or window",
    )
    parser.add_argument("--init-weights", help="start a new run from these weights")
    return parser


def _data_settings(options: argparse.Namespace) -> list[str]:
    """Return where the images are: a shard directory, or shards that can only be streamed."""
    from datamodules.stream.body import absolute_shards, names_shards
    from mae.commands.packing import packed

    if options.images:
        return ["--data.data_dir", packed(options.images)]
    if not options.data:
        return []
    if names_shards(options.data):
        return ["--data.urls", absolute_shards(options.data)]
    return ["--data.data_dir", absolute(options.data)]


def configure(args: list[str], start: RunStart, *, own: set[str]) -> TrainingCLI:
    """Build task, data and trainer from all settings, the last one winning.

    Raises:
        ConfigError: If a setting is impossible, or nothing says where the images are.
    """
    from datamodules import StreamedShards, UnlabeledShards
    from mae.commands.training import TrainingCLI
    from mae.tasks.pretrain import PretrainTask

    is_stream = is_given("data.urls", args)
    if is_stream and is_given("data.data_dir", args):
        raise ConfigError(
            "data.urls streams shards and data.data_dir reads a shard directory; give one of them "
            "(a run goes on with the kind that it began with)"
        )
    if not is_stream and not is_given("data.data_dir", args):
        raise ConfigError("no images: give --data SHARDS from mae pack, or --images FOLDER")
    with tempfile.TemporaryDirectory() as scratch:
        kept = _without_shard_keys(args, Path(scratch)) if is_stream else args
        cli = TrainingCLI(
            PretrainTask,
            StreamedShards if is_stream else UnlabeledShards,
            args=kept,
            run_dir=start.directory,
            own=own,
            link=_link,
        )
    if is_stream:
        _require_own_permission(cli, start.directory / CONFIG_FILE, args)
    return cli


def _require_own_permission(cli: TrainingCLI, run_config: Path, args: Sequence[str]) -> None:
    """Let commands run only if the user said so, and not the file that brings them.

    Nothing has run yet: commands start when the first image is read.

    Args:
        cli: Parsed settings.
        run_config: Configuration of the run, which holds what was said when it began.
        args: All settings.

    Raises:
        ConfigError: If a recipe or another file allows commands.
    """
    data, flags = cli.config.data, {argument.partition("=")[0] for argument in args}
    if not data.allow_pipe or "--data.allow_pipe" in flags:
        return
    before: dict[str, object] = {}
    if str(run_config) in args:  # parsed already, so it is a configuration
        before = yaml.safe_load(run_config.read_text(encoding="utf-8")).get("data") or {}
    is_same = "--data.urls" in flags or before.get("urls") == data.urls
    if not (before.get("allow_pipe") is True and is_same):
        raise ConfigError(
            "data.allow_pipe is true in a file, which may have come with the commands that it "
            "allows; allowed: as a flag. Read data.urls, remove data.allow_pipe from the file, and "
            "add --data.allow_pipe true if these commands may run on this machine"
        )


def _without_shard_keys(args: list[str], scratch: Path) -> list[str]:
    """Leave out what the first file, the recipe, says about shard directories, and say so."""
    from datamodules import StreamedShards, UnlabeledShards

    shard_keys = {
        f"data.{name}"
        for name in inspect.signature(UnlabeledShards).parameters
        if name not in inspect.signature(StreamedShards).parameters
    }
    recipe = args.index("--config") + 1
    kept = scratch / Path(args[recipe]).name
    for key in copy_without(Path(args[recipe]), kept, shard_keys):
        print(f"{key} of the recipe does not apply to a stream")
    return [*args[:recipe], str(kept), *args[recipe + 1 :]]


def _link(parser: LightningArgumentParser) -> None:
    """Let the seed key the masks, and the model's size be that of the views."""
    parser.link_arguments("seed_everything", "model.seed")
    parser.link_arguments("model.img_size", "data.img_size")


def _train(
    cli: TrainingCLI, start: RunStart, *, init_weights: str | None, arguments: Sequence[str]
) -> Path:
    from mae.commands.training import fit

    def prepare() -> None:
        if init_weights:
            _init_weights(cli, init_weights)
        _say_trivial_losses(cli)

    seconds = fit(cli, start, arguments=["pretrain", *arguments], before_first_step=prepare)
    if cli.trainer.is_global_zero:
        _hand_over(cli, start.directory, seconds)
    return start.directory


def _init_weights(cli: TrainingCLI, weights: str) -> None:
    """Start from received weights; say where their pixels were normalised otherwise."""
    from mae.weights import init_from, load_encoder

    ours, theirs = cli.datamodule.spec, load_encoder(weights).spec
    report = init_from(weights, cli.model.model, spec=ours)
    if cli.trainer.is_global_zero:
        print(report)
        if (ours.mean, ours.std) != (theirs.mean, theirs.std):
            print(
                f"normalised with the statistics of these images, mean {ours.mean} std {ours.std}; "
                f"the weights were trained with mean {theirs.mean} std {theirs.std}"
            )


def _say_trivial_losses(cli: TrainingCLI) -> None:
    """Validate once before the first step, so that later losses mean something."""
    if "val" in cli.datamodule.splits:
        cli.trainer.validate(cli.model, datamodule=cli.datamodule, verbose=False)
        values = {name: float(value) for name, value in cli.trainer.callback_metrics.items()}
        text = (
            f"validation loss before training {values['val/loss']:.4f}; "
            f"predicting 0: {values['val/predict_zero']:.4f}; "
            f"predicting each patch's mean: {values['val/predict_patch_mean']:.4f}"
        )
    else:
        text = "no val split: no loss on fixed masks (mae pack --val_fraction 0.02 makes one)"
    if cli.trainer.is_global_zero:
        print(text)


def _hand_over(cli: TrainingCLI, run: Path, seconds: float) -> None:
    """Leave the encoder as a file of its own and say what comes next."""
    from mae.weights import save_encoder

    task = cli.model
    info = {
        "step": cli.trainer.global_step,
        "samples_seen": task.samples_seen,
        "recipe": task.recipe,
        "data_digest": cli.datamodule.digest,
    }
    encoder = save_encoder(
        run / "encoder" / "encoder.safetensors", task.model.encoder, task.image_spec, info=info
    )
    if num_bad := cli.datamodule.bad.total():
        print(
            f"{num_bad} undecodable images were replaced by others: {cli.datamodule.bad}; see "
            f"{run / 'bad_images.csv'}"
        )
    print(
        f"{cli.trainer.global_step:,} steps, {task.samples_seen:,} images, {seconds:,.0f} s\n"
        f"encoder: {encoder}\n"
        f"next: mae probe {run} --data LABELLED_SHARDS"
    )
