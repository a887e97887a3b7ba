"""A model as a graph, and what a run is worth in which only some of the edges carry the clean prompt.

Senders are the embedding and every head; receivers the queries, keys and values of every head, and the
logits. What a receiver reads is the sum of what the senders before it wrote. In a *circuit run* an edge of
the circuit carries what its sender writes in this run, and any other edge what it wrote in the corrupted run. One
number per edge, 1 or 0, so describes ablation and patching of heads and of paths; and because the number may
lie between, the gradient with respect to it is attribution patching.

Positions have no edge: queries and keys read the same ones in both versions.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from einops import einsum
from jaxtyping import Bool, Float
from torch import Tensor
from tqdm.auto import tqdm

from pathsum.contrasts import Contrast, embedded
from pathsum.model import AttentionOnlyTransformer, Config, cache

KINDS = "qkv"


@dataclass(frozen=True)
class Graph:
    """The edges of one model, by the names of their ends."""

    config: Config

    @property
    def senders(self) -> list[str]:
        """The embedding, then heads, layer by layer."""
        c = self.config
        heads = [f"L{layer}H{head}" for layer in range(c.n_layers) for head in range(c.n_heads)]
        return ["embed", *heads]

    @property
    def receivers(self) -> list[str]:
        """Each head's query, key and value, heads in the order of the senders; last the logits."""
        return [f"{head}.{kind}" for head in self.senders[1:] for kind in KINDS] + ["logits"]

    @property
    def exists(self) -> Bool[Tensor, "sender receiver"]:
        """Whether the sender comes before the receiver."""
        c, width = self.config, len(KINDS) * self.config.n_heads
        there = torch.zeros(len(self.senders), len(self.receivers), dtype=torch.bool)
        for layer in range(c.n_layers):
            there[: 1 + layer * c.n_heads, layer * width : (layer + 1) * width] = True
        there[:, -1] = True
        return there

    def edges(self) -> list[tuple[int, int]]:
        """(sender, receiver) of every edge, by their places in the lists."""
        return [(s, r) for s, r in self.exists.nonzero().tolist()]

    def name(self, edge: tuple[int, int]) -> str:
        """ "L0H6 > L1H6.k" """
        return f"{self.senders[edge[0]]} > {self.receivers[edge[1]]}"

    def whole(self) -> Float[Tensor, "sender receiver"]:
        """The circuit of all edges."""
        return self.exists.float()


def graph_of(model: AttentionOnlyTransformer) -> Graph:
    """ValueError for a model with LayerNorm or smeared keys, whose reads are not sums over edges."""
    if model.config.norm or model.config.smear:
        raise ValueError(
            "edges need reads that are sums: this model has LayerNorm or smeared keys; take one "
            "without, such as attn-only-2l"
        )
    return Graph(model.config)


def head_mask(graph: Graph, heads: list[tuple[int, int]]) -> Float[Tensor, "sender receiver"]:
    """All edges but those that leave the named heads. IndexError for a head that there is not."""
    mask = graph.whole()
    for layer, head in heads:
        if f"L{layer}H{head}" not in graph.senders:
            raise IndexError(
                f"there are layers 0..{graph.config.n_layers - 1} with heads "
                f"0..{graph.config.n_heads - 1}, got {(layer, head)}"
            )
        mask[1 + layer * graph.config.n_heads + head] = 0
    return mask


def circuit_run(
    model: AttentionOnlyTransformer, contrast: Contrast
) -> Callable[[Float[Tensor, "sender receiver"]], Float[Tensor, " batch"]]:
    """A function from circuits to scores: mask -> the answer's logit less the mean logit, per prompt.

    mask is (senders, receivers), 1 where an edge carries this run, 0 where it carries the corrupted
    one; entries where there is no edge do not matter. The corrupted run is made once, here.
    """
    graph, c = graph_of(model), model.config
    clean, corrupted = contrast.embeddings(model)
    base = cache(model, contrast.corrupted, embedded(corrupted))
    scored = contrast.scorer(model)
    n = clean.shape[1]
    future = torch.ones(n, n, dtype=torch.bool).triu(1)
    shape = (len(graph.senders), len(graph.receivers))

    def score(mask: Tensor) -> Tensor:
        if tuple(mask.shape) != shape:
            raise ValueError(f"a mask of this model is {shape}, got {tuple(mask.shape)}")
        changes = (clean - corrupted)[None]  # (sender, batch, pos, d_model)
        width = len(KINDS) * c.n_heads
        for layer in range(c.n_layers):
            rows = mask[: len(changes), layer * width : (layer + 1) * width]
            rows = rows.unflatten(1, (c.n_heads, len(KINDS)))
            reads = einsum(changes, rows, "s b p d, s h kind -> kind h b p d")
            reads = reads + base[f"L{layer}.resid"]
            placed = reads[:2] + model.W_pos[:n]
            axes = "h b p d, h d f -> b h p f"
            q = einsum(placed[0], model.W_Q[layer], axes)
            k = einsum(placed[1], model.W_K[layer], axes)
            v = einsum(reads[2], model.W_V[layer], axes)
            scores = (q @ k.mT / c.d_head**0.5).masked_fill(future, float("-inf"))
            written = einsum(scores.softmax(-1) @ v, model.W_O[layer], "b h p f, h f d -> h b p d")
            before = base[f"L{layer}.result"].transpose(0, 1)
            changes = torch.cat([changes, written - before])
        last = einsum(changes[:, :, -1], mask[:, -1], "s b d, s -> b d")
        return scored(base["resid_final"][:, -1] + last)

    return score


def edge_attributions(
    model: AttentionOnlyTransformer, contrast: Contrast
) -> Float[Tensor, "sender receiver"]:
    """By how much the mean score falls when an edge is cut, to first order: one backward pass for all.

    The gradient of the score with respect to the mask, at the mask of all edges. Source: Nanda 2023
    (attribution patching); Syed, Rager and Conmy 2023 (of edges).
    """
    run, graph = circuit_run(model, contrast), graph_of(model)
    mask = graph.whole().requires_grad_()
    (gradient,) = torch.autograd.grad(run(mask).mean(), mask)
    return gradient * graph.exists


def head_attributions(
    model: AttentionOnlyTransformer, contrast: Contrast
) -> Float[Tensor, "n_layers n_heads"]:
    """By how much the mean score falls when a head is patched, to first order: two runs and a gradient.

    The sum over the edges that leave the head of `edge_attributions`, without making any edge: it
    takes a gradient for each value in the stream, not one for each pair of sender and receiver.
    """
    _, corrupted = contrast.embeddings(model)
    other, kept = cache(model, contrast.corrupted, embedded(corrupted)), {}

    def keep(site: str, value: Tensor) -> Tensor | None:
        if site == "embed":  # so that there is a gradient even if no weight asks for one
            return value.detach().requires_grad_()
        if site.endswith(".result"):
            kept[site] = value
        return None

    final = model.final_residual(contrast.clean, keep)[:, -1]
    score = contrast.scorer(model)(final).mean()
    gradients = torch.autograd.grad(score, list(kept.values()))
    falls = [
        ((value.detach() - other[site]) * gradient).sum((0, 2, 3))
        for (site, value), gradient in zip(kept.items(), gradients)
    ]
    return torch.stack(falls)


@torch.no_grad()
def edge_effects(
    model: AttentionOnlyTransformer, contrast: Contrast, progress: bool = True
) -> Float[Tensor, "sender receiver"]:
    """By how much the mean score falls when one edge is cut and all others stay: a run for each."""
    run, graph = circuit_run(model, contrast), graph_of(model)
    intact, effects = run(graph.whole()).mean(), torch.zeros(graph.exists.shape)
    for edge in tqdm(graph.edges(), desc="edges", disable=not progress, leave=False):
        mask = graph.whole()
        mask[edge] = 0
        effects[edge] = intact - run(mask).mean()
    return effects


@torch.no_grad()
def head_effects(
    model: AttentionOnlyTransformer, contrast: Contrast
) -> Float[Tensor, "n_layers n_heads"]:
    """By how much the mean score falls when a head writes what it wrote in the corrupted run."""
    run, graph, c = circuit_run(model, contrast), graph_of(model), model.config
    intact, effects = run(graph.whole()).mean(), torch.zeros(c.n_layers, c.n_heads)
    for layer in range(c.n_layers):
        for head in range(c.n_heads):
            effects[layer, head] = intact - run(head_mask(graph, [(layer, head)])).mean()
    return effects
