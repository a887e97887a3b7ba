"""Folding LayerNorm away leaves a model that says the same."""

import pytest
import torch
from torch.testing import assert_close

from pathsum import stream
from pathsum.model import AttentionOnlyTransformer, Config


@pytest.mark.parametrize("smear", [False, True], ids=["keys", "smeared keys"])
def test_a_folded_model_has_the_same_logits_for_sequences_of_any_length(smear):
    sizes = {"n_heads": 3, "d_model": 12, "d_head": 5, "d_vocab": 17, "n_ctx": 7}
    model = AttentionOnlyTransformer(Config(2, norm="pre", smear=smear, **sizes), seed=3)
    generator = torch.Generator().manual_seed(3)
    model.requires_grad_(False)
    for W in (model.W_Q, model.W_K, model.W_V, model.W_O, model.W_U):
        W.mul_(4)
    model.norm_gain.normal_(1, 0.5, generator=generator)
    model.norm_bias.normal_(0, 0.5, generator=generator)
    plain, constants = stream.folded(model)
    for n in (7, 3, 1):
        tokens = torch.randint(17, (4, n), generator=generator)
        assert_close(plain(tokens, hook=constants), model(tokens), rtol=1e-4, atol=1e-4)
        assert (plain(tokens) - model(tokens)).abs().max() > 1e-2, "nothing to fold"


def test_a_model_without_layer_norm_has_nothing_to_fold():
    with pytest.raises(ValueError, match="only a model with norm"):
        stream.folded(AttentionOnlyTransformer(Config(1)))
