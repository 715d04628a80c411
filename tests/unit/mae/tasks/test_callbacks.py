from __future__ import annotations

import re
import sys

import lightning
import pytest

from mae.errors import DivergedError
from mae.tasks.callbacks import RunProgress, StopWhenDiverged
from mae.tasks.checkpoints import AtomicCheckpointIO, Checkpoints


@pytest.fixture
def guarded(tmp_path, run_scalar):
    """Return a function that trains with guard and checkpoints in the order of the trainer."""

    def run(*, every_n_steps: int, log_every_n_steps: int, **options):
        checkpoints = Checkpoints(tmp_path / "c", every_n_steps=every_n_steps, keep_last=-1)
        guard = StopWhenDiverged(checkpoints, log_every_n_steps=log_every_n_steps)
        return run_scalar([guard, checkpoints], plugins=[AtomicCheckpointIO()], **options)

    return run


def test_stop_when_diverged_names_step_lr_and_last_good_checkpoint(guarded, tmp_path):
    with pytest.raises(DivergedError) as caught:
        guarded(every_n_steps=2, log_every_n_steps=1, broken=[4])
    message = str(caught.value)
    assert "no longer finite at step 5 (lr 0.125)" in message
    assert f"last good checkpoint: {tmp_path / 'c' / 'step-00000004.ckpt'}" in message


def test_stop_when_diverged_before_the_first_checkpoint_says_so(guarded):
    with pytest.raises(DivergedError, match="last good checkpoint: none yet"):
        guarded(every_n_steps=100, log_every_n_steps=1, broken=[0])


def test_stop_when_diverged_never_lets_broken_weights_be_saved(guarded, tmp_path):
    with pytest.raises(DivergedError):
        guarded(every_n_steps=3, log_every_n_steps=100, broken=[3])
    assert [path.name for path in (tmp_path / "c").iterdir()] == ["step-00000003.ckpt"]


def test_stop_when_diverged_between_the_steps_it_looks_at_stops_at_the_next(guarded):
    with pytest.raises(DivergedError, match="at step 4 "):
        guarded(every_n_steps=100, log_every_n_steps=4, broken=[1], batches=8)


def test_stop_when_diverged_in_the_last_steps_does_not_let_the_run_end_well(guarded, tmp_path):
    with pytest.raises(DivergedError, match="at step 6 "):
        guarded(every_n_steps=100, log_every_n_steps=4, broken=[5], batches=6)
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize(("every_n_steps", "log_every_n_steps"), [(2, 100), (100, 2)])
def test_stop_when_diverged_sees_a_broken_micro_batch_inside_an_accumulation(
    guarded, tmp_path, every_n_steps, log_every_n_steps
):
    looks = {"every_n_steps": every_n_steps, "log_every_n_steps": log_every_n_steps}
    with pytest.raises(DivergedError, match="at step 2 "):
        guarded(**looks, broken=[2], accumulate=2, batches=12)
    assert not (tmp_path / "c").exists()


def test_stop_when_diverged_sees_weights_that_broke_under_a_finite_loss(run_scalar, tmp_path):
    class Break(lightning.Callback):
        def on_train_batch_end(self, trainer, pl_module, *rest):
            pl_module.weight.data.fill_(float("inf"))

    checkpoints = Checkpoints(tmp_path / "c", every_n_steps=1, keep_last=-1)
    guard = StopWhenDiverged(checkpoints, log_every_n_steps=1)
    with pytest.raises(DivergedError, match="at step 1 "):
        run_scalar([Break(), guard, checkpoints], plugins=[AtomicCheckpointIO()])
    assert not (tmp_path / "c").exists()


def test_stop_when_diverged_with_finite_losses_lets_the_run_end(guarded):
    assert guarded(every_n_steps=2, log_every_n_steps=1).global_step == 6


def test_run_progress_without_a_terminal_ends_with_one_plain_line(run_scalar, capsys):
    progress = RunProgress()
    run_scalar([progress], batches=6, accumulate=2)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    found = re.fullmatch(r"batch 6/6  loss (\S+)  [\d,]+ images/s  0 s left", lines[0])
    assert found
    # Each optimizer step multiplies the weight by 1 - 2 * 0.125; two are done before the last.
    assert float(found[1]) == pytest.approx(0.75**4, abs=1e-4)


def test_run_progress_measures_images_per_second(run_scalar, monkeypatch):
    seconds = iter(range(1000))
    monkeypatch.setattr("mae.tasks.callbacks.time.monotonic", lambda: float(next(seconds)))
    progress = RunProgress()
    run_scalar([progress], batches=6)
    assert progress.images_per_s == pytest.approx(2.0)  # 2 images in each second's batch


def test_run_progress_on_a_terminal_draws_a_bar_and_closes_it(run_scalar, monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    progress = RunProgress()
    run_scalar([progress], batches=3)
    assert progress._bar is None
    assert "6/6" not in capsys.readouterr().err  # no plain lines beside it
