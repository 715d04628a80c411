"""Fine-tuning on labelled images as a LightningModule."""

from __future__ import annotations

from typing import Any, Literal

import lightning
import torch
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor
from torchmetrics.classification import MulticlassConfusionMatrix

from mae.classifier import Classifier
from mae.encoder import Encoder
from mae.errors import ConfigError
from mae.optim import OptimConfig, build_optimizer, build_schedule, parameter_groups
from mae.pooling import Pooling
from mae.tasks.pretrain import Batch
from mae.weights import checkpoint_header, load_encoder
from mae.weights.header import HEADER_KEY, describe_encoder


class FinetuneTask(lightning.LightningModule):
    """Train encoder and head together.

    Args:
        weights: Run, checkpoint or encoder file that gives the architecture and, by `start`, the
            weights.
        num_classes: Classes of the labelled shards; the command line fills it in.
        start: ``weights``, or ``random`` for the same architecture from scratch.
        drop_path_rate: Stochastic depth of the last block, rising linearly from 0.
        global_pool: ``mean`` with a new norm as in the paper, or ``cls``.
        class_weights: ``balanced`` weighs each class by the inverse of its training count.
        label_smoothing: In [0, 1).
        optim: Optimizer, lr, layer decay and schedule.
        batch_size: Images per device and micro-batch; filled in from the data.

    Raises:
        ConfigError: If classes or rates are impossible.
        WeightsError: If the weights cannot be read.
    """

    def __init__(
        self,
        *,
        weights: str,
        num_classes: int,
        start: Literal["weights", "random"] = "weights",
        drop_path_rate: float = 0.1,
        global_pool: Pooling = "mean",
        class_weights: Literal["none", "balanced"] = "none",
        label_smoothing: float = 0.0,
        optim: OptimConfig = OptimConfig(blr=5e-4, betas=(0.9, 0.999), layer_decay=0.65),  # noqa: B008
        batch_size: int = 64,
    ) -> None:
        super().__init__()
        if not 0 <= label_smoothing < 1:
            raise ConfigError(
                f"model.label_smoothing is {label_smoothing}; allowed: from 0 to below 1"
            )
        loaded = load_encoder(weights)
        encoder = Encoder(**describe_encoder(loaded.encoder), drop_path_rate=drop_path_rate)
        if start == "weights":
            encoder.load_state_dict(loaded.encoder.state_dict())
        self.start = start
        self.architecture = describe_encoder(encoder) | {
            "num_classes": num_classes,
            "global_pool": global_pool,
        }
        self.image_spec = loaded.spec
        self.depth = encoder.depth
        self.img_size = encoder.img_size
        self.model = Classifier(encoder, num_classes=num_classes, global_pool=global_pool)
        self.num_classes = num_classes
        self.class_weights = class_weights
        self.label_smoothing = label_smoothing
        self.optim = optim
        self.batch_size = batch_size
        self.loss_weights: Tensor | None = None
        self._confusion = MulticlassConfusionMatrix(num_classes=num_classes)

    def setup(self, stage: str) -> None:
        """Compare the data with the weights; take the class counts.

        Raises:
            DataError: If the pixels mean something else than in pretraining.
            ConfigError: If a class has no training image and classes are to be balanced.
        """
        del stage
        data = self.trainer.datamodule  # type: ignore[attr-defined]
        data.use_statistics(self.image_spec, there="the weights")
        if self.class_weights == "balanced":
            counts = [data.class_counts["train"].get(name, 0) for name in data.classes]
            if min(counts) == 0:
                raise ConfigError(
                    f"class {data.classes[counts.index(0)]!r} has no training image, so its weight "
                    f"is undefined; add images or set --model.class_weights none"
                )
            weights = torch.tensor(counts, dtype=torch.float32).reciprocal()
            self.loss_weights = (weights / weights.mean()).to(self.device)

    def forward(self, images: Tensor) -> Tensor:
        """Return class logits."""
        logits: Tensor = self.model(images)
        return logits

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Return the cross-entropy of one micro-batch."""
        del batch_idx
        loss = torch.nn.functional.cross_entropy(
            self(batch["image"]),
            batch["label"],
            weight=None if self.loss_weights is None else self.loss_weights.to(self.device),
            label_smoothing=self.label_smoothing,
        )
        self.log("train/loss", loss)
        return loss

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Log the lr that the head uses at this step."""
        lr = max(group["lr"] for group in optimizer.param_groups)
        self.log("train/lr", torch.tensor(lr))  # on the CPU: no step waits for a copy

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        """Key stochastic depth by position, so that a resumed run draws what it would have."""
        del batch_idx
        torch.manual_seed(int(batch["sample"][0]))

    def on_validation_epoch_start(self) -> None:
        """Start a new count: tensors of an earlier inference mode cannot be updated."""
        self._confusion = MulticlassConfusionMatrix(num_classes=self.num_classes).to(self.device)

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Count answers on validation images."""
        del batch_idx
        real = ~batch["is_padding"]
        self._confusion.update(self(batch["image"])[real], batch["label"][real])

    def on_validation_epoch_end(self) -> None:
        """Log accuracy, and its mean over the classes that are there."""
        self._log_accuracy("val")

    on_test_epoch_start = on_validation_epoch_start
    test_step = validation_step

    def on_test_epoch_end(self) -> None:
        """See `on_validation_epoch_end`."""
        self._log_accuracy("test")

    def _log_accuracy(self, split: str) -> None:
        confusion = self._confusion.compute().double()  # over all processes
        support, hits = confusion.sum(dim=1), confusion.diagonal()
        present = support > 0
        self.log(f"{split}/accuracy", hits.sum() / support.sum())
        self.log(f"{split}/balanced_accuracy", (hits[present] / support[present]).mean())

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """Build optimizer and schedule with layer decay."""
        effective_batch = (
            self.batch_size * self.trainer.accumulate_grad_batches * self.trainer.world_size
        )
        groups = parameter_groups(
            self.model.named_parameters(),
            self.optim,
            effective_batch=effective_batch,
            depth=self.depth,
            no_decay=("cls_token", "pos_embed"),
        )
        optimizer = build_optimizer(groups, self.optim)
        total_steps = int(self.trainer.estimated_stepping_batches)
        schedule = build_schedule(optimizer, self.optim, total_steps=total_steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add what a reader of the weights must know; primitives only."""
        checkpoint[HEADER_KEY] = checkpoint_header(
            architecture=self.architecture,
            spec=self.image_spec,
            step=self.global_step,
            samples_seen=self.trainer.datamodule.samples_consumed,  # type: ignore[attr-defined]
            recipe="",
        )
