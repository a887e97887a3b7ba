"""The chapter's checks: each passes its solution and says the right words to likely mistakes."""

import math
import re

import pytest
import torch

from pathsum.by_hand import shift_matrix
from pathsum.exercises import induction
from pathsum.exercises.core import ExerciseFailed


def stripe(pattern, period, back=-1, first=1):
    return pattern.diagonal(-(period + back))[first - back - 1 :].mean()


def ideal(tokens, after=1, itself=0, latest=True, rest=True):
    n = len(tokens)
    pattern = torch.zeros(n, n)
    for i in range(n):
        copies = (tokens[: i + itself] == tokens[i]).nonzero()[:, 0]
        if len(copies):
            pattern[i, min(n - 1, int(copies[-1 if latest else 0]) + after)] = 1
        elif rest:
            pattern[i, 0] = 1
    return pattern


def positivity(A, B, size=torch.abs):
    values = torch.linalg.eigvals(B @ A)
    return values.sum().real / size(values).sum()


def built(d_vocab, gain, query="token", key="kept", read="token", write="answer"):
    at = {n: slice(i * d_vocab, (i + 1) * d_vocab) for i, n in enumerate(("token", "kept", "answer"))}
    W_QK, W_OV = torch.zeros(2, 3 * d_vocab, 3 * d_vocab)
    W_QK[at[query], at[key]] = gain * torch.eye(d_vocab)
    W_OV[at[read], at[write]] = torch.eye(d_vocab)
    return W_QK, W_OV


def pointer(n, base, gain, turn=1):
    W_QK = torch.zeros(2 * n, 2 * n)
    W_QK[:n, n:] = 2 * gain / n * shift_matrix(turn, n, base)
    return W_QK


SOLUTIONS = {
    "stripe": lambda p, period: p.diagonal(-(period - 1))[2:].mean(),
    "ideal_pattern": ideal,
    "moved": lambda A, v, O: A * (v @ O).norm(dim=-1),
    "positivity": positivity,
    "one_back": lambda d, base: shift_matrix(-1, d, base),
    "inseparable": lambda: ([0, 5, 6, 5], [0, 4, 6, 5], 3, 2),
    "induction_head": built,
    "pointer_head": pointer,
    "gain_needed": lambda rivals, share: math.log(rivals * share / (1 - share)),
}
NUMBERS = {name: f"8.{i}" for i, name in enumerate(SOLUTIONS, 1)}
MISTAKES = [
    ("stripe", lambda p, period: p.diagonal(-period)[1:].mean(), "where the token itself stood"),
    ("stripe", lambda p, period: p.diagonal(-period - 1).mean(), "period + 1 is the token before"),
    ("stripe", lambda p, period: p.diagonal(1 - period).mean(), "does not repeat anything"),
    ("stripe", lambda p, period: p.diagonal(1 - period)[2:].sum(), "take the mean"),
    ("ideal_pattern", lambda t: ideal(t, after=0), "the earlier copy itself"),
    ("ideal_pattern", lambda t: ideal(t, itself=1), "its own earlier copy"),
    ("ideal_pattern", lambda t: ideal(t, latest=False), "the latest was asked for"),
    ("ideal_pattern", lambda t: ideal(t, rest=False), "should rest"),
    ("moved", lambda A, v, O: A * v.norm(dim=-1), "lengths of values"),
    ("moved", lambda A, v, O: A * (v @ O).norm(dim=-1)[:, None], "at the destination"),
    (
        "moved",
        lambda A, v, O: torch.nn.functional.normalize(A * (v @ O).norm(dim=-1), p=1, dim=-1),
        "sum to 1 again",
    ),
    ("positivity", lambda A, B: positivity(A, B, lambda e: e.real.abs()), "imaginary part"),
    ("positivity", lambda A, B: torch.ones(()), "singular values are always positive"),
    ("positivity", lambda A, B: (B @ A).trace(), "divide by the sum of the sizes"),
    ("one_back", lambda d, base: shift_matrix(1, d, base), "AHEAD"),
    ("one_back", lambda d, base: torch.eye(d), "at the position itself"),
    ("one_back", lambda d, base: shift_matrix(-2, d, base), "two back"),
    ("one_back", lambda d, base: shift_matrix(-1, d, 1.0), "its own angle"),
    ("inseparable", lambda: ([0, 5, 6, 5], [0, 4, 7, 5], 3, 2), "can tell them apart"),
    ("inseparable", lambda: ([0, 4, 6, 5], [0, 5, 6, 5], 3, 2), "must be the one at dest"),
    ("inseparable", lambda: ([0, 5, 6, 5], [0, 5, 6, 5], 3, 2), "should not attend"),
    ("inseparable", lambda: ([0, 5, 6, 5], [0, 4, 6, 5], 2, 3), "0 < src < dest"),
    ("inseparable", lambda: "no", "expected (one, other, dest, src)"),
    ("induction_head", lambda n, gain: built(n, gain, key="token"), "earlier copy itself"),
    ("induction_head", lambda n, gain: built(n, gain, "kept", "token"), "exchanged"),
    ("induction_head", lambda n, gain: built(n, 1.0), "should score the gain"),
    ("induction_head", lambda n, gain: built(n, gain, read="kept"), "copies the block kept"),
    ("induction_head", lambda n, gain: built(n, gain, write="token"), "other blocks than answer"),
    ("induction_head", lambda n, gain: (built(n, gain)[0], built(n, gain)[1].mT), "nothing arrives"),
    ("pointer_head", lambda n, b, gain: pointer(n, b, gain, 0), "earlier copy itself"),
    ("pointer_head", lambda n, b, gain: pointer(n, b, gain, -1), "turn the other way"),
    ("pointer_head", lambda n, b, gain: pointer(n, b, gain).mT, "this is the transpose"),
    ("pointer_head", lambda n, b, gain: pointer(n, b, n / 2 * gain), "squared length"),
    ("gain_needed", lambda n, s: math.log(n), "one half"),
    ("gain_needed", lambda n, s: math.log(s / (1 - s)), "their number is missing"),
    ("gain_needed", lambda n, s: math.log2(n * s / (1 - s)), "in bits"),
    ("gain_needed", lambda n, s: math.log(n * (1 - s) / s), "upside down"),
    ("gain_needed", lambda n, s: math.log((n + 1) * s / (1 - s)), "not among its rivals"),
]


@pytest.mark.parametrize("name", SOLUTIONS)
def test_each_check_passes_its_solution_in_one_line(name, capsys):
    getattr(induction, f"check_{name}")(SOLUTIONS[name])
    assert capsys.readouterr().out == f"Exercise {NUMBERS[name]}: correct\n"


@pytest.mark.parametrize("name", SOLUTIONS)
def test_a_stub_is_not_written_yet(name, capsys):
    def stub(*inputs):
        raise NotImplementedError

    getattr(induction, f"check_{name}")(stub)
    assert capsys.readouterr().out == f"Exercise {NUMBERS[name]}: not written yet\n"


@pytest.mark.parametrize(
    ("name", "wrong", "words"), MISTAKES, ids=[f"{n}: {w}" for n, _, w in MISTAKES]
)
def test_a_likely_mistake_is_named(name, wrong, words):
    with pytest.raises(ExerciseFailed, match=re.escape(words)) as caught:
        getattr(induction, f"check_{name}")(wrong)
    assert str(caught.value).startswith(f"Exercise {NUMBERS[name]}: ")


def test_the_chapters_solutions_pass_their_checks(run_solutions, capsys):
    """The very cells of the chapter, run in order after its import cell."""
    passed = run_solutions("induction-heads")
    assert passed == len(SOLUTIONS)
    assert capsys.readouterr().out.count(": correct") == passed
