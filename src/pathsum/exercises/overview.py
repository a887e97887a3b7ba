"""Checks for the exercises of the Transformer Overview."""

from typing import Any

import torch
from einops import einsum

from pathsum.exercises.core import (
    ExerciseFailed,
    agree,
    call,
    check,
    random_pattern,
    sizes,
    tensor,
)
from pathsum.exercises.progress import generator


def _generator() -> torch.Generator:
    return generator(7)


@check("Exercise 2.1")
def check_virtual_weights(answer: Any) -> None:
    """virtual_weights(W_out (d_hidden, d_model), W_in (d_model, d_next)) -> (d_hidden, d_next)."""
    g = _generator()
    for _ in range(3):
        hidden, width, further = sizes(3, g)
        W_out = torch.randn(hidden, width, generator=g)
        W_in = torch.randn(width, further, generator=g)
        given = tensor(call(answer, W_out, W_in), (hidden, further), "(written by, read by)")
        expected = torch.zeros(hidden, further)
        for i in range(hidden):
            for j in range(further):
                for m in range(width):
                    expected[i, j] += W_out[i, m] * W_in[m, j]
        agree(given, expected, "the product")


@check("Exercise 2.2")
def check_attention_pattern(answer: Any) -> None:
    """attention_pattern(x (pos, d_model), W_Q, W_K (d_model, d_head)) -> (dest, src)."""
    g = _generator()
    for _ in range(3):
        pos, width, inner = sizes(3, g)
        x = torch.randn(pos, width, generator=g)
        W_Q, W_K = (torch.randn(width, inner, generator=g) / inner**0.5 for _ in range(2))
        given = tensor(call(answer, x, W_Q, W_K), (pos, pos), "(dest, src)")
        expected = torch.zeros(pos, pos)
        for dest in range(pos):  # slow and obvious
            q = x[dest] @ W_Q
            scores = [float(q @ (x[src] @ W_K)) / inner**0.5 for src in range(dest + 1)]
            expected[dest, : dest + 1] = torch.tensor(scores).softmax(0)
        scores = (x @ W_Q) @ (x @ W_K).mT
        future = torch.ones(pos, pos, dtype=torch.bool).triu(1)
        minus = float("-inf")
        scaled, masked = scores / inner**0.5, (scores / inner**0.5).masked_fill(future, minus)
        mistakes = {
            "a destination attends to what comes after it; set the scores of the future to -inf "
            "before the softmax": scaled.softmax(-1),
            "the scores are not divided by sqrt(d_head)": scores.masked_fill(future, minus).softmax(
                -1
            ),
            "the scores are divided by sqrt(d_model); it should be sqrt(d_head)": (
                scores / width**0.5
            )
            .masked_fill(future, minus)
            .softmax(-1),
            "the scores are divided by d_head; it should be its square root": (scores / inner)
            .masked_fill(future, minus)
            .softmax(-1),
            "the softmax runs over destinations; each row (destination) should sum to 1": masked.softmax(
                0
            ),
            "queries and keys are exchanged: rows should be the destination, which makes the "
            "query": scaled.mT.masked_fill(future, minus).softmax(-1),
            "the mask is the wrong way round: a destination should see itself and what is before "
            "it": scaled.masked_fill(future.mT, minus).softmax(-1),
            "the future is set to 0 after the softmax, so rows no longer sum to 1; mask before "
            "it": scaled.softmax(-1).tril(),
            "the future's scores are set to 0, and the softmax still gives exp(0) to each; set "
            "them to -inf": scaled.tril().softmax(-1),
            "these are scores; the softmax is missing": scaled,
        }
        agree(given, expected, "the pattern", mistakes)


def _heads(g: torch.Generator) -> tuple[torch.Tensor, ...]:
    """A small layer of pairwise different sizes: x, patterns, W_V, W_O."""
    pos, width, inner, heads = sizes(4, g)
    x = torch.randn(pos, width, generator=g)
    patterns = random_pattern(heads, pos, pos, generator=g)
    W_V = torch.randn(heads, width, inner, generator=g) / width**0.5
    W_O = torch.randn(heads, inner, width, generator=g) / inner**0.5
    return x, patterns, W_V, W_O


@check("Exercise 2.3")
def check_attention_layer(answer: Any) -> None:
    """attention_layer(x, patterns, W_V, W_O) -> what the layer adds to the stream, (pos, d_model)."""
    g = _generator()
    for _ in range(2):
        x, patterns, W_V, W_O = _heads(g)
        given = tensor(call(answer, x, patterns, W_V, W_O), tuple(x.shape), "(pos, d_model)")
        expected, stream, kept = torch.zeros_like(x), x.clone(), []
        for A, V, O in zip(patterns, W_V, W_O):
            expected += A @ (x @ V) @ O
            stream = stream + A @ (stream @ V) @ O
            kept.append(A @ (x @ V) @ O)
        turned = sum(A.mT @ x @ V @ O for A, V, O in zip(patterns, W_V, W_O))
        mistakes = {
            "each head reads what the head before it wrote; all heads of a layer read the same "
            "stream": stream - x,
            "each head reads what the head before it wrote, and the stream itself is added; return "
            "the sum of what the heads write, from the same x": stream,
            "the stream itself is added; return only what the layer adds": expected + x,
            "only the last head is left; add them up": kept[-1],
            "the heads are averaged; they add": expected / len(kept),
            "the patterns are transposed: rows are destinations": turned,
            "the patterns are not used": sum(x @ V @ O for V, O in zip(W_V, W_O)),
        }
        agree(given, expected, "what the layer adds", mistakes)


@check("Exercise 2.4")
def check_kron_head(answer: Any) -> None:
    """kron_head(A (dest, src), W_OV (d_model, d_model)): K with K @ x.flatten() == head output."""
    g = _generator()
    for _ in range(3):
        pos, width = sizes(2, g, high=8)
        A, W = random_pattern(pos, pos, generator=g), torch.randn(width, width, generator=g)
        size = (pos * width, pos * width)
        given = tensor(call(answer, A, W), size, "(dest d_model, src d_model)")
        columns = []
        for i in range(pos * width):  # what the head does with each single entry of x
            x = torch.zeros(pos * width)
            x[i] = 1
            columns.append((A @ x.reshape(pos, width) @ W).flatten())
        expected = torch.stack(columns, dim=1)
        mistakes = {
            "W_OV acts from the right on rows, so it stands transposed in the Kronecker "
            "product": torch.kron(A, W),
            "this is right for vec(x) column after column; x.flatten() goes row after row, so the "
            "pattern comes first": torch.kron(W.mT.contiguous(), A),
            "the order is the other one, and W_OV must be transposed": torch.kron(W, A),
            "the pattern should not be transposed": torch.kron(
                A.mT.contiguous(), W.mT.contiguous()
            ),
        }
        agree(given, expected, "the matrix", mistakes)


@check("Exercise 2.5")
def check_reparametrise(answer: Any) -> None:
    """reparametrise(W_Q, W_K, M) -> W_Q @ M and the W_K that leaves every score as it was."""
    g = _generator()
    for _ in range(3):
        width, inner = sizes(2, g)
        W_Q, W_K = (torch.randn(width, inner, generator=g) for _ in range(2))
        M = torch.linalg.qr(torch.randn(inner, inner, generator=g)).Q
        M = M * torch.linspace(0.5, 2, inner) + 0.1 * torch.randn(inner, inner, generator=g)
        given = call(answer, W_Q, W_K, M)
        if not isinstance(given, (tuple, list)) or len(given) != 2:
            raise ExerciseFailed("expected two matrices, (new W_Q, new W_K), given another thing")
        new_Q, new_K = (tensor(W, (width, inner), "(d_model, d_head)") for W in given)
        agree(new_Q, W_Q @ M, "the new W_Q")
        wrong = {
            "W_K @ M: then M appears twice in the scores instead of cancelling": W_K @ M,
            "W_K @ inverse(M): the scores are q @ k.mT, so one transpose is missing": W_K
            @ torch.linalg.inv(M),
            "W_K @ M.mT is right only when M is orthogonal; use the inverse": W_K @ M.mT,
            "W_K is unchanged, so the scores change": W_K,
        }
        agree(new_K, W_K @ torch.linalg.inv(M).mT, "the new W_K", wrong, tolerance=1e-3)


@check("Exercise 2.6")
def check_virtual_head(answer: Any) -> None:
    """virtual_head(A_1, W_OV_1, A_2, W_OV_2) -> (pattern, W_OV) of head 1 followed by head 2."""
    g = _generator()
    for _ in range(3):
        pos, width = sizes(2, g)
        A_1, A_2 = (random_pattern(pos, pos, generator=g) for _ in range(2))
        W_1, W_2 = (torch.randn(width, width, generator=g) / width**0.5 for _ in range(2))
        given = call(answer, A_1, W_1, A_2, W_2)
        if not isinstance(given, (tuple, list)) or len(given) != 2:
            raise ExerciseFailed("expected a pattern and a matrix, given another thing")
        A = tensor(given[0], (pos, pos), "(dest, src)")
        W = tensor(given[1], (width, width), "(d_model, d_model)")
        first_pattern = {
            "A_1 @ A_2 lets head 2 move first; what head 1 brought is picked up by A_2": A_1 @ A_2,
            "A_1 * A_2 is entry by entry; a path may pass any position in between": A_1 * A_2,
            "only one of the two patterns is used": A_2,
        }
        agree(A, A_2 @ A_1, "the pattern", first_pattern)
        first_matrix = {
            "W_OV_2 @ W_OV_1 is the order of column vectors; with rows the first head's matrix "
            "comes first": W_2 @ W_1,
            "W_OV_1 * W_OV_2 is entry by entry; use a matrix product": W_1 * W_2,
        }
        agree(W, W_1 @ W_2, "the matrix", first_matrix)
        x = torch.randn(pos, width, generator=g)
        both = einsum(A_2, A_1 @ x @ W_1, "dest mid, mid m -> dest m") @ W_2
        agree(A @ x.double() @ W, both, "what the virtual head does")
