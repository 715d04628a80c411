"""Numbers that give a reconstruction loss its meaning."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor
from torchmetrics import Metric

from mae.loss import patch_statistics, reconstruction_loss, reconstruction_target
from mae.masking import Masking
from mae.model import MaskedAutoencoder, gather_patches


def trivial_losses(
    model: MaskedAutoencoder, images: Float[Tensor, "batch chans height width"], masking: Masking
) -> dict[str, Float[Tensor, ""]]:
    """Return the losses of two answers that need no network, on the same removed patches.

    ``predict_zero`` answers 0 everywhere; ``predict_patch_mean`` answers each removed patch's own
    mean, which no model can know.  With `norm_pix_loss` both are the same and close to 1.
    """
    removed = gather_patches(model.encoder.patchify(images), masking.ids_removed)
    target = reconstruction_target(removed, norm_pix_loss=model.norm_pix_loss)
    mean, _ = patch_statistics(target)
    return {
        "predict_zero": reconstruction_loss(target.new_zeros(()).expand_as(target), target),
        "predict_patch_mean": reconstruction_loss(mean.expand_as(target), target),
    }


class FeatureStd(Metric):
    """Standard deviation of features over images, mean over dimensions; 0 means collapse.

    Sums are kept instead of features, so that the result is that of all images on all processes.
    """

    count: Tensor
    sums: Tensor
    squares: Tensor

    def __init__(self) -> None:
        super().__init__()
        zero = torch.zeros((), dtype=torch.float64)
        for name in ("count", "sums", "squares"):
            self.add_state(name, default=zero.clone(), dist_reduce_fx="sum")

    def update(self, features: Float[Tensor, "batch embed_dim"]) -> None:
        """Add the features of some images."""
        features = features.double()
        self.count = self.count + len(features)
        self.sums = self.sums + features.sum(dim=0)
        self.squares = self.squares + features.square().sum(dim=0)

    def compute(self) -> Float[Tensor, ""]:
        """Return the mean over dimensions of the (biased) standard deviation; 0 without images."""
        count = self.count.clamp(min=1)
        variance = self.squares / count - (self.sums / count).square()
        spread: Tensor = variance.clamp(min=0).sqrt().mean().float()
        return spread
