"""Muon: momentum whose update is replaced by the nearest (semi-)orthogonal matrix.

Ours because torch.optim.Muon takes plain matrices only, while a layer's weights are stored per
head and are orthogonalised with the heads side by side, and because on a CPU its bfloat16
products are many times slower than float32. On plain matrices the two agree (tested).
Source: Jordan et al. 2024, Muon: an optimizer for hidden layers in neural networks.
"""

from collections.abc import Iterable

import torch
from einops import parse_shape, rearrange
from jaxtyping import Float
from torch import Tensor

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the quintic iteration, from the source


def orthogonalised(
    matrices: Float[Tensor, "batch rows cols"], steps: int = 5
) -> Float[Tensor, "batch rows cols"]:
    """Each matrix with its singular values pushed to between about 0.7 and 1.2.

    `steps` Newton-Schulz iterations X <- aX + (bA + cA^2)X, A = X X^T, after division by the
    Frobenius norm; U and V of the singular value decomposition stay.
    """
    a, b, c = COEFFICIENTS
    tall = matrices.shape[-2] > matrices.shape[-1]
    result = []
    for X in matrices.mT if tall else matrices:  # one by one: faster than a batch on a CPU
        X = X / (X.norm() + 1e-7)
        for _ in range(steps):
            A = X @ X.mT
            X = a * X + (b * A + c * A @ A) @ X
        result.append(X.mT if tall else X)
    return torch.stack(result)


HEADS_AS_COLUMNS = (
    "l h m d -> l m (h d)"  # W_Q, W_K, W_V: a (d_model, n_heads * d_head) matrix a layer
)
HEADS_AS_ROWS = "l h d m -> l (h d) m"  # W_O: a (n_heads * d_head, d_model) matrix a layer
PLAIN = "r c -> 1 r c"  # a matrix as it is
STACKED = "l r c -> l r c"  # W_in, W_out: a matrix a layer, as it is


class Muon(torch.optim.Optimizer):
    """Update: W <- W - lr * sqrt(max(1, rows / cols)) * orthogonalised(Nesterov momentum).

    Each group has a `layout`, the einops pattern that turns its parameters into
    (batch, rows, cols): HEADS_AS_COLUMNS, HEADS_AS_ROWS, STACKED or PLAIN.
    """

    def __init__(
        self,
        params: Iterable,
        lr: float = 0.015,
        momentum: float = 0.95,
        layout: str = PLAIN,
    ) -> None:
        if lr < 0 or not 0 <= momentum < 1:
            raise ValueError(f"need lr >= 0 and 0 <= momentum < 1, got {lr} and {momentum}")
        super().__init__(params, {"lr": lr, "momentum": momentum, "layout": layout})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            beta, (stored, matrices) = group["momentum"], group["layout"].split(" -> ")
            for W in group["params"]:
                if W.grad is None or W.numel() == 0:
                    continue
                state = self.state[W]
                if "momentum" not in state:
                    state["momentum"] = torch.zeros_like(W)
                state["momentum"].lerp_(W.grad, 1 - beta)
                direction = W.grad.lerp(state["momentum"], beta)
                update = orthogonalised(rearrange(direction, group["layout"]))
                rows, cols = update.shape[-2:]
                update = rearrange(update, f"{matrices} -> {stored}", **parse_shape(W, stored))
                W.add_(update, alpha=-group["lr"] * max(1, rows / cols) ** 0.5)
