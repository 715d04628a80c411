from __future__ import annotations

import pytest
import torch

from mae.masking import random_masking
from mae.model import MaskedAutoencoder
from mae.tasks.diagnostics import FeatureStd, trivial_losses


def make_model(*, norm_pix_loss: bool) -> MaskedAutoencoder:
    return MaskedAutoencoder(
        img_size=8,
        patch_size=4,
        in_chans=2,
        embed_dim=16,
        depth=1,
        num_heads=2,
        decoder_embed_dim=16,
        decoder_depth=1,
        decoder_num_heads=2,
        norm_pix_loss=norm_pix_loss,
    )


@pytest.fixture
def case():
    """Return images, their masks, and the removed patches as a plain loop cuts them."""
    generator = torch.Generator().manual_seed(0)
    images = 3 + 2 * torch.randn(5, 2, 8, 8, generator=generator)
    masking = random_masking(torch.rand(5, 4, generator=generator), 0.5)
    removed = [
        images[i, :, 4 * (p // 2) : 4 * (p // 2) + 4, 4 * (p % 2) : 4 * (p % 2) + 4].flatten()
        for i in range(5)
        for p in range(4)
        if masking.mask[i, p]
    ]
    return images, masking, torch.stack(removed).double()


def test_trivial_losses_on_plain_pixels_are_power_and_variance(case):
    images, masking, removed = case
    losses = trivial_losses(make_model(norm_pix_loss=False), images, masking)
    power = removed.square().mean()
    variance = removed.var(dim=1, correction=0).mean()
    assert float(losses["predict_zero"]) == pytest.approx(float(power), rel=1e-5)
    assert float(losses["predict_patch_mean"]) == pytest.approx(float(variance), rel=1e-5)


def test_trivial_losses_on_normalised_patches_are_one_but_for_the_unbiased_variance(case):
    images, masking, removed = case
    losses = trivial_losses(make_model(norm_pix_loss=True), images, masking)
    expected = 1 - 1 / removed.shape[1]
    assert float(losses["predict_zero"]) == pytest.approx(expected, rel=1e-5)
    assert float(losses["predict_patch_mean"]) == pytest.approx(expected, rel=1e-5)


def test_trivial_losses_of_constant_patches_are_zero():
    images = torch.full((1, 2, 8, 8), 7.0)
    masking = random_masking(torch.rand(1, 4), 0.5)
    losses = trivial_losses(make_model(norm_pix_loss=True), images, masking)
    assert [float(loss) for loss in losses.values()] == [0.0, 0.0]


def test_feature_std_over_batches_is_that_of_all_images():
    features = 5 + torch.randn(9, 4, generator=torch.Generator().manual_seed(0))
    metric = FeatureStd()
    for part in features.split([4, 4, 1]):
        metric.update(part)
    expected = features.double().std(dim=0, correction=0).mean()
    assert metric.compute().double() == pytest.approx(float(expected), abs=1e-6)


def test_feature_std_of_equal_features_and_of_none_is_zero():
    metric = FeatureStd()
    metric.update(torch.ones(0, 4))
    assert metric.compute() == 0
    metric.update(torch.ones(3, 4))
    assert metric.compute() == 0
