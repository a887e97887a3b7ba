"""Checks for the exercises of the chapter on causal methods."""

from typing import Any

import torch
from torch import Tensor

from pathsum.exercises.core import agree, call, check, number, sizes, tensor
from pathsum.exercises.progress import generator


def _generator() -> torch.Generator:
    return generator(29)


@check("Exercise 12.1")
def check_share(answer: Any) -> None:
    """share(before (prompts,), patched (prompts,), after (prompts,)) -> how far the mean moved."""
    g = _generator()
    for _ in range(4):
        (count,) = sizes(1, g, low=5)
        before = torch.randn(count, generator=g)
        after = before + 1 + torch.rand(count, generator=g)
        patched = before + torch.rand(count, generator=g)
        given = torch.tensor(number(call(answer, before, patched, after)), dtype=torch.float64)
        whole = (after - before).mean()
        expected = (patched - before).mean() / whole
        mistakes = {
            "this is what is still missing; 0 should be the run before the patch": 1 - expected,
            "the score of the run before the patch is not subtracted": patched.mean()
            / after.mean(),
            "this is a difference of scores; divide by the whole difference": expected * whole,
            "this is a mean of shares, in which prompts with a small difference count most; take the "
            "means of the scores first": ((patched - before) / (after - before)).mean(),
        }
        agree(given, expected, "the share", mistakes)


@check("Exercise 12.2")
def check_patched_sum(answer: Any) -> None:
    """patched_sum(base, donor (batch, head, pos, d_model), head) -> (batch, pos, d_model)."""
    g = _generator()
    for _ in range(3):
        batch, heads, pos, width = sizes(4, g)
        base, donor = torch.randn(2, batch, heads, pos, width, generator=g)
        head = int(torch.randint(heads, (1,), generator=g))
        given = tensor(
            call(answer, base, donor, head), (batch, pos, width), "(batch, pos, d_model)"
        )
        others = base.sum(1) - base[:, head]
        mistakes = {
            "the head is taken out and nothing is put in its place: this is zero ablation": others,
            "all heads but this one come from the donor": donor.sum(1)
            - donor[:, head]
            + base[:, head],
            "the head stands in the sum twice, as its own and as the donor's": base.sum(1)
            + donor[:, head],
            "every head comes from the donor": donor.sum(1),
            "this is the donor's head alone; the other heads still write": donor[:, head],
        }
        agree(given, others + donor[:, head], "what the layer writes", mistakes)


@check("Exercise 12.3")
def check_first_order(answer: Any) -> None:
    """first_order(clean, corrupted, gradient (batch, pos, d_model)) -> (batch,) how far the score falls."""
    g = _generator()
    for _ in range(3):
        batch, pos, width = sizes(3, g)
        clean, corrupted, gradient = torch.randn(3, batch, pos, width, generator=g)
        given = tensor(call(answer, clean, corrupted, gradient), (batch,), "(batch,)")
        step = (clean - corrupted) * gradient
        expected = step.sum((1, 2))
        mistakes: dict[str, Tensor] = {
            "the sign is turned: a score FALLS when what helped is taken away": -expected,
            "the gradient is multiplied by the value; an effect is of a change, from clean to "
            "corrupted": (clean * gradient).sum((1, 2)),
            "this is the mean over entries; a first-order effect is a sum": step.mean((1, 2)),
            "the last position alone is counted; the patch changes all of them": step[:, -1].sum(1),
            "sizes are added up, so that parts which cancel count twice": step.abs().sum((1, 2)),
        }
        agree(given, expected, "the effect", mistakes)
