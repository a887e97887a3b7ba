"""Circuits equal dense products; positions depend on the offset alone; copying is recognised."""

import pytest
import torch
from torch.testing import assert_close

from pathsum.circuits import (
    copying_eigenvalues,
    diagonal_ranks,
    direct_path,
    full_ov_circuits,
    full_ov_eigenvalues,
    full_qk_circuits,
    positional_scores,
    positivity,
    positivity_null,
)
from pathsum.composition import ov_circuits
from pathsum.heads import copying_score
from pathsum.model import AttentionOnlyTransformer, Config

TOY = Config(n_layers=2, n_heads=3, d_model=12, d_head=5, d_vocab=17, n_ctx=7)


def toy(config=TOY):
    return AttentionOnlyTransformer(config, seed=0).requires_grad_(False)


def test_full_circuits_equal_their_dense_products():
    m = toy()
    for head in range(3):
        ov = m.W_E @ m.W_V[1, head] @ m.W_O[1, head] @ m.W_U
        assert_close(full_ov_circuits(m, 1)[head].dense(), ov)
        qk = m.W_E @ m.W_Q[1, head] @ m.W_K[1, head].mT @ m.W_E.mT / 5**0.5
        assert_close(full_qk_circuits(m, 1)[head].dense(), qk)
    assert_close(direct_path(m).dense(), m.W_E @ m.W_U)


def test_one_planted_entry_comes_out_at_source_row_and_output_column():
    m = toy(Config(1, 1, 17, 5, 17, 7))
    m.W_E.copy_(torch.eye(17))
    m.W_U.copy_(torch.eye(17))
    m.W_V.zero_()
    m.W_O.zero_()
    m.W_V[0, 0, 3, 0], m.W_O[0, 0, 0, 11] = 1, 1
    dense = full_ov_circuits(m, 0)[0].dense()
    assert dense.nonzero().tolist() == [[3, 11]]


def test_positional_scores_equal_a_slow_loop():
    m = toy()
    got = positional_scores(m, 0)
    assert got.shape == (3, 7)
    for head in range(3):
        for offset in range(7):
            values = [
                (m.W_pos[i] @ m.W_Q[0, head]) @ (m.W_pos[i - offset] @ m.W_K[0, head]) / 5**0.5
                for i in range(offset, 7)
            ]
            assert_close(got[head, offset], torch.stack(values).mean())


def test_eigenvalue_scores_agree_with_the_training_record():
    m = toy()
    both = torch.stack([positivity(copying_eigenvalues(m, layer)) for layer in range(2)])
    assert_close(both.float(), copying_score(m))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
def test_eigenvalues_of_stacked_heads_are_those_of_the_multiplied_table(dtype, tolerance):
    m = toy(Config(3, 2, 12, 5, 5_000, 7)).to(dtype)  # a vocabulary of more than one piece
    got = full_ov_eigenvalues(m.W_E, ov_circuits(m), m.W_U)
    assert got.shape == (3, 2, 5)
    table = m.W_E.double() @ m.W_V[2, 1].double() @ m.W_O[2, 1].double() @ m.W_U.double()
    few = table[:, :5]  # of rank 5: they span the range
    basis = torch.linalg.qr(few).Q
    small = basis.mT @ (table @ basis)  # the table on its range, where all its eigenvalues are
    expected = torch.linalg.eigvals(small)
    power = torch.arange(1, 6)[:, None]
    scale = expected.abs().max()
    sums = [((v / scale) ** power).sum(-1) for v in (got[2, 1], expected)]
    assert_close(*sums, rtol=tolerance, atol=tolerance)


def test_two_by_two_counter_example_is_positive_without_copying():
    matrix = torch.tensor([[-1.0, 3.0], [-2.0, 4.0]])
    values = torch.linalg.eigvals(matrix)
    assert_close(positivity(values), torch.tensor(1.0))
    assert matrix[0, 0] < 0


def test_the_null_has_mean_zero_and_the_known_spread():
    mean, sd = positivity_null(64, 16, torch.Generator().manual_seed(0), draws=400)
    assert abs(mean) < 4 * sd / 20
    assert 1.2 / 16 < sd < 1.9 / 16


def test_diagonal_ranks_count_outputs_above_the_own_token():
    circuit = full_ov_circuits(toy(), 0)
    dense = circuit.dense()
    got = diagonal_ranks(circuit, chunk=5)
    for token in range(17):
        own = dense[:, token, token, None]
        assert_close(got[:, token], (dense[:, token] > own).sum(-1).float())


@pytest.mark.parametrize("layer", [-1, 2])
def test_layers_out_of_range_are_refused(layer):
    for function in (full_ov_circuits, full_qk_circuits, positional_scores, copying_eigenvalues):
        with pytest.raises(IndexError, match=rf"0\.\.1, got {layer}"):
            function(toy(), layer)
    with pytest.raises(IndexError, match="no attention layers"):
        full_ov_circuits(toy(Config(0, 3, 12, 5, 17, 7)), 0)


def test_an_offset_outside_the_context_is_refused():
    with pytest.raises(ValueError, match=r"0\.\.6, got 7"):
        positional_scores(toy(), 0, 7)
