"""Induction heads: how they are found, what they do on text, and what their circuits match."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from pathsum.composition import ov_circuits, qk_circuits
from pathsum.evaluate import token_losses
from pathsum.heads import (
    positivity,
    prefix_matching_score,
    previous_token_score,
    repeated_tokens,
    start_token_score,
)
from pathsum.model import AttentionOnlyTransformer, cache
from pathsum.paths import patterns_of

PERIOD, COPIES = 20, 3  # of the random repeats, as in the paper
INDUCTION = 0.4  # prefix-matching score from which a head is called an induction head


def repeats(d_vocab: int, batch: int = 16, seed: int = 0) -> Int[Tensor, "batch pos"]:
    """Random tokens repeated as in the paper, after a start token."""
    return repeated_tokens(batch, PERIOD, COPIES, d_vocab, torch.Generator().manual_seed(seed))


def induction_scores(model: AttentionOnlyTransformer) -> Float[Tensor, "n_layers n_heads"]:
    """Prefix-matching score of every head on `repeats`."""
    patterns = patterns_of(model, repeats(model.config.d_vocab))
    return torch.stack([prefix_matching_score(p, PERIOD).mean(0) for p in patterns])


def induction_heads(scores: Float[Tensor, "n_layers n_heads"]) -> list[int]:
    """Heads of the last layer that reach the score INDUCTION, best first."""
    order = scores[-1].argsort(descending=True).tolist()
    return [head for head in order if scores[-1, head] >= INDUCTION]


def looking_back(
    pattern: Float[Tensor, "batch n_heads dest src"], most: int = 8
) -> Float[Tensor, "n_heads offset"]:
    """Mean attention to the token 0, 1, ... most positions back, per head."""
    return torch.stack(
        [pattern.diagonal(-k, dim1=-2, dim2=-1).mean((0, 2)) for k in range(most + 1)], dim=-1
    )


def previous_token_head(
    model: AttentionOnlyTransformer, tokens: Int[Tensor, "batch pos"]
) -> tuple[int, int]:
    """The first-layer head with the highest previous-token score."""
    return 0, int(previous_token_score(patterns_of(model, tokens)[0]).mean(0).argmax())


def matching_circuit_scores(
    model: AttentionOnlyTransformer, first: int
) -> Float[Tensor, " n_heads"]:
    """Positivity of W_E W_QK (W_OV of head (0, first))^T W_E^T for every head of layer 1, -1 to 1.

    The (destination, source) matrix of the K-composition term: does a token prefer sources before
    which it stood itself? Source: Elhage et al. 2021, Induction Heads (checking the mechanism).
    """
    W_E = model.W_E.detach()
    moved = (W_E @ ov_circuits(model)[0, first]).mT
    circuit = (W_E @ qk_circuits(model)[1]) @ moved
    return positivity(circuit.eigenvalues())


def seen_pair_before(
    inputs: Int[Tensor, "batch pos"], targets: Int[Tensor, "batch pos"]
) -> Bool[Tensor, "batch pos"]:
    """Where the present token and the true next one have stood side by side earlier in the text."""
    pairs = inputs * (int(max(inputs.max(), targets.max())) + 1) + targets
    same = pairs[:, :, None] == pairs[:, None, :]
    return same.tril(-1).any(-1)


def next_token_ranks(
    model: AttentionOnlyTransformer,
    inputs: Int[Tensor, "batch pos"],
    targets: Int[Tensor, "batch pos"],
    head: int,
) -> Int[Tensor, "batch pos"]:
    """Place of the true next token in what head (1, head) alone adds to the logits; 0 is first."""
    logits = cache(model, inputs)["L1.result"][:, head] @ model.W_U
    return (logits > logits.gather(-1, targets[..., None])).sum(-1)


def copy_losses(
    model: AttentionOnlyTransformer, tokens: Int[Tensor, "batch pos"]
) -> Float[Tensor, " copies"]:
    """Mean loss in nats within each copy of `repeats`; each copy's first token is left out."""
    losses = token_losses(model, tokens[:, :-1], tokens[:, 1:])
    return losses.unfold(1, PERIOD, PERIOD)[..., 1:].mean((0, 2))


def resting(
    model: AttentionOnlyTransformer,
    layer: int,
    sequences: int = 8,
    length: int = 100,
    seed: int = 0,
) -> tuple[Float[Tensor, " n_heads"], Float[Tensor, " n_heads"], Float[Tensor, " n_heads"]]:
    """On random tokens that never repeat: attention to the start token, and how little it holds.

    Per head (share of attention; length of the start token's value over the median one; the same for
    what is moved, value @ W_O).
    """
    generator = torch.Generator().manual_seed(seed)
    d_vocab, length = model.config.d_vocab, min(length, model.config.n_ctx - 1)
    rows = [torch.randperm(d_vocab - 1, generator=generator)[:length] + 1 for _ in range(sequences)]
    tokens = torch.cat([torch.zeros(sequences, 1, dtype=torch.int64), torch.stack(rows)], dim=1)
    values = cache(model, tokens)
    v = values[f"L{layer}.v"]

    def ratio(lengths: Tensor) -> Tensor:
        return (lengths[..., 0] / lengths[..., 1:].median(-1).values).mean(0)

    moved = (v @ model.W_O[layer]).norm(dim=-1)
    weight = start_token_score(values[f"L{layer}.pattern"]).mean(0)
    return weight, ratio(v.norm(dim=-1)), ratio(moved)
