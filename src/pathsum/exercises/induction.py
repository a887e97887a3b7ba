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


def _pair(given: Any, size: int) -> tuple[Tensor, Tensor]:
    """Two square matrices of this size; ExerciseFailed otherwise."""
    if not isinstance(given, (tuple, list)) or len(given) != 2:
        raise ExerciseFailed("expected two matrices, (W_QK, W_OV), given another thing")
    return tensor(given[0], (size, size), "(dest, src)"), tensor(
        given[1], (size, size), "(read, written)"
    )


@check("Exercise 8.7")
def check_induction_head(answer: Any) -> None:
    """induction_head(d_vocab, gain) -> (W_QK, W_OV), each (3 d_vocab, 3 d_vocab)."""
    g = generator(29)
    for d_vocab in sizes(3, g, low=6):
        gain, period = 8.0 + d_vocab, d_vocab - 1
        W_QK, W_OV = _pair(call(answer, d_vocab, gain), 3 * d_vocab)
        once = 1 + torch.randperm(period, generator=g)
        tokens = torch.cat([torch.zeros(1, dtype=torch.int64), once, once])
        x = torch.zeros(len(tokens), 3 * d_vocab, dtype=torch.float64)
        x[range(len(tokens)), tokens] = 1  # block `token`
        x[range(1, len(tokens)), d_vocab + tokens[:-1]] = 1  # block `kept`: what came before
        scores = x @ W_QK @ x.mT
        future = torch.ones_like(scores).triu(1).bool()
        pattern = scores.masked_fill(future, float("-inf")).softmax(-1)
        dest = torch.arange(1 + period, len(tokens))
        target = dest - period + 1
        found = pattern[dest].argmax(-1)
        if bool((found == target - 1).all()):
            raise ExerciseFailed(
                "the head attends to the earlier copy itself; what the key has to hold is the token "
                "before the source: the block kept"
            )
        if bool((found[1:] == target[1:] - 2).all()):
            raise ExerciseFailed(
                "query and key are exchanged: the destination brings its token, the source what it kept"
            )
        if bool((found != target).any()):
            raise ExerciseFailed(
                "in the second copy the head should attend to the token after the earlier copy, at "
                f"{target.tolist()}; its largest weights are at {found.tolist()}"
            )
        match = scores[dest, target]
        if float((match - gain).abs().max()) > 1e-3 * gain:
            raise ExerciseFailed(
                f"the places are right; a match should score the gain, {gain:g} nats, it scores "
                f"{float(match[0]):.3g}"
            )
        written = pattern[dest] @ x @ W_OV
        answers = written[:, 2 * d_vocab :]
        if float(written[:, : 2 * d_vocab].abs().max()) > 1e-6:
            raise ExerciseFailed(
                "W_OV writes to other blocks than answer; its columns are what is written"
            )
        if float(answers.abs().max()) < 1e-6:
            raise ExerciseFailed(
                "nothing arrives in the block answer: rows of W_OV read, columns write"
            )
        said = answers.argmax(-1)
        if bool((said == tokens[target - 1]).all()):
            raise ExerciseFailed(
                "the head copies the block kept, and so repeats the present token; it should copy the "
                "token that it attends to"
            )
        if bool((said != tokens[target]).any()):
            raise ExerciseFailed(
                f"the tokens predicted should be {tokens[target].tolist()}, they are {said.tolist()}"
            )


@check("Exercise 8.8")
def check_pointer_head(answer: Any) -> None:
    """pointer_head(n_places, base, gain) -> W_QK (2 n_places, 2 n_places), blocks kept and place."""
    g = generator(31)
    for n_places, base in ((8, 100.0), (14, 1000.0), (20, 50.0)):
        gain = 5.0 + 10 * float(torch.rand((), generator=g))
        W_QK = tensor(call(answer, n_places, base, gain), (2 * n_places,) * 2, "(dest, src)")
        places = sinusoidal_positions(30, n_places, base=base).double()
        kept = torch.randint(
            2, 27, (30,), generator=g
        )  # where each destination's earlier copy stands
        x = torch.cat([places[kept], places], dim=1)
        scores = x @ W_QK @ x.mT
        ahead = scores.argmax(-1) - kept
        if bool((ahead == 0).all()):
            raise ExerciseFailed(
                "it attends to the earlier copy itself: turn its place on by one step"
            )
        if bool((ahead == -1).all()):
            raise ExerciseFailed(
                "it attends to the token before the earlier copy: turn the other way"
            )
        other = (x @ W_QK.mT @ x.mT).argmax(-1) - kept
        if bool((other == 1).all()):
            raise ExerciseFailed(
                "this is the transpose: the destination's kept (rows) meets the source's place (columns)"
            )
        if bool((ahead != 1).any()):
            raise ExerciseFailed(
                f"the score should be largest one after the place that is kept; for kept = "
                f"{kept[:5].tolist()} it is largest at {(ahead + kept)[:5].tolist()}"
            )
        match = scores[torch.arange(30), kept + 1]
        if float((match - gain).abs().max()) > 1e-3 * gain:
            raise ExerciseFailed(
                f"the places are right; a match should score the gain, {gain:.3g} nats, it scores "
                f"{float(match[0]):.3g}: a place has squared length n_places / 2"
            )


@check("Exercise 8.9")
def check_gain_needed(answer: Any) -> None:
    """gain_needed(rivals, share) -> nats by which one source must lead to get that share."""
    g = generator(37)
    for _ in range(4):
        rivals = int(torch.randint(5, 200, (), generator=g))
        share = 0.55 + 0.4 * float(torch.rand((), generator=g))
        given = number(call(answer, rivals, share))
        if abs(given) < 700:
            scores = torch.zeros(rivals + 1, dtype=torch.float64)
            scores[0] = given
            if abs(float(scores.softmax(0)[0]) - share) < 1e-4:
                continue
        odds, n = torch.tensor(share / (1 - share)).double(), torch.tensor(float(rivals)).double()
        expected = (n * odds).log()
        mistakes = {
            "that many nats give it one half; a larger share takes more": n.log(),
            "all rivals together count, not one: their number is missing": odds.log(),
            "this is in bits; softmax counts in nats": (n * odds).log2(),
            "the odds are upside down": (n / odds).log(),
            "the match is not among its rivals": ((n + 1) * odds).log(),
            "compare it with what the rivals get together, share / (1 - share), not with everything": (
                n * share
            ).log(),
        }
        agree(torch.tensor(given).double(), expected, "the gain", mistakes)
