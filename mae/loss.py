"""The reconstruction loss, on removed patches only.

Source: He et al. 2022 (arXiv:2111.06377), section 3 "Reconstruction target"; unbiased variance and
epsilon 1e-6 as in the released models.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

NORM_PIX_EPS = 1e-6


def patch_statistics(
    patches: Float[Tensor, "*batch patch_dim"],
) -> tuple[Float[Tensor, "*batch 1"], Float[Tensor, "*batch 1"]]:
    """Return mean and standard deviation of each patch over all its pixels and channels jointly.

    Statistics are taken in at least float32, whatever autocast says.  The standard deviation is
    ``sqrt(unbiased variance + 1e-6)``, so that constant patches give a target of exactly 0.
    """
    mean, centred = _centre(patches)
    return mean, _std_of(centred)


def reconstruction_target(
    patches: Float[Tensor, "*batch patch_dim"], *, norm_pix_loss: bool
) -> Float[Tensor, "*batch patch_dim"]:
    """Return what the decoder should predict: the pixels, or each patch normalised by itself."""
    if not norm_pix_loss:
        return patches.to(torch.promote_types(patches.dtype, torch.float32))
    _, centred = _centre(patches)
    return centred / _std_of(centred)


def _centre(
    patches: Float[Tensor, "*batch patch_dim"],
) -> tuple[Float[Tensor, "*batch 1"], Float[Tensor, "*batch patch_dim"]]:
    """Return the mean of each patch, and the patch without it.

    The mean of equal numbers may round away from them, and epsilon would blow that up a
    thousandfold: taken relative to the first value it cannot.
    """
    patches = patches.to(torch.promote_types(patches.dtype, torch.float32))
    first = patches[..., :1]
    mean = first + (patches - first).mean(dim=-1, keepdim=True)
    return mean, patches - mean


def _std_of(centred: Float[Tensor, "*batch patch_dim"]) -> Float[Tensor, "*batch 1"]:
    """Return the standard deviation; on CPUs the norm is several times faster than `Tensor.var`."""
    norm: Tensor = torch.linalg.vector_norm(centred, dim=-1, keepdim=True)
    return (norm.square() / (centred.shape[-1] - 1) + NORM_PIX_EPS).sqrt()


def reconstruction_loss(
    pred: Float[Tensor, "*batch patch_dim"], target: Float[Tensor, "*batch patch_dim"]
) -> Float[Tensor, ""]:
    """Return the mean squared error over all removed patches of the batch.

    Both arguments hold removed patches only.  As all patches have equally many pixels, the mean
    of the patches' means is the mean over everything.
    """
    with torch.autocast(device_type=pred.device.type, enabled=False):
        return (pred.to(target.dtype) - target).square().mean()
