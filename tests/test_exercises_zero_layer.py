"""The chapter's checks: each passes its solution and says the right words to likely mistakes."""

import re

import pytest
import torch

from pathsum.direct_path import singular_factors
from pathsum.exercises import zero_layer
from pathsum.exercises.core import ExerciseFailed


def cut(W_E, W_U, rank):
    left, values, right = singular_factors(W_E, W_U)
    return left[:, :rank] * values[:rank], right[:rank]


def cut_through_the_table(W_E, W_U, rank):
    u, s, vh = torch.linalg.svd(W_E @ W_U)
    return u[:, :rank] * s[:rank], vh[:rank]


def weighed(log_probs, counts):
    return -(log_probs * counts).sum() / counts.sum()


def overwrite(model, tokens):
    model.W_O.zero_()
    return model(tokens)


SOLUTIONS = {
    "next_token_probabilities": lambda E, U, t: (E[t] @ U).softmax(0),
    "logits_of_counts": lambda c: c.log() - c.log().mean(1, keepdim=True),
    "low_rank_table": cut,
    "loss_over_pairs": weighed,
    "crossing_excess": lambda p, a, b: p[a, b] + p[b, a] - p[a, a] - p[b, b],
    "direct_path_logits": lambda model, tokens: model.W_E[tokens] @ model.W_U,
}
NUMBERS = dict(zip(SOLUTIONS, ("3.1", "3.2", "3.3", "3.4", "3.5", "3.6")))
MISTAKES = [
    ("next_token_probabilities", lambda E, U, t: E[t] @ U, "these are logits"),
    ("next_token_probabilities", lambda E, U, t: (E @ U[:, t]).softmax(0), "its column"),
    ("next_token_probabilities", lambda E, U, t: (E @ U).softmax(0)[t], "over the next tokens"),
    ("next_token_probabilities", lambda E, U, t: (E[t] @ U).log_softmax(0), "log-probabilities"),
    ("logits_of_counts", lambda c: c.log(), "subtract each row's mean"),
    ("logits_of_counts", lambda c: c.log() - c.log().mean(0), "columns have mean 0"),
    ("logits_of_counts", lambda c: c - c.mean(1, keepdim=True), "the logarithm is missing"),
    ("logits_of_counts", lambda c: c.log() - c.log().mean(), "every single row"),
    ("low_rank_table", cut_through_the_table, "d_vocab x d_vocab"),
    ("low_rank_table", lambda E, U, r: (E[:, :r], U[:r]), "singular vectors of the product"),
    ("low_rank_table", lambda E, U, r: E @ U, "expected two tensors"),
    ("low_rank_table", lambda E, U, r: cut(E, U, E.shape[1]), "(d_vocab, rank)"),
    ("loss_over_pairs", lambda p, c: -p[c > 0].mean(), "every different pair counts once"),
    ("loss_over_pairs", lambda p, c: (p * c).sum() / c.sum(), "a loss is positive"),
    ("loss_over_pairs", lambda p, c: -(p * c).sum() / (c > 0).sum(), "number of different pairs"),
    ("crossing_excess", lambda p, a, b: p[a, a] + p[b, b] - p[a, b] - p[b, a], "the sign"),
    ("crossing_excess", lambda p, a, b: p[a, b] - p[b, a], "added, not subtracted"),
    ("crossing_excess", lambda p, a, b: p[a, b] + p[b, a], "expected"),
    ("direct_path_logits", lambda m, t: m(t), "this is the whole model"),
    ("direct_path_logits", lambda m, t: m(t) - m.W_E[t] @ m.W_U, "what attention adds"),
    ("direct_path_logits", lambda m, t: (m.W_E[t] @ m.W_U).softmax(-1), "probabilities"),
    ("direct_path_logits", overwrite, "changed the model's weights"),
]


@pytest.mark.parametrize("name", SOLUTIONS)
def test_each_check_passes_its_solution_in_one_line(name, capsys):
    getattr(zero_layer, f"check_{name}")(SOLUTIONS[name])
    assert capsys.readouterr().out == f"Exercise {NUMBERS[name]}: correct\n"


@pytest.mark.parametrize("name", SOLUTIONS)
def test_a_stub_is_not_written_yet(name, capsys):
    def stub(*inputs):
        raise NotImplementedError

    getattr(zero_layer, f"check_{name}")(stub)
    assert capsys.readouterr().out == f"Exercise {NUMBERS[name]}: not written yet\n"


@pytest.mark.parametrize(
    ("name", "wrong", "words"), MISTAKES, ids=[f"{n}: {w}" for n, _, w in MISTAKES]
)
def test_a_likely_mistake_is_named(name, wrong, words):
    with pytest.raises(ExerciseFailed, match=re.escape(words)) as caught:
        getattr(zero_layer, f"check_{name}")(wrong)
    assert str(caught.value).startswith(f"Exercise {NUMBERS[name]}: ")


def test_the_chapters_solutions_pass_their_checks(run_solutions, capsys):
    """The very cells of the chapter, run in order after its import cell."""
    passed = run_solutions("zero-layer")
    assert passed == len(SOLUTIONS)
    assert capsys.readouterr().out.count(": correct") == passed
