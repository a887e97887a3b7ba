"""How much heads copy: planted heads are seen by every measure, and chance is what it should be."""

import pytest
import torch

from pathsum.copying import copied_logits, copying_measures, positivity_of, rank_correlation
from pathsum.model import AttentionOnlyTransformer, Config, cache
from pathsum.paths import path_terms

TOY = Config(n_layers=1, n_heads=3, d_model=12, d_head=5, d_vocab=17, n_ctx=7)


def toy():
    return AttentionOnlyTransformer(TOY, seed=0).requires_grad_(False)


def copying_toy():
    """Head 1 writes what it reads into directions that the unembedding reads as the same token."""
    model = toy()
    model.W_U[:] = model.W_E.mT
    model.W_O[0, 1] = model.W_V[0, 1].mT
    model.W_O[0, 2] = -model.W_V[0, 2].mT
    return model


def test_all_four_measures_see_a_planted_copying_head():
    found = copying_measures(copying_toy())
    for name, values in found.items():
        assert values.argmax() == 1, name
    torch.testing.assert_close(
        found["eigenvalues"][1:], torch.tensor([1.0, -1.0], dtype=torch.float64)
    )
    assert found["trace"][2] < -3 < 3 < found["trace"][1]
    assert positivity_of(copying_toy()).shape == (1, 3)


def test_the_trace_of_untrained_heads_has_unit_variance_in_its_own_units():
    traces = torch.cat(
        [copying_measures(AttentionOnlyTransformer(TOY, s))["trace"] for s in range(200)]
    )
    assert abs(traces.mean()) < 0.2 and 0.85 < traces.std() < 1.15


def test_rank_correlation_is_that_of_ranks_with_ties_shared():
    x = torch.tensor([1.0, 2.0, 3.0, 4.0])
    assert rank_correlation(x, x.exp()) == pytest.approx(1)
    assert rank_correlation(x, -x) == pytest.approx(-1)
    tied = rank_correlation(torch.tensor([1.0, 1.0, 2.0]), torch.tensor([1.0, 2.0, 3.0]))
    assert tied == pytest.approx(0.75**0.5)


def test_copied_logits_are_the_part_of_the_heads_terms_that_falls_on_their_sources():
    model = copying_toy()
    tokens = torch.tensor([[0, 3, 5, 3, 9]])
    heads = path_terms(model, tokens).values[1:].sum(0) @ model.W_U
    pattern = cache(model, tokens)["L0.pattern"][0]
    expected = torch.zeros(1, 5, 17)
    for head in range(3):
        table = model.W_E @ model.W_V[0, head] @ model.W_O[0, head] @ model.W_U
        for dest in range(5):
            for src in range(dest + 1):
                token = tokens[0, src]
                expected[0, dest, token] += pattern[head, dest, src] * table[token, token]
    torch.testing.assert_close(copied_logits(model, tokens), expected)
    assert (heads - expected).abs().max() > 1e-3
    with pytest.raises(ValueError, match="one layer, got 2"):
        copied_logits(AttentionOnlyTransformer(Config(n_layers=2, d_vocab=17)), tokens)
