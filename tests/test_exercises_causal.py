"""The chapter's checks: each passes its solution and says the right words to likely mistakes."""

import re

import pytest

from pathsum.exercises import causal
from pathsum.exercises.core import ExerciseFailed

SOLUTIONS = {
    "share": lambda b, p, a: (p - b).mean() / (a - b).mean(),
    "patched_sum": lambda b, d, h: b.sum(1) - b[:, h] + d[:, h],
    "first_order": lambda c, x, g: ((c - x) * g).sum((1, 2)),
}
NUMBERS = {name: f"12.{i}" for i, name in enumerate(SOLUTIONS, 1)}
MISTAKES = [
    ("share", lambda b, p, a: (a - p).mean() / (a - b).mean(), "still missing"),
    ("share", lambda b, p, a: p.mean() / a.mean(), "is not subtracted"),
    ("share", lambda b, p, a: (p - b).mean(), "divide by the whole difference"),
    ("share", lambda b, p, a: ((p - b) / (a - b)).mean(), "mean of shares"),
    ("patched_sum", lambda b, d, h: b.sum(1) - b[:, h], "zero ablation"),
    ("patched_sum", lambda b, d, h: d.sum(1) - d[:, h] + b[:, h], "all heads but this one"),
    ("patched_sum", lambda b, d, h: b.sum(1) + d[:, h], "twice"),
    ("patched_sum", lambda b, d, h: d.sum(1), "every head"),
    ("patched_sum", lambda b, d, h: d[:, h], "the other heads still write"),
    ("first_order", lambda c, x, g: ((x - c) * g).sum((1, 2)), "FALLS"),
    ("first_order", lambda c, x, g: (c * g).sum((1, 2)), "multiplied by the value"),
    ("first_order", lambda c, x, g: ((c - x) * g).mean((1, 2)), "mean over entries"),
    ("first_order", lambda c, x, g: ((c - x) * g)[:, -1].sum(1), "last position alone"),
    ("first_order", lambda c, x, g: ((c - x) * g).abs().sum((1, 2)), "cancel"),
]


@pytest.mark.parametrize("name", SOLUTIONS)
def test_each_check_passes_its_solution_in_one_line(name, capsys):
    getattr(causal, f"check_{name}")(SOLUTIONS[name])
    assert capsys.readouterr().out == f"Exercise {NUMBERS[name]}: correct\n"


@pytest.mark.parametrize("name", SOLUTIONS)
def test_a_stub_is_not_written_yet(name, capsys):
    def stub(*inputs):
        raise NotImplementedError

    getattr(causal, f"check_{name}")(stub)
    assert capsys.readouterr().out == f"Exercise {NUMBERS[name]}: not written yet\n"


@pytest.mark.parametrize(
    ("name", "wrong", "words"), MISTAKES, ids=[f"{n}: {w}" for n, _, w in MISTAKES]
)
def test_a_likely_mistake_is_named(name, wrong, words):
    with pytest.raises(ExerciseFailed, match=re.escape(words)) as caught:
        getattr(causal, f"check_{name}")(wrong)
    assert str(caught.value).startswith(f"Exercise {NUMBERS[name]}: ")


def test_the_chapters_solutions_pass_their_checks(run_solutions, capsys):
    """The very cells of the chapter, run in order after its import cell."""
    passed = run_solutions("causal-methods")
    assert passed == len(SOLUTIONS)
    assert capsys.readouterr().out.count(": correct") == passed
