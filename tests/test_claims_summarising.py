"""The claims on copying can fail: each measurement is given something for which it is false."""

import torch

from pathsum.claims_summarising import (
    COUNTER_EXAMPLE,
    measure_agreement,
    measure_copying,
    measure_counter_example,
    measure_initial,
    measure_low_rank,
)
from pathsum.copying import initial_scores, null_of
from pathsum.factored import FactoredMatrix
from pathsum.model import Config

TOY = Config(n_layers=1, n_heads=3, d_model=12, d_head=5, d_vocab=17, n_ctx=7)
NULL = (0.0, 0.05)


def test_low_rank_needs_the_full_rank_and_sees_a_dense_table():
    g = torch.Generator().manual_seed(0)
    A, B = torch.randn(2, 30, 4, generator=g), torch.randn(2, 4, 30, generator=g)
    assert measure_low_rank(FactoredMatrix(A, B), 4).verdict == "exact"
    A[0, :, 3] = A[0, :, 2]  # rank 3
    assert measure_low_rank(FactoredMatrix(A, B), 4).verdict == "not seen"


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
