"""The checks pass a right answer and name each planted mistake."""

import pytest
import torch

from pathsum.exercises.core import ExerciseFailed
from pathsum.exercises.training import (
    check_first_for_good,
    check_in_context,
    check_orthogonal,
    check_rate,
    check_smear,
    check_training_flops,
)
from pathsum.presets import BOOK, learning_rate_factor


def in_context(losses, early, late):
    first, last = (losses[:, a : b + 1].mean() for a, b in (early, late))
    return last - first


def first_for_good(scores, level):
    below = (scores < level).nonzero()
    return int(below[-1]) + 1 if len(below) else 0


def orthogonal(G):
    U, _, Vh = torch.linalg.svd(G, full_matrices=False)
    return U @ Vh


def training_flops(L, H, d, k, V, T):
    return 6 * (L * 4 * d * H * k + d * V) + 12 * L * H * k * T


def smear(k, share):
    mixed = share * k[1:] + (1 - share) * k[:-1]
    return torch.cat([k[:1], mixed])


def rate(step, steps, warmup, decay, last):
    left = min(1.0, (steps - step) / (decay * steps))
    return min(1.0, (step + 1) / warmup) * (last + (1 - last) * left)


RIGHT = [
    (check_in_context, in_context),
    (check_first_for_good, first_for_good),
    (check_orthogonal, orthogonal),
    (check_training_flops, training_flops),
    (check_smear, smear),
    (check_rate, rate),
]


@pytest.mark.parametrize(("check", "answer"), RIGHT, ids=lambda f: f.__name__)
def test_right_answers_pass_and_stubs_are_named(check, answer, capsys):
    def stub(*_):
        raise NotImplementedError

    check(answer)
    assert capsys.readouterr().out.endswith(": correct\n")
    check(stub)
    assert capsys.readouterr().out.endswith(": not written yet\n")


def rolled(k, share):
    return share * k + (1 - share) * k.roll(1, 0)


def no_warmup(step, steps, warmup, decay, last):
    return rate(step, steps, 1, decay, last)


@pytest.mark.parametrize(
    ("check", "answer", "words"),
    [
        (
            check_in_context,
            lambda x, a, b: x[:, b[0] : b[1]].mean() - x[:, a[0] : a[1]].mean(),
            "belongs to the range",
        ),
        (check_in_context, lambda x, a, b: -in_context(x, a, b), "wrong sign"),
        (check_in_context, lambda x, a, b: x[:, b[0] : b[1] + 1].mean(), "taken off"),
        (check_first_for_good, lambda s, x: int((s >= x).nonzero()[0]), "for good"),
        (check_first_for_good, lambda s, x: max(first_for_good(s, x) - 1, 0), "one more"),
        (check_first_for_good, lambda s, x: int((s < x).sum()), "counts the records below"),
        (check_orthogonal, lambda G: G / torch.linalg.matrix_norm(G, 2), "not equal yet"),
        (check_orthogonal, lambda G: torch.linalg.pinv(G).mT, "turned over"),
        (check_orthogonal, lambda G: orthogonal(G).mT, "another order"),
        (check_training_flops, lambda *x: training_flops(*x) / 3, "forward pass alone"),
        (check_training_flops, lambda *x: training_flops(*x) / 2, "one multiplication"),
        (
            check_training_flops,
            lambda L, H, d, k, V, T: 6 * (L * 4 * d * H * k + d * V),
            "are missing",
        ),
        (
            check_training_flops,
            lambda L, H, d, k, V, T: training_flops(L, H, d, k, V, T) + 6 * d * V,
            "looked up",
        ),
        (check_smear, rolled, "roll brings"),
        (check_smear, lambda k, s: smear(k, 1 - s), "wrong way round"),
        (
            check_smear,
            lambda k, s: s * k + (1 - s) * torch.cat([k[1:], k[-1:]]),
            "looks ahead",
        ),
        (check_rate, no_warmup, "no warm-up"),
        (check_rate, lambda i, n, w, d, x: rate(i, n, w, d, 0.0), "ends at 0"),
        (check_rate, lambda i, n, w, d, x: rate(i, n, w, 1.0, x), "takes only the last"),
    ],
)
def test_a_mistake_is_named(check, answer, words):
    with pytest.raises(ExerciseFailed, match=words):
        check(answer)


def test_the_exercise_has_the_rate_that_the_trainer_uses():
    for step in (0, 20, 3000, 4000, 5999):
        given = rate(step, BOOK.steps, BOOK.warmup, BOOK.decay, BOOK.final_lr)
        assert given == pytest.approx(learning_rate_factor(step, BOOK))


def test_the_chapter_passes_its_own_checks(run_solutions):
    assert run_solutions("training") == 6
