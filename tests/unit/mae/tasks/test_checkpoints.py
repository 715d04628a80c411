from __future__ import annotations

import pytest
import torch

from mae.errors import ConfigError, OutputError
from mae.tasks.checkpoints import AtomicCheckpointIO, Checkpoints


def steps(directory) -> list[int]:
    return sorted(int(path.stem.removeprefix("step-")) for path in directory.iterdir())


def load(path):
    return torch.load(path, weights_only=True)


def test_checkpoints_with_accumulation_are_taken_between_optimizer_steps_only(tmp_path, run_scalar):
    folder = tmp_path / "checkpoints"
    run_scalar([Checkpoints(folder, every_n_steps=2, keep_last=-1)], batches=14, accumulate=3)
    assert steps(folder) == [2, 4, 5]  # 14 micro-batches: 4 full windows and one of 2
    for path in folder.iterdir():
        content = load(path)
        assert f"step-{content['global_step']:08d}.ckpt" == path.name
        done = content["loops"]["fit_loop"]["epoch_loop.batch_progress"]["current"]["processed"]
        assert done == min(3 * content["global_step"], 14)


def test_checkpoints_with_accumulation_save_each_step_once(tmp_path, run_scalar, monkeypatch):
    saved = []
    monkeypatch.setattr(
        Checkpoints, "save", lambda self, trainer: saved.append(trainer.global_step)
    )
    run_scalar([Checkpoints(tmp_path, every_n_steps=1, keep_last=-1)], batches=6, accumulate=2)
    assert saved == [1, 2, 3, 3]  # the last one is that of the end, which finds its file


@pytest.mark.parametrize(("keep_last", "left"), [(1, [6]), (2, [5, 6]), (-1, [1, 2, 3, 4, 5, 6])])
def test_checkpoints_keep_the_newest(tmp_path, run_scalar, keep_last, left):
    checkpoints = Checkpoints(tmp_path / "c", every_n_steps=1, keep_last=keep_last)
    run_scalar([checkpoints], plugins=[AtomicCheckpointIO()])
    assert steps(tmp_path / "c") == left
    assert checkpoints.newest == tmp_path / "c" / "step-00000006.ckpt"


def test_checkpoints_always_save_the_end(tmp_path, run_scalar):
    run_scalar([Checkpoints(tmp_path / "c", every_n_steps=100, keep_last=2)])
    assert steps(tmp_path / "c") == [6]


def test_checkpoints_newest_before_the_first_is_none(tmp_path):
    assert Checkpoints(tmp_path / "c", every_n_steps=1, keep_last=1).newest is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"every_n_steps": 0, "keep_last": 1}, r"every_n_steps is 0; allowed: 1 or more"),
        ({"every_n_steps": 1, "keep_last": 0}, r"keep_last is 0; allowed: 1 or more, or -1"),
        ({"every_n_steps": 1, "keep_last": -2}, r"keep_last is -2; allowed: 1 or more, or -1"),
    ],
)
def test_checkpoints_with_impossible_numbers_are_refused(tmp_path, options, message):
    with pytest.raises(ConfigError, match=message):
        Checkpoints(tmp_path, **options)


def test_save_checkpoint_that_fails_half_way_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "step.ckpt"
    AtomicCheckpointIO().save_checkpoint({"a": 1}, path)

    def write_half(content, target):
        target.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", write_half)
    with pytest.raises(OutputError, match=r"cannot write .*step\.ckpt: .*No space left"):
        AtomicCheckpointIO().save_checkpoint({"a": 2}, path)
    assert load(path) == {"a": 1}
    assert [file.name for file in tmp_path.iterdir()] == ["step.ckpt"]


def test_checkpoints_of_another_future_and_half_written_ones_are_removed(tmp_path, run_scalar):
    folder = tmp_path / "c"
    folder.mkdir()
    (folder / "step-00000009.ckpt").write_text("of a run that went on differently")
    (folder / ".step-00000002.ckpt.x.tmp").write_text("killed while writing")
    run_scalar([Checkpoints(folder, every_n_steps=3, keep_last=2)])
    assert sorted(path.name for path in folder.iterdir()) == [
        "step-00000003.ckpt",
        "step-00000006.ckpt",
    ]
