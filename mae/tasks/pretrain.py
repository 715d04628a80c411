"""Masked-autoencoder pretraining as a LightningModule.

The method is `mae.model`; this file wires it to batches, optimizer, log and checkpoint.

Batches are dictionaries with ``image`` (normalised floats), ``sample`` (position in the stream,
which keys the mask) and ``is_padding``.
"""

from __future__ import annotations

from typing import Any, cast

import lightning
import torch
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor
from torchmetrics import MeanMetric

from mae.errors import ConfigError
from mae.masking import keyed_noise
from mae.model import MAEOutput, MaskedAutoencoder
from mae.optim import OptimConfig, build_optimizer, build_schedule, parameter_groups, scaled_lr
from mae.patches import Size
from mae.pooling import pool
from mae.spec import ImageSpec
from mae.tasks.diagnostics import FeatureStd, trivial_losses
from mae.weights import checkpoint_header
from mae.weights.header import HEADER_KEY

VALIDATION_SEED = 0x5EED  # fixed: masks of validation images never change, whatever the run's seed
Batch = dict[str, Any]


class PretrainTask(lightning.LightningModule):
    """Pretrain a masked autoencoder.

    Args:
        img_size: Image side in pixels, or [height, width].
        patch_size: Patch side in pixels, or [height, width]; divides `img_size`.
        in_chans: Channels of the images; must be what the shards hold.
        embed_dim: Encoder width.
        depth: Encoder blocks.
        num_heads: Encoder attention heads.
        mlp_ratio: Hidden width of every MLP over its block's width.
        decoder_embed_dim: Decoder width.
        decoder_depth: Decoder blocks.
        decoder_num_heads: Decoder attention heads.
        mask_ratio: Share of removed patches, inside (0, 1).
        norm_pix_loss: Predict each patch normalised by its own mean and standard deviation.
        masks_per_image: Masks drawn for each loaded image; the effective batch grows with it.
        optim: Optimizer, lr and schedule.
        batch_size: Images per device and micro-batch; the command line fills it in from the data.
        seed: Keys the masks; the command line fills it in from ``seed_everything``.

    Raises:
        ConfigError: If sizes, widths or ratios are impossible.
    """

    def __init__(
        self,
        *,
        img_size: int | Size = 224,
        patch_size: int | Size = 16,
        in_chans: int = 3,
        embed_dim: int = 768,
        depth: int = 12,
        num_heads: int = 12,
        mlp_ratio: float = 4.0,
        decoder_embed_dim: int = 512,
        decoder_depth: int = 8,
        decoder_num_heads: int = 16,
        mask_ratio: float = 0.75,
        norm_pix_loss: bool = True,
        masks_per_image: int = 1,
        optim: OptimConfig = OptimConfig(),  # noqa: B008 - frozen
        batch_size: int = 64,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if masks_per_image < 1:
            raise ConfigError(
                f"model.masks_per_image is {masks_per_image}; allowed: 1 or more masks per image"
            )
        self.architecture: dict[str, Any] = {
            "img_size": img_size if isinstance(img_size, int) else list(img_size),
            "patch_size": patch_size if isinstance(patch_size, int) else list(patch_size),
            "in_chans": in_chans,
            "embed_dim": embed_dim,
            "depth": depth,
            "num_heads": num_heads,
            "mlp_ratio": mlp_ratio,
            "decoder_embed_dim": decoder_embed_dim,
            "decoder_depth": decoder_depth,
            "decoder_num_heads": decoder_num_heads,
            "mask_ratio": mask_ratio,
            "norm_pix_loss": norm_pix_loss,
        }
        self.model = MaskedAutoencoder(**self.architecture)
        self.masks_per_image = masks_per_image
        self.optim = optim
        self.batch_size = batch_size
        self.seed = seed
        self.recipe = ""  # named by the command, for the checkpoint
        self.image_spec = _unknown_pixels(in_chans)
        self.samples_seen = 0
        self._val_means: dict[str, MeanMetric] = {}
        self._val_spread = FeatureStd()

    def setup(self, stage: str) -> None:
        """Compare the data's pixels with the model before anything runs.

        Raises:
            ConfigError: If the numbers of channels differ.
        """
        del stage
        spec = getattr(getattr(self.trainer, "datamodule", None), "spec", None)
        if spec is None:
            return
        if spec.num_channels != self.architecture["in_chans"]:
            raise ConfigError(
                f"the shards hold {spec.num_channels} channels ({', '.join(spec.channels)}), but "
                f"model.in_chans is {self.architecture['in_chans']}; "
                f"pass --model.in_chans {spec.num_channels}"
            )
        self.image_spec = spec

    @property
    def effective_batch(self) -> int:
        """Masked images per optimizer step, over masks, accumulation and ranks."""
        return (
            self.batch_size
            * self.masks_per_image
            * self.trainer.accumulate_grad_batches
            * self.trainer.world_size
        )

    def forward(self, batch: Batch, *, seed: int, masks_per_image: int = 1) -> MAEOutput:
        """Reconstruct a batch under masks keyed by (seed, position, mask number)."""
        noise = torch.cat(
            [
                keyed_noise(seed, batch["sample"], self.model.encoder.num_patches, view=view)
                for view in range(masks_per_image)
            ]
        )
        images = batch["image"].repeat(masks_per_image, 1, 1, 1)
        return cast(MAEOutput, self.model(images, noise=noise))

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Return the loss of one micro-batch."""
        del batch_idx
        output = self(batch, seed=self.seed, masks_per_image=self.masks_per_image)
        self.samples_seen += len(batch["image"]) * self.trainer.world_size
        loss: Tensor = output.loss
        self.log("train/loss", loss)
        return loss

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Log the lr that this step uses."""
        lr = max(group["lr"] for group in optimizer.param_groups)
        self.log("train/lr", torch.tensor(lr))  # on the CPU: no step waits for a copy

    def on_validation_epoch_start(self) -> None:
        """Start new means: tensors of an earlier inference mode cannot be updated."""
        names = ("loss", "predict_zero", "predict_patch_mean")
        self._val_means = {name: MeanMetric().to(self.device) for name in names}
        self._val_spread = FeatureStd().to(self.device)

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Measure the loss on fixed masks, what trivial answers would get, and clean features."""
        del batch_idx
        real = ~batch["is_padding"]
        batch = {"image": batch["image"][real], "sample": batch["sample"][real]}
        if not len(batch["image"]):  # padding alone: this process has nothing to add
            for mean in self._val_means.values():
                mean.update(0.0, weight=0.0)
            self._val_spread.update(batch["image"].new_zeros(0, self.model.encoder.embed_dim))
            return
        output = self(batch, seed=VALIDATION_SEED)
        losses = trivial_losses(self.model, batch["image"], output.masking) | {"loss": output.loss}
        for name, value in losses.items():
            self._val_means[name].update(value, weight=len(batch["image"]))
        self._val_spread.update(pool(self.model.encode(batch["image"]), "mean"))

    def on_validation_epoch_end(self) -> None:
        """Log the means over the validation images."""
        for name, mean in self._val_means.items():
            self.log(f"val/{name}", mean.compute())  # over all processes
        self.log("val/feature_std", self._val_spread.compute())

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """Build optimizer and schedule, and say what the lr comes from."""
        total_steps = int(self.trainer.estimated_stepping_batches)
        groups = parameter_groups(
            self.model.named_parameters(), self.optim, effective_batch=self.effective_batch
        )
        optimizer = build_optimizer(groups, self.optim)
        schedule = build_schedule(optimizer, self.optim, total_steps=total_steps)
        self._say_lr(total_steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def _say_lr(self, total_steps: int) -> None:
        lr, muon_lr = (
            scaled_lr(blr, self.effective_batch) for blr in (self.optim.blr, self.optim.muon_blr)
        )
        muon = f", Muon {self.optim.muon_blr:g} -> {muon_lr:g}" if self.optim.name == "muon" else ""
        if self.trainer.is_global_zero:
            print(
                f"{total_steps:,} steps of {self.effective_batch:,} masked images "
                f"({self.batch_size} images x {self.masks_per_image} masks x "
                f"{self.trainer.accumulate_grad_batches} accumulated x {self.trainer.world_size} "
                f"processes); {self.optim.name}, base lr -> actual lr: "
                f"{self.optim.blr:g} -> {lr:g}{muon}"
            )

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add what a reader of the weights must know; primitives only."""
        checkpoint[HEADER_KEY] = checkpoint_header(
            architecture=self.architecture,
            spec=self.image_spec,
            step=self.global_step,
            samples_seen=self.samples_seen,
            recipe=self.recipe,
        )

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Go on from a checkpoint of the same architecture.

        Raises:
            ConfigError: If the checkpoint is of another architecture; names what differs.
        """
        saved = checkpoint.get(HEADER_KEY)
        if saved is None:
            raise ConfigError(
                "this checkpoint was not written by mae pretrain; use --init-weights to start a "
                "new run from weights"
            )
        differing = [
            f"model.{key}: {saved['architecture'].get(key)!r} in the checkpoint, {value!r} here"
            for key, value in self.architecture.items()
            if saved["architecture"].get(key) != value
        ]
        if differing:
            raise ConfigError(
                "a resumed run keeps its architecture; " + "; ".join(differing) + "; "
                "resume without these changes, or start a new run with --init-weights"
            )
        data = getattr(self.trainer, "datamodule", None)
        spec = ImageSpec.from_dict(saved["image_spec"])
        if data is not None and spec != self.image_spec:
            # Other data may come in by --data-reset; the model goes on with the pixels it knows.
            data.use_statistics(spec, there="the run so far")
            self.image_spec = spec
        self.samples_seen = saved["samples_seen"]
        self.recipe = saved["recipe"]  # where the run began, whatever it is continued by


def _unknown_pixels(in_chans: int) -> ImageSpec:
    """Describe images of which only their number of channels is known."""
    return ImageSpec(
        channels=tuple(f"channel{i + 1}" for i in range(in_chans)),
        dtype="float32",
        mean=(0.0,) * in_chans,
        std=(1.0,) * in_chans,
        value_range=(torch.finfo(torch.float32).min, torch.finfo(torch.float32).max),
    )
