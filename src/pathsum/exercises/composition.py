"""Checks for the exercises of the chapter on composition."""

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
)
from pathsum.exercises.progress import generator


def _generator() -> torch.Generator:
    return generator(11)


def _pair(given: Any, what: str) -> tuple[Any, Any]:
    if not isinstance(given, (tuple, list)) or len(given) != 2:
        raise ExerciseFailed(f"expected {what}, given another thing")
    return given[0], given[1]


@check("Exercise 7.1")
def check_k_composition(answer: Any) -> None:
    """k_composition(W_OV_1, W_QK_2), both (d_model, d_model) -> the score of the pair."""
    g = _generator()
    for width in sizes(3, g):
        W_OV, W_QK = (torch.randn(width, width, generator=g).double() for _ in range(2))
        given = torch.tensor(number(call(answer, W_OV, W_QK)), dtype=torch.float64)
        norms = W_OV.norm() * W_QK.norm()
        product = sum(  # what head 1 writes (row i) meets the source side (columns) of W_QK
            (W_OV[i, m] * W_QK[:, m]).outer(torch.eye(width).double()[i])
            for i in range(width)
            for m in range(width)
        )
        expected = product.norm() / norms
        mistakes = {
            "W_OV @ W_QK is Q-composition: the rows of W_QK are destinations; keys are its "
            "columns": (W_OV @ W_QK).norm() / norms,
            "W_QK @ W_OV lets the later head come first": (W_QK @ W_OV).norm() / norms,
            "W_QK.mT @ W_OV lets the later head come first": (W_QK.mT @ W_OV).norm() / norms,
            "divide by both norms": product.norm(),
            "the null 1 / sqrt(d_model) is subtracted; return the plain ratio": expected
            - width**-0.5,
            "these are spectral norms; Frobenius was asked for": torch.linalg.matrix_norm(
                product, 2
            )
            / (torch.linalg.matrix_norm(W_OV, 2) * torch.linalg.matrix_norm(W_QK, 2)),
            "the norms are squared; take the root": expected**2,
        }
        agree(given, expected, "the score", mistakes)


@check("Exercise 7.2")
def check_score_parts(answer: Any) -> None:
    """score_parts(x_0, written, W_QK) -> none, Q, K, both, each (dest, src)."""
    g = _generator()
    for _ in range(3):
        pos, width = sizes(2, g)
        x_0, written = (torch.randn(pos, width, generator=g) for _ in range(2))
        W_QK = torch.randn(width, width, generator=g) / width
        given = call(answer, x_0, written, W_QK)
        if not isinstance(given, (tuple, list)) or len(given) != 4:
            raise ExerciseFailed("expected four matrices (none, Q, K, both), given another thing")
        none, Q, K, both = (tensor(part, (pos, pos), "(dest, src)") for part in given)
        a, w, M = x_0.double(), written.double(), W_QK.double()
        swapped = {
            "Q and K are exchanged: the destination (row) makes the query": a @ M @ w.mT,
            "the whole stream stands on the other side; there only x_0": w @ M @ (a + w).mT,
        }
        agree(none, a @ M @ a.mT, "the part without composition")
        agree(Q, w @ M @ a.mT, "the Q part", swapped)
        agree(K, a @ M @ w.mT, "the K part", {
            "the whole stream stands on the other side; there only x_0": (a + w) @ M @ w.mT
        })  # fmt: skip
        agree(both, w @ M @ w.mT, "the part with both")


@check("Exercise 7.3")
def check_not_cyclic(answer: Any) -> None:
    """not_cyclic() -> A, B, both (2, 2), with A @ B == 0 and B @ A != 0."""
    A, B = (tensor(m, (2, 2)) for m in _pair(call(answer), "two 2 x 2 matrices, (A, B)"))
    size = float(A.norm() * B.norm())
    if size == 0:
        raise ExerciseFailed("one of the matrices is zero, and then so are both products")
    one, other = float((A @ B).norm()) / size, float((B @ A).norm()) / size
    if one > 1e-6 and other <= 1e-6:
        raise ExerciseFailed("the two are exchanged: A @ B should be zero, and B @ A not")
    if one > 1e-6:
        raise ExerciseFailed(f"A @ B should be zero, but it is {(A @ B).tolist()}")
    if other <= 1e-6:
        raise ExerciseFailed("B @ A is zero too: then the norm does not tell the two apart")


@check("Exercise 7.4")
def check_circled_norm(answer: Any) -> None:
    """circled_norm(A_1, B_1, A_2, B_2) -> norm of B_2 A_1 B_1 A_2, the published quantity."""
    g = _generator()
    for _ in range(3):
        width, inner, second = sizes(3, g)
        A_1, B_2 = torch.randn(width, inner, generator=g), torch.randn(second, width, generator=g)
        B_1, A_2 = torch.randn(inner, width, generator=g), torch.randn(width, second, generator=g)
        given = torch.tensor(number(call(answer, A_1, B_1, A_2, B_2)), dtype=torch.float64)
        a, b, c, d = (m.double() for m in (A_1, B_1, A_2, B_2))
        mistakes = {
            "this is the right norm, of A_1 B_1 A_2 B_2; the published one has B_2 in front": (
                a @ b @ c @ d
            ).norm(),
            "the factors go round by two: start with B_2 alone": (c @ d @ a @ b).norm(),
            "this is the trace, which does not change": (d @ a @ b @ c).trace(),
            "the product of the two small norms is not the norm of the product": (d @ a).norm()
            * (b @ c).norm(),
        }
        agree(given, (d @ a @ b @ c).norm(), "the norm", mistakes)


@check("Exercise 7.5")
def check_reader_of(answer: Any) -> None:
    """reader_of(W_O (d_head, d_model)) -> W_V (d_model, d_head) that gets back what was written."""
    g = _generator()
    for _ in range(3):
        inner, width = sorted(sizes(2, g))
        W_O = torch.randn(inner, width, generator=g)
        W_V = tensor(call(answer, W_O), (width, inner), "(d_model, d_head)")
        eye, O = torch.eye(inner), W_O.double()
        mistakes = {
            "W_O.mT gives the coordinates back mixed, unless the rows of W_O are orthonormal": O
            @ O.mT,
            "divided by the lengths of the rows the coordinates are still mixed": O
            @ (O / O.norm(dim=1, keepdim=True) ** 2).mT,
        }
        agree(O @ W_V, eye, "W_O @ W_V", mistakes)
        outside = torch.randn(1, width, generator=g).double()
        outside = outside - outside @ torch.linalg.pinv(O) @ O
        agree(
            outside @ W_V,
            torch.zeros(1, inner),
            "what is read from directions in which the head never writes (it should be 0)",
        )


@check("Exercise 7.6")
def check_keys_cut(answer: Any) -> None:
    """keys_cut(x_0, x_1, W_Q, W_K) -> pattern (dest, src) without K-composition."""
    g = _generator()
    for _ in range(3):
        pos, width, inner = sizes(3, g)
        x_0 = torch.randn(pos, width, generator=g)
        x_1 = x_0 + random_pattern(pos, pos, generator=g) @ torch.randn(pos, width, generator=g)
        W_Q, W_K = (torch.randn(width, inner, generator=g) / inner**0.5 for _ in range(2))
        given = tensor(call(answer, x_0, x_1, W_Q, W_K), (pos, pos), "(dest, src)")

        def pattern(query: Tensor, key: Tensor) -> Tensor:
            scores = (query @ W_Q) @ (key @ W_K).mT / inner**0.5
            future = torch.ones(pos, pos, dtype=torch.bool).triu(1)
            return scores.masked_fill(future, float("-inf")).softmax(-1)

        mistakes = {
            "the queries are cut too; only keys should read x_0": pattern(x_0, x_0),
            "queries are cut instead of keys": pattern(x_0, x_1),
            "nothing is cut: keys should read x_0": pattern(x_1, x_1),
            "what layer 0 wrote is left alone in the keys; keep x_0, drop the rest": pattern(
                x_1, x_1 - x_0
            ),
            "a destination attends to what comes after it": (
                (x_1 @ W_Q) @ (x_0 @ W_K).mT / inner**0.5
            ).softmax(-1),
            "the scores are not divided by sqrt(d_head)": pattern(x_1 * inner**0.5, x_0),
        }
        agree(given, pattern(x_1, x_0), "the pattern", mistakes)
