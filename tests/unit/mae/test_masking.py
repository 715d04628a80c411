from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mae.errors import ConfigError
from mae.masking import keyed_noise, num_visible, random_masking

WORD = 2**32


def murmur3_finaliser(word: int) -> int:
    """MurmurHash3's 32-bit finaliser in Python's unbounded integers."""
    word ^= word >> 16
    word = word * 0x85EBCA6B % WORD
    word ^= word >> 13
    word = word * 0xC2B2AE35 % WORD
    return word ^ word >> 16


def keyed_noise_by_hand(seed: int, position: int, patch: int, view: int) -> float:
    golden = 0x9E3779B9
    state = murmur3_finaliser((seed ^ view * golden) % WORD)
    state = murmur3_finaliser(state ^ position % WORD)
    state = murmur3_finaliser(state ^ position // WORD ^ golden)
    word = murmur3_finaliser(state ^ murmur3_finaliser((patch + 1) * golden % WORD))
    return (word // 256) / 2**24


@pytest.mark.parametrize(
    ("num_patches", "mask_ratio", "visible"),
    [
        (196, 0.75, 49),
        (256, 0.75, 64),
        (196, 0.9, 19),
        (100, 0.9, 10),  # floating point gives 9
        (900, 0.8, 180),
        (10, 0.9, 1),  # floating point gives 0
        (16, 0.75, 4),
        (4, 0.999, 1),  # one always stays visible
        (4, 0.001, 3),  # one is always removed
        (2, 0.5, 1),
    ],
)
def test_num_visible_known_cases_are_exact(num_patches, mask_ratio, visible):
    assert num_visible(num_patches, mask_ratio) == visible


@settings(deadline=None)  # a busy machine is no defect
@given(num_patches=st.integers(2, 5000), thousandths=st.integers(1, 999))
def test_num_visible_any_ratio_is_the_floor_in_whole_numbers(num_patches, thousandths):
    floor = num_patches * (1000 - thousandths) // 1000
    assert num_visible(num_patches, thousandths / 1000) == min(max(floor, 1), num_patches - 1)


@pytest.mark.parametrize("mask_ratio", [0, 1, 1.5, -0.1, 0.0, 1.0, float("nan")])
def test_num_visible_impossible_ratio_says_the_range(mask_ratio):
    with pytest.raises(ConfigError, match=r"mask_ratio is .*above 0 and below 1"):
        num_visible(16, mask_ratio)


def test_num_visible_single_patch_is_refused():
    with pytest.raises(ConfigError, match="smaller patch_size or a larger img_size"):
        num_visible(1, 0.5)


def test_random_masking_known_noise_keeps_the_smallest():
    masking = random_masking(torch.tensor([[0.3, 0.1, 0.9, 0.2]]), 0.5)
    assert masking.ids_keep.tolist() == [[1, 3]]
    assert masking.ids_removed.tolist() == [[0, 2]]
    assert masking.ids_restore.tolist() == [[2, 0, 3, 1]]
    assert masking.mask.tolist() == [[True, False, True, False]]


def test_random_masking_ties_go_by_position():
    masking = random_masking(torch.zeros(1, 6), 0.5)
    assert masking.ids_keep.tolist() == [[0, 1, 2]]


@settings(deadline=None)  # a busy machine is no defect
@given(batch=st.integers(1, 4), num_patches=st.integers(2, 40), percent=st.integers(1, 99))
def test_random_masking_any_noise_splits_the_patches_in_two(batch, num_patches, percent):
    masking = random_masking(torch.rand(batch, num_patches), percent / 100)
    both = torch.cat([masking.ids_keep, masking.ids_removed], dim=1)
    everything = torch.arange(num_patches).expand(batch, -1)
    assert torch.equal(both.sort(dim=1).values, everything)
    assert torch.equal(both.gather(1, masking.ids_restore), everything)
    for row in range(batch):
        removed = masking.mask[row].nonzero().flatten().tolist()
        assert removed == sorted(masking.ids_removed[row].tolist())


def test_random_masking_keyed_noise_gives_every_image_its_own_mask():
    masks = random_masking(keyed_noise(0, torch.arange(64), 196), 0.75).mask
    assert masks.sum(dim=1).unique().tolist() == [147]
    assert len(masks.unique(dim=0)) == 64


@settings(deadline=None)  # a busy machine is no defect
@given(
    seed=st.integers(0, 2**32 - 1),
    position=st.integers(0, 2**50),
    view=st.integers(0, 8),
    patch=st.integers(0, 30),
)
def test_keyed_noise_any_key_equals_the_hash_in_python_integers(seed, position, view, patch):
    noise = keyed_noise(seed, torch.tensor([position]), 31, view=view)
    assert noise.dtype == torch.float32
    assert noise[0, patch].item() == keyed_noise_by_hand(seed, position, patch, view)


def test_keyed_noise_frozen_keys_never_change():
    # Written down once from keyed_noise_by_hand: another value breaks the resume of old runs.
    noise = keyed_noise(42, torch.tensor([0, 1, 2**33 + 5]), 3)
    assert (noise * 2**24).long().tolist() == [
        [8896608, 16005059, 14313418],
        [13064121, 2277040, 16338472],
        [376567, 12012266, 1251931],
    ]


def test_keyed_noise_over_many_keys_is_uniform():
    noise = keyed_noise(7, torch.arange(2000), 64).double()
    assert 0 <= noise.min() < 1e-4
    assert 1 - 1e-4 < noise.max() < 1
    counts = torch.histc(noise, bins=64, min=0, max=1)
    expected = noise.numel() / 64
    chi_square = ((counts - expected) ** 2 / expected).sum().item()
    assert chi_square < 63 + 6 * (2 * 63) ** 0.5  # six standard deviations
    # Each place removes each patch equally often: no patch is favoured.
    share = random_masking(noise, 0.75).mask.double().mean(dim=0)
    assert (share - 0.75).abs().max() < 6 * (0.75 * 0.25 / 2000) ** 0.5


def test_keyed_noise_neighbouring_keys_are_uncorrelated():
    base = keyed_noise(3, torch.arange(500), 196).double()
    others = {
        "position": keyed_noise(3, torch.arange(1, 501), 196),
        "seed": keyed_noise(4, torch.arange(500), 196),
        "view": keyed_noise(3, torch.arange(500), 196, view=1),
        "patch": base.roll(1, dims=1),
    }
    for what, other in others.items():
        pair = torch.stack([base.flatten(), other.double().flatten()])
        assert abs(torch.corrcoef(pair)[0, 1].item()) < 6 / base.numel() ** 0.5, what


def test_keyed_noise_row_does_not_depend_on_the_batch():
    together = keyed_noise(5, torch.arange(10), 16)
    assert torch.equal(keyed_noise(5, torch.tensor([7]), 16)[0], together[7])
