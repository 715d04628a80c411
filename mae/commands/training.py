"""What the training verbs share: one parser, one run directory, one trainer.

YAML keys and flags are Lightning's own (``trainer: model: data:``), parsed by `LightningCLI` with
concrete classes.  A later file wins over an earlier one, a flag over every file.
"""

from __future__ import annotations

import argparse
import logging
import resource
import time
import warnings
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonargparse
import lightning
import torch
import yaml
from lightning.pytorch import Trainer
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI

from mae.commands.run_directory import (
    CONFIG_FILE,
    RunStart,
    forget_run,
    update_environment,
    write_environment,
)
from mae.errors import ConfigError, MAEError, did_you_mean
from mae.tasks.callbacks import RunProgress, StopWhenDiverged
from mae.tasks.checkpoints import AtomicCheckpointIO, Checkpoints
from mae.tasks.metrics_log import MetricsLog
from mae.weights import read_checkpoint

# One Lightning epoch is the whole run: see docs/concepts.md.
FIXED_TRAINER = {"max_epochs": 1, "num_sanity_val_steps": 0, "use_distributed_sampler": False}


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """When checkpoints are taken.

    Args:
        every_n_steps: Optimizer steps between two checkpoints; one more is taken at the end.
        keep_last: How many of the newest stay on disk; -1 keeps all.
    """

    every_n_steps: int = 500
    keep_last: int = 2


class TrainingCLI(LightningCLI):
    """`LightningCLI` that knows the run directory and names the nearest key for a typo.

    Args:
        task: The LightningModule class behind ``model:``.
        data: The LightningDataModule class behind ``data:``.
        args: Command line, flags after files.
        run_dir: Where log and checkpoints go.
        own: The verb's own options, with their dashes; they are suggested for typos.
    """

    def __init__(
        self,
        task: type[lightning.LightningModule],
        data: type[lightning.LightningDataModule],
        *,
        args: Sequence[str],
        run_dir: Path,
        own: Collection[str],
    ) -> None:
        self.run_dir = run_dir
        self.own = own
        quiet_lightning()
        super().__init__(
            task,
            data,
            run=False,
            args=list(args),
            save_config_callback=None,
            seed_everything_default=0,
            auto_configure_optimizers=False,
            load_from_checkpoint_support=False,
            parser_kwargs={"exit_on_error": False},
        )

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add checkpoint keys; let one value stand for both sides."""
        parser.add_class_arguments(CheckpointConfig, "checkpoint")
        parser.link_arguments("seed_everything", "data.seed")
        parser.link_arguments("data.batch_size", "model.batch_size")
        self.link(parser)
        parser.set_defaults(
            {f"trainer.{key}": value for key, value in FIXED_TRAINER.items()}
            | {"trainer.log_every_n_steps": 10, "trainer.enable_model_summary": False}
        )

    def link(self, parser: LightningArgumentParser) -> None:
        """Tie further keys of model and data; for the verbs to override."""

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        """Parse, refusing unknown keys first.

        Raises:
            ConfigError: With the key and the nearest valid one, or what a value must be.
        """
        refuse_unknown_keys(
            args, known=parser.get_defaults().keys(branches=True), suggested=self.own
        )
        try:
            self.config = parser.parse_args(args)
        except (jsonargparse.ArgumentError, TypeError, ValueError) as error:
            raise ConfigError(_first_lines(str(error))) from error
        for key, value in FIXED_TRAINER.items():
            if self.config.trainer[key] != value:
                raise ConfigError(
                    f"trainer.{key} is {self.config.trainer[key]}; it must stay {value}, because a "
                    f"run is one epoch to Lightning and its data module deals the samples: set the "
                    f"length by data.epochs, data.samples or data.steps"
                )

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Build the trainer with the run's log, checkpoints and progress."""
        config = dict(self.config_init.trainer)
        checkpoint: CheckpointConfig = self.config_init.checkpoint
        checkpoints = Checkpoints(
            self.run_dir / "checkpoints",
            every_n_steps=checkpoint.every_n_steps,
            keep_last=checkpoint.keep_last,
        )
        guard = StopWhenDiverged(checkpoints, log_every_n_steps=config["log_every_n_steps"] or 50)
        given = config.pop("callbacks") or []
        given = given if isinstance(given, list) else [given]
        log = MetricsLog(self.run_dir)
        config.update(
            kwargs,
            logger=log,
            callbacks=[*given, RunProgress(), guard, checkpoints],
            enable_checkpointing=False,  # ours, see mae/tasks/checkpoints.py
            plugins=[AtomicCheckpointIO()],
            default_root_dir=self.run_dir,
            enable_progress_bar=False,
        )
        log.trainer = Trainer(**config)
        return log.trainer

    def resolved_config(self) -> str:
        """Return the YAML that reproduces this run."""
        text: str = self.parser.dump(self.config, skip_none=True, skip_link_targets=True)
        return text


# Hints of Lightning and torch that our own lines replace, or that do not hold here.
_HINTS = (
    ".*does not have many workers.*",
    ".*available but not used.*",
    ".*your dataloader is not resumable.*",  # our position lives in the data module
    ".*isinstance.treespec, LeafSpec.*",
    ".*exists and is not empty.*",
)


def quiet_lightning() -> None:
    """Keep Lightning's hints off the screen."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    for hint in _HINTS:
        warnings.filterwarnings("ignore", message=hint)


def own_options(parser: argparse.ArgumentParser) -> set[str]:
    """Return the options that `parser` knows, with their dashes."""
    words = parser.format_usage().replace("[", " ").replace("]", " ").split()
    return {word for word in words if word.startswith("--")} | {"--help"}


def fit(cli: TrainingCLI, start: RunStart, *, arguments: list[str]) -> float:
    """Write down what runs, train, and return the seconds it took.

    Args:
        cli: Task, data and trainer.
        start: Run directory and the checkpoint to go on from.
        arguments: Command line for ``environment.json``.

    Raises:
        ConfigError: If a resumed run would become another one.
        KeyboardInterrupt: After Ctrl-C; says how to go on.
    """
    config = start.directory / CONFIG_FILE
    before = config.read_text(encoding="utf-8") if config.exists() else None
    first_step = 0
    if start.checkpoint is not None and before is not None:
        first_step = _prepare_resume(cli, start.directory, start.checkpoint, before)
    config.write_text(cli.resolved_config(), encoding="utf-8")
    write_environment(start.directory, arguments)
    began = time.monotonic()
    interrupted = KeyboardInterrupt(
        f"interrupted; go on from the last checkpoint with: mae {arguments[0]} --resume "
        f"{start.directory}"
    )
    try:
        cli.trainer.fit(
            cli.model, datamodule=cli.datamodule, ckpt_path=start.checkpoint, weights_only=True
        )
    except SystemExit as error:  # Lightning's answer to Ctrl-C
        raise interrupted from error
    except MAEError:
        if cli.trainer.global_step in (0, first_step):  # nothing was trained: leave no trace
            if before is None:
                forget_run(start.directory)
            else:
                config.write_text(before, encoding="utf-8")
        raise
    if cli.trainer.interrupted:
        raise interrupted
    seconds = time.monotonic() - began
    if cli.trainer.is_global_zero:
        update_environment(
            start.directory, seconds=round(seconds, 1), peak_memory_mib=round(_peak_memory_mib())
        )
    return seconds


def _prepare_resume(cli: TrainingCLI, directory: Path, checkpoint: Path, before: str) -> int:
    """Refuse what would make the run another one; return the step it goes on from."""
    report_changes(before, cli.resolved_config())
    content = read_checkpoint(checkpoint, verify=False)
    step = int(content["global_step"])
    consumed = content[type(cli.datamodule).__qualname__]["samples_consumed"]
    trainer, batch_size = cli.trainer, cli.datamodule.batch_size
    effective = batch_size * trainer.accumulate_grad_batches * trainer.world_size
    if consumed != step * effective:
        raise ConfigError(
            f"a resumed run keeps its effective batch, which the lr was scaled to: "
            f"{consumed / step:g} images per step so far, {effective} now ({batch_size} "
            f"data.batch_size x {trainer.accumulate_grad_batches} trainer.accumulate_grad_batches "
            f"x {trainer.world_size} processes); choose them so that the product stays"
        )
    print(f"going on from {checkpoint} (step {step:,})")
    MetricsLog(directory).drop_after(step)
    return step


def _peak_memory_mib() -> float:
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def split_arguments(arguments: Sequence[str], own: Collection[str]) -> tuple[list[str], list[str]]:
    """Part a command line into what the verb reads itself and Lightning's ``--key value`` flags.

    Args:
        arguments: Command line after the verb.
        own: The verb's own options, with their dashes.
    """
    mine: list[str] = []
    flags: list[str] = []
    rest = deque(arguments)
    while rest:
        argument = rest.popleft()
        option, equals, _ = argument.partition("=")
        is_option = option.startswith("--")
        target = flags if is_option and option not in own else mine
        target.append(argument)
        has_value = is_option and not equals and option != "--help"
        if has_value and rest and not rest[0].startswith("--"):
            target.append(rest.popleft())
    return mine, flags


def refuse_unknown_keys(
    args: Sequence[str], *, known: Iterable[str], suggested: Iterable[str] = ()
) -> None:
    """Check flags and files for keys that nothing reads.

    Args:
        args: Command line as for `TrainingCLI`.
        known: All keys, dotted, groups included.
        suggested: Options with dashes that a flag may have been meant to be.

    Raises:
        ConfigError: Names the first unknown key, where it stands, and the nearest valid one.
    """
    names = set(known) | {"config"}
    for position, argument in enumerate(args):
        if not argument.startswith("--"):
            continue
        key, _, value = argument[2:].partition("=")
        if key == "config":
            path = value or args[position + 1]
            for found in _keys_of_file(Path(path)):
                _refuse_unknown(found, names, where=path)
        else:
            options = [option.removeprefix("--") for option in suggested]
            _refuse_unknown(key, names, where="the command line", suggested=options)


def _refuse_unknown(
    key: str, names: set[str], *, where: str, suggested: Iterable[str] = ()
) -> None:
    parents = {key.rsplit(".", depth)[0] for depth in range(key.count(".") + 1)}
    free_form = {"trainer.logger", "trainer.callbacks", "trainer.strategy", "trainer.plugins"}
    if key in names or parents & free_form:
        return
    raise ConfigError(
        f"unknown key {key!r} in {where}{did_you_mean(key, names.union(suggested))}\n"
        f"mae recipes show NAME explains the keys of a recipe"
    )


def _keys_of_file(path: Path) -> Iterable[str]:
    """Return the dotted keys of a YAML file."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise ConfigError(f"cannot read the configuration {path}: {error}") from error
    if not isinstance(content, Mapping):
        raise ConfigError(f"{path} is not a mapping of keys to values; see mae recipes show")
    return _flat(content)


def report_changes(before: str, after: str) -> None:
    """Say what a resumed run does differently; refuse what would make it another run.

    Args:
        before: YAML of the run so far.
        after: YAML it would go on with.

    Raises:
        ConfigError: If a key below ``model:`` or the seed changed; names both values.
    """
    old, new = _flat(yaml.safe_load(before)), _flat(yaml.safe_load(after))
    changes = {
        key: f"{key}: {old.get(key)!r} so far, {new.get(key)!r} now"
        for key in sorted(old.keys() | new.keys())
        if old.get(key) != new.get(key) and not isinstance(old.get(key, new.get(key)), Mapping)
    }
    refused = [
        text for key, text in changes.items() if key.startswith(("model.", "seed_everything"))
    ]
    if refused:
        raise ConfigError(
            f"a resumed run keeps its model, optimisation and seed; {'; '.join(refused)}; resume "
            f"without the change, or start a new run with --init-weights"
        )
    for text in changes.values():
        print(f"changed on resume: {text}")


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a nested mapping as dotted keys; groups stand in it as well."""
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        flat[f"{prefix}{name}"] = value
        if isinstance(value, Mapping):
            flat.update(_flat(value, f"{prefix}{name}."))
    return flat


def _first_lines(message: str, count: int = 2) -> str:
    return "\n".join([line.strip() for line in message.splitlines() if line.strip()][:count])
