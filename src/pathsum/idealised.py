"""Patterns as a story would have them, put in place of a model's own: how much does the story explain?"""

from collections.abc import Iterable

import torch
from einops import einsum
from jaxtyping import Float, Int
from torch import Tensor

from pathsum.circuits import check_head
from pathsum.evaluate import BATCH, token_losses
from pathsum.model import AttentionOnlyTransformer, Hook

KINDS = ("Q", "K", "V")


def exact_previous_pattern(length: int) -> Float[Tensor, "pos pos"]:
    """All attention on the position before; the first position attends to itself.

    ValueError for a length below 1. Source: an idea of Redwood's causal scrubbing of 2022.
    """
    if length < 1:
        raise ValueError(f"a pattern needs at least 1 position, got {length}")
    before = (torch.arange(length) - 1).clamp_min(0)
    return torch.eye(length)[before]


def exact_induction_pattern(
    tokens: Int[Tensor, "batch pos"], context: int = 1, least: int = 1
) -> Float[Tensor, "batch pos pos"]:
    """All attention on what followed earlier copies of the present token, else on the first position.

    With `context` above 1, only the copies whose preceding tokens agree longest count (up to
    `context` tokens, the present one included); if fewer than `least` agree, the head rests. Several
    copies share alike. ValueError unless 1 <= least <= context.
    """
    if not 1 <= least <= context:
        raise ValueError(
            f"context and least count the present token: 1 <= least <= context, got {least}, {context}"
        )
    n = tokens.shape[1]
    if n < 1:
        raise ValueError("a pattern needs at least 1 position, got tokens of length 0")
    same = tokens[:, :, None] == tokens[:, None, :]  # (batch, dest, copy of dest)
    run, agreement = same, same.int()
    for back in range(1, context):
        shifted = torch.zeros_like(same)
        shifted[:, back:, back:] = same[:, :-back, :-back]
        run = run & shifted
        agreement = agreement + run.int()
    earlier = torch.ones(n, n, dtype=torch.bool).tril(-1)
    agreement = torch.where(earlier, agreement, 0)
    longest = agreement.amax(-1, keepdim=True)
    chosen = ((agreement == longest) & (longest >= least)).float()
    pattern = torch.zeros(len(tokens), n, n)
    pattern[:, :, 1:] = chosen[:, :, :-1]  # the token after the copy
    pattern[:, :, 0] = (longest[..., 0] < least).float()
    return pattern / pattern.sum(-1, keepdim=True)


def substituted_losses(
    model: AttentionOnlyTransformer,
    inputs: Int[Tensor, "batch pos"],
    targets: Int[Tensor, "batch pos"],
    previous: Iterable[tuple[int, int]] = (),
    induction: Iterable[tuple[int, int]] = (),
    context: int = 1,
    least: int = 1,
) -> Float[Tensor, "batch pos"]:
    """Each token's loss in nats with exact patterns in place of the named heads' own.

    `previous` heads get `exact_previous_pattern`, `induction` heads `exact_induction_pattern` with
    `context` and `least`. Everything else, what these heads move included, is the model's. IndexError for a
    head that the model lacks.
    """
    previous, induction = list(previous), list(induction)
    for head in previous + induction:
        check_head(model, head)
    parts = []
    for x, y in zip(inputs.split(BATCH), targets.split(BATCH)):
        before, after = (
            exact_previous_pattern(x.shape[1]),
            exact_induction_pattern(x, context, least),
        )

        def hook(site: str, value: Tensor, before=before, after=after) -> Tensor | None:
            if not site.endswith(".pattern"):
                return None
            layer, value = int(site[1]), value.clone()
            for heads, pattern in ((previous, before), (induction, after)):
                for head in (h for at, h in heads if at == layer):
                    value[:, head] = pattern
            return value

        parts.append(token_losses(model, x, y, hook))
    return torch.cat(parts)


def recovered(full: float, ablated: float, substituted: float) -> float:
    """Share of what ablating costs that the substitute wins back: 1 all of it, 0 nothing.

    ValueError unless ablating costs something.
    """
    if not ablated > full:
        raise ValueError(f"ablating must cost something, got losses {full} and then {ablated}")
    return (ablated - substituted) / (ablated - full)


def uncomposed_hook(model: AttentionOnlyTransformer, kinds: str = "QKV") -> Hook:
    """A hook under which the queries, keys or values of later layers read the embedding alone.

    `kinds` names those cut off, as in "K" or "QV": with all three no head sees another's output.
    What heads write to the logits stays. ValueError for other letters or a model with LayerNorm.
    """
    if not set(kinds) <= set(KINDS) or model.config.norm is not None:
        raise ValueError(
            f"kinds are letters of Q, K and V for a model without LayerNorm, got {kinds!r} and "
            f"norm={model.config.norm!r}"
        )
    embed: list[Tensor] = []

    def hook(site: str, value: Tensor) -> Tensor | None:
        if site == "embed":
            embed[:] = [value]
        layer, _, name = site[1:].partition(".")
        if name.upper() not in kinds or not name or layer == "0":
            return None
        W = getattr(model, f"W_{name.upper()}")[int(layer)].detach()
        x = embed[0] if name == "v" else embed[0] + model.W_pos[: value.shape[2]]
        return einsum(x, W, "batch pos m, head m f -> batch head pos f")

    return hook
