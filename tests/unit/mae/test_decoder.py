from __future__ import annotations

import pytest
import torch
from torch import nn

from mae.decoder import Decoder
from mae.errors import ConfigError
from mae.masking import random_masking


def build(**changes) -> Decoder:
    settings = {
        "encoder_dim": 24,
        "grid_size": (3, 4),
        "patch_dim": 10,
        "decoder_embed_dim": 16,
        "decoder_depth": 2,
        "decoder_num_heads": 2,
    }
    torch.manual_seed(0)
    return Decoder(**(settings | changes)).double()


def in_image_order(decoder: Decoder, latent, masking):
    """The textbook way: restore the order of the image first, predict all, take the removed."""
    tokens = decoder.decoder_embed(latent)
    blanks = decoder.mask_token.expand(len(tokens), masking.ids_removed.shape[1], -1)
    shuffled = torch.cat([tokens[:, 1:], blanks], dim=1)
    restored = torch.stack(
        [row[ids] for row, ids in zip(shuffled, masking.ids_restore, strict=True)]
    )
    tokens = torch.cat([tokens[:, :1], restored], dim=1) + decoder.decoder_pos_embed
    for block in decoder.decoder_blocks:
        tokens = block(tokens)
    predicted = decoder.decoder_pred(decoder.decoder_norm(tokens))[:, 1:]
    return torch.stack([row[ids] for row, ids in zip(predicted, masking.ids_removed, strict=True)])


def test_decoder_visible_first_equals_decoding_in_image_order():
    decoder = build()
    masking = random_masking(torch.rand(3, 12), 0.75)
    latent = torch.randn(3, 4, 24, dtype=torch.float64)
    expected = in_image_order(decoder, latent, masking)
    found = decoder(latent, masking)
    assert found.shape == (3, 9, 10)
    assert torch.allclose(found, expected, rtol=0, atol=1e-12)


def test_decoder_one_removed_patch_predicts_one():
    decoder = build()
    masking = random_masking(torch.rand(2, 12), 0.01)
    assert decoder(torch.randn(2, 12, 24).double(), masking).shape == (2, 1, 10)


def test_decoder_fresh_weights_follow_the_released_initialisation():
    decoder = build(decoder_embed_dim=256, decoder_num_heads=4)
    for linear in (m for m in decoder.modules() if isinstance(m, nn.Linear)):
        bound = (6 / (linear.in_features + linear.out_features)) ** 0.5
        assert 0.98 * bound < linear.weight.abs().max() <= bound * (1 + 1e-6)
        assert torch.count_nonzero(linear.bias) == 0
    assert all(m.eps == 1e-6 for m in decoder.modules() if isinstance(m, nn.LayerNorm))
    assert decoder.mask_token.std().item() == pytest.approx(0.02, rel=0.2)
    assert not decoder.decoder_pos_embed.requires_grad


def test_decoder_heads_that_do_not_divide_are_refused():
    with pytest.raises(ConfigError, match="num_heads 3 does not divide the width 16"):
        build(decoder_num_heads=3)
