"""A factored matrix answers every question as the dense product does."""

import pytest
import torch
from torch.testing import assert_close

from pathsum import factored as module
from pathsum.factored import FactoredMatrix, contract

SHAPES = [(11, 11, 4), (11, 11, 14), (7, 13, 3), (5, 9, 12)]
IDS = ["square", "rank > side", "wide", "rank > both sides"]


def pair(rows, cols, rank, batch=(2, 3), seed=0):
    generator = torch.Generator().manual_seed(seed)
    A = torch.randn(*batch, rows, rank, generator=generator, dtype=torch.float64)
    B = torch.randn(*batch, rank, cols, generator=generator, dtype=torch.float64)
    return FactoredMatrix(A, B), A @ B


@pytest.mark.parametrize(("rows", "cols", "rank"), SHAPES, ids=IDS)
def test_parts_norm_and_transpose_equal_the_dense_product(rows, cols, rank):
    M, dense = pair(rows, cols, rank)
    assert M.shape == dense.shape
    assert_close(M.dense(), dense)
    assert_close(M.mT.dense(), dense.mT)
    assert_close(M.rows([4, 0]), dense[..., [4, 0], :])
    assert_close(M.columns(torch.tensor([3])), dense[..., [3]])
    assert_close(M.entries(torch.tensor([1, 4]), torch.tensor([0, 2])), dense[..., [1, 4], [0, 2]])
    assert_close(M.diagonal(), dense.diagonal(dim1=-2, dim2=-1))
    assert_close(M.norm(), torch.linalg.matrix_norm(dense))
    assert_close(M[1, 2].dense(), dense[1, 2])


@pytest.mark.parametrize(("rows", "cols", "rank"), SHAPES, ids=IDS)
def test_the_svd_rebuilds_the_product_and_has_its_singular_values(rows, cols, rank):
    M, dense = pair(rows, cols, rank)
    U, S, Vh = M.svd()
    k = min(rows, cols, rank)
    assert S.shape == (2, 3, k)
    assert_close((U * S[..., None, :]) @ Vh, dense)
    assert_close(U.mT @ U, torch.eye(k, dtype=torch.float64).expand(2, 3, k, k))
    assert_close(S, torch.linalg.svdvals(dense)[..., :k])


@pytest.mark.parametrize("rank", [4, 14], ids=["rank < side", "rank > side"])
def test_non_zero_eigenvalues_and_trace_equal_the_dense_ones(rank):
    M, dense = pair(11, 11, rank)
    k = min(11, rank)

    def in_order(values):
        """Equal up to order: compare power sums, which no ties or conjugate pairs disturb."""
        return torch.stack([(values**power).sum(-1) for power in range(1, 5)], -1)

    assert_close(in_order(M.eigenvalues()), in_order(torch.linalg.eigvals(dense)))
    assert_close(M.trace(), dense.diagonal(dim1=-2, dim2=-1).sum(-1))
    assert_close(M.eigenvalues().sum(-1).real, M.trace())


def test_repeated_singular_values_are_found():
    Q = torch.linalg.qr(torch.randn(9, 4, generator=torch.Generator().manual_seed(1))).Q
    U, S, Vh = FactoredMatrix(Q, 3 * Q.mT).svd()
    assert_close(S, torch.full((4,), 3.0, dtype=torch.float64), rtol=1e-5, atol=1e-5)
    assert_close(((U * S) @ Vh).float(), 3 * Q @ Q.mT, rtol=1e-5, atol=1e-5)


def test_bfloat16_factors_are_computed_in_float64():
    M, _ = pair(11, 11, 4)
    low = FactoredMatrix(M.A.bfloat16(), M.B.bfloat16())
    dense = low.A.double() @ low.B.double()
    assert_close(low.norm(), torch.linalg.matrix_norm(dense))
    assert_close(low.eigenvalues().sum(-1).real, dense.diagonal(dim1=-2, dim2=-1).sum(-1))
    assert_close(low.svd()[1], torch.linalg.svdvals(dense)[..., :4])


@pytest.mark.parametrize(("left", "right"), [(3, 5), (5, 3)])
def test_products_stay_factored_at_the_smaller_rank(left, right):
    M, dense = pair(7, 8, left)
    N, other = pair(8, 6, right, seed=1)
    assert_close((M @ N).dense(), dense @ other)
    assert (M @ N).rank == 3
    X = torch.randn(8, 4, dtype=torch.float64)
    assert_close((M @ X).dense(), dense @ X)
    Y = torch.randn(5, 7, dtype=torch.float64)
    assert_close((Y @ M).dense(), Y @ dense)


@pytest.mark.parametrize("chunk", [1, 40, 2**24])
def test_a_long_inner_axis_is_summed_in_pieces(monkeypatch, chunk):
    monkeypatch.setattr(module, "CHUNK", chunk)
    M, dense = pair(11, 11, 4)
    assert_close(contract(M.mT.A, M.mT.B), M.mT.A @ M.mT.B)
    assert contract(M.A.float(), M.B.float()).dtype == torch.float64
    assert_close(M.norm(), torch.linalg.matrix_norm(dense))


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("chunk", [1, 30, 1000])
def test_top_entries_by_chunks_equal_a_full_sort(monkeypatch, largest, chunk):
    monkeypatch.setattr(module, "CHUNK", chunk)
    M, _ = pair(7, 13, 3)
    dense = M.A @ M.B
    values, rows, columns = M.topk(6, largest)
    expected = dense.flatten(-2).sort(descending=largest).values[..., :6]
    assert_close(values, expected)
    batch = torch.arange(2)[:, None, None], torch.arange(3)[None, :, None]
    assert_close(dense[(*batch, rows, columns)], values)


def test_a_product_too_large_to_hold_is_not_multiplied_out():
    M = FactoredMatrix(torch.ones(50_000, 2), torch.ones(2, 50_000))
    with pytest.raises(ValueError, match="2,500,000,000 entries.*topk"):
        M.dense()
    assert M.trace() == 100_000
    assert M.norm() == 100_000
    some = FactoredMatrix(torch.ones(5_000, 2), torch.ones(2, 5_000))
    assert some.topk(3)[0].tolist() == [2, 2, 2]


@pytest.mark.parametrize(
    ("A", "B", "message"),
    [
        (torch.ones(3, 2), torch.ones(3, 2), r"got \(3, 2\) and \(3, 2\)"),
        (torch.ones(3, 2).long(), torch.ones(2, 3).long(), "floating point"),
        (torch.full((3, 2), float("nan")), torch.ones(2, 3), "NaN"),
    ],
    ids=["inner sizes", "integers", "NaN"],
)
def test_factors_that_do_not_fit_are_refused(A, B, message):
    with pytest.raises(ValueError, match=message):
        FactoredMatrix(A, B)


def test_questions_that_make_no_sense_are_refused():
    M, _ = pair(7, 13, 3)
    for question in (M.trace, M.eigenvalues):
        with pytest.raises(ValueError, match=r"square.*\(2, 3, 7, 13\)"):
            question()
    with pytest.raises(ValueError, match=r"1\.\.91.*got 92"):
        M.topk(92)
    with pytest.raises(IndexError, match="batch axes"):
        M[0, 0, 0]
