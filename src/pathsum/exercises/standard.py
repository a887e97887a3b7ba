"""Checks for the exercises of the chapter on standard models."""

from typing import Any

import torch
from torch import Tensor
from torch.special import ndtr

from pathsum.exercises.core import agree, call, check, number, sizes, tensor
from pathsum.exercises.progress import generator


def _generator() -> torch.Generator:
    return generator(31)


@check("Exercise 13.1")
def check_frozen_gelu(answer: Any) -> None:
    """frozen_gelu(pre, own) -> pre times the gate that `own` opens, both (batch, pos, d_mlp)."""
    g = _generator()
    for _ in range(3):
        batch, pos, width = sizes(3, g)
        pre, own = torch.randn(2, batch, pos, width, generator=g)
        given = tensor(call(answer, pre, own), (batch, pos, width), "(batch, pos, d_mlp)")
        mistakes: dict[str, Tensor] = {
            "the gate moves with `pre`; frozen, it is that of `own`": pre * ndtr(pre),
            "this is the activation of `own`, and `pre` has no part in it": own * ndtr(own),
            "value and gate have changed places": own * ndtr(pre),
            "this is the gate alone; it still has to be multiplied by the value": ndtr(own),
            "the gate of GELU is smooth; this one, of ReLU, is 0 or 1": pre * (own > 0),
            "the gate is the normal distribution's integral; this is the logistic function": pre
            * own.sigmoid(),
        }
        agree(given, pre * ndtr(own), "the frozen activation", mistakes)


@check("Exercise 13.2")
def check_frozen_norm(answer: Any) -> None:
    """frozen_norm(part, whole (batch, pos, d_model), gain (d_model,)) -> what the part becomes."""
    g = _generator()
    for _ in range(3):
        batch, pos, width = sizes(3, g, low=4)
        part, whole = torch.randn(2, batch, pos, width, generator=g)
        gain = 0.5 + torch.rand(width, generator=g)

        def centred(x: Tensor) -> Tensor:
            return x - x.mean(-1, keepdim=True)

        def scale(x: Tensor) -> Tensor:
            return (x.var(-1, correction=0, keepdim=True) + 1e-5).rsqrt()

        given = tensor(call(answer, part, whole, gain), (batch, pos, width), "(batch, pos, d_model)")
        mistakes: dict[str, Tensor] = {
            "the part is scaled by its own size; the scale is that of the whole stream": centred(part)
            * scale(part) * gain,
            "the part is not centred": part * scale(whole) * gain,
            "the gain is missing": centred(part) * scale(whole),
            "the scale is missing": centred(part) * gain,
            "the mean of the whole stream is taken off every part, so that parts no longer add up": (
                part - whole.mean(-1, keepdim=True)
            ) * scale(whole) * gain,
            "the scale divides; this multiplies by the size": centred(part) / scale(whole) * gain,
        }  # fmt: skip
        agree(given, centred(part) * scale(whole) * gain, "what the part becomes", mistakes)


@check("Exercise 13.3")
def check_route_count(answer: Any) -> None:
    """route_count(n_layers, n_heads) -> routes of one source, each head and each MLP being a stop."""
    g = _generator()
    for _ in range(4):
        layers, heads = (int(n) for n in torch.randint(5, (2,), generator=g))
        layers, heads = layers + 2, heads + 5  # so that no two mistakes give one number
        given = torch.tensor(number(call(answer, layers, heads)), dtype=torch.float64)
        mistakes = {
            "the MLPs are left out": (1 + heads) ** layers,
            "an MLP stands after the heads of its layer, so that a route may pass both; it is no "
            "further head beside them": (2 + heads) ** layers,
            "a route may also pass by, through neither heads nor MLP": heads**layers,
            "all of a layer's heads are taken as one stop; count each head": 4**layers,
            "layers multiply; this adds": layers * 2 * (1 + heads),
        }
        expected = torch.tensor((2 * (1 + heads)) ** layers, dtype=torch.float64)
        wrong = {k: torch.tensor(v, dtype=torch.float64) for k, v in mistakes.items()}
        agree(given, expected, "the number of routes", wrong)
