"""The chapter's checks: each passes its solution and says the right words to likely mistakes."""

import re

import pytest
import torch

from pathsum.exercises import synthetic
from pathsum.exercises.core import ExerciseFailed


def latest(tokens):
    places = {token: place for place, token in enumerate(tokens)}
    return min(places, key=places.get)


def mean_gap(t):
    n = len(t)
    return t.diagonal().mean() - (t.sum() - t.diagonal().sum()) / (n * (n - 1))


SOLUTIONS = {
    "common": lambda p, r: torch.minimum(p, r).sum(-1).mean(),
    "gain": mean_gap,
    "seen_longest_ago": latest,
}
NUMBERS = {name: f"14.{i}" for i, name in enumerate(SOLUTIONS, 1)}
MISTAKES = [
    ("common", lambda p, r: torch.minimum(p, r).mean(), "over sources too"),
    ("common", lambda p, r: torch.minimum(p, r).sum(), "not averaged"),
    ("common", lambda p, r: (p * r).sum(-1).mean(), "product"),
    ("common", lambda p, r: torch.maximum(p, r).sum(-1).mean(), "the larger"),
    ("gain", lambda t: t.diagonal().mean() - t.mean(), "itself included"),
    ("gain", lambda t: t.diagonal().mean(), "diagonal alone"),
    ("gain", lambda t: 2 * t.diagonal().sum() - t.sum(), "sums are compared"),
    ("gain", lambda t: -mean_gap(t), "sign is turned"),
    ("seen_longest_ago", lambda t: t[0], "oldest token"),
    ("seen_longest_ago", lambda t: t[-1], "present token"),
    ("seen_longest_ago", lambda t: min({x: i for i, x in enumerate(t)}.values()), "a place"),
    ("seen_longest_ago", lambda t: -7, "not -7"),
]


@pytest.mark.parametrize("name", SOLUTIONS)
def test_each_check_passes_its_solution_in_one_line(name, capsys):
    getattr(synthetic, f"check_{name}")(SOLUTIONS[name])
    assert capsys.readouterr().out == f"Exercise {NUMBERS[name]}: correct\n"


@pytest.mark.parametrize("name", SOLUTIONS)
def test_a_stub_is_not_written_yet(name, capsys):
    def stub(*inputs):
        raise NotImplementedError

    getattr(synthetic, f"check_{name}")(stub)
    assert capsys.readouterr().out == f"Exercise {NUMBERS[name]}: not written yet\n"


@pytest.mark.parametrize(
    ("name", "wrong", "words"), MISTAKES, ids=[f"{n}: {w}" for n, _, w in MISTAKES]
)
def test_a_likely_mistake_is_named(name, wrong, words):
    with pytest.raises(ExerciseFailed, match=re.escape(words)) as caught:
        getattr(synthetic, f"check_{name}")(wrong)
    assert str(caught.value).startswith(f"Exercise {NUMBERS[name]}: ")


def test_the_chapters_solutions_pass_their_checks(run_solutions, capsys):
    """The very cells of the chapter, run in order after its import cell."""
    passed = run_solutions("synthetic-models")
    assert passed == len(SOLUTIONS)
    assert capsys.readouterr().out.count(": correct") == passed
