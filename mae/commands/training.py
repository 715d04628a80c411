"""What the training verbs share: one parser, one run directory, one trainer.

YAML keys and flags are Lightning's own (``trainer: model: data:``), parsed by `LightningCLI` with
concrete classes.  A later file wins over an earlier one, a flag over every file.
"""

from __future__ import annotations

import logging
import resource
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonargparse
import lightning
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Trainer
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI

from mae.commands.config_keys import refuse_unknown_keys, report_changes
from mae.commands.parse_errors import parse_complaint
from mae.commands.run_directory import (
    CONFIG_FILE,
    RunStart,
    forget_run,
    update_environment,
    write_environment,
)
from mae.errors import ConfigError, MAEError
from mae.files import atomic_write
from mae.tasks.callbacks import RunProgress, StopWhenDiverged
from mae.tasks.checkpoints import AtomicCheckpointIO, Checkpoints
from mae.tasks.metrics_log import MetricsLog
from mae.weights import read_checkpoint

# One Lightning epoch is the whole run: see docs/concepts.md.
FIXED_TRAINER = {
    "max_epochs": 1,
    "max_steps": -1,
    "overfit_batches": 0.0,
    "limit_train_batches": None,
    "num_sanity_val_steps": 0,
    "use_distributed_sampler": False,
}


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
        link: Ties further keys of model and data.
    """

    def __init__(
        self,
        task: type[lightning.LightningModule],
        data: type[lightning.LightningDataModule],
        *,
        args: Sequence[str],
        run_dir: Path,
        own: Collection[str],
        link: Callable[[LightningArgumentParser], None],
    ) -> None:
        self.run_dir = run_dir
        self.own = own
        self.link = link
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
            raise parse_complaint(error, help_command="mae recipes show NAME") from error
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
        with _our_words():
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
    ".*sync_dist=True.*",  # our metrics add up over processes by themselves
    ".*smaller than the logging interval.*",  # short runs log what they have
)


def quiet_lightning() -> None:
    """Keep Lightning's hints off the screen."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    for hint in _HINTS:
        warnings.filterwarnings("ignore", message=hint)


def fit(
    cli: TrainingCLI,
    start: RunStart,
    *,
    arguments: list[str],
    before_first_step: Callable[[], None] = lambda: None,
) -> float:
    """Write down what runs, train, and return the seconds it took.

    Args:
        cli: Task, data and trainer.
        start: Run directory and the checkpoint to go on from.
        arguments: Command line for ``environment.json``.
        before_first_step: Called once by a run that does not go on from a checkpoint.

    Raises:
        ConfigError: If a resumed run would become another one.
        KeyboardInterrupt: After Ctrl-C; says how to go on.
    """
    config = start.directory / CONFIG_FILE
    before = config.read_text(encoding="utf-8") if config.exists() else None
    first_step = 0
    if start.checkpoint is not None and before is not None:
        first_step = _prepare_resume(cli, start.checkpoint, before)
    if cli.trainer.is_global_zero:
        # A start that never reached a checkpoint leaves lines behind as well.
        MetricsLog(start.directory).drop_after(first_step if start.checkpoint else -1)
        atomic_write(config, lambda file: file.write_text(cli.resolved_config(), encoding="utf-8"))
        write_environment(start.directory, arguments)
    began = time.monotonic()
    try:
        with _our_words():
            if start.checkpoint is None:
                before_first_step()
            cli.trainer.fit(
                cli.model, datamodule=cli.datamodule, ckpt_path=start.checkpoint, weights_only=True
            )
    except SystemExit as error:  # Lightning's answer to Ctrl-C
        raise KeyboardInterrupt(_how_to_go_on(start.directory, arguments[0])) from error
    except MAEError:
        if cli.trainer.global_step in (0, first_step) and cli.trainer.is_global_zero:
            _leave_no_trace(start.directory, before)
        raise
    if cli.trainer.interrupted:
        raise KeyboardInterrupt(_how_to_go_on(start.directory, arguments[0]))
    seconds = time.monotonic() - began
    if start.checkpoint is not None and cli.trainer.global_step == first_step:
        print("the run was complete already; nothing was trained")
    if cli.trainer.is_global_zero:
        update_environment(
            start.directory, seconds=round(seconds, 1), peak_memory_mib=round(_peak_memory_mib())
        )
    return seconds


@contextmanager
def _our_words() -> Iterator[None]:
    """Say without a traceback what Lightning finds wrong with the trainer's settings.

    Raises:
        ConfigError: With Lightning's sentence.
    """
    try:
        yield
    except (MisconfigurationException, ValueError) as error:
        is_setting = isinstance(error, MisconfigurationException)
        if isinstance(error, MAEError) or not (is_setting or "val_check_interval" in str(error)):
            raise
        raise ConfigError(
            f"these trainer settings do not fit this machine or each other: "
            f"{_first_line(str(error))}; change them below trainer: or by --trainer.KEY VALUE"
        ) from error


def _how_to_go_on(run: Path, verb: str) -> str:
    if any((run / "checkpoints").glob("step-*.ckpt")):
        return f"interrupted; go on from the last checkpoint with: mae {verb} --resume {run}"
    return (
        f"interrupted before the first checkpoint; start again with the same command and "
        f"--out {run} --resume auto, and save oftener with --checkpoint.every_n_steps"
    )


def _leave_no_trace(directory: Path, before: str | None) -> None:
    """Put the configuration back: nothing was trained with the new one."""
    if before is None:
        forget_run(directory)
    else:
        (directory / CONFIG_FILE).write_text(before, encoding="utf-8")


def _prepare_resume(cli: TrainingCLI, checkpoint: Path, before: str) -> int:
    """Refuse what would make the run another one; return the step it goes on from."""
    report_changes(before, cli.resolved_config(), data_reset=cli.datamodule.data_reset)
    content = read_checkpoint(checkpoint, verify=False)
    step = int(content["global_step"])
    state = content.get(type(cli.datamodule).__qualname__)
    if state is None:
        raise ConfigError(
            "a run that began with a shard directory cannot go on with a stream, nor the other way "
            "round; give data of the same kind, or start a new run with --init-weights"
        )
    consumed = state["samples_consumed"]
    if cli.datamodule.data_reset and cli.datamodule.is_complete(step, consumed):
        raise ConfigError(
            f"the run is complete after {step:,} steps, so --data-reset has nothing to go on with; "
            f"start a new run on the other data with --init-weights {checkpoint.parent.parent}"
        )
    trainer, batch_size = cli.trainer, cli.datamodule.batch_size
    effective = batch_size * trainer.accumulate_grad_batches * trainer.world_size
    if consumed != step * effective:
        raise ConfigError(
            f"a resumed run keeps its effective batch, which the lr was scaled to: "
            f"{consumed / step:g} images per step so far, {effective} now ({batch_size} "
            f"data.batch_size x {trainer.accumulate_grad_batches} trainer.accumulate_grad_batches "
            f"x {trainer.world_size} processes); choose them so that the product stays"
        )
    if trainer.is_global_zero:
        print(f"going on from {checkpoint} (step {step:,})")
    return step


def _peak_memory_mib() -> float:
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _first_line(message: str) -> str:
    return next((line.strip() for line in message.splitlines() if line.strip()), "")
