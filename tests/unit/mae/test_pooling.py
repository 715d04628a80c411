from __future__ import annotations

import torch

from mae.pooling import pool

TOKENS = torch.tensor([[[9.0, 9.0], [1.0, 2.0], [3.0, 6.0]]])


def test_pool_cls_takes_the_first_token():
    assert pool(TOKENS, "cls").tolist() == [[9, 9]]


def test_pool_mean_leaves_the_cls_token_out():
    assert pool(TOKENS, "mean").tolist() == [[2, 4]]
