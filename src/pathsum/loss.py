"""Cross-entropy over the vocabulary in chunks: the whole batch's logits never exist at once."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from jaxtyping import Float, Int
from torch import Tensor

CHUNK = 2048  # rows of logits held at a time


@contextmanager
def rounded_products(enabled: bool = True) -> Iterator[None]:
    """Inside, fp32 matmuls may round their factors to bf16 where the hardware is faster so.

    Sums stay in fp32. On a processor without bf16 matrix units nothing changes.
    """
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium" if enabled else before)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


class _MeanCrossEntropy(torch.autograd.Function):
    """The loss and both gradients, chunk by chunk in the forward pass: no logits are kept."""

    @staticmethod
    def forward(ctx, resid, W_U, targets, rounded):
        device = resid.device.type
        autocast = torch.is_autocast_enabled(device)
        dtype = torch.get_autocast_dtype(device) if autocast else resid.dtype
        needs_grad = any(ctx.needs_input_grad)
        n, weights = len(resid), W_U.to(dtype)
        total = resid.new_zeros((), dtype=torch.float32)
        d_W_U, d_resid = torch.zeros_like(W_U), []
        with torch.autocast(device, enabled=False), rounded_products(rounded):
            for rows, target in zip(resid.to(dtype).split(CHUNK), targets[:, None].split(CHUNK)):
                logits = (rows @ weights).float()
                logits -= logits.amax(dim=1, keepdim=True)
                hit = logits.gather(1, target)
                norm = logits.exp_().sum(dim=1, keepdim=True)
                total += (norm.log() - hit).sum()
                if needs_grad:  # d loss / d logits: softmax minus one-hot, over n
                    error = logits.div_(norm * n)
                    error.scatter_add_(1, target, torch.full_like(hit, -1 / n))
                    error = error.to(dtype)
                    d_resid.append(error @ weights.mT)
                    d_W_U += rows.mT @ error
        if needs_grad:
            ctx.save_for_backward(torch.cat(d_resid).to(resid.dtype), d_W_U)
        return total / n

    @staticmethod
    def backward(ctx, grad):
        d_resid, d_W_U = ctx.saved_tensors
        return grad * d_resid, grad * d_W_U, None, None


def mean_cross_entropy(
    resid: Float[Tensor, "rows d_model"],
    W_U: Float[Tensor, "d_model d_vocab"],
    targets: Int[Tensor, " rows"],
    rounded: bool = False,
) -> Float[Tensor, ""]:
    """Mean loss in nats of predicting `targets` by `resid @ W_U`, with gradients to both.

    At most CHUNK x d_vocab logits are in memory. `rounded` lets the products round their
    factors to bf16 on hardware that has it (fine for training, not for measurements).
    """
    return _MeanCrossEntropy.apply(resid, W_U, targets, rounded)


@torch.no_grad()
def cross_entropy_rows(
    resid: Float[Tensor, "rows d_model"],
    W_U: Float[Tensor, "d_model d_vocab"],
    targets: Int[Tensor, " rows"],
) -> Float[Tensor, " rows"]:
    """Each row's loss in nats, by chunks in full fp32, without gradients."""
    parts = []
    for rows, target in zip(resid.split(CHUNK), targets.split(CHUNK)):
        parts.append(torch.nn.functional.cross_entropy(rows @ W_U, target, reduction="none"))
    return torch.cat(parts)
