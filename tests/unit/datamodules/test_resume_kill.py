"""A real ``mae pretrain`` that is killed with SIGKILL again and again does what it would have done.

What each micro-batch held (sample, augmented view, mask, learning rate) is compared with the run
that was never stopped, and so are log and weights at the end.
"""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from mae.tasks.metrics_log import read_metrics
from mae.weights import read_checkpoint
from tests.soak.recorder import DIRECTORY, KILL_AT, MOMENTS, Row, num_workers, read_rows
from tests.soak.settings import FACTOR, SEED
from tests.soak.shards import write_shards
from tests.soak.warm import Child, free_port, run_all

STEPS = 40
ACCUMULATE = 2
VALIDATE_EVERY = 10  # micro-batches
NUM_KILLS = 10 * FACTOR
LAST = f"step-{STEPS:08d}.ckpt"
CONFIG: dict[str, Any] = {
    "seed_everything": 3,
    "trainer": {
        "accelerator": "cpu",
        "log_every_n_steps": 1,
        "accumulate_grad_batches": ACCUMULATE,
        "val_check_interval": VALIDATE_EVERY,
        "callbacks": [{"class_path": "tests.soak.recorder.Recorder"}],
    },
    "model": {
        "img_size": 16,
        "patch_size": 4,
        "embed_dim": 16,
        "depth": 1,
        "num_heads": 2,
        "decoder_embed_dim": 16,
        "decoder_depth": 1,
        "decoder_num_heads": 2,
        "optim": {"blr": 0.01, "warmup_ratio": 0.2},
    },
    "data": {"batch_size": 3, "steps": STEPS, "flips": "dihedral", "window": 2, "num_workers": 2},
    "checkpoint": {"every_n_steps": 2, "keep_last": 2},
}


def pretrain(arguments: Sequence[str]) -> int:
    """Run the command; called in a child."""
    from mae.cli import main

    return main(["pretrain", *arguments])


class Run:
    """One run directory and the starts that it had, each with a log of its own."""

    def __init__(self, directory: Path, shards: Path):
        self.directory, self.starts = directory, 0
        directory.mkdir()
        self.config = directory / "config.yaml"
        self.config.write_text(yaml.safe_dump(CONFIG), encoding="utf-8")
        self.arguments = [str(self.config), "--data", str(shards), "--out", str(directory / "run")]

    def start(self, *flags: str, kill_at: str = "never 0", ranks: int = 1) -> list[Child]:
        """Start or resume the run, in one process per rank."""
        self.starts += 1
        port = free_port()
        world = ["--trainer.devices", str(ranks)] + ["--trainer.strategy", "ddp"] * (ranks > 1)
        return [
            Child(
                pretrain,
                [*self.arguments, "--resume", "auto", *world, *flags],
                log=self.directory / f"{self.starts}-{rank}.txt",
                environment={DIRECTORY: str(self.log), KILL_AT: kill_at}
                | ({"LOCAL_RANK": str(rank), "MASTER_PORT": port} if ranks > 1 else {}),
            )
            for rank in range(ranks)
        ]

    @property
    def log(self) -> Path:
        """Where the latest start writes down what it does."""
        return self.directory / f"log-{self.starts}"

    @property
    def rows(self) -> list[list[Row]]:
        """What each rank of the latest start wrote down."""
        return list(read_rows(self.log))

    @property
    def newest_step(self) -> int:
        """Step of the newest checkpoint; 0 before the first."""
        names = [path.stem for path in (self.directory / "run" / "checkpoints").glob("step-*.ckpt")]
        return max((int(name.removeprefix("step-")) for name in names), default=0)

    @property
    def metrics(self) -> set[tuple[int, str, float]]:
        """What the run logged, without its speed."""
        found = read_metrics(self.directory / "run")
        return {row for row in found if row[1] != "train/images_per_s"}

    @property
    def final(self) -> dict[str, Any]:
        """The last checkpoint."""
        return read_checkpoint(self.directory / "run" / "checkpoints" / LAST)


@pytest.fixture(scope="module")
def make_run(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Run]:
    """Return a function that prepares a run; all are of the same configuration and data."""
    root = tmp_path_factory.mktemp("runs")
    # Ragged: 25 samples to train on, so that 240 images are some ten epochs.
    shards = write_shards(root / "shards", {"train": [9, 1, 7, 3, 5], "val": [4, 3]})
    return lambda: Run(root / f"run-{len(list(root.iterdir()))}", shards)


@pytest.fixture(scope="module")
def whole(make_run: Callable[[], Run]) -> Run:
    """Return a run that was never stopped."""
    run = make_run()
    run_all(run.start())
    return run


def test_whole_run_holds_every_position_once_and_epochs_differ(whole: Run) -> None:
    (rows,) = whole.rows
    assert [row.position for row in rows] == list(range(3 * ACCUMULATE * STEPS))
    assert [row.batch for row in rows] == [row.position // 3 for row in rows]
    epochs = [tuple(row.key for row in rows[i : i + 25]) for i in (0, 25, 50)]
    assert {tuple(sorted(epoch)) for epoch in epochs} == {tuple(sorted(epochs[0]))}
    assert len(set(epochs)) == 3
    assert len({row.view for row in rows}) > 200  # of 25 images, each seen some ten times
    assert len({row.mask for row in rows}) > 230
    lrs = [row.lr for row in rows]
    assert lrs.index(max(lrs)) < len(lrs) / 3, "warmup"
    assert lrs[-1] < 0.05 * max(lrs), "cosine"


@pytest.mark.slow
@pytest.mark.timeout(120 * FACTOR + 180)
def test_pretrain_killed_ten_times_equals_the_uninterrupted_run(
    whole: Run, make_run: Callable[[], Run]
) -> None:
    (expected,) = whole.rows
    draw = random.Random(f"kills {SEED}")
    num_batches = ACCUMULATE * STEPS
    run, reached = make_run(), 0
    # The last validation comes after the last checkpoint: nothing is left to be killed then.
    batches = sorted(draw.choices(range(num_batches - VALIDATE_EVERY), k=NUM_KILLS))
    moments = [MOMENTS[i % len(MOMENTS)] for i in range(NUM_KILLS)]
    draw.shuffle(moments)
    for number, (batch, moment) in enumerate(zip(batches, moments, strict=True)):
        workers = (2, 0, 1, 2)[number % 4]
        begin = ACCUMULATE * run.newest_step
        (child,) = run.start("--data.num_workers", str(workers), kill_at=f"{moment} {batch}")
        status = child.wait()  # nobody of the group is left, be it as a zombie
        where = f"seed {SEED}: start {number}, {moment} of batch {batch}\n{child.output()}"
        assert status == -signal.SIGKILL, where
        # Those of validation are there as well where the run goes on with one.
        assert num_workers(run.log) in (workers, 2 * workers), where
        (rows,) = run.rows or ([],)
        assert rows == expected[3 * begin : 3 * begin + len(rows)], where
        assert 3 * begin <= reached, f"{where}: something was left out"
        reached = max(reached, 3 * begin + len(rows))
    begin = ACCUMULATE * run.newest_step
    assert begin > 0
    run_all(run.start())
    assert run.rows == [expected[3 * begin :]]

    # A kill can keep the log from a line that its checkpoint has; nothing else may differ.
    assert run.metrics <= whole.metrics
    lost = {step for step, _, _ in whole.metrics - run.metrics}
    assert len(lost) <= NUM_KILLS
    ours, theirs = run.final, whole.final
    for name, tensor in ours["state_dict"].items():
        assert torch.equal(tensor, theirs["state_dict"][name]), name
    assert ours["lr_schedulers"] == theirs["lr_schedulers"]
    assert ours["UnlabeledShards"] == theirs["UnlabeledShards"]
    assert ours["UnlabeledShards"]["samples_consumed"] == 3 * num_batches


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_pretrain_of_two_gloo_ranks_killed_and_resumed_as_one_sees_the_same(
    whole: Run, make_run: Callable[[], Run]
) -> None:
    (reference,) = whole.rows
    by_position = {row.position: row for row in reference}
    run = make_run()
    small = ("--data.steps", "12", "--data.num_workers", "1")
    for child in run.start(*small, ranks=2, kill_at="forward 11"):
        assert child.wait() == -signal.SIGKILL, child.output()
    pair = run.rows
    assert len(pair) == 2
    assert [row.batch for row in pair[0]] == [row.batch for row in pair[1]]
    begin = ACCUMULATE * run.newest_step
    assert 0 < begin <= 11
    run_all(run.start(*small, "--data.batch_size", "6"))
    (rest,) = run.rows
    assert [row.position for row in rest] == list(range(6 * begin, 6 * 12 * ACCUMULATE))
    by_batch: dict[int, list[int]] = {}
    for row in (*pair[0], *pair[1]):
        by_batch.setdefault(row.batch, []).append(row.position)
    for batch, positions in by_batch.items():
        assert sorted(positions) == list(range(6 * batch, 6 * batch + 6))
    for row in (*pair[0], *pair[1], *rest):
        same = by_position[row.position]
        assert (row.key, row.view, row.mask) == (same.key, same.view, same.mask)
