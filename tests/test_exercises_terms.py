"""The checks pass a right answer and name each planted mistake."""

from math import comb

import pytest
import torch

from pathsum.exercises.core import ExerciseFailed
from pathsum.exercises.terms import (
    check_marginal_worth,
    check_path_counts,
    check_split_by_order,
    check_v_composition,
)


def path_counts(n_layers, n_heads):
    return [comb(n_layers, k) * n_heads**k for k in range(n_layers + 1)]


def split_by_order(x, A, W):
    orders = torch.zeros(len(A) + 1, *x.shape)
    orders[0] = x
    for patterns, matrices in zip(A, W):
        written = sum(a @ orders @ w for a, w in zip(patterns, matrices))
        orders[1:] += written[:-1]
    return orders


def one_head_after_another(x, A, W):
    orders = torch.zeros(len(A) + 1, *x.shape)
    orders[0] = x
    for patterns, matrices in zip(A, W):
        for a, w in zip(patterns, matrices):
            orders[1:] += (a @ orders @ w)[:-1]
    return orders


def marginal_worth(losses, d_vocab):
    return torch.cat([torch.tensor([float(d_vocab)]).log(), losses[:-1]]) - losses


def v_composition(first, second):
    return float((first @ second).norm() / (first.norm() * second.norm()))


RIGHT = [
    (check_path_counts, path_counts),
    (check_split_by_order, split_by_order),
    (check_marginal_worth, marginal_worth),
    (check_v_composition, v_composition),
]


@pytest.mark.parametrize(("check", "answer"), RIGHT, ids=lambda f: f.__name__)
def test_right_answers_pass_and_stubs_are_named(check, answer, capsys):
    def stub(*_):
        raise NotImplementedError

    check(answer)
    assert capsys.readouterr().out.endswith(": correct\n")
    check(stub)
    assert capsys.readouterr().out.endswith(": not written yet\n")


@pytest.mark.parametrize(
    ("check", "answer", "words"),
    [
        (check_path_counts, lambda L, H: [H**k for k in range(L + 1)], "which layers a path passes"),
        (check_path_counts, lambda L, H: [(L * H) ** k for k in range(L + 1)], "at most once"),
        (check_path_counts, lambda L, H: path_counts(L, H)[1:], "expected 3 numbers.*given 2"),
        (check_path_counts, lambda L, H: [1.0] * (L + 1), "by listing all paths"),
        (check_path_counts, lambda L, H: sum(path_counts(L, H)), "expected a list"),
        (check_split_by_order, lambda x, A, W: split_by_order(x, A, W.mT), "rows are vectors"),
        (check_split_by_order, lambda x, A, W: split_by_order(x, A.mT, W), "A @ x"),
        (check_split_by_order, lambda x, A, W: split_by_order(x, A, W).cumsum(0), "kept apart"),
        (check_split_by_order, one_head_after_another, "heads of the same layer"),
        (check_split_by_order, lambda x, A, W: split_by_order(x, A, W).sum(0), "expected a tensor"),
        (check_marginal_worth, lambda L, V: torch.tensor(float(V)).log() - L, "orders before it"),
        (
            check_marginal_worth,
            lambda L, V: torch.cat([torch.tensor([float(V)]).log2(), L[:-1]]) - L,
            "in bits",
        ),
        (
            check_marginal_worth,
            lambda L, V: torch.cat([L[:1], L[:-1] - L[1:]]),
            "compared with uniform",
        ),
        (check_marginal_worth, lambda L, V: -marginal_worth(L, V), "wrong sign"),
        (check_v_composition, lambda a, b: v_composition(b, a), "head 1 would read"),
        (check_v_composition, lambda a, b: float((a @ b).norm()), "not divided"),
        (
            check_v_composition,
            lambda a, b: float((a * b).norm() / (a.norm() * b.norm())),
            "entry by entry",
        ),
        (check_v_composition, lambda a, b: a @ b, "expected one number"),
        (check_v_composition, lambda a, b: None, "None"),
    ],
)
def test_each_planted_mistake_is_named(check, answer, words):
    with pytest.raises(ExerciseFailed, match=words):
        check(answer)
