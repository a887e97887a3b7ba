"""The claims of the Term Importance Analysis, measured on our models."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pathsum.claims import Measurement, claim
from pathsum.evaluate import token_losses
from pathsum.heads import repeated_tokens
from pathsum.induction import previous_token_head
from pathsum.model import AttentionOnlyTransformer
from pathsum.patching import ablated_losses
from pathsum.samples import spread_sample
from pathsum.term_losses import layer_table, loss_by_order

PAGE = "term-importance"


def measure_orders(
    model: AttentionOnlyTransformer,
    inputs: Int[Tensor, "batch pos"],
    targets: Int[Tensor, "batch pos"],
) -> Measurement:
    uniform = torch.tensor(float(model.config.d_vocab)).log()
    losses = loss_by_order(model, inputs, targets)
    zeroth, first, second = (torch.cat([uniform[None], losses[:-1]]) - losses).tolist()
    off = abs(float(losses[-1] - token_losses(model, inputs, targets).mean()))
    exact, ranked = off < 1e-4, first > zeroth > second
    small = second < 0.15 * first
    return Measurement(
        second / first,
        "order 2 over order 1",
        "holds" if exact and small and ranked else "weaker" if exact and small else "not seen",
        f"order 0 gains {zeroth:.2f} nats over uniform, order 1 {first:.2f}, order 2 {second:.2f} "
        f"({second / first:.0%} of order 1); the sum misses the model's loss by {off:.0e}",
    )


def measure_layers(table: Float[Tensor, "n_layers 2"]) -> Measurement:
    low, high = table[0].tolist(), table[-1].tolist()
    ratio = high[1] / low[1]
    return Measurement(
        ratio,
        "marginal reduction of the second layer over that of the first",
        "holds" if ratio > 5 and high[1] > 0 else "not seen",
        f"heads of layer 0: {low[0]:.2f} nats beside the direct path alone, {low[1]:.2f} beside the "
        f"other layer too; of layer 1: {high[0]:.2f} and {high[1]:.2f}; ratio of the second column "
        f"{ratio:.1f}",
    )


def measure_blind_spot(model: AttentionOnlyTransformer, sequences: int = 16) -> Measurement:
    c = model.config
    period = (c.n_ctx - 1) // 2
    generator = torch.Generator().manual_seed(0)
    tokens = repeated_tokens(sequences, period, 2, c.d_vocab, generator)
    x, y = tokens[:, :-1], tokens[:, 1:]
    head = previous_token_head(model, x)
    second = slice(period + 1, None)
    intact = token_losses(model, x, y)[:, second].mean()
    frozen, unfrozen = (
        float(ablated_losses(model, x, y, [head], freeze_patterns=f)[:, second].mean() - intact)
        for f in (True, False)
    )
    return Measurement(
        unfrozen - frozen,
        "nats",
        "holds" if unfrozen > 1 and abs(frozen) < 0.1 * unfrozen else "not seen",
        f"without L{head[0]}H{head[1]} the loss on the second copy of random tokens rises by "
        f"{frozen:.2f} nats with frozen patterns and by {unfrozen:.2f} without",
    )


@claim(
    id="T11",
    section="Term Importance Analysis",
    statement="The direct path helps, single heads help most, virtual heads add little.",
    paper="1.8, 5.2 and 0.3 nats",
    criterion="order 2 below 15% of order 1, order 1 the largest; the orders sum to the model's loss",
    page=PAGE,
)
def orders(two: AttentionOnlyTransformer) -> Measurement:
    return measure_orders(two, *spread_sample(64))


@claim(
    id="T12",
    section="Term Importance Analysis",
    statement="Of the single-head terms those of the second layer matter, those of the first hardly.",
    paper="layer 1: 1.3 and 0.05 nats; layer 2: 5.2 and 4.0",
    criterion="marginal reduction of the second layer above 5 times that of the first",
    page=PAGE,
)
def layers(two: AttentionOnlyTransformer) -> Measurement:
    return measure_layers(layer_table(two, *spread_sample(64)))


@claim(
    id="T13",
    section="Term Importance Analysis",
    statement="With frozen patterns the analysis cannot see what heads do to later patterns.",
    paper="argument",
    criterion="removing the previous-token head costs more than 1 nat on repeated random tokens, and "
    "less than a tenth of that when patterns are frozen",
    page=PAGE,
)
def blind_spot(two: AttentionOnlyTransformer) -> Measurement:
    return measure_blind_spot(two)
