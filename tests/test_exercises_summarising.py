"""The checks pass a right answer and name each planted mistake."""

import pytest
import torch

from pathsum.exercises.core import ExerciseFailed
from pathsum.exercises.summarising import (
    check_deceiver,
    check_nonzero_eigenvalues,
    check_own_ranks,
    check_positivity_score,
    check_singular_values,
)


def nonzero_eigenvalues(A, B):
    return torch.linalg.eigvals(B @ A)


def positivity_score(values):
    return float(values.sum().real / values.abs().sum())


def own_ranks(table):
    return (table > table.diagonal()[:, None]).sum(1)


def deceiver():
    return 0.5 * torch.eye(3) + torch.outer(torch.ones(3), torch.tensor([-1.0, -1.0, 4.0]))


def singular_values(A, B):
    R_A, R_B = torch.linalg.qr(A).R, torch.linalg.qr(B.mT).R
    return torch.linalg.svdvals(R_A @ R_B.mT)


def without_transpose(A, B):
    return torch.linalg.svdvals(torch.linalg.qr(A).R @ torch.linalg.qr(B.mT).R)


RIGHT = [
    (check_nonzero_eigenvalues, nonzero_eigenvalues),
    (check_positivity_score, positivity_score),
    (check_own_ranks, own_ranks),
    (check_deceiver, deceiver),
    (check_singular_values, singular_values),
]


@pytest.mark.parametrize(("check", "answer"), RIGHT, ids=lambda f: f.__name__)
def test_right_answers_pass_and_stubs_are_named(check, answer, capsys):
    def stub(*_):
        raise NotImplementedError

    check(answer)
    assert capsys.readouterr().out.endswith(": correct\n")
    check(stub)
    assert capsys.readouterr().out.endswith(": not written yet\n")


def test_another_deceiver_passes_too(capsys):
    companion = torch.tensor([[-1.0, 1.0, 0.0], [0.0, -1.0, 1.0], [24.0, -26.0, 8.0]])  # 1, 2, 3
    check_deceiver(lambda: companion)
    assert "correct" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("check", "answer", "words"),
    [
        (check_nonzero_eigenvalues, lambda A, B: torch.linalg.eigvals(A @ B), "use the small one"),
        (check_nonzero_eigenvalues, lambda A, B: torch.linalg.svdvals(B @ A), "not the eigenvalues"),
        (
            check_nonzero_eigenvalues,
            lambda A, B: torch.linalg.svdvals(A @ B)[: len(B)],
            "singular values",
        ),
        (check_nonzero_eigenvalues, lambda A, B: torch.linalg.eigvals(B @ A).real, "real parts"),
        (check_nonzero_eigenvalues, lambda A, B: torch.linalg.eigvalsh(B @ A), "symmetric"),
        (check_nonzero_eigenvalues, lambda A, B: -nonzero_eigenvalues(A, B), "not the eigenvalues"),
        (check_nonzero_eigenvalues, lambda A, B: B @ A, "one-axis"),
        (check_positivity_score, lambda v: v.real.sum() / v.real.abs().sum(), "real parts' sizes"),
        (check_positivity_score, lambda v: (v.real > 0).float().mean(), "share of eigenvalues"),
        (check_positivity_score, lambda v: v.real.sign().mean(), "counts signs"),
        (check_positivity_score, lambda v: v.real.sum(), "not divided"),
        (check_positivity_score, lambda v: v.real.sum() / v.sum().abs(), "size of the sum"),
        (check_positivity_score, lambda v: (v / v.abs()).real.mean(), "mean of λ"),
        (check_positivity_score, lambda v: v.sum() / v.abs().sum(), "expected a real number"),
        (check_own_ranks, lambda t: own_ranks(t.mT), "down the columns"),
        (check_own_ranks, lambda t: (t < t.diagonal()[:, None]).sum(1), "raised less"),
        (check_own_ranks, lambda t: (t >= t.diagonal()[:, None]).sum(1), "counted too"),
        (check_own_ranks, lambda t: t > t.diagonal()[:, None], "expected a tensor"),
        (check_deceiver, lambda: torch.eye(3), "two diagonal entries"),
        (check_deceiver, lambda: -torch.eye(3), "not all eigenvalues are positive"),
        (check_deceiver, lambda: torch.eye(3).roll(1, 0), "not real"),
        (check_deceiver, lambda: torch.zeros(3, 3), "all eigenvalues are 0"),
        (check_deceiver, lambda: torch.eye(2), "expected a tensor"),
        (check_singular_values, lambda A, B: torch.linalg.svdvals(A @ B), "the large product"),
        (
            check_singular_values,
            lambda A, B: torch.linalg.svdvals(A) * torch.linalg.svdvals(B),
            "directions matter",
        ),
        (check_singular_values, without_transpose, "second R"),
        (check_singular_values, lambda A, B: singular_values(A, B) ** 2, "squares"),
        (check_singular_values, lambda A, B: singular_values(A, B).flip(0), "rising order"),
    ],
)
def test_each_planted_mistake_is_named(check, answer, words):
    with pytest.raises(ExerciseFailed, match=words):
        check(answer)
