"""What groups of path terms are worth to the loss: by order, and by layer."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pathsum.evaluate import BATCH
from pathsum.loss import cross_entropy_rows
from pathsum.model import AttentionOnlyTransformer
from pathsum.paths import final_read, frozen_run, head_outputs, linear_read, order_terms
from pathsum.standard import refuse_mlps


@torch.no_grad()
def loss_by_order(
    model: AttentionOnlyTransformer,
    inputs: Int[Tensor, "batch pos"],
    targets: Int[Tensor, "batch pos"],
    kept: Float[Tensor, "n_layers n_heads"] | None = None,
) -> Float[Tensor, " orders"]:
    """Mean loss in nats with the terms of order 0, of orders 0 to 1, ... up to all; patterns frozen.

    `kept` (0 or 1 per head) leaves heads out. LayerNorm's scales are frozen too, and what its biases
    add is there from order 0 on. The last entry (all heads kept) is the model's own loss; differences
    between neighbours are the marginal loss reductions of the paper's table. Runs in batches of
    BATCH sequences.
    """
    totals = torch.zeros(model.config.n_layers + 1, dtype=torch.float64)
    for x, y in zip(inputs.split(BATCH), targets.split(BATCH)):
        terms = order_terms(model, x, kept=kept)
        running = terms[: len(totals)].cumsum(0) + terms[len(totals) :].sum(0)  # the biases, if any
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
    the other layers' terms minus that with all single-head terms. LayerNorm's scales are frozen, and
    what its biases add is there in all four. Source: Elhage et al. 2021, Term Importance Analysis
    (second table).
    """
    refuse_mlps(model, "layer_table")
    layers = frozenset(range(model.config.n_layers))
    wanted = (
        {frozenset(), layers} | {frozenset({n}) for n in layers} | {layers - {n} for n in layers}
    )
    totals = dict.fromkeys(wanted, 0.0)
    for x, y in zip(inputs.split(BATCH), targets.split(BATCH)):
        frozen, embed = frozen_run(model, x), model.W_E.detach()[x]
        written = [
            head_outputs(model, n, A, linear_read(model, frozen, n, embed)).sum(-3)
            for n, A in enumerate(frozen.patterns)
        ]
        for chosen in wanted:
            stream = embed + sum(written[n] for n in chosen)
            read = final_read(model, frozen, stream[None]).sum(0)
            losses = cross_entropy_rows(read.flatten(0, 1), model.W_U.detach(), y.flatten())
            totals[chosen] += float(losses.double().sum()) / targets.numel()
    rows = [
        [totals[frozenset()] - totals[frozenset({n})], totals[layers - {n}] - totals[layers]]
        for n in sorted(layers)
    ]
    return torch.tensor(rows)
