from __future__ import annotations

import pytest
import torch

from mae.errors import ConfigError
from mae.inspect.reconstruct import _check_statistics, distance_weights, reconstruct
from mae.masking import keyed_noise, random_masking
from mae.model import MAEOutput, MaskedAutoencoder, gather_patches
from mae.patches import patchify

IMG_SIZE, PATCH_SIZE, CHANS = (12, 24), (4, 8), 2
NUM_PATCHES = 9


def build(cls=MaskedAutoencoder, **options):
    torch.manual_seed(0)
    model = cls(
        img_size=IMG_SIZE,
        patch_size=PATCH_SIZE,
        in_chans=CHANS,
        embed_dim=16,
        depth=1,
        num_heads=2,
        decoder_embed_dim=16,
        decoder_depth=1,
        decoder_num_heads=2,
        **{"mask_ratio": 0.6, **options},
    )
    return model.eval()


class Oracle(MaskedAutoencoder):
    """Predicts the target itself, written here a second time: an answer with no error."""

    def forward(self, images, *, noise=None, mask_ratio=None):
        output = super().forward(images, noise=noise, mask_ratio=mask_ratio)
        removed = gather_patches(patchify(images, PATCH_SIZE), output.masking.ids_removed)
        if self.norm_pix_loss:
            mean = removed.mean(2, keepdim=True)
            variance = (removed - mean).square().sum(2, keepdim=True) / (removed.shape[2] - 1)
            removed = (removed - mean) / (variance + 1e-6).sqrt()
        return MAEOutput(output.loss, removed, output.masking)


class Silent(MaskedAutoencoder):
    """Predicts zero."""

    def forward(self, images, *, noise=None, mask_ratio=None):
        output = super().forward(images, noise=noise, mask_ratio=mask_ratio)
        return MAEOutput(output.loss, torch.zeros_like(output.pred), output.masking)


@pytest.fixture
def images():
    return torch.randn(3, CHANS, *IMG_SIZE, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def noise():
    return keyed_noise(0, torch.arange(3), NUM_PATCHES)


def removed_pixels(noise, ratio=0.6):
    """Mark removed pixels patch by patch in plain loops."""
    mask = random_masking(noise, ratio).mask
    pixels = torch.zeros(len(noise), 1, *IMG_SIZE, dtype=torch.bool)
    for image, row in enumerate(mask.tolist()):
        for patch, is_removed in enumerate(row):
            y, x = patch // 3 * 4, patch % 3 * 8
            pixels[image, 0, y : y + 4, x : x + 8] = is_removed
    return pixels


@pytest.mark.parametrize("norm_pix_loss", [True, False])
def test_reconstruct_changed_removed_pixels_leave_the_default_picture_unchanged(
    images, noise, norm_pix_loss
):
    model = build(norm_pix_loss=norm_pix_loss)
    removed = removed_pixels(noise)
    changed = torch.where(removed, 5 - 3 * images.flip(3), images)
    before, after = (reconstruct(model, x, noise) for x in (images, changed))
    assert torch.equal(before.reconstruction, after.reconstruction)
    assert torch.equal(before.visible.nan_to_num(9), after.visible.nan_to_num(9))
    assert not torch.equal(before.masked_mse, after.masked_mse)


def test_reconstruct_with_target_statistics_follows_the_removed_pixels(images, noise):
    """The control of the test above: this mode leaks, and is therefore labelled."""
    model = build()
    changed = torch.where(removed_pixels(noise), images + 2, images)
    before, after = (
        reconstruct(model, x, noise, statistics="target").reconstruction for x in (images, changed)
    )
    assert not torch.equal(before, after)


@pytest.mark.parametrize("statistics", ["visible", "target"])
def test_reconstruct_visible_patches_equal_the_input_bit_for_bit(images, noise, statistics):
    record = reconstruct(build(), images, noise, statistics=statistics)
    visible = ~removed_pixels(noise).expand_as(images)
    assert torch.equal(record.reconstruction[visible], images[visible])
    assert torch.equal(record.visible[visible], images[visible])
    assert record.visible[~visible].isnan().all()
    assert torch.equal(record.removed, removed_pixels(noise))


def test_reconstruct_perfect_prediction_with_target_statistics_gives_the_image(images, noise):
    record = reconstruct(build(Oracle), images, noise, statistics="target")
    torch.testing.assert_close(record.reconstruction, images, rtol=0, atol=1e-5)
    torch.testing.assert_close(record.loss, torch.zeros(3))
    assert record.masked_mse.max() < 1e-10


def test_reconstruct_perfect_prediction_of_pixels_gives_the_image(images, noise):
    record = reconstruct(build(Oracle, norm_pix_loss=False), images, noise)
    assert torch.equal(record.reconstruction, images)
    assert record.statistics is None
    assert "statistics_only" not in record.baselines


def test_reconstruct_zero_prediction_shows_the_interpolated_statistics(images, noise):
    record = reconstruct(build(Silent), images, noise)
    masking = random_masking(noise, 0.6)
    for image in range(3):
        for patch in masking.ids_removed[image].tolist():
            total, weighted = 0.0, 0.0
            for other in masking.ids_keep[image].tolist():
                down = 4 * (patch // 3 - other // 3)
                right = 8 * (patch % 3 - other % 3)
                weight = (down**2 + right**2) ** -1.5
                y, x = other // 3 * 4, other % 3 * 8
                weighted += weight * images[image, :, y : y + 4, x : x + 8].mean().item()
                total += weight
            y, x = patch // 3 * 4, patch % 3 * 8
            found = record.reconstruction[image, :, y : y + 4, x : x + 8]
            torch.testing.assert_close(found, torch.full_like(found, weighted / total))
    torch.testing.assert_close(record.masked_mse, record.baselines["statistics_only"])
    torch.testing.assert_close(record.loss, record.loss_of_zero)


def test_reconstruct_contrast_is_the_visible_patches_own(noise):
    """All visible patches have std s, so a predicted pattern must come out s times as strong."""
    pattern = torch.randn(1, CHANS, *PATCH_SIZE, generator=torch.Generator().manual_seed(3))
    pattern = (pattern - pattern.mean()) / pattern.std()
    images = (4 * pattern).repeat(3, 1, 3, 3) + 10

    record = reconstruct(build(Oracle), images, noise)
    torch.testing.assert_close(record.reconstruction, images, rtol=0, atol=1e-4)


def test_reconstruct_masked_mse_is_the_error_over_removed_pixels(images, noise):
    record = reconstruct(build(), images, noise)
    removed = removed_pixels(noise)[:, 0]
    assert (record.error[~removed] == 0).all()
    for i in range(3):
        squares = [
            (record.reconstruction[i, c][removed[i]] - images[i, c][removed[i]]).square()
            for c in range(CHANS)
        ]
        torch.testing.assert_close(record.masked_mse[i], torch.cat(squares).mean())
        torch.testing.assert_close(record.error[i][removed[i]], torch.stack(squares).mean(0))


def test_reconstruct_mean_fill_is_the_variance_around_the_visible_mean(images, noise):
    record = reconstruct(build(), images, noise)
    removed = removed_pixels(noise)[:, 0]
    for i in range(3):
        squares = [
            (images[i, c][removed[i]] - images[i, c][~removed[i]].mean()).square()
            for c in range(CHANS)
        ]
        torch.testing.assert_close(record.baselines["mean_fill"][i], torch.cat(squares).mean())


def test_reconstruct_interpolated_mean_is_per_channel(noise):
    """Channels that are constant are interpolated exactly, whatever the weights."""
    images = torch.ones(3, CHANS, *IMG_SIZE)
    images[:, 1] = -7
    record = reconstruct(build(), images, noise)
    expected = {"mean_fill": 0.0, "interpolated_mean": 0.0, "statistics_only": 16.0}
    for name, value in expected.items():
        torch.testing.assert_close(record.baselines[name], torch.full((3,), value))


def test_reconstruct_mask_ratio_overrides_the_models_own(images, noise):
    record = reconstruct(build(), images, noise, mask_ratio=0.2)
    assert torch.equal(record.removed, removed_pixels(noise, 0.2))


def test_reconstruct_constant_images_stay_finite(noise):
    record = reconstruct(build(), torch.zeros(3, CHANS, *IMG_SIZE), noise)
    assert record.reconstruction.isfinite().all()
    assert record.loss.isfinite().all()


def test_reconstruct_restores_the_mode_of_every_module(images, noise):
    model = build().train()
    model.encoder.norm.eval()
    reconstruct(model, images, noise)
    assert model.training
    assert model.decoder.training
    assert not model.encoder.norm.training


def test_reconstruct_draws_no_random_numbers(images, noise):
    model = build().train()
    before = torch.get_rng_state()
    reconstruct(model, images, noise)
    assert torch.equal(before, torch.get_rng_state())


def test_reconstruct_target_statistics_of_a_pixel_model_are_refused(images, noise):
    with pytest.raises(ConfigError, match="predicts the pixels themselves"):
        reconstruct(build(norm_pix_loss=False), images, noise, statistics="target")


def test_check_statistics_unknown_word_is_refused():
    # Not through reconstruct(), whose annotation refuses the word first under the type checker.
    with pytest.raises(ConfigError, match="allowed: 'visible' or 'target'"):
        _check_statistics("true", build())


def masking_of(keep, num_patches):
    noise = torch.ones(1, num_patches)
    noise[0, keep] = 0
    return random_masking(noise, 1 - len(keep) / num_patches)


def test_distance_weights_fall_with_the_cube_of_the_distance():
    weights = distance_weights(masking_of([0, 3], 4), (1, 4), (8, 8))
    # patch 1 is 1 from patch 0 and 2 from patch 3; patch 2 the other way round
    torch.testing.assert_close(weights, torch.tensor([[[8 / 9, 1 / 9], [1 / 9, 8 / 9]]]))


def test_distance_weights_of_oblong_patches_measure_in_pixels():
    weights = distance_weights(masking_of([1, 2], 4), (2, 2), (4, 8))
    # patch 0: patch 1 is 8 px to the right, patch 2 is 4 px below
    torch.testing.assert_close(weights[0, 0], torch.tensor([1 / 9, 8 / 9]))
