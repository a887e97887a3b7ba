"""Checks for the exercises of the chapter on technical details."""

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from pathsum.exercises.core import (
    ExerciseFailed,
    agree,
    call,
    check,
    number,
    random_pattern,
    sizes,
    tensor,
)
from pathsum.exercises.progress import generator


def _generator() -> torch.Generator:
    return generator(41)


@check("Exercise 10.1")
def check_fold_norm(answer: Any) -> None:
    """fold_norm(gain (d_model,), W (d_model, out)) -> (d_model, out), to be read by scale * x."""
    g = _generator()
    for _ in range(3):
        d_model, out = sizes(2, g)
        gain = 1 + 0.5 * torch.randn(d_model, generator=g)
        W = torch.randn(d_model, out, generator=g)
        given = tensor(call(answer, gain, W), (d_model, out), "(d_model, out)")
        one_hot = torch.eye(d_model).double()  # row i of the answer is what coordinate i reads as
        centred = one_hot - one_hot.mean(-1, keepdim=True)
        expected = (centred * gain) @ W.double()
        scaled = gain[:, None] * W
        mistakes = {
            "the mean over the coordinates is not subtracted yet: centring is a matrix too": scaled,
            "the gain comes after the centring; here the centring comes last": (
                gain[:, None] * (W - W.mean(0))
            ),
            "the gain is missing": centred @ W.double(),
            "the gain is divided by; LayerNorm multiplies by it": (centred / gain) @ W.double(),
        }
        agree(given, expected, "the folded matrix", mistakes)


@check("Exercise 10.2")
def check_bias_logits(answer: Any) -> None:
    """bias_logits(b_V (heads, d_head), W_O (heads, d_head, d_model), W_U (d_model, d_vocab))."""
    g = _generator()
    for _ in range(3):
        n_heads, d_head, d_model, d_vocab = sizes(4, g)
        b_V = torch.randn(n_heads, d_head, generator=g)
        W_O = torch.randn(n_heads, d_head, d_model, generator=g)
        W_U = torch.randn(d_model, d_vocab, generator=g)
        given = tensor(call(answer, b_V, W_O, W_U), (d_vocab,), "(d_vocab)")
        each = torch.stack([b @ O @ W_U for b, O in zip(b_V, W_O)])
        mistakes = {
            "this is the mean over heads; heads add up": each.mean(0),
            "only one head is in it; all heads add up": each[0],
            "biases and matrices are summed apart; each head's bias goes through its own W_O": (
                b_V.sum(0) @ W_O.sum(0) @ W_U
            ),
        }
        agree(given, each.sum(0), "the constant", mistakes)


class _Watched(TorchFunctionMode):
    """Remembers the size of the largest tensor that an operation gave."""

    largest = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor):
            self.largest = max(self.largest, result.numel())
        return result


@check("Exercise 10.3")
def check_small_norm(answer: Any) -> None:
    """small_norm(A (n, rank), B (rank, n)) -> ||A @ B||, without an (n, n) matrix."""
    g = _generator()
    for _ in range(3):
        (rank,) = sizes(1, g)
        n = 150 + 10 * rank
        A, B = torch.randn(n, rank, generator=g), torch.randn(rank, n, generator=g)
        A, B = A + torch.randn(1, rank, generator=g), B + 0.5 * A.mT
        with _Watched() as watched:
            value = call(answer, A, B)
        given = torch.tensor(number(value), dtype=torch.float64)
        if watched.largest >= n * n:
            raise ExerciseFailed(
                f"your function forms a matrix of {watched.largest:,} entries; two small ones of "
                f"{rank} x {rank} are enough"
            )
        A, B = A.double(), B.double()
        expected = sum(((A[i] @ B) ** 2).sum() for i in range(n)).sqrt()  # row after row
        mistakes = {
            "this is the norm of B @ A: traces and eigenvalues are cyclic, a norm is not": (
                B @ A
            ).norm(),
            "this is the product of the two norms, an upper bound": A.norm() * B.norm(),
            "this is the square of the norm": expected**2,
        }
        agree(given, expected, "the norm", mistakes)


@check("Exercise 10.4")
def check_offset_pattern(answer: Any) -> None:
    """offset_pattern(n, back) -> (n, n): 1 where the source is `back` positions before, else 0."""
    g = _generator()
    for back in (2, *sizes(2, g, low=0, high=4)):
        (n,) = sizes(1, g, low=7)
        given = tensor(call(answer, n, back), (n, n), "(dest, src)")
        expected = torch.tensor(
            [[float(dest - src == back) for src in range(n)] for dest in range(n)]
        )
        clamped = torch.zeros(n, n)
        for dest in range(n):
            clamped[dest, max(dest - back, 0)] = 1
        mistakes = {
            "it looks ahead: rows are destinations, and the source comes before": expected.mT,
            "rows with no token so far back should be empty: a convolution pads with zeros": clamped,
            "it wraps round: the first positions read from the end": torch.eye(n).roll(back, 0),
            "it looks one position too far back": torch.ones(n, n).tril(-back - 1).triu(-back - 1),
        }
        agree(given, expected, f"the pattern for n={n} and back={back}", mistakes)


@check("Exercise 10.5")
def check_pre_activations(answer: Any) -> None:
    """pre_activations(x (pos, d_model), A (heads, pos, pos), W_OV, W_in) -> (1 + heads, pos, d_mlp)."""
    g = _generator()
    for _ in range(2):
        n_heads, pos, d_model, d_mlp = sizes(4, g, high=9)
        x = torch.randn(pos, d_model, generator=g)
        A = random_pattern(n_heads, pos, pos, generator=g)
        W_OV = torch.randn(n_heads, d_model, d_model, generator=g) / d_model**0.5
        W_in = torch.randn(d_model, d_mlp, generator=g)
        shape = (1 + n_heads, pos, d_mlp)
        given = tensor(call(answer, x, A, W_OV, W_in), shape, "(path, pos, d_mlp)")
        expected = torch.stack([x @ W_in] + [a @ x @ W @ W_in for a, W in zip(A, W_OV)])
        whole = torch.stack([x @ W_in] + [(x + a @ x @ W) @ W_in for a, W in zip(A, W_OV)])
        turned = [a @ x @ W.mT @ W_in for a, W in zip(A, W_OV)]
        ahead = [a.mT @ x @ W @ W_in for a, W in zip(A, W_OV)]
        activated = torch.nn.functional.gelu(expected)
        mistakes = {
            "the direct path is in every head's term; it has a row of its own": whole,
            "W_OV acts from the wrong side; rows are vectors, so it is A @ x @ W_OV": torch.stack(
                [x @ W_in, *turned]
            ),
            "the patterns are used from destination to source; it is A @ x": torch.stack(
                [x @ W_in, *ahead]
            ),
            "the activation function is applied already; terms add up only before it": activated,
        }
        agree(given, expected, "the pre-activations", mistakes)


@check("Exercise 10.6")
def check_excess_kurtosis(answer: Any) -> None:
    """excess_kurtosis(x (pos, d_model)) -> mean over positions of the kurtosis over coordinates."""
    g = _generator()
    for _ in range(3):
        pos, d_model = sizes(2, g, low=5)
        x = 1 + torch.randn(pos, d_model, generator=g)
        x[:, int(torch.randint(d_model, (1,), generator=g))] *= 4
        given = torch.tensor(number(call(answer, x)), dtype=torch.float64)

        def kurtosis(rows: Tensor, centre: bool = True, less: int = 0) -> Tensor:
            values = []
            for row in rows.double():
                row = row - row.mean() if centre else row
                variance = row.square().sum() / (len(row) - less)
                values.append((row**4).mean() / variance**2)
            return torch.stack(values).mean()

        expected = kurtosis(x) - 3
        mistakes = {
            "3, the value of a normal distribution, is not subtracted": kurtosis(x),
            "this is over positions, for each coordinate; take it over coordinates": kurtosis(x.mT)
            - 3,
            "the mean over the coordinates is not subtracted first": kurtosis(x, centre=False) - 3,
            "the variance is divided by d_model - 1; here it is the plain mean of the squares": (
                kurtosis(x, less=1) - 3
            ),
        }
        agree(given, expected, "the kurtosis", mistakes)
