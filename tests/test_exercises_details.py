"""The checks pass a right answer and name each planted mistake."""

import pytest
import torch

from pathsum.exercises import details
from pathsum.exercises.core import ExerciseFailed


def fold_norm(gain, W):
    W = gain[:, None] * W
    return W - W.mean(0)


def bias_logits(b_V, W_O, W_U):
    return sum(b @ O for b, O in zip(b_V, W_O)) @ W_U


def small_norm(A, B):
    return ((A.mT @ A) * (B @ B.mT)).sum().sqrt()


def offset_pattern(n, back):
    return torch.ones(n, n).tril(-back).triu(-back)


def clamped(n, back):
    pattern = offset_pattern(n, back)
    pattern[:back, 0] = 1
    return pattern


def pre_activations(x, A, W_OV, W_in):
    heads = [a @ x @ W for a, W in zip(A, W_OV)]
    return torch.stack([x, *heads]) @ W_in


def kurtosis(x, dim=-1, less=0):
    x = x - x.mean(dim, keepdim=True)
    variance = x.square().sum(dim) / (x.shape[dim] - less)
    return ((x**4).mean(dim) / variance**2).mean()


SOLUTIONS = {
    "fold_norm": fold_norm,
    "bias_logits": bias_logits,
    "small_norm": small_norm,
    "offset_pattern": offset_pattern,
    "pre_activations": pre_activations,
    "excess_kurtosis": lambda x: kurtosis(x) - 3,
}
MISTAKES = [
    ("fold_norm", lambda gain, W: gain[:, None] * W, "mean over the coordinates"),
    ("fold_norm", lambda gain, W: gain[:, None] * (W - W.mean(0)), "gain comes after"),
    ("fold_norm", lambda gain, W: W - W.mean(0), "gain is missing"),
    ("fold_norm", lambda gain, W: fold_norm(1 / gain, W), "divided by"),
    ("fold_norm", lambda gain, W: fold_norm(gain, W).mT, "another order"),
    ("bias_logits", lambda b, O, U: bias_logits(b, O, U) / len(b), "mean over heads"),
    ("bias_logits", lambda b, O, U: b[0] @ O[0] @ U, "only one head"),
    ("bias_logits", lambda b, O, U: b.sum(0) @ O.sum(0) @ U, "summed apart"),
    ("bias_logits", lambda b, O, U: 7 * bias_logits(b, O, U), "7 times"),
    ("small_norm", lambda A, B: (A @ B).norm(), "forms a matrix"),
    ("small_norm", lambda A, B: (B @ A).norm(), "not cyclic|a norm is not"),
    ("small_norm", lambda A, B: A.norm() * B.norm(), "upper bound"),
    ("small_norm", lambda A, B: small_norm(A, B) ** 2, "square of the norm"),
    ("offset_pattern", lambda n, back: offset_pattern(n, back).mT, "looks ahead"),
    ("offset_pattern", clamped, "should be empty"),
    ("offset_pattern", lambda n, back: torch.eye(n).roll(back, 0), "wraps round"),
    ("offset_pattern", lambda n, back: offset_pattern(n, back + 1), "too far back"),
    ("pre_activations", lambda x, A, W, V: pre_activations(x, A, W.mT, V), "wrong side"),
    ("pre_activations", lambda x, A, W, V: pre_activations(x, A.mT, W, V), "destination to source"),
    (
        "pre_activations",
        lambda x, A, W, V: (
            pre_activations(x, A, W, V)
            + torch.cat([torch.zeros(1, 1, 1), torch.ones(len(A), 1, 1)]) * (x @ V)
        ),
        "row of its own",
    ),
    (
        "pre_activations",
        lambda x, A, W, V: torch.nn.functional.gelu(pre_activations(x, A, W, V)),
        "activation function",
    ),
    ("pre_activations", lambda x, A, W, V: pre_activations(x, A, W, V)[1:], "expected a tensor"),
    ("excess_kurtosis", kurtosis, "3, the value of a normal"),
    ("excess_kurtosis", lambda x: kurtosis(x, 0) - 3, "over positions"),
    (
        "excess_kurtosis",
        lambda x: ((x**4).mean(-1) / x.square().mean(-1) ** 2).mean() - 3,
        "not subtracted first",
    ),
    ("excess_kurtosis", lambda x: kurtosis(x, less=1) - 3, "d_model - 1"),
]


@pytest.mark.parametrize("name", SOLUTIONS)
def test_the_right_answer_passes_and_a_stub_is_named(name, capsys):
    def stub(*_):
        raise NotImplementedError

    check = getattr(details, f"check_{name}")
    check(SOLUTIONS[name])
    assert capsys.readouterr().out.endswith(": correct\n")
    check(stub)
    assert capsys.readouterr().out.endswith(": not written yet\n")


@pytest.mark.parametrize(("name", "answer", "words"), MISTAKES)
def test_each_planted_mistake_is_named(name, answer, words):
    with pytest.raises(ExerciseFailed, match=words):
        getattr(details, f"check_{name}")(answer)


def test_the_chapters_own_solutions_pass(run_solutions):
    assert run_solutions("technical-details") == len(SOLUTIONS)
