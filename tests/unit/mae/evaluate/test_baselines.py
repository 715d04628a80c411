from __future__ import annotations

import numpy as np
import torch

from mae.encoder import Encoder
from mae.evaluate.baselines import colour_moments, pixel_features, random_encoder
from mae.evaluate.features import weights_digest


def test_pixel_features_block_image_gives_the_mean_of_each_block():
    images = np.random.default_rng(0).integers(0, 256, size=(2, 3, 16, 32)).astype(np.float32)
    expected = images.reshape(2, 3, 8, 2, 8, 4).mean(axis=(3, 5)).reshape(2, -1)
    np.testing.assert_allclose(pixel_features(torch.from_numpy(images)), expected, rtol=1e-6)


def test_colour_moments_each_channel_has_mean_and_population_std():
    images = np.random.default_rng(0).normal(100, 20, size=(2, 5, 9, 7)).astype(np.float32)
    expected = np.concatenate([images.mean((2, 3)), images.std((2, 3))], axis=1)
    np.testing.assert_allclose(colour_moments(torch.from_numpy(images)), expected, rtol=1e-5)


def test_random_encoder_same_seed_same_weights_and_random_state_untouched():
    encoder = Encoder(img_size=(16, 24), patch_size=8, in_chans=2, embed_dim=16, depth=2,
                      num_heads=2, mlp_ratio=3.0)  # fmt: skip
    state = torch.get_rng_state()
    first, second, other = (random_encoder(encoder, seed=s) for s in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), state)
    assert weights_digest(first) == weights_digest(second)
    assert len({weights_digest(e) for e in (encoder, first, other)}) == 3
    shapes = {name: value.shape for name, value in encoder.state_dict().items()}
    assert {name: value.shape for name, value in first.state_dict().items()} == shapes
