"""Path expansion: a model with frozen patterns as a sum of terms, and what each order is worth."""

from dataclasses import dataclass

import torch
from einops import einsum
from jaxtyping import Float, Int
from torch import Tensor

from pathsum.evaluate import BATCH
from pathsum.loss import cross_entropy_rows
from pathsum.model import AttentionOnlyTransformer, cache

Patterns = list[Tensor]  # one (batch, head, dest, src) tensor a layer


@dataclass(frozen=True)
class PathTerms:
    """Named terms of the stream before W_U; `values.sum(0) @ W_U` are the model's logits."""

    paths: list[tuple[tuple[int, int], ...]]  # heads passed, earliest first; () is the direct path
    values: Float[Tensor, "terms batch pos d_model"]

    def logits(
        self, model: AttentionOnlyTransformer, path: tuple[tuple[int, int], ...]
    ) -> Float[Tensor, "batch pos d_vocab"]:
        """One path's contribution to the logits. KeyError if there is no such path."""
        if path not in self.paths:
            raise KeyError(
                f"no path {path}: () is the direct one, ((0, 3),) one head, ((0, 3), (1, 4)) two"
            )
        return self.values[self.paths.index(path)] @ model.W_U.detach()


def patterns_of(model: AttentionOnlyTransformer, tokens: Int[Tensor, "batch pos"]) -> Patterns:
    """The attention patterns of a run, to be held fixed in others."""
    values = cache(model, tokens)
    return [values[f"L{layer}.pattern"] for layer in range(model.config.n_layers)]


def head_outputs(
    model: AttentionOnlyTransformer,
    layer: int,
    pattern: Float[Tensor, "batch head dest src"],
    stream: Float[Tensor, "*terms batch src d_model"],
) -> Float[Tensor, "*terms batch head dest d_model"]:
    """A @ stream @ W_OV of each head: linear in the stream, the pattern being given."""
    values = stream.unsqueeze(-3) @ model.W_V[layer].detach()
    return pattern @ values @ model.W_O[layer].detach()


def path_terms(model: AttentionOnlyTransformer, tokens: Int[Tensor, "batch pos"]) -> PathTerms:
    """Every term of the path expansion: direct, single heads, and chains of heads, layer by layer.

    1 + H terms for one layer, 1 + 2H + H^2 for two; (1 + H)^n_layers in general, so the memory is
    that many residual streams. ValueError for a model with LayerNorm or more than two layers (use
    `order_terms` there). Source: Elhage et al. 2021, The Path Expansion Trick; Path Expansion of Logits.
    """
    _no_norm(model)
    if model.config.n_layers > 2:
        raise ValueError(
            f"all terms are listed for up to 2 layers, got {model.config.n_layers}: "
            "order_terms sums them by order for any depth"
        )
    paths: list[tuple[tuple[int, int], ...]] = [()]
    values = model.W_E.detach()[tokens][None]
    for layer, pattern in enumerate(patterns_of(model, tokens)):
        written = head_outputs(model, layer, pattern, values)  # (terms, batch, head, pos, d_model)
        heads = range(model.config.n_heads)
        paths += [(*path, (layer, head)) for path in paths for head in heads]
        new = written.movedim(2, 1).flatten(0, 1)  # terms outer, heads inner, as `paths`
        values = torch.cat([values, new])
    return PathTerms(paths, values)


def order_terms(
    model: AttentionOnlyTransformer,
    tokens: Int[Tensor, "batch pos"],
    patterns: Patterns | None = None,
    kept: Float[Tensor, "n_layers n_heads"] | None = None,
) -> Float[Tensor, "orders batch pos d_model"]:
    """The stream before W_U split by how many heads a path passes: n_layers + 1 orders, any depth.

    Each layer moves what order k holds to order k + 1 through its heads, so no path is listed.
    `patterns` are the run's own unless given; `kept` (0 or 1 per head) leaves heads out.
    ValueError for a model with LayerNorm. Source: Elhage et al. 2021, Term Importance Analysis.
    """
    _no_norm(model)
    patterns = patterns_of(model, tokens) if patterns is None else patterns
    embed = model.W_E.detach()[tokens]
    orders = torch.zeros(model.config.n_layers + 1, *embed.shape)
    orders[0] = embed
    for layer, pattern in enumerate(patterns):
        if kept is not None:
            pattern = pattern * kept[layer][:, None, None]
        written = head_outputs(model, layer, pattern, orders[: layer + 1]).sum(-3)
        orders[1 : layer + 2] += written
    return orders


@torch.no_grad()
def loss_by_order(
    model: AttentionOnlyTransformer,
    inputs: Int[Tensor, "batch pos"],
    targets: Int[Tensor, "batch pos"],
    kept: Float[Tensor, "n_layers n_heads"] | None = None,
) -> Float[Tensor, " orders"]:
    """Mean loss in nats with the terms of order 0, of orders 0 to 1, ... up to all; patterns frozen.

    `kept` (0 or 1 per head) leaves heads out.

    The last entry (all orders, all heads kept) is the model's own loss. Differences between neighbours are
    the marginal loss reductions of the paper's table. Runs in batches of BATCH sequences.
    """
    totals = torch.zeros(model.config.n_layers + 1, dtype=torch.float64)
    for x, y in zip(inputs.split(BATCH), targets.split(BATCH)):
        running = order_terms(model, x, kept=kept).cumsum(0)
        for order, stream in enumerate(running):
            losses = cross_entropy_rows(stream.flatten(0, 1), model.W_U.detach(), y.flatten())
            totals[order] += losses.double().sum()
    return (totals / targets.numel()).float()


@torch.no_grad()
def layer_table(
    model: AttentionOnlyTransformer,
    inputs: Int[Tensor, "batch pos"],
    targets: Int[Tensor, "batch pos"],
) -> Float[Tensor, "n_layers 2"]:
    """What the single-head terms of each layer are worth, in nats; patterns frozen.

    Column 0: loss of the direct path alone minus that with this layer's terms. Column 1: loss with
    the other layers' terms minus that with all single-head terms. Source: Elhage et al. 2021, Term
    Importance Analysis (second table).
    """
    _no_norm(model)
    layers = frozenset(range(model.config.n_layers))
    wanted = (
        {frozenset(), layers} | {frozenset({n}) for n in layers} | {layers - {n} for n in layers}
    )
    totals = dict.fromkeys(wanted, 0.0)
    for x, y in zip(inputs.split(BATCH), targets.split(BATCH)):
        embed = model.W_E.detach()[x]
        patterns = patterns_of(model, x)
        written = [head_outputs(model, n, A, embed).sum(-3) for n, A in enumerate(patterns)]
        for chosen in wanted:
            stream = embed + sum(written[n] for n in chosen)
            losses = cross_entropy_rows(stream.flatten(0, 1), model.W_U.detach(), y.flatten())
            totals[chosen] += float(losses.double().sum()) / targets.numel()
    rows = [
        [totals[frozenset()] - totals[frozenset({n})], totals[layers - {n}] - totals[layers]]
        for n in sorted(layers)
    ]
    return torch.tensor(rows)


def score_terms(
    model: AttentionOnlyTransformer, tokens: Int[Tensor, "batch pos"], head: int
) -> Float[Tensor, "query_part key_part batch dest src"]:
    """The scores of head (1, head) of a two-layer model, split by what feeds its query and its key.

    Part 0 is the embedding with its position, part 1 + h what head (0, h) wrote. [0, 0] is no
    composition, [1:, 0] Q-, [0, 1:] K-composition, [1:, 1:] both; the sum over both axes equals the
    site `L1.scores` before the mask. Source: Elhage et al. 2021, Path Expansion of Attention Scores.
    ValueError unless the model has two layers and no LayerNorm; IndexError if there is no such head.
    """
    _no_norm(model)
    c = model.config
    if c.n_layers != 2:
        raise ValueError(f"scores are split for models of two layers, got {c.n_layers}")
    if not 0 <= head < c.n_heads:
        raise IndexError(f"head must lie in 0..{c.n_heads - 1}, got {head}")
    pattern = patterns_of(model, tokens)[0]
    embed = model.W_E.detach()[tokens]
    written = head_outputs(model, 0, pattern, embed).movedim(1, 0)
    parts = torch.cat([(embed + model.W_pos[: tokens.shape[1]])[None], written])
    q, k = parts @ model.W_Q[1, head].detach(), parts @ model.W_K[1, head].detach()
    axes = "q batch dest f, k batch src f -> q k batch dest src"
    return einsum(q, k, axes) / c.d_head**0.5


def virtual_pattern(
    patterns: Patterns, first: tuple[int, int], second: tuple[int, int]
) -> Float[Tensor, "batch dest src"]:
    """The pattern of two heads in a row, A_second @ A_first; rows sum to 1 and are causal.

    ValueError unless `first` lies in an earlier layer. Source: Elhage et al. 2021, Virtual Heads.
    """
    if first[0] >= second[0]:
        raise ValueError(f"the first head must be in an earlier layer, got {first} and {second}")
    return patterns[second[0]][:, second[1]] @ patterns[first[0]][:, first[1]]


def _no_norm(model: AttentionOnlyTransformer) -> None:
    if model.config.norm is not None:
        raise ValueError(
            "paths are exact sums for models without LayerNorm only, got one with norm='pre': "
            "take an attn-only model"
        )
