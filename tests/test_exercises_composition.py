"""The chapter's checks: each passes its solution and says the right words to likely mistakes."""

import re

import pytest
import torch

from pathsum.exercises import composition
from pathsum.exercises.core import ExerciseFailed


def k_score(W_OV, W_QK):
    return (W_OV @ W_QK.mT).norm() / (W_OV.norm() * W_QK.norm())


def parts(x, w, M):
    return x @ M @ x.mT, w @ M @ x.mT, x @ M @ w.mT, w @ M @ w.mT


def pattern(query, key, W_Q, W_K):
    scores = (query @ W_Q) @ (key @ W_K).mT / W_Q.shape[1] ** 0.5
    future = torch.ones_like(scores).triu(1).bool()
    return scores.masked_fill(future, float("-inf")).softmax(-1)


ONE, TWO = torch.tensor([[0.0, 1], [0, 0]]), torch.tensor([[1.0, 0], [0, 0]])
SOLUTIONS = {
    "k_composition": k_score,
    "score_parts": parts,
    "not_cyclic": lambda: (ONE, TWO),
    "circled_norm": lambda A_1, B_1, A_2, B_2: ((B_2 @ A_1) @ (B_1 @ A_2)).norm(),
    "reader_of": lambda W_O: torch.linalg.pinv(W_O),
    "keys_cut": lambda x_0, x_1, Q, K: pattern(x_1, x_0, Q, K),
}
NUMBERS = {name: f"7.{i}" for i, name in enumerate(SOLUTIONS, 1)}
MISTAKES = [
    ("k_composition", lambda O, M: (O @ M).norm() / (O.norm() * M.norm()), "is Q-composition"),
    ("k_composition", lambda O, M: (M @ O).norm() / (O.norm() * M.norm()), "come first"),
    ("k_composition", lambda O, M: (O @ M.mT).norm(), "divide by both norms"),
    ("k_composition", lambda O, M: k_score(O, M) - len(O) ** -0.5, "the null"),
    ("k_composition", lambda O, M: k_score(O, M) ** 2, "squared"),
    ("score_parts", lambda x, w, M: [parts(x, w, M)[i] for i in (0, 2, 1, 3)], "exchanged"),
    ("score_parts", lambda x, w, M: (*parts(x, w, M)[:2], (x + w) @ M @ w.mT, 0), "expected"),
    (
        "score_parts",
        lambda x, w, M: (*parts(x, w, M)[:2], (x + w) @ M @ w.mT, w @ M @ w.mT),
        "the whole stream",
    ),
    ("score_parts", lambda x, w, M: (x + w) @ M @ (x + w).mT, "expected four matrices"),
    ("not_cyclic", lambda: (TWO, ONE), "exchanged"),
    ("not_cyclic", lambda: (0 * ONE, TWO), "one of the matrices is zero"),
    ("not_cyclic", lambda: (ONE, ONE), "B @ A is zero too"),
    ("not_cyclic", lambda: (torch.eye(2), TWO), "should be zero, but it is"),
    ("circled_norm", lambda a, b, c, d: (a @ b @ c @ d).norm(), "this is the right norm"),
    ("circled_norm", lambda a, b, c, d: (d @ a @ b @ c).trace(), "this is the trace"),
    ("circled_norm", lambda a, b, c, d: (d @ a).norm() * (b @ c).norm(), "two small norms"),
    ("reader_of", lambda W_O: W_O.mT, "mixed, unless the rows"),
    ("reader_of", lambda W_O: (W_O / W_O.norm(dim=1, keepdim=True) ** 2).mT, "still mixed"),
    ("reader_of", lambda W_O: torch.linalg.pinv(W_O).mT, "transposed"),
    ("keys_cut", lambda a, b, Q, K: pattern(a, b, Q, K), "instead of keys"),
    ("keys_cut", lambda a, b, Q, K: pattern(a, a, Q, K), "the queries are cut too"),
    ("keys_cut", lambda a, b, Q, K: pattern(b, b, Q, K), "nothing is cut"),
    ("keys_cut", lambda a, b, Q, K: pattern(b, b - a, Q, K), "keep x_0"),
]


@pytest.mark.parametrize("name", SOLUTIONS)
def test_each_check_passes_its_solution_in_one_line(name, capsys):
    getattr(composition, f"check_{name}")(SOLUTIONS[name])
    assert capsys.readouterr().out == f"Exercise {NUMBERS[name]}: correct\n"


@pytest.mark.parametrize("name", SOLUTIONS)
def test_a_stub_is_not_written_yet(name, capsys):
    def stub(*inputs):
        raise NotImplementedError

    getattr(composition, f"check_{name}")(stub)
    assert capsys.readouterr().out == f"Exercise {NUMBERS[name]}: not written yet\n"


@pytest.mark.parametrize(
    ("name", "wrong", "words"), MISTAKES, ids=[f"{n}: {w}" for n, _, w in MISTAKES]
)
def test_a_likely_mistake_is_named(name, wrong, words):
    with pytest.raises(ExerciseFailed, match=re.escape(words)) as caught:
        getattr(composition, f"check_{name}")(wrong)
    assert str(caught.value).startswith(f"Exercise {NUMBERS[name]}: ")


def test_the_chapters_solutions_pass_their_checks(run_solutions, capsys):
    """The very cells of the chapter, run in order after its import cell."""
    passed = run_solutions("composition")
    assert passed == len(SOLUTIONS)
    assert capsys.readouterr().out.count(": correct") == passed
