"""The chapter's checks: each passes its solution and says the right words to likely mistakes."""

import re

import pytest
from torch.special import ndtr

from pathsum.exercises import standard
from pathsum.exercises.core import ExerciseFailed


def centred(x):
    return x - x.mean(-1, keepdim=True)


def scale(x):
    return (centred(x).square().mean(-1, keepdim=True) + 1e-5).rsqrt()


SOLUTIONS = {
    "frozen_gelu": lambda pre, own: pre * ndtr(own),
    "frozen_norm": lambda part, whole, gain: centred(part) * scale(whole) * gain,
    "route_count": lambda layers, heads: (2 * (1 + heads)) ** layers,
}
NUMBERS = {name: f"13.{i}" for i, name in enumerate(SOLUTIONS, 1)}
MISTAKES = [
    ("frozen_gelu", lambda pre, own: pre * ndtr(pre), "moves with"),
    ("frozen_gelu", lambda pre, own: own * ndtr(own), "has no part"),
    ("frozen_gelu", lambda pre, own: own * ndtr(pre), "changed places"),
    ("frozen_gelu", lambda pre, own: ndtr(own), "gate alone"),
    ("frozen_gelu", lambda pre, own: pre * (own > 0), "ReLU"),
    ("frozen_gelu", lambda pre, own: pre * own.sigmoid(), "logistic"),
    ("frozen_norm", lambda p, w, g: centred(p) * scale(p) * g, "its own size"),
    ("frozen_norm", lambda p, w, g: p * scale(w) * g, "not centred"),
    ("frozen_norm", lambda p, w, g: centred(p) * scale(w), "gain is missing"),
    ("frozen_norm", lambda p, w, g: centred(p) * g, "scale is missing"),
    ("frozen_norm", lambda p, w, g: (p - w.mean(-1, True)) * scale(w) * g, "no longer add up"),
    ("frozen_norm", lambda p, w, g: centred(p) / scale(w) * g, "multiplies by the size"),
    ("route_count", lambda n, h: (1 + h) ** n, "left out"),
    ("route_count", lambda n, h: (2 + h) ** n, "no further head"),
    ("route_count", lambda n, h: h**n, "pass by"),
    ("route_count", lambda n, h: 4**n, "count each head"),
    ("route_count", lambda n, h: n * 2 * (1 + h), "this adds"),
]


@pytest.mark.parametrize("name", SOLUTIONS)
def test_each_check_passes_its_solution_in_one_line(name, capsys):
    getattr(standard, f"check_{name}")(SOLUTIONS[name])
    assert capsys.readouterr().out == f"Exercise {NUMBERS[name]}: correct\n"


@pytest.mark.parametrize("name", SOLUTIONS)
def test_a_stub_is_not_written_yet(name, capsys):
    def stub(*inputs):
        raise NotImplementedError

    getattr(standard, f"check_{name}")(stub)
    assert capsys.readouterr().out == f"Exercise {NUMBERS[name]}: not written yet\n"


@pytest.mark.parametrize(
    ("name", "wrong", "words"), MISTAKES, ids=[f"{n}: {w}" for n, _, w in MISTAKES]
)
def test_a_likely_mistake_is_named(name, wrong, words):
    with pytest.raises(ExerciseFailed, match=re.escape(words)) as caught:
        getattr(standard, f"check_{name}")(wrong)
    assert str(caught.value).startswith(f"Exercise {NUMBERS[name]}: ")


def test_the_chapters_solutions_pass_their_checks(run_solutions, capsys):
    """The very cells of the chapter, run in order after its import cell."""
    passed = run_solutions("standard-models")
    assert passed == len(SOLUTIONS)
    assert capsys.readouterr().out.count(": correct") == passed
