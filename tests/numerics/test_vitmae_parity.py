"""Our model against transformers' ViTMAEForPreTraining: same weights, images and noise."""

from __future__ import annotations

import pytest
import torch
from transformers import ViTMAEConfig, ViTMAEForPreTraining

from mae.masking import num_visible
from mae.model import MaskedAutoencoder

ARCHITECTURE = {
    "patch_size": 4,
    "embed_dim": 48,
    "depth": 3,
    "num_heads": 4,
    "decoder_embed_dim": 32,
    "decoder_depth": 2,
    "decoder_num_heads": 2,
}
ENCODER_NAMES = {
    "cls_token": "vit.embeddings.cls_token",
    "pos_embed": "vit.embeddings.position_embeddings",
    "patch_embed.proj": "vit.embeddings.patch_embeddings.projection",
    "blocks": "vit.layers",
    "norm": "vit.layernorm",
}
DECODER_NAMES = {
    "mask_token": "decoder.mask_token",
    "decoder_pos_embed": "decoder.decoder_pos_embed",
    "decoder_embed": "decoder.decoder_embed",
    "decoder_blocks": "decoder.decoder_layers",
    "decoder_norm": "decoder.decoder_norm",
    "decoder_pred": "decoder.decoder_pred",
}
BLOCK_NAMES = {
    "norm1": "layernorm_before",
    "norm2": "layernorm_after",
    "attn.proj": "attention.o_proj",
    "mlp.fc1": "mlp.fc1",
    "mlp.fc2": "mlp.fc2",
}


def in_their_names(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Rename our tensors by REFERENCE's table; q, k and v are the thirds of qkv."""
    renamed = {}
    for name, tensor in tensors.items():
        part, _, rest = name.partition(".")
        table = ENCODER_NAMES if part == "encoder" else DECODER_NAMES
        ours = next(key for key in sorted(table, key=len, reverse=True) if rest.startswith(key))
        tail = rest.removeprefix(ours)
        if not ours.endswith("blocks"):
            renamed[table[ours] + tail] = tensor
            continue
        _, number, inside = tail.split(".", 2)
        layer, kind = inside.rsplit(".", 1)
        if layer == "attn.qkv":
            for letter, third in zip("qkv", tensor.chunk(3), strict=True):
                renamed[f"{table[ours]}.{number}.attention.{letter}_proj.{kind}"] = third
        else:
            renamed[f"{table[ours]}.{number}.{BLOCK_NAMES[layer]}.{kind}"] = tensor
    return renamed


def build_pair(randomise, *, in_chans, mask_ratio, norm_pix_loss, dtype):
    ours = MaskedAutoencoder(
        img_size=24,
        in_chans=in_chans,
        mask_ratio=mask_ratio,
        norm_pix_loss=norm_pix_loss,
        **ARCHITECTURE,
    )
    randomise(ours).to(dtype)
    config = ViTMAEConfig(
        image_size=24,
        patch_size=4,
        num_channels=in_chans,
        hidden_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=192,
        layer_norm_eps=1e-6,
        decoder_hidden_size=32,
        decoder_num_hidden_layers=2,
        decoder_num_attention_heads=2,
        decoder_intermediate_size=128,
        mask_ratio=mask_ratio,
        norm_pix_loss=norm_pix_loss,
    )
    theirs = ViTMAEForPreTraining(config).to(dtype)
    # Built from scratch theirs has zero position tables: all of ours go in, strictly.
    theirs.load_state_dict(in_their_names(ours.state_dict()), strict=True)
    return ours, theirs


def largest(difference: torch.Tensor) -> float:
    return difference.detach().abs().max().item()


@pytest.mark.parametrize("norm_pix_loss", [True, False])
@pytest.mark.parametrize(("in_chans", "mask_ratio"), [(3, 0.75), (1, 0.5), (5, 0.75)])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)], ids=["f64", "f32"]
)
def test_forward_against_transformers_gives_the_same_loss_predictions_and_gradients(
    randomise, norm_pix_loss, in_chans, mask_ratio, dtype, tolerance
):
    ours, theirs = build_pair(
        randomise,
        in_chans=in_chans,
        mask_ratio=mask_ratio,
        norm_pix_loss=norm_pix_loss,
        dtype=dtype,
    )
    assert num_visible(36, mask_ratio) == int(36 * (1 - mask_ratio))  # where both rules agree
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(4, in_chans, 24, 24, generator=generator, dtype=torch.float64).to(dtype)
    noise = torch.rand(4, 36, generator=generator)

    mine = ours(images, noise=noise)
    reference = theirs(images, noise=noise)
    mine.loss.backward()
    reference.loss.backward()

    assert torch.equal(mine.masking.mask, reference.mask.bool())
    assert torch.equal(mine.masking.ids_restore, reference.ids_restore)
    assert largest(mine.loss - reference.loss) <= tolerance
    ids = mine.masking.ids_removed[:, :, None].expand(-1, -1, 16 * in_chans)
    predictions = reference.logits.gather(1, ids)
    assert largest(mine.pred - predictions) <= tolerance

    gradients = in_their_names(
        {name: p.grad for name, p in ours.named_parameters() if p.requires_grad}
    )
    trainable = {name: p for name, p in theirs.named_parameters() if p.requires_grad}
    assert gradients.keys() == trainable.keys()
    assert max(largest(gradients[name] - p.grad) for name, p in trainable.items()) <= tolerance
