"""Checks for the exercises of the chapter on training."""

from typing import Any

import torch

from pathsum.exercises.core import (
    ExerciseFailed,
    agree,
    call,
    check,
    number,
    sizes,
    tensor,
)
from pathsum.exercises.progress import generator


@check("Exercise 11.1")
def check_in_context(answer: Any) -> None:
    """in_context(losses (batch, pos), early, late) -> a number; ranges are (first, last) included."""
    g = generator(17)
    for _ in range(3):
        batch, pos = sizes(2, g, low=6)
        pos = 4 * pos
        losses = torch.rand(batch, pos, generator=g) + 3 - torch.arange(pos) / pos
        early, late = (pos // 8, pos // 4), (pos - 5, pos - 2)
        given = torch.tensor(number(call(answer, losses, early, late)))

        mistakes = {
            "the last position of each range is left out; it belongs to the range": _mean(
                losses, late, short=1
            )
            - _mean(losses, early, short=1),
            "this is the late loss alone; the early one has to be taken off": _mean(losses, late),
            "this is a ratio; the score is a difference in nats": _mean(losses, late)
            / _mean(losses, early),
        }
        agree(given.double(), _mean(losses, late) - _mean(losses, early), "the score", mistakes)


def _mean(losses: torch.Tensor, place: tuple[int, int], short: int = 0) -> torch.Tensor:
    """Position by position: mean loss from the first to the last of a range, less `short`."""
    columns = [float(losses[:, at].mean()) for at in range(place[0], place[1] + 1 - short)]
    return torch.tensor(sum(columns) / len(columns))


@check("Exercise 11.2")
def check_first_for_good(answer: Any) -> None:
    """first_for_good(scores (records,), level) -> index from which all scores are at least level."""
    g = generator(19)
    for case in range(6):
        records, level = sizes(2, g, low=7, high=16)
        level = level / 40
        rising = level * torch.linspace(0, 2, records) * (1 + torch.rand(records, generator=g) / 4)
        rising[-1] = 2.1 * level
        if case % 2:  # above the level for a moment, too early
            rising[1] = 1.5 * level
        scores = rising.flip(0).clamp_min(level) if case == 4 else rising
        below = [at for at in range(records) if bool(scores[at] < level)]
        expected = below[-1] + 1 if below else 0
        given = number(call(answer, scores, level))
        if given == expected:
            continue
        where = f"for {[round(x, 2) for x in scores.tolist()]} and level {level:g}"
        touched = int((scores >= level).nonzero()[0])
        if given == touched:
            raise ExerciseFailed(
                f"{where}: the score falls below the level again after record {touched}; it should "
                "stay above for good"
            )
        if given == len(below):
            raise ExerciseFailed(
                f"{where}: this counts the records below; it should find the last one"
            )
        if below and given == below[-1]:
            raise ExerciseFailed(f"{where}: this is the last record below; one more is asked for")
        raise ExerciseFailed(f"{where} expected {expected}, given {given:g}")


@check("Exercise 11.3")
def check_orthogonal(answer: Any) -> None:
    """orthogonal(G (rows, cols)) -> the matrix with G's singular vectors and singular values 1."""
    g = generator(17)
    for _ in range(4):
        rows, cols = sizes(2, g)
        G = torch.randn(rows, cols, generator=g, dtype=torch.float64)
        given = tensor(call(answer, G), (rows, cols), "(rows, cols)")
        U, S, Vh = torch.linalg.svd(G, full_matrices=False)
        mistakes = {
            "this is G itself, scaled; its singular values are not equal yet": G / S[0],
            "this is G over its Frobenius norm; its singular values are not equal yet": G
            / G.norm(),
            "only the largest singular value is kept; all of them should become 1": torch.outer(
                U[:, 0], Vh[0]
            ),
            "the singular values are turned over (1/s); they should all be 1": U
            @ torch.diag(1 / S)
            @ Vh,
        }
        agree(given, U @ Vh, "the matrix", mistakes)


@check("Exercise 11.4")
def check_training_flops(answer: Any) -> None:
    """training_flops(n_layers, n_heads, d_model, d_head, d_vocab, n_ctx) -> operations per token."""
    g = generator(23)
    for _ in range(3):
        L, H, d, k, V, T = sizes(6, g, low=2, high=30)
        given = torch.tensor(number(call(answer, L, H, d, k, V, T)), dtype=torch.float64)
        weights, patterns = L * 4 * d * H * k + d * V, L * H * 2 * k * T
        expected = torch.tensor(3.0 * 2 * (weights + patterns), dtype=torch.float64)
        mistakes = {
            "this is the forward pass alone; the backward pass costs twice as much again": expected
            / 3,
            "each weight is one multiplication and one addition": expected / 2,
            "W_E is only looked up, it is no matrix product": expected + 6.0 * d * V,
            "the products with the patterns (queries with keys, pattern with values) are missing": (
                torch.tensor(6.0 * weights)
            ),
            "of the two products with the patterns one is missing": torch.tensor(
                6.0 * (weights + patterns / 2)
            ),
            "the unembedding is missing, which is the largest part of a small model": torch.tensor(
                6.0 * (L * 4 * d * H * k + patterns)
            ),
        }
        agree(given, expected, "the count", mistakes, tolerance=1e-9)


@check("Exercise 11.5")
def check_smear(answer: Any) -> None:
    """smear(k (pos, d_head), share) -> (pos, d_head): share of a key's own, the rest its neighbour's."""
    g = generator(17)
    for share in (0.5, 0.2, 0.9):
        pos, width = sizes(2, g)
        k = torch.randn(pos, width, generator=g)
        given = tensor(call(answer, k, share), (pos, width), "(pos, d_head)")

        before, after = k.roll(1, 0), torch.cat([k[1:], k[-1:]])
        mistakes = {
            "the first key has no neighbour and should stay as it is; roll brings the last one "
            "there": _mixed(k, share, share * k[0] + (1 - share) * k[-1], before),
            "the first key should stay as it is": _mixed(k, share, share * k[0], before),
            "keys are mixed with the ones after them, which looks ahead": share * k
            + (1 - share) * after,
            "the shares are the wrong way round: `share` belongs to the key itself": _mixed(
                k, 1 - share, k[0], before
            ),
        }
        if share == 0.5:
            mistakes.popitem()
        expected = _mixed(k, share, k[0], before)
        agree(given, expected, "the keys", mistakes)


def _mixed(k: torch.Tensor, own: float, start: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """Row by row: `start`, then `own` of each key and the rest of its row of `source`."""
    rows = [own * k[j] + (1 - own) * source[j] for j in range(1, len(k))]
    return torch.stack([start, *rows])


@check("Exercise 11.6")
def check_rate(answer: Any) -> None:
    """rate(step, steps, warmup, decay, last) -> share of the full learning rate, 0 to 1."""
    g = generator(29)
    for _ in range(3):
        warmup, tenths, hundredths = sizes(3, g, low=3, high=8)
        steps, decay, last = 20 * warmup + tenths, tenths / 10, hundredths / 100
        at = sorted({0, warmup // 2, warmup - 1, warmup, steps // 2, int(0.8 * steps), steps - 1})
        given = [number(call(answer, step, steps, warmup, decay, last)) for step in at]
        mistakes = {
            "the first step has rate 0, and learns nothing; step 0 is the first of the warm-up": [
                _rate(step, steps, warmup, decay, last, first=0) for step in at
            ],
            "the fall ends at 0; it should end near `last`": [
                _rate(step, steps, warmup, decay, 0.0) for step in at
            ],
            "there is no warm-up yet": [_rate(step, steps, 1, decay, last) for step in at],
            "the fall begins after the warm-up; it takes only the last `decay` of the steps": [
                _rate(step, steps, warmup, 1.0, last) for step in at
            ],
        }
        as_tensor = {k: torch.tensor(v) for k, v in mistakes.items()}
        expected = torch.tensor([_rate(step, steps, warmup, decay, last) for step in at])
        agree(torch.tensor(given, dtype=torch.float64), expected, "the rate", as_tensor)


def _rate(step: int, steps: int, warmup: int, decay: float, last: float, first: int = 1) -> float:
    rise = min(1.0, (step + first) / warmup)
    left = min(1.0, (steps - step) / (decay * steps))
    return rise * (last + (1 - last) * left)
