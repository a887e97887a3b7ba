"""What every head of a layer scores: where it looks, what it copies, what it is worth; and its labels."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.circuits import check_layer, copying_eigenvalues, positivity
from pathsum.claims_one_layer import offset_table
from pathsum.copying import null_of
from pathsum.evaluate import token_losses
from pathsum.heads import (
    duplicate_token_score,
    prefix_matching_score,
    present_token_score,
    previous_token_score,
    raised_share,
    start_token_score,
)
from pathsum.induction import INDUCTION, PERIOD, repeats
from pathsum.model import AttentionOnlyTransformer, cache
from pathsum.patching import ablation_hook
from pathsum.samples import spread_sample

SEQUENCES = 8  # of 256 tokens of held-out text, on which attention and costs are measured
SAMPLES = 64  # of 25 random tokens, on which the copying score of 2022 is measured
NEAR = 8  # tokens back that still count as near
MOST, SHARED, IDLE = 0.4, 0.5, 0.005  # see RULES; the last in nats a token
SHARES = ("start token", "itself", "1 back", f"2 to {NEAR} back", "farther back")


@dataclass(frozen=True)
class Rule:
    """A label in words, the rule that gives it, and the score that is shown with it."""

    label: str
    words: str
    score: str
    holds: Callable[[dict[str, float]], bool]


RULES = (
    Rule(
        "induction head",
        f"on random tokens that repeat, at least {INDUCTION} of its attention is on what followed "
        "earlier copies of the present token",
        "prefix matching",
        lambda s: s["prefix matching"] >= INDUCTION,
    ),
    Rule(
        "duplicate-token head",
        f"there, at least {MOST} is on the earlier copies themselves",
        "duplicate token",
        lambda s: s["duplicate token"] >= MOST,
    ),
    Rule(
        "previous-token head",
        f"on held-out text, at least {MOST} of its attention is one token back",
        "previous token",
        lambda s: s["previous token"] >= MOST,
    ),
    Rule(
        "present-token head",
        f"at least {MOST} is on the present token",
        "present token",
        lambda s: s["present token"] >= MOST,
    ),
    Rule(
        "several-token head",
        f"at least {SHARED} is 1 to {NEAR} tokens back, but less than {MOST} on the previous one",
        "near",
        lambda s: s["near"] >= SHARED and s["previous token"] < MOST,
    ),
    Rule(
        "far-looking head",
        f"at least {SHARED} is more than {NEAR} tokens back, the start token not counted",
        "far",
        lambda s: s["far"] >= SHARED,
    ),
    Rule(
        "rests on the start token",
        f"at least {MOST} is there",
        "start token",
        lambda s: s["start token"] >= MOST,
    ),
    Rule(
        "copies",
        "eigenvalue score of the OV circuit above 0.5, and above 5 sd of random heads",
        "copying",
        lambda s: s["copying"] > 0.5 and s["copying, sd"] > 5,
    ),
    Rule(
        "lowers what it reads",
        "the same score below -0.5, and below -5 sd",
        "copying",
        lambda s: s["copying"] < -0.5 and s["copying, sd"] < -5,
    ),
    Rule(
        "idle here",
        f"replaced by its mean output it costs less than {IDLE} nats a token, two standard errors "
        "included",
        "cost",
        lambda s: abs(s["cost"]) + 2 * s["cost, error"] < IDLE,
    ),
)


def labels_of(scores: dict[str, float]) -> list[Rule]:
    """The rules that hold for a head's scores, in the order of RULES."""
    return [rule for rule in RULES if rule.holds(scores)]


def check_model(model: AttentionOnlyTransformer) -> None:
    """ValueError unless circuits can be read off the weights as they are, all of them numbers."""
    if not model.config.n_layers:
        raise ValueError("the atlas is about attention heads, and this model has no layers")
    if model.config.norm or model.config.smear:
        raise ValueError(
            "the atlas reads its tables off the weights, which needs a model without LayerNorm and "
            f"smeared keys, got norm={model.config.norm!r} and smear={model.config.smear}: for "
            "LayerNorm fold the gains first, see pathsum.stream.folded"
        )
    for name, weights in model.named_parameters():
        if not weights.isfinite().all():
            raise ValueError(
                f"{name} holds {int((~weights.isfinite()).sum())} entries that are NaN or infinite, "
                "expected numbers: was the run stopped when its loss was lost?"
            )


def attention_shares(pattern: Float[Tensor, "batch n_heads pos pos"]) -> Float[Tensor, "n_heads 5"]:
    """How each head's attention is split over SHARES, mean over all destinations but the first.

    Rows sum to 1: the start token counts as such however near it is.
    """
    n = pattern.shape[-1] - 1
    rest = pattern[..., 1:, 1:]
    back = [
        rest.diagonal(-k, dim1=-2, dim2=-1).sum(-1).mean(0) / n for k in range(min(NEAR + 1, n))
    ]
    start = pattern[..., 1:, 0].mean((0, -1))
    near = torch.stack(back[2:]).sum(0) if len(back) > 2 else torch.zeros_like(start)
    previous = back[1] if len(back) > 1 else torch.zeros_like(start)
    known = torch.stack([start, back[0], previous, near], dim=-1)
    return torch.cat([known, (1 - known.sum(-1, keepdim=True)).clamp_min(0)], dim=-1)


def layer_scores(
    model: AttentionOnlyTransformer, layer: int
) -> dict[str, Float[Tensor, " n_heads"]]:
    """Every score of a layer's heads by name; ValueError as `check_model`, IndexError for the layer.

    Shares of attention ("previous token", "present token", "start token", "near", "far") are means
    over held-out text, "prefix matching" and "duplicate token" over random tokens that repeat.
    "copying" is the sum of the OV circuit's eigenvalues over that of their sizes, "copying, sd" the
    same in standard deviations of random heads, "raised share" the copying score of 2022
    (`pathsum.heads.raised_share`). "offsets" is the share of the variance of attention scores that
    the offset explains. "cost" is what a token of held-out text costs more when the head's output is
    replaced by its mean, nats, with the standard error over sequences as "cost, error".
    """
    check_model(model)
    check_layer(model, layer)
    inputs, targets = spread_sample(SEQUENCES)
    values = cache(model, inputs)
    pattern = values[f"L{layer}.pattern"]
    repeated = cache(model, repeats(model.config.d_vocab))[f"L{layer}.pattern"]
    shares = attention_shares(pattern)
    mean, sd = null_of(model.config)
    copying = positivity(copying_eigenvalues(model, layer)).float()
    explained, _ = offset_table(model, inputs, layer)
    base = token_losses(model, inputs, targets)
    hooks = [ablation_hook([(layer, h)], "mean", values) for h in range(model.config.n_heads)]
    lost = torch.stack([(token_losses(model, inputs, targets, h) - base).mean(1) for h in hooks])
    return {
        "prefix matching": prefix_matching_score(repeated, PERIOD).mean(0),
        "duplicate token": duplicate_token_score(repeated, PERIOD).mean(0),
        "previous token": previous_token_score(pattern).mean(0),
        "present token": present_token_score(pattern).mean(0),
        "start token": start_token_score(pattern).mean(0),
        "near": shares[:, 2:4].sum(-1),
        "far": shares[:, 4],
        "copying": copying,
        "copying, sd": (copying - mean) / sd,
        "raised share": raised_share(model, samples=SAMPLES)[layer],
        "offsets": explained,
        "cost": lost.mean(1),
        "cost, error": lost.std(1) / SEQUENCES**0.5,
    }
