from __future__ import annotations

import statistics

import pytest
import torch

from mae.loss import patch_statistics, reconstruction_loss, reconstruction_target


def normalised_by_hand(values: list[float]) -> list[float]:
    """(x - mean) / sqrt(unbiased variance + 1e-6), by the standard library."""
    mean, variance = statistics.fmean(values), statistics.variance(values)
    return [(value - mean) / (variance + 1e-6) ** 0.5 for value in values]


def test_reconstruction_target_norm_pix_follows_the_formula():
    patches = torch.randn(2, 3, 12, dtype=torch.float64)
    target = reconstruction_target(patches, norm_pix_loss=True)
    for image in range(2):
        for patch in range(3):
            expected = normalised_by_hand(patches[image, patch].tolist())
            assert target[image, patch].tolist() == pytest.approx(expected, abs=1e-12)


def test_reconstruction_target_small_contrast_keeps_the_epsilon():
    # At a variance of 1e-6 the epsilon halves the target's variance; a larger one would hide it.
    patches = torch.tensor([[0.0, 0.001, 0.002]], dtype=torch.float64)
    target = reconstruction_target(patches, norm_pix_loss=True)
    assert target[0].tolist() == pytest.approx([-(0.5**0.5), 0, 0.5**0.5])


def test_reconstruction_target_raw_pixels_are_unchanged():
    patches = torch.randn(2, 3, 12)
    assert torch.equal(reconstruction_target(patches, norm_pix_loss=False), patches)


@pytest.mark.parametrize("value", [0.0, 1.0, -2.7, 65535.0])
def test_reconstruction_target_constant_patch_is_exactly_zero_and_finite(value):
    patches = torch.full((1, 2, 768), value, requires_grad=True)
    target = reconstruction_target(patches, norm_pix_loss=True)
    assert torch.count_nonzero(target) == 0
    target.sum().backward()
    assert torch.isfinite(patches.grad).all()


def test_reconstruction_loss_is_the_mean_of_the_patches_means():
    pred = torch.tensor([[[0.0, 2.0], [1.0, 1.0]], [[3.0, 0.0], [0.0, 0.0]]])
    target = torch.tensor([[[0.0, 0.0], [1.0, 1.0]], [[0.0, 0.0], [0.0, 1.0]]])
    per_patch = [(0 + 4) / 2, 0, (9 + 0) / 2, (0 + 1) / 2]
    assert reconstruction_loss(pred, target).item() == pytest.approx(sum(per_patch) / 4)


def test_reconstruction_loss_predicting_zero_of_normalised_patches_is_about_one():
    target = reconstruction_target(torch.randn(8, 50, 768), norm_pix_loss=True)
    # Unbiased variance: the mean square is (n - 1) / n.
    loss = reconstruction_loss(torch.zeros_like(target), target).item()
    assert loss == pytest.approx(767 / 768, abs=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_patch_statistics_half_precision_input_is_measured_in_float32(dtype):
    patches = (1000 + torch.randn(4, 768)).to(dtype)
    mean, std = patch_statistics(patches)
    assert mean.dtype == std.dtype == torch.float32
    exact = patches.double()
    assert torch.allclose(mean.double(), exact.mean(-1, keepdim=True), rtol=1e-6)
    assert torch.allclose(std.double(), exact.std(-1, keepdim=True), rtol=1e-4)


def test_reconstruction_target_under_autocast_equals_float32_bitwise():
    patches = 3 + torch.randn(2, 5, 768)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = reconstruction_target(patches, norm_pix_loss=True)
    assert inside.dtype == torch.float32
    assert torch.equal(inside, reconstruction_target(patches, norm_pix_loss=True))


def test_reconstruction_loss_bf16_prediction_is_compared_in_float32():
    pred, target = torch.randn(2, 5, 768).bfloat16(), torch.randn(2, 5, 768)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = reconstruction_loss(pred, target)
    assert loss.dtype == torch.float32
    exact = (pred.double() - target.double()).square().mean().item()
    assert loss.item() == pytest.approx(exact, rel=1e-6)
