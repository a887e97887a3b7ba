"""The claims on copying can fail: each measurement is given something for which it is false."""

import pytest
import torch

from pathsum.claims_summarising import (
    COUNTER_EXAMPLE,
    copied_logits,
    copying_measures,
    initial_scores,
    measure_agreement,
    measure_copying,
    measure_counter_example,
    measure_initial,
    measure_low_rank,
    null_of,
    positivity_of,
    rank_correlation,
)
from pathsum.factored import FactoredMatrix
from pathsum.model import AttentionOnlyTransformer, Config, cache
from pathsum.paths import path_terms

TOY = Config(n_layers=1, n_heads=3, d_model=12, d_head=5, d_vocab=17, n_ctx=7)
NULL = (0.0, 0.05)


def toy():
    return AttentionOnlyTransformer(TOY, seed=0).requires_grad_(False)


def copying_toy():
    """Head 1 writes what it reads into directions that the unembedding reads as the same token."""
    model = toy()
    model.W_U[:] = model.W_E.mT
    model.W_O[0, 1] = model.W_V[0, 1].mT
    model.W_O[0, 2] = -model.W_V[0, 2].mT
    return model


def test_low_rank_needs_the_full_rank_and_sees_a_dense_table():
    g = torch.Generator().manual_seed(0)
    A, B = torch.randn(2, 30, 4, generator=g), torch.randn(2, 4, 30, generator=g)
    assert measure_low_rank(FactoredMatrix(A, B), 4).verdict == "exact"
    A[0, :, 3] = A[0, :, 2]  # rank 3
    assert measure_low_rank(FactoredMatrix(A, B), 4).verdict == "not seen"


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


def test_copying_needs_a_majority_far_from_chance_and_above_a_half():
    assert measure_copying(torch.tensor([0.9, 0.8, -0.9]), NULL).verdict == "holds"
    assert measure_copying(torch.tensor([0.9, 0.4, 0.1]), NULL).verdict == "weaker"
    assert measure_copying(torch.tensor([0.9, 0.1, -0.9]), NULL).verdict == "not seen"


def test_untrained_scores_are_symmetric_and_shifted_ones_are_not():
    null = null_of(TOY)
    scores = initial_scores(TOY, seeds=40)
    assert scores.shape == (40, 3)
    assert measure_initial(scores, null).verdict == "holds"
    assert measure_initial(scores + 0.3, null).verdict == "not seen"
    assert measure_initial(3 * scores, null).verdict == "not seen"


def test_rank_correlation_is_that_of_ranks_with_ties_shared():
    x = torch.tensor([1.0, 2.0, 3.0, 4.0])
    assert rank_correlation(x, x.exp()) == pytest.approx(1)
    assert rank_correlation(x, -x) == pytest.approx(-1)
    tied = rank_correlation(torch.tensor([1.0, 1.0, 2.0]), torch.tensor([1.0, 2.0, 3.0]))
    assert tied == pytest.approx(0.75**0.5)


def test_agreement_is_asked_of_every_measure():
    x = torch.arange(8.0)
    mixed = torch.tensor([3.0, 1, 7, 0, 5, 2, 6, 4])
    assert measure_agreement({"a": x, "b": x**2, "c": x.exp()}).verdict == "holds"
    assert measure_agreement({"a": x, "b": x**2, "c": mixed}).verdict == "weaker"
    assert measure_agreement({"a": x, "b": -x, "c": mixed}).verdict == "not seen"


def test_the_counter_example_is_one_and_others_are_not():
    diagonal, frequent = torch.tensor([1.0, -1, 1, 1]), torch.tensor([1, 2])
    found = measure_counter_example(torch.tensor(COUNTER_EXAMPLE), diagonal, frequent, "L0H0")
    assert found.verdict == "exact" and found.number == 0.25
    assert "eigenvalues 1 and 2" in found.detail and "50.0% of the 2 most" in found.detail
    for matrix in (torch.eye(2), torch.tensor([[-1.0, 3.0], [2.0, 4.0]])):
        assert measure_counter_example(matrix, diagonal, frequent, "x").verdict == "not seen"


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
