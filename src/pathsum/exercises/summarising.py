"""Checks for the exercises of the chapter on summarising OV and QK circuits."""

from typing import Any

import torch
from torch import Tensor

from pathsum.exercises.core import (
    ExerciseFailed,
    agree,
    call,
    check,
    described,
    number,
    sizes,
    tensor,
)
from pathsum.exercises.progress import generator


def _generator() -> torch.Generator:
    return generator(37)


def _complex(given: Any, count: int) -> Tensor:
    """The answer as complex numbers; ExerciseFailed unless there are `count`."""
    if not isinstance(given, Tensor) or given.ndim != 1:
        raise ExerciseFailed(f"expected a one-axis tensor of eigenvalues, given {described(given)}")
    if len(given) != count:
        raise ExerciseFailed(f"expected {count} eigenvalues, given {len(given)}")
    if given.device.type == "meta":
        raise ExerciseFailed("expected eigenvalues, given a tensor that has no values (meta device)")
    if not given.isfinite().all():
        raise ExerciseFailed("some eigenvalues are NaN or infinite")
    return given.detach().cpu().to(torch.complex128)


def _apart(one: Tensor, other: Tensor) -> float:
    """How far two sets of complex numbers are from each other, in units of the largest."""
    distance = (one[:, None] - other[None, :]).abs()
    worst = torch.maximum(distance.min(0).values.max(), distance.min(1).values.max())
    return float(worst / other.abs().max())


@check("Exercise 6.1")
def check_nonzero_eigenvalues(answer: Any) -> None:
    """nonzero_eigenvalues(A (n, r), B (r, n)) -> r complex numbers, the non-zero ones of A @ B."""
    g = _generator()
    for _ in range(3):
        rank, more = sizes(2, g, low=3, high=6)
        A = torch.randn(rank + 3 * more, rank, generator=g, dtype=torch.float64)
        B = torch.randn(rank, rank + 3 * more, generator=g, dtype=torch.float64)
        given = call(answer, A, B)
        if isinstance(given, Tensor) and given.shape == A.shape[:1]:
            raise ExerciseFailed(
                f"expected {rank} eigenvalues, given {len(given)}: these are those of the large product, "
                "zeros and all; use the small one"
            )
        values = _complex(given, rank)
        whole = torch.linalg.eigvals(A @ B)  # slow and obvious: multiplied out
        expected = whole[whole.abs().argsort(descending=True)[:rank]]
        if _apart(values, expected) < 1e-6:
            continue
        if _apart(values, torch.linalg.svdvals(A @ B)[:rank].to(values)) < 1e-6:
            raise ExerciseFailed("these are singular values; eigenvalues may be negative or complex")
        if _apart(values, expected.real.to(values)) < 1e-6:
            raise ExerciseFailed("only the real parts are kept; leave the eigenvalues complex")
        if _apart(values, torch.linalg.eigvalsh(B @ A).to(values)) < 1e-6:
            raise ExerciseFailed(
                "eigvalsh is for symmetric matrices and this is none: use eigvals"
            )
        raise ExerciseFailed(
            "these are not the eigenvalues of A @ B: which product of the two is small?"
        )


@check("Exercise 6.2")
def check_positivity_score(answer: Any) -> None:
    """positivity_score(eigenvalues (n,), complex) -> a number from -1 to 1."""
    g = _generator()
    for _ in range(3):
        (n,) = sizes(1, g, low=5)
        matrix = torch.randn(n, n, generator=g, dtype=torch.float64) + 0.6 * torch.eye(n)
        values = torch.linalg.eigvals(matrix)
        given = call(answer, values)
        if isinstance(given, Tensor) and given.is_complex() and given.numel() == 1:
            raise ExerciseFailed("expected a real number: the imaginary parts cancel, so take .real")
        total = sum(float(v.real) for v in values)
        size = sum((float(v.real) ** 2 + float(v.imag) ** 2) ** 0.5 for v in values)
        real = values.real
        mistakes = {
            "divide by the sum of sizes |λ|; these are the real parts' sizes": real.sum() / real.abs().sum(),
            "this is the share of eigenvalues with a positive real part; large ones should count more": (
                (real > 0).double().mean()
            ),
            "this counts signs; large eigenvalues should count more": real.sign().mean(),
            "it is not divided by the sum of sizes": real.sum(),
            "this divides by the size of the sum; it should be the sum of the sizes": (
                real.sum() / values.sum().abs()
            ),
            "this is the mean of λ/|λ|; large eigenvalues should count more": (
                (values / values.abs()).real.mean()
            ),
        }  # fmt: skip
        agree(torch.tensor(number(given)).double(), torch.tensor(total / size), "the score", mistakes)


@check("Exercise 6.3")
def check_own_ranks(answer: Any) -> None:
    """own_ranks(table (source, output)) -> how many outputs each source raises more than itself."""
    g = _generator()
    for _ in range(3):
        (n,) = sizes(1, g, low=6)
        table = torch.randn(n, n, generator=g)
        given = call(answer, table)
        if isinstance(given, Tensor) and not given.is_floating_point() and not given.is_complex():
            given = given.double()
        ranks = tensor(given, (n,), "(source)")
        expected, column, below = (torch.zeros(n) for _ in range(3))
        for token in range(n):  # slow and obvious: every output by itself
            for other in range(n):
                expected[token] += float(table[token, other] > table[token, token])
                column[token] += float(table[other, token] > table[token, token])
                below[token] += float(table[token, other] < table[token, token])
        mistakes = {
            "this looks down the columns; a source token's outputs are its row": column,
            "this counts what is raised less than the token itself; count what is raised more": below,
            "the token is counted too; the best rank is 0": expected + 1,
        }
        agree(ranks, expected, "the ranks", mistakes)


@check("Exercise 6.4")
def check_deceiver(answer: Any) -> None:
    """deceiver() -> (3, 3): all eigenvalues real and positive, most of the diagonal negative."""
    matrix = tensor(call(answer), (3, 3), "(source, output)")
    values = torch.linalg.eigvals(matrix)
    scale = float(values.abs().max())
    if scale == 0 or float(values.imag.abs().max()) > 1e-4 * scale:
        raise ExerciseFailed(
            f"some eigenvalues are not real: {[complex(round(v.real, 3), round(v.imag, 3)) for v in values.tolist()]}"
            if scale
            else "all eigenvalues are 0"
        )
    if float(values.real.min()) <= 1e-6 * scale:
        listed = [round(v, 3) for v in sorted(values.real.tolist())]
        raise ExerciseFailed(f"not all eigenvalues are positive: {listed}")
    negative = int((matrix.diagonal() < 0).sum())
    if negative < 2:
        diagonal = [round(v, 3) for v in matrix.diagonal().tolist()]
        raise ExerciseFailed(
            f"two diagonal entries should be negative, {negative} of {diagonal} are: the third must "
            "outweigh them, since their sum is that of the eigenvalues"
        )


@check("Exercise 6.5")
def check_singular_values(answer: Any) -> None:
    """singular_values(A (n, r), B (r, m)) -> (r,): those of A @ B, largest first."""
    g = _generator()
    for _ in range(3):
        rank, rows, cols = sizes(3, g, low=3, high=7)
        A = torch.randn(rank + rows, rank, generator=g)
        B = torch.randn(rank, rank + cols, generator=g)
        given = call(answer, A, B)
        if isinstance(given, Tensor) and given.shape == (min(rank + rows, rank + cols),):
            raise ExerciseFailed(
                f"expected {rank} singular values, given {len(given)}: this is the large product's SVD"
            )
        values = tensor(given, (rank,), "(singular value)")
        expected = torch.linalg.svdvals(A.double() @ B.double())[:rank]
        one, two = torch.linalg.svdvals(A.double()), torch.linalg.svdvals(B.double())
        R_A, R_B = (torch.linalg.qr(M.double()).R for M in (A, B.mT))
        mistakes = {
            "these are the products of both factors' singular values; their directions matter too": one * two,
            "with B.mT = Q R it is B = R.mT @ Q.mT: the second R wants to be transposed": (
                torch.linalg.svdvals(R_A @ R_B)
            ),
            "these are squares of the singular values; take the root": expected.square(),
            "they are in rising order; the largest comes first": expected.flip(0),
        }  # fmt: skip
        agree(values, expected, "the list", mistakes, tolerance=1e-4)
