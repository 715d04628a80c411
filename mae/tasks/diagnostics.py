"""Numbers that give a reconstruction loss its meaning."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

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
