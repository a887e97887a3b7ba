"""Checks for the exercises of the chapter on induction heads."""

from typing import Any

import torch
from torch import Tensor

from pathsum.exercises.core import (
    ExerciseFailed,
    agree,
    call,
    check,
    number,
    random_pattern,
    sizes,
    tensor,
    whole_numbers,
)
from pathsum.exercises.progress import generator
from pathsum.model import sinusoidal_positions


def _generator() -> torch.Generator:
    return generator(13)


@check("Exercise 8.1")
def check_stripe(answer: Any) -> None:
    """stripe(pattern (pos, pos), period) -> mean attention on the induction stripe."""
    g = _generator()
    for period in sizes(3, g):
        n = 1 + 2 * period
        pattern = random_pattern(n, n, generator=g)
        given = torch.tensor(number(call(answer, pattern, period)), dtype=torch.float64)

        def mean(back: int, first: int) -> Tensor:
            rows = range(max(first, back), n)
            return torch.stack([pattern[i, i - back] for i in rows]).double().mean()

        expected = mean(period - 1, period + 1)
        mistakes = {
            "offset period is where the token itself stood; the stripe is one later, at period - 1": mean(
                period, period + 1
            ),
            "offset period + 1 is the token before the earlier copy": mean(period + 1, period + 1),
            "the last token of the first copy, and what is before it, does not repeat anything: "
            "start at the second copy, position period + 1": mean(period - 1, 0),
            "this starts one position late: the second copy begins at position period + 1": mean(
                period - 1, period + 2
            ),
            "the stripe is summed; take the mean": expected * period,
        }
        agree(given, expected, "the score", mistakes)


@check("Exercise 8.2")
def check_ideal_pattern(answer: Any) -> None:
    """ideal_pattern(tokens (pos,)) -> (dest, src): after the latest earlier copy, else position 0."""
    g = _generator()
    for n in (9, 14, 20):
        tokens = torch.randint(1, 5, (n,), generator=g)
        tokens[0] = 0

        def rows(
            after: int, itself: bool = False, latest: bool = True, rest: bool = True
        ) -> Tensor:
            pattern = torch.zeros(n, n)
            for i in range(n):
                copies = [j for j in range(i + int(itself)) if tokens[j] == tokens[i]]
                if copies:
                    place = (copies[-1] if latest else copies[0]) + after
                    pattern[i, min(place, n - 1)] = 1
                elif rest:
                    pattern[i, 0] = 1
            return pattern

        given = tensor(call(answer, tokens), (n, n), "(dest, src)")
        mistakes = {
            "it attends to the earlier copy itself; an induction head attends to the token after": rows(
                0
            ),
            "the token counts as its own earlier copy": rows(1, itself=True),
            "it takes the first copy; the latest was asked for": rows(1, latest=False),
            "without an earlier copy the row is empty; it should rest on position 0": rows(
                1, rest=False
            ),
        }
        agree(given, rows(1), "the pattern", mistakes)


@check("Exercise 8.3")
def check_moved(answer: Any) -> None:
    """moved(pattern (dest, src), v (src, d_head), W_O (d_head, d_model)) -> (dest, src)."""
    g = _generator()
    for _ in range(3):
        pos, inner, width = sizes(3, g)
        A = random_pattern(pos, pos, generator=g)
        v = torch.randn(pos, inner, generator=g) * torch.linspace(0.1, 2, pos)[:, None]
        W_O = torch.randn(inner, width, generator=g)
        given = tensor(call(answer, A, v, W_O), (pos, pos), "(dest, src)")
        expected = torch.zeros(pos, pos)
        for dest in range(pos):
            for src in range(pos):
                expected[dest, src] = (A[dest, src] * (v[src] @ W_O)).norm()
        lengths = (v @ W_O).norm(dim=-1)
        mistakes = {
            "these are lengths of values, which change with how W_OV is split; take v @ W_O": A
            * v.norm(dim=-1),
            "weighted by the value at the destination; what is moved comes from the source": A
            * lengths[:, None],
            "rows are made to sum to 1 again, and then a head at rest looks busy": A
            * lengths
            / (A * lengths).sum(-1, keepdim=True),
            "the lengths are squared": A * lengths**2,
        }
        agree(given, expected, "what is moved", mistakes)


@check("Exercise 8.4")
def check_positivity(answer: Any) -> None:
    """positivity(A (d_vocab, rank), B (rank, d_vocab)) -> sum of eigenvalues over sum of sizes."""
    g = _generator()
    for vocab in (30, 41, 4000):
        rank = 6
        A = torch.randn(vocab, rank, generator=g).double() / vocab**0.5
        B = A.mT / 3 + torch.randn(rank, vocab, generator=g).double() / rank**0.5
        if vocab > 1000:  # nobody should form this product: 128 MB, and minutes of eigenvalues
            A, B = A.float(), B.float()
        given = torch.tensor(number(call(answer, A, B)), dtype=torch.float64)
        values = torch.linalg.eigvals(B.double() @ A.double())
        singular = torch.linalg.svdvals(B.double() @ A.double())
        expected = values.sum().real / values.abs().sum()
        mistakes = {
            "sizes of complex eigenvalues count with their imaginary part: .abs(), not "
            ".real.abs()": values.sum().real / values.real.abs().sum(),
            "this is the share of positive ones; add the eigenvalues up": (values.real > 0)
            .double()
            .mean(),
            "singular values are always positive: take eigenvalues": singular.sum()
            / singular.sum(),
            "this is the trace alone; divide by the sum of the sizes": values.sum().real,
            "the mean eigenvalue is not normalised; divide by the sum of the sizes": values.real.mean(),
        }
        agree(given, expected, "the score", mistakes, tolerance=1e-3)


@check("Exercise 8.5")
def check_one_back(answer: Any) -> None:
    """one_back(d_model, base) -> M with places[i] @ M @ places[j] largest at j == i - 1."""
    for d_model, base in ((8, 100.0), (14, 1000.0), (20, 50.0)):
        M = tensor(call(answer, d_model, base), (d_model, d_model), "(destination, source)")
        places = sinusoidal_positions(30, d_model, base=base).double()
        scores = places @ M @ places.mT
        found = scores.masked_fill(torch.ones(30, 30, dtype=torch.bool).triu(1), float("-inf"))
        back = torch.arange(30) - found.argmax(-1)
        everywhere = torch.arange(30) - scores.argmax(-1)
        middle = slice(2, 28)
        if bool((back[middle] == 1).all()):
            continue
        if bool((everywhere[middle] == -1).all()):
            raise ExerciseFailed(
                "the score is largest one position AHEAD: turn by the opposite angle (or transpose)"
            )
        if bool((back[middle] == 0).all()):
            raise ExerciseFailed("the score is largest at the position itself: nothing is turned")
        if bool((back[middle] == 2).all()):
            raise ExerciseFailed("the score is largest two back: the angle is applied twice")
        where = [int(i) for i in torch.nonzero(back[middle] != 1)[0] + 2]
        raise ExerciseFailed(
            f"with d_model={d_model} and base={base:g} position {where[0]} looks "
            f"{int(back[where[0]])} back: has each pair of columns its own angle, base**(-2i/d_model)?"
        )


@check("Exercise 8.6")
def check_inseparable(answer: Any) -> None:
    """inseparable() -> (one, other, dest, src): two token lists no one-layer head can tell apart."""
    given = call(answer)
    if not isinstance(given, (tuple, list)) or len(given) != 4:
        raise ExerciseFailed("expected (one, other, dest, src), given another thing")
    one, other = (whole_numbers(part, "a list of token ids") for part in given[:2])
    dest, src = whole_numbers(list(given[2:]), "two positions, dest and src, whole numbers")
    if len(one) != len(other) or not 0 < src < dest < len(one):
        raise ExerciseFailed(
            f"expected lists of equal length with 0 < src < dest < length, given lengths {len(one)} "
            f"and {len(other)}, dest {dest}, src {src}"
        )
    if one[dest] != other[dest] or one[src] != other[src]:
        raise ExerciseFailed(
            "a one-layer head can tell them apart: its score depends on the tokens at dest and src, "
            "and one of these differs"
        )
    if one[src - 1] != one[dest]:
        raise ExerciseFailed(
            "in `one` an induction head should attend from dest to src: the token before src must be "
            "the one at dest"
        )
    if other[src - 1] == other[dest]:
        raise ExerciseFailed(
            "in `other` an induction head should not attend to src, yet the token before it is the one "
            "at dest"
        )
