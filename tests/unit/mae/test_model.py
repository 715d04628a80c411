from __future__ import annotations

import pytest
import torch

from mae.errors import ConfigError
from mae.loss import reconstruction_target
from mae.model import MaskedAutoencoder
from mae.patches import patchify

SETTINGS = {
    "img_size": (16, 24),
    "patch_size": 8,
    "in_chans": 2,
    "embed_dim": 32,
    "depth": 2,
    "num_heads": 4,
    "decoder_embed_dim": 16,
    "decoder_depth": 2,
    "decoder_num_heads": 2,
}


def build(**changes) -> MaskedAutoencoder:
    torch.manual_seed(0)
    return MaskedAutoencoder(**(SETTINGS | changes))


def images(batch: int = 3) -> torch.Tensor:
    return torch.randn(batch, 2, 16, 24, generator=torch.Generator().manual_seed(1))


def noise(batch: int = 3) -> torch.Tensor:
    return torch.rand(batch, 6, generator=torch.Generator().manual_seed(2))


def test_forward_every_trainable_parameter_gets_a_gradient_on_the_first_step():
    model = build()
    model(images(), noise=noise()).loss.backward()
    without = [
        name
        for name, p in model.named_parameters()
        if p.requires_grad and (p.grad is None or not torch.count_nonzero(p.grad))
    ]
    assert without == []
    assert model.encoder.pos_embed.grad is None


@pytest.mark.parametrize("norm_pix_loss", [True, False])
def test_forward_loss_compares_predictions_with_the_removed_patches_only(norm_pix_loss):
    model = build(norm_pix_loss=norm_pix_loss)
    output = model(images(), noise=noise())
    patches = patchify(images(), (8, 8))
    squares = []
    for image, ids in enumerate(output.masking.ids_removed.tolist()):
        for place, patch in enumerate(ids):
            target = reconstruction_target(patches[image, patch], norm_pix_loss=norm_pix_loss)
            squares.append((output.pred[image, place] - target).square().mean().item())
    assert output.pred.shape == (3, 5, 128)
    assert output.loss.item() == pytest.approx(sum(squares) / len(squares), rel=1e-5)


@torch.inference_mode()
def test_forward_removed_pixels_never_reach_the_predictions():
    model = build()
    before = model(images(), noise=noise(), mask_ratio=0.5)
    hidden = before.masking.mask.reshape(3, 1, 2, 3).repeat_interleave(8, 2).repeat_interleave(8, 3)
    changed = torch.where(hidden, torch.full_like(images(), 1e6), images())
    after = model(changed, noise=noise(), mask_ratio=0.5)
    assert torch.equal(before.pred, after.pred)
    assert not torch.equal(before.loss, after.loss)


@torch.inference_mode()
def test_forward_visible_pixels_do_reach_the_predictions():
    model = build()
    before = model(images(), noise=noise())
    seen = ~before.masking.mask.reshape(3, 1, 2, 3).repeat_interleave(8, 2).repeat_interleave(8, 3)
    after = model(images() + seen, noise=noise())
    assert not torch.equal(before.pred, after.pred)


def test_forward_without_noise_draws_from_the_global_generator():
    model = build()
    torch.manual_seed(5)
    drawn = torch.rand(3, 6)
    torch.manual_seed(5)
    masking = model(images()).masking
    assert torch.equal(masking.ids_keep, model(images(), noise=drawn).masking.ids_keep)


def test_forward_mask_ratio_overrides_the_models_own():
    assert build()(images(), noise=noise(), mask_ratio=0.5).masking.ids_keep.shape == (3, 3)


@torch.inference_mode()
def test_encode_never_masks_and_leaves_the_random_state_alone():
    model = build().train()
    state = torch.get_rng_state()
    tokens = model.encode(images())
    assert tokens.shape == (3, 7, 32)
    assert torch.equal(tokens, model.encode(images()))
    assert torch.equal(torch.get_rng_state(), state)


@torch.inference_mode()
def test_encode_every_patch_matters():
    model = build().eval()
    base = model.encode(images(1))
    for patch in range(6):
        row, column = divmod(patch, 3)
        changed = images(1)
        changed[:, :, row * 8 : row * 8 + 8, column * 8 : column * 8 + 8] += 1
        assert not torch.equal(model.encode(changed)[:, 0], base[:, 0]), patch


def test_forward_bf16_autocast_keeps_target_and_loss_in_float32():
    model = build()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = model(images(), noise=noise())
    assert output.pred.dtype == torch.bfloat16
    assert output.loss.dtype == torch.float32
    removed = torch.stack(
        [p[i] for p, i in zip(patchify(images(), (8, 8)), output.masking.ids_removed, strict=True)]
    )
    target = reconstruction_target(removed, norm_pix_loss=True)
    expected = (output.pred.double() - target.double()).square().mean().item()
    assert output.loss.item() == pytest.approx(expected, rel=1e-5)


def test_forward_constant_images_stay_finite():
    model = build()
    output = model(torch.full((2, 2, 16, 24), 3.0), noise=noise(2))
    output.loss.backward()
    assert torch.isfinite(output.loss)
    assert output.loss.item() == pytest.approx(output.pred.square().mean().item(), rel=1e-6)
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


def test_forward_noise_of_another_shape_names_both():
    with pytest.raises(ConfigError, match=r"noise has shape \(3, 5\); .*\(3, 6\)"):
        build()(images(), noise=torch.rand(3, 5))


@pytest.mark.parametrize("mask_ratio", [0, 1, 1.5])
def test_masked_autoencoder_impossible_mask_ratio_is_refused_when_built(mask_ratio):
    with pytest.raises(ConfigError, match="mask_ratio is"):
        build(mask_ratio=mask_ratio)


def test_masked_autoencoder_one_value_patches_cannot_be_normalised():
    with pytest.raises(ConfigError, match="norm_pix_loss needs patches of at least 2 values"):
        build(img_size=4, patch_size=1, in_chans=1)
    build(img_size=4, patch_size=1, in_chans=1, norm_pix_loss=False)


def test_masked_autoencoder_indivisible_size_is_refused_when_built():
    with pytest.raises(ConfigError, match="not divisible"):
        build(img_size=(16, 25))
