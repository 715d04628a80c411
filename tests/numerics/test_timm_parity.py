"""Our encoder against timm's VisionTransformer with the same state dict."""

from __future__ import annotations

import pytest
import timm
import torch

from mae.encoder import Encoder

SHAPES = {
    "square rgb": {"img_size": 32, "patch_size": 8, "in_chans": 3},
    "wide one channel": {"img_size": (16, 40), "patch_size": 8, "in_chans": 1},
    "tall thirteen bands": {"img_size": (48, 16), "patch_size": (16, 8), "in_chans": 13},
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)], ids=["f64", "f32"]
)
def test_encode_against_timm_gives_the_same_tokens(randomise, shape, dtype, tolerance):
    sizes = {"embed_dim": 64, "depth": 4, "num_heads": 4, "mlp_ratio": 3.0}
    ours = randomise(Encoder(**shape, **sizes)).to(dtype).eval()
    theirs = timm.create_model("vit_tiny_patch16_224", num_classes=0, **shape, **sizes)
    theirs.load_state_dict(ours.state_dict(), strict=True)  # the names are timm's
    theirs.to(dtype).eval()
    generator = torch.Generator().manual_seed(0)
    size = (3, ours.in_chans, *ours.img_size)
    images = torch.randn(size, generator=generator, dtype=torch.float64).to(dtype)

    with torch.inference_mode():
        tokens, reference = ours(images), theirs.forward_features(images)

    assert tokens.shape == reference.shape == (3, 1 + ours.num_patches, 64)
    assert (tokens - reference).abs().max().item() <= tolerance
