from __future__ import annotations

import pytest
import torch
from torch import nn

from mae.classifier import Classifier
from mae.encoder import Encoder
from mae.errors import ConfigError


def make_encoder(**changes) -> Encoder:
    torch.manual_seed(0)
    options = {"img_size": 16, "patch_size": 8, "in_chans": 2, "embed_dim": 16, "depth": 2}
    encoder = Encoder(**options, num_heads=2, **changes)
    with torch.no_grad():  # norms that do something
        for parameter in encoder.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return encoder


@pytest.fixture
def images():
    return torch.randn(3, 2, 16, 16, generator=torch.Generator().manual_seed(1))


def test_classifier_with_cls_reads_the_encoders_own_normed_cls_token(images):
    encoder = make_encoder()
    with torch.no_grad():
        expected = encoder(images)[:, 0]
        model = Classifier(encoder, num_classes=3, global_pool="cls").eval()
        nn.init.eye_(model.head.weight)
        assert torch.equal(model(images), expected[:, :3])


def test_classifier_with_mean_norms_the_mean_of_unnormed_patch_tokens(images):
    encoder = make_encoder()
    with torch.no_grad():
        tokens = encoder.patch_embed(encoder.patchify(images)) + encoder.pos_embed[:, 1:]
        cls = (encoder.cls_token + encoder.pos_embed[:, :1]).expand(3, -1, -1)
        tokens = torch.cat([cls, tokens], dim=1)
        for block in encoder.blocks:
            tokens = block(tokens)
        mean = tokens[:, 1:].mean(1)
        centred = mean - mean.mean(1, keepdim=True)
        expected = centred / (centred.square().mean(1, keepdim=True) + 1e-6).sqrt()
        model = Classifier(encoder, num_classes=3, global_pool="mean").eval()
        nn.init.eye_(model.head.weight)
        torch.testing.assert_close(model(images), expected[:, :3], atol=1e-5, rtol=1e-5)


def test_classifier_starts_near_uniform_with_a_zero_bias(images):
    model = Classifier(make_encoder(), num_classes=4, global_pool="mean").eval()
    probabilities = model(images).softmax(1)
    torch.testing.assert_close(probabilities, torch.full((3, 4), 0.25), atol=1e-3, rtol=0)
    assert not model.head.bias.any()
    assert 1e-5 < model.head.weight.std() < 4e-5  # 2e-5, 64 values


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_classifier_backward_gives_every_trainable_parameter_a_gradient(images, pooling):
    model = Classifier(make_encoder(), num_classes=3, global_pool=pooling)
    nn.init.normal_(model.head.weight)
    nn.functional.cross_entropy(model(images), torch.tensor([0, 1, 2])).backward()
    without = [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None]
    assert without == []
    assert model.encoder.pos_embed.grad is not None


@pytest.mark.parametrize("num_classes", [0, 1])
def test_classifier_with_fewer_than_two_classes_is_refused(num_classes):
    with pytest.raises(ConfigError, match=f"num_classes is {num_classes}; .* at least 2"):
        Classifier(make_encoder(), num_classes=num_classes, global_pool="cls")
