from __future__ import annotations

import pytest
import torch

from mae.spec import ImageSpec
from mae.tasks.finetune import FinetuneTask
from mae.tasks.pretrain import PretrainTask
from mae.weights import save_encoder

GRAY = ImageSpec(channels=("gray",), dtype="uint8", mean=(0.0,), std=(1.0,), value_range=(0, 255))


@pytest.fixture
def task(tmp_path) -> FinetuneTask:
    """Return a classifier of 3 classes whose second block is dropped half of the time."""
    source = PretrainTask(img_size=8, patch_size=4, in_chans=1, embed_dim=16, depth=2, num_heads=2)
    path = tmp_path / "encoder.safetensors"
    save_encoder(path, source.model.encoder, GRAY, info={})
    return FinetuneTask(weights=str(path), num_classes=3, drop_path_rate=0.5)


def batch_at(position: int) -> dict[str, torch.Tensor]:
    images = torch.randn(6, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    return {"image": images, "label": torch.arange(6) % 3, "sample": position + torch.arange(6)}


def loss_at(task: FinetuneTask, position: int, *, seed: int) -> float:
    torch.manual_seed(seed)
    task.train()
    task.log = lambda *_, **__: None  # type: ignore[method-assign]
    torch.nn.init.normal_(task.model.head.weight, generator=torch.Generator().manual_seed(1))
    batch = batch_at(position)
    task.on_train_batch_start(batch, 0)
    return float(task.training_step(batch, 0).detach())


def test_training_step_stochastic_depth_depends_on_the_position_alone(task):
    assert loss_at(task, 0, seed=1) == loss_at(task, 0, seed=2)
    assert len({loss_at(task, position, seed=1) for position in range(0, 60, 6)}) > 1


def test_balanced_accuracy_leaves_out_classes_that_are_not_there(task):
    logged = {}
    task.log = lambda name, value: logged.update({name: float(value)})  # type: ignore[method-assign]
    task.on_validation_epoch_start()
    task._confusion.update(torch.tensor([0, 0, 1, 2]), torch.tensor([0, 0, 1, 1]))
    task.on_validation_epoch_end()
    assert logged == {"val/accuracy": 0.75, "val/balanced_accuracy": 0.75}
