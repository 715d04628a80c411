from __future__ import annotations

import pytest
import torch
from torch import nn

from mae.encoder import Encoder, PatchEmbed
from mae.errors import ConfigError
from mae.patches import patchify

SMALL = {"patch_size": 4, "in_chans": 3, "embed_dim": 32, "depth": 2, "num_heads": 4}


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    torch.manual_seed(0)
    return Encoder(img_size=(8, 12), **SMALL).double().eval()


def test_patch_embed_equals_the_convolution_it_stores():
    embed = PatchEmbed((4, 2), 3, 16).double()
    images = torch.randn(2, 3, 8, 6, dtype=torch.float64)
    convolved = embed.proj(images).flatten(2).transpose(1, 2)
    assert torch.allclose(embed(patchify(images, (4, 2))), convolved, rtol=0, atol=1e-13)


def test_encoder_rectangle_gives_cls_and_all_patches(encoder):
    assert encoder.grid_size == (2, 3)
    assert encoder.num_patches == 6
    assert encoder(torch.randn(5, 3, 8, 12).double()).shape == (5, 7, 32)


@torch.inference_mode()
def test_encoder_same_image_twice_is_bitwise_equal(encoder):
    images = torch.randn(3, 3, 8, 12).double()
    assert torch.equal(encoder(images), encoder(images))


@torch.inference_mode()
def test_encoder_features_do_not_depend_on_batch_mates(encoder):
    images = torch.randn(6, 3, 8, 12).double()
    together = encoder(images)
    alone = torch.cat([encoder(image[None]) for image in images])
    shuffled = encoder(images.flip(0)).flip(0)
    assert torch.allclose(together, alone, rtol=0, atol=1e-12)
    assert torch.allclose(together, shuffled, rtol=0, atol=1e-12)


@torch.inference_mode()
def test_encoder_features_do_not_depend_on_train_mode():
    encoder = Encoder(img_size=8, **SMALL)
    images = torch.randn(3, 3, 8, 8)
    assert torch.equal(encoder.train()(images), encoder.eval()(images))


@torch.inference_mode()
def test_encoder_drop_path_acts_in_train_mode_only_and_rises_over_the_blocks():
    torch.manual_seed(0)
    encoder = Encoder(img_size=8, drop_path_rate=0.6, **{**SMALL, "depth": 4})
    rates = [getattr(block.drop_path1, "drop_prob", 0.0) for block in encoder.blocks]
    assert rates == pytest.approx([0, 0.2, 0.4, 0.6])
    images = torch.randn(8, 3, 8, 8)
    assert not torch.equal(encoder.train()(images), encoder(images))
    assert torch.equal(encoder.eval()(images), encoder(images))


@torch.inference_mode()
def test_forward_patches_visible_in_any_order_sees_the_same_set(encoder):
    patches = encoder.patchify(torch.randn(1, 3, 8, 12).double())
    ids = torch.tensor([[4, 0, 2]])
    one = encoder.forward_patches(patches[:, ids[0]], ids)
    other = encoder.forward_patches(patches[:, [0, 2, 4]], torch.tensor([[0, 2, 4]]))
    assert torch.allclose(one[:, [0, 2, 3, 1]], other, rtol=0, atol=1e-12)


def test_forward_patches_all_ids_equals_the_whole_image(encoder):
    images = torch.randn(2, 3, 8, 12).double()
    ids = torch.arange(6).expand(2, -1)
    tokens = encoder.forward_patches(encoder.patchify(images), ids)
    assert torch.allclose(tokens, encoder(images), rtol=0, atol=1e-12)


@pytest.mark.parametrize("shape", [(1, 3, 12, 8), (1, 1, 8, 12), (3, 8, 12)])
def test_encoder_images_of_another_shape_name_both(encoder, shape):
    with pytest.raises(ConfigError, match=r"images have shape .*reads \(batch, 3, 8, 12\)"):
        encoder(torch.zeros(shape).double())


def test_encoder_heads_that_do_not_divide_are_refused():
    with pytest.raises(ConfigError, match="num_heads 5 does not divide the width 32"):
        Encoder(img_size=8, **{**SMALL, "num_heads": 5})


def test_encoder_fresh_weights_follow_the_released_initialisation():
    torch.manual_seed(0)
    encoder = Encoder(img_size=32, patch_size=16, in_chans=3, embed_dim=192, depth=2, num_heads=3)
    linears = {n: m for n, m in encoder.named_modules() if isinstance(m, nn.Linear)}
    assert len(linears) == 2 * 4
    for name, linear in linears.items():
        bound = (6 / (linear.in_features + linear.out_features)) ** 0.5
        assert 0.999 * bound < linear.weight.abs().max() <= bound, name
        assert linear.weight.std().item() == pytest.approx(bound / 3**0.5, rel=0.02), name
        assert torch.count_nonzero(linear.bias) == 0, name
    norms = [m for m in encoder.modules() if isinstance(m, nn.LayerNorm)]
    assert len(norms) == 2 * 2 + 1
    assert all(norm.eps == 1e-6 for norm in norms)
    assert all(torch.equal(norm.weight, torch.ones(192)) for norm in norms)
    assert all(torch.count_nonzero(norm.bias) == 0 for norm in norms)


def test_encoder_fresh_projection_is_xavier_over_patch_vectors_with_torch_bias():
    torch.manual_seed(0)
    projection = Encoder(
        img_size=32, patch_size=16, in_chans=3, embed_dim=192, depth=1, num_heads=3
    ).patch_embed.proj
    bound = (6 / (3 * 16 * 16 + 192)) ** 0.5
    assert 0.999 * bound < projection.weight.abs().max() <= bound
    default = (3 * 16 * 16) ** -0.5  # nn.Conv2d: uniform over +- 1 / sqrt(fan in)
    assert 0.9 * default < projection.bias.abs().max() <= default


def test_encoder_fresh_cls_token_is_normal_with_std_002_and_the_table_is_frozen():
    torch.manual_seed(0)
    encoder = Encoder(img_size=32, patch_size=16, in_chans=1, embed_dim=4096, depth=0, num_heads=1)
    assert encoder.cls_token.std().item() == pytest.approx(0.02, rel=0.05)
    assert encoder.cls_token.mean().item() == pytest.approx(0, abs=0.002)
    assert not encoder.pos_embed.requires_grad
