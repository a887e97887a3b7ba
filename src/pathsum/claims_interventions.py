"""The claims that interventions on induction heads decide: ablation, stories, and gradients.

Each `measure_...` takes what it measures as arguments, so that a test can hand it something for
which the claim is false; the registered functions call them with trained models.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from pathsum.claims import Measurement, claim
from pathsum.evaluate import BATCH, in_context_score, token_losses
from pathsum.idealised import recovered, substituted_losses
from pathsum.induction import (
    PERIOD,
    induction_heads,
    induction_scores,
    previous_token_head,
    repeats,
)
from pathsum.model import AttentionOnlyTransformer, cache
from pathsum.patching import ablated_losses, ablation_hook, both, frozen_hook
from pathsum.paths import patterns_of
from pathsum.samples import spread_sample

PAGE = "induction-heads"
Head = tuple[int, int]


def in_context_losses(
    model: AttentionOnlyTransformer,
    inputs: Int[Tensor, "batch pos"],
    targets: Int[Tensor, "batch pos"],
    groups: list[list[Head]],
) -> Float[Tensor, " groups"]:
    """How much the in-context score rises, in nats, when each group of heads writes nothing.

    Patterns are those of the intact run, so a head loses what it moves, not what others look at.
    Positive: the heads helped late tokens more than early ones. Source: Olsson et al. 2022.
    """
    found = []
    for x, y in zip(inputs.split(BATCH), targets.split(BATCH)):
        frozen = frozen_hook(patterns_of(model, x))
        hooks = [None, *(both(frozen, ablation_hook(group)) for group in groups)]
        scores = [in_context_score(token_losses(model, x, y, hook)) for hook in hooks]
        found.append(len(x) * (torch.tensor(scores[1:]) - scores[0]))
    return torch.stack(found).sum(0) / len(inputs)


def measure_ablation(
    single: Float[Tensor, "n_layers n_heads"], together: float, intact: float, induction: list[int]
) -> Measurement:
    """X3: are the induction heads those without which there is least learning in context?

    `single` is the rise of the in-context score without each head, `together` that without all
    induction heads, `intact` the score itself.
    """
    if not induction:
        return Measurement(0.0, "share of the score", "not seen", "there is no induction head")
    last, width = single.shape[0] - 1, single.shape[1]
    order = [divmod(i, width) for i in single.flatten().argsort(descending=True).tolist()]
    places = sorted(order.index((last, head)) for head in induction)
    top = places == list(range(len(induction)))
    ranks = ", ".join(f"L{at}H{h} {float(single[at, h]):+.3f}" for at, h in order[:4])
    share = -together / intact
    return Measurement(
        share,
        "share of the in-context score",
        "holds" if top else "weaker" if places[0] == 0 else "not seen",
        f"the in-context score is {intact:.3f} nats; without one head and with patterns kept it rises "
        f"most for {ranks}; without all {len(induction)} induction heads by {together:+.3f}, {share:.0%} "
        f"of it; {int((single < 0).sum())} of {single.numel()} heads leave more of it when removed",
    )


def story_share(
    model: AttentionOnlyTransformer,
    inputs: Int[Tensor, "batch pos"],
    targets: Int[Tensor, "batch pos"],
    heads: list[Head],
    kind: str,
) -> float:
    """Share of what these heads are worth that idealised patterns of a kind win back.

    NaN if ablating them costs nothing. `kind` is "previous" or "induction".
    """
    full = float(token_losses(model, inputs, targets).mean())
    none = float(ablated_losses(model, inputs, targets, heads).mean())
    told = float(substituted_losses(model, inputs, targets, **{kind: heads}).mean())
    return recovered(full, none, told) if none > full else float("nan")


def measure_stories(previous: float, induction: float) -> Measurement:
    """X4: do exact patterns win back what the heads are worth on text?"""
    reached = [previous >= 0.9, induction > 0.5]
    return Measurement(
        induction,
        "share of the induction heads' worth",
        "holds" if all(reached) else "weaker" if any(reached) else "not seen",
        f"of what ablation costs on held-out text, an exact previous-token pattern wins back "
        f"{previous:.0%} and exact induction {induction:.0%}",
    )


def replacement_effects(
    model: AttentionOnlyTransformer,
    tokens: Int[Tensor, "batch pos"],
    dest: int,
    seed: int = 0,
) -> tuple[Float[Tensor, "batch src"], Float[Tensor, " batch"]]:
    """What replacing tokens costs the next token's log-probability at `dest`, in nats.

    Of every earlier position by the gradient, to first order, and of the earlier copy of the present
    token (at dest - PERIOD) in fact. Each is replaced by one random token.
    """
    generator = torch.Generator().manual_seed(seed)
    random = torch.randint(1, model.config.d_vocab, tokens.shape, generator=generator)
    target = tokens[:, dest + 1]
    kept: list[Tensor] = []

    def log_prob(ids: Tensor, hook=None) -> Tensor:
        logits = model.final_residual(ids[:, : dest + 1], hook)[:, -1] @ model.W_U
        return logits.log_softmax(-1).gather(-1, target[:, None])[:, 0]

    def leaf(site: str, value: Tensor) -> Tensor | None:
        if site == "embed":
            kept[:] = [value.detach().requires_grad_()]
            return kept[0]
        return None

    with torch.enable_grad():
        intact = log_prob(tokens, leaf)
        (gradient,) = torch.autograd.grad(intact.sum(), kept)
    step = model.W_E[random[:, : dest + 1]] - model.W_E[tokens[:, : dest + 1]]
    first_order = -(gradient * step).sum(-1)
    changed = tokens.clone()
    changed[:, dest - PERIOD] = random[:, dest - PERIOD]
    with torch.no_grad():
        cost = intact.detach() - log_prob(changed)
    return first_order.detach()[:, :dest], cost


def measure_gradient(
    first_order: Float[Tensor, "places src"],
    prior: Int[Tensor, " places"],
    cost: Float[Tensor, " places"],
    saturated: Bool[Tensor, " places"],
) -> Measurement:
    """T15: does the gradient miss the token before the one attended to, where attention is saturated?"""
    if not saturated.any():
        return Measurement(0.0, "place", "not seen", "no attention above 0.9 on random repeats")
    own = first_order.gather(-1, prior[:, None])
    rank = (first_order.abs() > own.abs()).sum(-1) + 1  # 1 is the largest
    place, real = float(rank[saturated].median()), float(cost[saturated].mean())
    predicted, others = float(own[saturated].mean()), ~saturated
    low, large = place > 3, real > 1
    rest = (
        f"; elsewhere place {float(rank[others].median()):.0f}, {float(own[others].mean()):.2f} and "
        f"{float(cost[others].mean()):.2f} nats"
        if others.any()
        else ""
    )
    faint = large and predicted < 0.25 * real
    return Measurement(
        place,
        "place of the preceding token by first-order effect",
        "holds" if low and large else "weaker" if faint else "not seen",
        f"at {int(saturated.sum())} of {len(rank)} places on random repeats an induction head gives more "
        f"than 0.9 to the right token; there the token before it stands at place {place:.0f} of the "
        f"earlier ones by the gradient, which puts its replacement at {predicted:.2f} nats; in fact it "
        f"costs {real:.2f}{rest}",
    )


@claim(
    id="T15",
    section="Related Work (attention as explanation)",
    statement="A saturated softmax hides the key: the gradient misses the token that made an induction "
    "head look where it does.",
    paper="remark",
    criterion="no bar in the paper; where an induction head gives more than 0.9 to one token, replacing "
    "the token before that one costs more than 1 nat, and the gradient puts it behind three others",
    page=PAGE,
)
def gradient(two: AttentionOnlyTransformer) -> Measurement:
    heads = induction_heads(induction_scores(two))
    if not heads:
        return Measurement(0.0, "place", "not seen", "there is no induction head")
    tokens = repeats(two.config.d_vocab)
    pattern = cache(two, tokens)["L1.pattern"][:, heads].amax(1)
    parts = []
    for dest in range(PERIOD + 3, 2 * PERIOD, 3):
        effects, cost = replacement_effects(two, tokens, dest)
        padded = torch.nn.functional.pad(effects[:, 1:], (0, tokens.shape[1] - dest))
        prior = torch.full((len(tokens),), dest - PERIOD - 1)  # the start token is left out
        parts.append((padded, prior, cost, pattern[:, dest, dest - PERIOD + 1] > 0.9))
    return measure_gradient(*(torch.cat(part) for part in zip(*parts)))


@claim(
    id="X3",
    section="Olsson et al. 2022 (ablations)",
    statement="In small models the induction heads carry most of learning in context.",
    paper="nearly all of it, with patterns kept",
    criterion="the induction heads are those whose removal, with patterns kept, raises the in-context "
    "score most",
    page=PAGE,
)
def ablation(two: AttentionOnlyTransformer) -> Measurement:
    sample, heads = spread_sample(32), induction_heads(induction_scores(two))
    c = two.config
    single = [[(layer, head)] for layer in range(c.n_layers) for head in range(c.n_heads)]
    rises = in_context_losses(two, *sample, [*single, [(c.n_layers - 1, h) for h in heads]])
    intact = in_context_score(token_losses(two, *sample))
    table = rises[:-1].reshape(c.n_layers, c.n_heads)
    return measure_ablation(table, float(rises[-1]), intact, heads)


@claim(
    id="X4",
    section="Comments on Olsson et al. 2022",
    statement="Ideal patterns in place of the heads' own recover most of what the heads are worth.",
    paper="99% for the previous-token head, 65% for induction, 10% more with two tokens",
    criterion="at least 90% for the previous-token head and more than 50% for the induction heads, on "
    "held-out text",
    page=PAGE,
)
def stories(two: AttentionOnlyTransformer) -> Measurement:
    sample, heads = spread_sample(16), induction_heads(induction_scores(two))
    if not heads:
        return Measurement(0.0, "share", "not seen", "there is no induction head")
    first = previous_token_head(two, sample[0][:8])
    return measure_stories(
        story_share(two, *sample, [first], "previous"),
        story_share(two, *sample, [(1, head) for head in heads], "induction"),
    )
