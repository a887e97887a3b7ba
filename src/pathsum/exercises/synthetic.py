"""Checks for the exercises of the chapter on synthetic tasks."""

from typing import Any

import torch
from torch import Tensor

from pathsum.exercises.core import ExerciseFailed, agree, call, check, number, sizes
from pathsum.exercises.progress import generator


def _generator() -> torch.Generator:
    return generator(31)


@check("Exercise 14.1")
def check_common(answer: Any) -> None:
    """common(pattern, rule (batch, dest, src)) -> mean share of attention that both have."""
    g = _generator()
    for _ in range(3):
        batch, dest, src = sizes(3, g, low=3)
        pattern, rule = torch.rand(2, batch, dest, src, generator=g).softmax(-1).square()
        pattern, rule = (t / t.sum(-1, keepdim=True) for t in (pattern, rule))
        given = torch.tensor(number(call(answer, pattern, rule)), dtype=torch.float64)
        smaller = torch.minimum(pattern, rule)
        expected = smaller.sum(-1).mean().double()
        mistakes: dict[str, Tensor] = {
            "this is the mean over sources too; within a row the shares are added": smaller.mean(),
            "rows are added up and not averaged": smaller.sum(),
            "this is a product; for two equal patterns it is not 1": (pattern * rule).sum(-1).mean(),
            "the larger of the two is taken at each source": torch.maximum(pattern, rule)
            .sum(-1)
            .mean(),
        }
        agree(given, expected, "the share in common", mistakes)


@check("Exercise 14.2")
def check_gain(answer: Any) -> None:
    """gain(table (n, n)) -> mean of the diagonal less the mean of all other entries."""
    g = _generator()
    for _ in range(3):
        (n,) = sizes(1, g, low=4)
        table = torch.randn(n, n, generator=g) + 3 * torch.eye(n)
        given = torch.tensor(number(call(answer, table)), dtype=torch.float64)
        own = table.diagonal().mean()
        others = table[~torch.eye(n, dtype=torch.bool)].mean()
        mistakes: dict[str, Tensor] = {
            "the diagonal is compared with the mean of the whole table, itself included": own
            - table.mean(),
            "this is the mean of the diagonal alone; a constant in all logits changes nothing": own,
            "sums are compared, of n and of n(n - 1) entries; take means": n * own
            - n * (n - 1) * others,
            "the sign is turned": others - own,
        }
        agree(given, (own - others).double(), "the gain", mistakes)


@check("Exercise 14.3")
def check_seen_longest_ago(answer: Any) -> None:
    """seen_longest_ago(tokens, a list) -> the token whose latest copy is furthest back."""
    g = _generator()
    for _ in range(6):
        (length,) = sizes(1, g, low=9)
        kinds = torch.randperm(40, generator=g)[:5].tolist()
        tokens = kinds + [kinds[i] for i in torch.randint(5, (length,), generator=g).tolist()]
        given = number(call(answer, list(tokens)))
        back = {t: next(i for i, other in enumerate(reversed(tokens)) if other == t) for t in kinds}
        expected = max(kinds, key=lambda t: back[t])
        mistakes = {
            "this is the oldest token; its latest copy may be recent": tokens[0],
            "this is the present token, which was seen last": tokens[-1],
            "this is a place, not the token there": len(tokens) - 1 - back[expected],
        }
        if given == expected:
            continue
        for words, wrong in mistakes.items():
            if given == wrong:
                raise ExerciseFailed(words)
        raise ExerciseFailed(f"for {tokens} it is {expected}, not {given:g}")
