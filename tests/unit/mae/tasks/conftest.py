"""A model of one number and Lightning around it: callbacks without the wait."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import lightning
import pytest
import torch
from torch.utils.data import DataLoader

from mae.commands.training import quiet_lightning


class Scalar(lightning.LightningModule):
    """Learns one number; its loss is not finite in the micro-batches `broken`."""

    def __init__(self, *, broken: Collection[int]) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(()))
        self.broken = broken

    def training_step(self, batch: dict[str, torch.Tensor], batch_idx: int) -> torch.Tensor:
        loss = (self.weight * batch["image"]).square().mean()
        return loss * float("nan") if batch_idx in self.broken else loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.125)


@pytest.fixture
def run_scalar(tmp_path) -> Callable[..., lightning.Trainer]:
    """Return a function that trains `Scalar` for some micro-batches of 2 images."""

    def run(
        callbacks: Sequence[lightning.Callback],
        *,
        batches: int = 6,
        accumulate: int = 1,
        broken: Collection[int] = (),
        **options: Any,
    ) -> lightning.Trainer:
        quiet_lightning()
        trainer = lightning.Trainer(
            accelerator="cpu",
            max_epochs=1,
            accumulate_grad_batches=accumulate,
            callbacks=list(callbacks),
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=tmp_path,
            **options,
        )
        data = [{"image": torch.ones(1)} for _ in range(2 * batches)]
        trainer.fit(Scalar(broken=broken), DataLoader(data, batch_size=2))
        return trainer

    return run
