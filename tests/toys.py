"""What several tests of the claims try their measurements on: small untrained models, random text."""

from dataclasses import replace

import torch

from pathsum.model import AttentionOnlyTransformer, Config

TOY = Config(n_layers=1, n_heads=3, d_model=12, d_head=5, d_vocab=17, n_ctx=80)


def lively(n_layers=1, seed=0):
    """An untrained model whose weights are large enough for attention to be uneven."""
    model = AttentionOnlyTransformer(replace(TOY, n_layers=n_layers), seed).requires_grad_(False)
    for weights in (model.W_E, model.W_Q, model.W_K, model.W_V, model.W_O, model.W_U):
        weights *= 4
    return model


def texts(rows=4, length=80):
    return torch.randint(17, (rows, length), generator=torch.Generator().manual_seed(0))
