"""What a pretrained encoder must beat: pixels, colours, and itself before training."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mae.encoder import Encoder

PIXEL_GRID = 8


def pixel_features(
    images: Float[Tensor, "batch chans height width"],
) -> Float[Tensor, "batch pixel_dim"]:
    """Shrink each image to 8 x 8 by averaging and flatten it."""
    return nn.functional.adaptive_avg_pool2d(images, PIXEL_GRID).flatten(1)


def colour_moments(
    images: Float[Tensor, "batch chans height width"],
) -> Float[Tensor, "batch moments"]:
    """Return each channel's mean and standard deviation over the image."""
    std, mean = torch.std_mean(images, dim=(2, 3), correction=0)
    return torch.cat([mean, std], dim=1)


def random_encoder(encoder: Encoder, *, seed: int) -> Encoder:
    """Build the same architecture with fresh weights, leaving torch's random state untouched."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        fresh = Encoder(
            img_size=encoder.img_size,
            patch_size=encoder.patch_size,
            in_chans=encoder.in_chans,
            embed_dim=encoder.embed_dim,
            depth=encoder.depth,
            num_heads=encoder.num_heads,
            mlp_ratio=encoder.mlp_ratio,
        )
    return fresh.to(encoder.cls_token.device)
