from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from mae.encoder import Encoder
from mae.errors import DataError, WeightsError
from mae.evaluate.features import batches, extract, frozen, weights_digest
from mae.spec import ImageSpec

SPEC = ImageSpec(
    channels=("a", "b"), dtype="uint16", mean=(900.0, 300.0), std=(200.0, 50.0),
    value_range=(0.0, 65535.0),
)  # fmt: skip


class Images:
    """A small uint16 data set with two channels."""

    def __init__(self, num=10, *, groups=True):
        self.pixels = np.random.default_rng(0).integers(0, 2000, (num, 2, 16, 24), dtype=np.uint16)
        self.groups = groups

    def __len__(self):
        return len(self.pixels)

    def __getitem__(self, index):
        return {
            "image": self.pixels[index],
            "label": index % 3,
            "group": f"g{index // 4}" if self.groups else None,
            "key": f"k{index}",
        }


@pytest.fixture
def encoder() -> Encoder:
    torch.manual_seed(0)
    return Encoder(
        img_size=(16, 24), patch_size=8, in_chans=2, embed_dim=32, depth=2, num_heads=4,
        drop_path_rate=0.5,
    )  # fmt: skip


def read(encoder, images=None, *, batch_size=4, **kwargs):
    images = batches(images or Images(), batch_size=batch_size)
    return extract(images, {"mae": encoder}, SPEC, what="test", **kwargs)


def test_extract_small_set_gives_named_features_in_order(encoder):
    done = []
    found = read(encoder, on_batch=done.append)
    assert {name: value.shape for name, value in found.features.items()} == {
        "pixels": (10, 128), "colour": (10, 4), "mae/cls": (10, 32), "mae/mean": (10, 32),
    }  # fmt: skip
    assert len(found) == 10
    assert found.keys == tuple(f"k{i}" for i in range(10))
    assert found.labels.tolist() == [i % 3 for i in range(10)]
    assert found.groups == tuple(f"g{i // 4}" for i in range(10))
    assert done == [4, 8, 10]


def test_extract_encoder_sees_pixels_normalised_by_the_models_own_statistics(encoder):
    found = read(encoder)
    raw = Images().pixels.astype(np.float64)
    mean, std = (np.array(v)[:, None, None] for v in (SPEC.mean, SPEC.std))
    with torch.no_grad():
        tokens = encoder.eval().double()(torch.from_numpy((raw - mean) / std)).numpy()
    np.testing.assert_allclose(found.features["mae/cls"], tokens[:, 0], atol=1e-4)
    np.testing.assert_allclose(found.features["mae/mean"], tokens[:, 1:].mean(1), atol=1e-4)
    np.testing.assert_allclose(
        found.features["colour"], np.c_[raw.mean((2, 3)), raw.std((2, 3))], rtol=1e-5
    )


def test_extract_training_encoder_leaves_weights_modes_and_random_state(encoder):
    encoder.train()
    encoder.blocks[1].eval()
    modes = [module.training for module in encoder.modules()]
    digest, state = weights_digest(encoder), torch.get_rng_state()
    read(encoder)
    assert [module.training for module in encoder.modules()] == modes
    assert weights_digest(encoder) == digest
    assert torch.equal(torch.get_rng_state(), state)
    assert all(parameter.grad is None for parameter in encoder.parameters())


def test_extract_training_mode_before_gives_the_features_of_eval_mode(encoder):
    first = read(encoder.train()).features["mae/mean"]
    np.testing.assert_array_equal(first, read(encoder.eval()).features["mae/mean"])


def test_extract_other_batch_mates_give_the_same_features(encoder):
    first, second = (read(encoder, batch_size=size).features for size in (1, 7))
    for name in first:
        np.testing.assert_allclose(first[name], second[name], rtol=1e-5, atol=1e-5)


def test_extract_no_groups_is_none(encoder):
    assert read(encoder, Images(groups=False)).groups is None


def test_extract_some_groups_missing_names_a_sample(encoder):
    images = Images()
    rows = [images[i] for i in range(4)]
    rows[2]["group"] = None
    with pytest.raises(DataError, match=r"1 of 4 .* 'k2'"):
        read(encoder, rows)


def test_extract_unlabelled_sample_is_named(encoder):
    rows = [Images()[0], {k: v for k, v in Images()[1].items() if k != "label"}]
    with pytest.raises(DataError, match="'k1' has no label"):
        read(encoder, rows)


def test_extract_empty_split_is_refused(encoder):
    with pytest.raises(DataError, match="test split is empty"):
        extract([], {"mae": encoder}, SPEC, what="test")


def test_extract_diverged_weights_are_refused(encoder):
    with torch.no_grad():
        encoder.cls_token.fill_(float("nan"))
    with pytest.raises(WeightsError, match="diverged"):
        read(encoder)


def test_frozen_error_inside_gives_modes_back():
    module = nn.Sequential(nn.Dropout(), nn.Linear(1, 1))
    inside = []

    def fail():
        with frozen(module):
            inside.extend([module[0].training, torch.is_inference_mode_enabled()])
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert inside == [False, True]
    assert module[0].training
    assert not torch.is_inference_mode_enabled()


def test_weights_digest_any_changed_value_name_or_buffer_changes_it():
    def build(**changes):
        module = nn.BatchNorm1d(3)
        for name, value in changes.items():
            getattr(module, name).data.add_(value)
        return weights_digest(module)

    assert build() == build()
    digests = {build(), build(weight=1e-7), build(bias=1), build(running_var=1),
               build(num_batches_tracked=1)}  # fmt: skip
    assert len(digests) == 5
