"""Checks for the exercises of the chapter on term importance and virtual heads."""

from itertools import combinations, product
from typing import Any

import torch

from pathsum.exercises.core import (
    ExerciseFailed,
    agree,
    call,
    check,
    described,
    number,
    random_pattern,
    sizes,
    tensor,
)
from pathsum.exercises.progress import generator


def _generator() -> torch.Generator:
    return generator(11)


@check("Exercise 9.1")
def check_path_counts(answer: Any) -> None:
    """path_counts(n_layers, n_heads) -> list of n_layers + 1 whole numbers."""
    for n_layers, n_heads in ((2, 8), (3, 2), (4, 3), (0, 5)):
        given = call(answer, n_layers, n_heads)
        case = f"for n_layers={n_layers} and n_heads={n_heads}"
        if not isinstance(given, list | tuple):
            raise ExerciseFailed(f"expected a list of numbers, given {described(given)}")
        if len(given) != n_layers + 1:
            raise ExerciseFailed(
                f"{case} expected {n_layers + 1} numbers, orders 0 to {n_layers}, given {len(given)}"
            )
        counts = [number(count) for count in given]
        chains = [
            [h for layers in combinations(range(n_layers), order) for h in heads(order, n_heads)]
            for order in range(n_layers + 1)
        ]
        expected = [len(paths) for paths in chains]
        if counts == expected:
            continue
        if counts == [n_heads**order for order in range(n_layers + 1)]:
            raise ExerciseFailed(
                f"{case}: which layers a path passes is not counted yet, only which heads"
            )
        if counts == [(n_layers * n_heads) ** order for order in range(n_layers + 1)]:
            raise ExerciseFailed(
                f"{case}: a path passes each layer at most once, and only from earlier to later ones"
            )
        raise ExerciseFailed(f"{case} expected {expected} by listing all paths, given {given}")


def heads(order: int, n_heads: int) -> list[tuple[int, ...]]:
    """All choices of one head in each of `order` layers."""
    return list(product(range(n_heads), repeat=order))


@check("Exercise 9.2")
def check_split_by_order(answer: Any) -> None:
    """split_by_order(x (pos, d_model), A (layers, heads, pos, pos), W_OV (...)) -> (orders, ...)."""
    g = _generator()
    for n_layers in (2, 3):
        n_heads, pos, width = sizes(3, g, low=2, high=6)
        x = torch.randn(pos, width, generator=g)
        A = random_pattern(n_layers, n_heads, pos, pos, generator=g)
        W = torch.randn(n_layers, n_heads, width, width, generator=g) / width**0.5
        shape = (n_layers + 1, pos, width)
        given = tensor(call(answer, x, A, W), shape, "(order, pos, d_model)")
        expected = torch.zeros(shape)
        for order in range(n_layers + 1):  # slow and obvious: every path by itself
            for layers in combinations(range(n_layers), order):
                for chosen in heads(order, n_heads):
                    term = x
                    for layer, head in zip(layers, chosen):
                        term = A[layer, head] @ term @ W[layer, head]
                    expected[order] += term
        mistakes = {
            "the matrices act from the wrong side; rows are vectors, so it is A @ x @ W_OV": _orders(
                x, A, W.mT
            ),
            "within a layer, heads read what heads of the same layer wrote; read all orders first, "
            "then add": _orders(x, A, W, one_by_one=True),
            "each order holds the lower ones as well; they should be kept apart": expected.cumsum(
                0
            ),
            "the patterns are used from destination to source; it is A @ x": _orders(x, A.mT, W),
        }
        agree(given, expected, "the split", mistakes)


def _orders(x: torch.Tensor, A: torch.Tensor, W: torch.Tensor, one_by_one: bool = False):
    orders = torch.zeros(len(A) + 1, *x.shape)
    orders[0] = x
    for patterns, matrices in zip(A, W):
        read = orders.clone()
        for a, w in zip(patterns, matrices):
            written = a @ (orders if one_by_one else read) @ w
            orders = orders + torch.cat([torch.zeros_like(x)[None], written[:-1]])
    return orders


@check("Exercise 9.3")
def check_marginal_worth(answer: Any) -> None:
    """marginal_worth(losses (orders,), d_vocab) -> (orders,)."""
    g = _generator()
    for orders in (3, 5):
        losses = torch.rand(orders, generator=g).cumsum(0).flip(0) + 1
        d_vocab = 50 + orders
        given = tensor(call(answer, losses, d_vocab), (orders,), "(order)")
        expected = torch.zeros(orders)
        for order in range(orders):
            before = torch.tensor(float(d_vocab)).log() if order == 0 else losses[order - 1]
            expected[order] = before - losses[order]
        log2 = torch.tensor(float(d_vocab)).log2() - losses[0]
        uniform = torch.tensor(float(d_vocab)).log()
        mistakes = {
            "uniform guessing costs ln(d_vocab) nats; this is in bits (log2)": torch.cat(
                [log2[None], expected[1:]]
            ),
            "each order is compared with uniform guessing; compare it with the orders before it": (
                uniform - losses
            ),
            "order 0 should be compared with uniform guessing, ln(d_vocab)": torch.cat(
                [losses[:1], expected[1:]]
            ),
        }
        agree(given, expected, "the worth of the orders", mistakes)


@check("Exercise 9.4")
def check_v_composition(answer: Any) -> None:
    """v_composition(W_OV_1, W_OV_2) -> a number from 0 to 1; head 2 reads what head 1 writes."""
    g = _generator()
    for _ in range(3):
        (width,) = sizes(1, g, low=6)
        reads, writes, further = torch.linalg.qr(torch.randn(width, 3, generator=g)).Q.mT[..., None]
        first, second = reads @ writes.mT, writes @ further.mT  # head 2 reads what head 1 writes
        first, second = (M + 0.1 * torch.randn(width, width, generator=g) for M in (first, second))
        given = torch.tensor(number(call(answer, first, second)))
        sizes_product = first.norm() * second.norm()
        expected = (first @ second).norm() / sizes_product
        mistakes = {
            "this is W_OV_2 @ W_OV_1: head 1 would read what head 2 writes": (second @ first).norm()
            / sizes_product,
            "the norm of the product is not divided by both norms": (first @ second).norm(),
            "this is the product entry by entry; it should be the matrix product": (
                first * second
            ).norm()
            / sizes_product,
            "these are largest singular values; the score takes Frobenius norms": torch.linalg.matrix_norm(
                first @ second, 2
            )
            / (torch.linalg.matrix_norm(first, 2) * torch.linalg.matrix_norm(second, 2)),
        }
        agree(given.double(), expected, "the score", mistakes)
