"""What the head atlas says of each head: where it looks, what it copies, what it is worth, its labels."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch
from jaxtyping import Bool, Complex, Float, Int
from torch import Tensor

from pathsum.bigrams import shipped_counts
from pathsum.circuits import (
    Head,
    check_head,
    check_layer,
    copying_eigenvalues,
    positional_scores,
    positivity,
)
from pathsum.claims_composition import rotation_null
from pathsum.claims_one_layer import WINDOW, offset_table
from pathsum.claims_skip_trigrams import common_tokens
from pathsum.claims_zero import frequent_tokens
from pathsum.composition import KINDS, composition_scores, reverse_scores
from pathsum.copying import null_of
from pathsum.evaluate import token_losses
from pathsum.factored import FactoredMatrix
from pathsum.heads import (
    duplicate_token_score,
    prefix_matching_score,
    present_token_score,
    previous_token_score,
    raised_share,
    start_token_score,
    value_weighted,
)
from pathsum.induction import INDUCTION, PERIOD, repeats
from pathsum.model import AttentionOnlyTransformer, cache
from pathsum.patching import ablation_hook
from pathsum.samples import demo_tokens, spread_sample
from pathsum.skip_trigrams import (
    TableRow,
    centred_ov,
    centred_qk,
    strongest_sources,
    table_rows,
)

SEQUENCES = 8  # of 256 tokens of held-out text, on which attention and costs are measured
SAMPLES = 64  # of 25 random tokens, on which the copying score of 2022 is measured
NEAR = 8  # tokens back that still count as near
MOST, SHARED, IDLE = 0.4, 0.5, 0.005  # see RULES; the last in nats a token
SOURCES, OUTPUTS, PAIRS = 6, 4, 10  # rows and columns of the tables
SHARES = ("start token", "itself", "1 back", f"2 to {NEAR} back", "farther back")

Pair = tuple[int, int, float]  # two token ids and an entry of a circuit


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


@dataclass(frozen=True)
class HeadFacts:
    """Everything that a page says of one head."""

    head: Head
    scores: dict[str, float]  # as from `layer_scores`
    shares: Float[Tensor, " 5"]  # of attention on held-out text, as SHARES
    eigenvalues: Complex[Tensor, " d_head"]  # of the full OV circuit
    untrained: Complex[Tensor, " d_head"]  # of the same head before training
    attention: Float[Tensor, " offset"]  # mean attention by tokens back, 0 .. WINDOW - 1
    positional: Float[Tensor, " offset"]  # score by offset from positions alone, nats
    tokens: Int[Tensor, " pos"]  # the demo text
    pattern: Float[Tensor, "dest src"]  # on it
    moved: Float[Tensor, "dest src"]  # the same times the length of the value fetched
    partners: dict[
        str, Float[Tensor, " n_heads"]
    ]  # kind -> scores with the heads of the other layer
    strongest: list[TableRow]  # the sources with the largest OV entries
    frequent: list[TableRow]  # the sources most frequent in training
    raised: list[Pair]  # largest OV entries (source, output, logits)
    lowered: list[Pair]  # smallest
    wanted: list[Pair]  # largest QK entries (destination, source, nats)

    @property
    def labels(self) -> list[Rule]:
        """The rules that hold for the head's scores, in the order of RULES."""
        return [rule for rule in RULES if rule.holds(self.scores)]


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
    same in standard deviations of random heads, "raised share" is the copying score of 2022, `pathsum.heads.raised_share`. "offsets" is the share of
    the variance of scores that the offset explains. "cost" is what a token of held-out text costs
    more when the head is replaced by its mean output, nats, with "cost, error".
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


class LayerFacts:
    """The facts of all heads of one layer; what they share is computed once.

    ValueError as `check_model`, IndexError for a layer or, when indexed, a head that is not there.
    """

    def __init__(self, model: AttentionOnlyTransformer, layer: int) -> None:
        self.scores = layer_scores(model, layer)  # refuses what cannot be drawn
        self.model, self.layer = model, layer
        self._made: dict[int, HeadFacts] = {}
        inputs, _ = spread_sample(SEQUENCES)
        self.shares = attention_shares(cache(model, inputs)[f"L{layer}.pattern"])
        self.attention = offset_table(model, inputs, layer)[1]
        self.positional = positional_scores(model, layer, min(WINDOW, model.config.n_ctx) - 1)
        self.eigenvalues = copying_eigenvalues(model, layer)
        before = AttentionOnlyTransformer(model.config, seed=0)
        self.untrained = copying_eigenvalues(before, layer)
        kinds = KINDS if model.config.n_layers == 2 else ()
        self.composition = {kind: composition_scores(model, kind).float() for kind in kinds}
        self.tokens = demo_tokens()
        values = cache(model, self.tokens)
        self.pattern = values[f"L{layer}.pattern"]
        self.moved = value_weighted(self.pattern, values[f"L{layer}.v"])

    def __getitem__(self, number: int) -> HeadFacts:
        if number not in self._made:
            self._made[number] = self._of(check_head(self.model, (self.layer, number)))
        return self._made[number]

    def _of(self, head: Head) -> HeadFacts:
        number = head[1]
        common, frequent = vocabulary()
        strongest = strongest_sources(self.model, head, common, SOURCES)
        ids = common.nonzero().flatten()
        ov, qk = centred_ov(self.model, head), centred_qk(self.model, head)
        ov = FactoredMatrix(ov.A[ids], ov.B[:, ids])
        qk = FactoredMatrix(qk.A[ids], qk.B[:, ids])
        return HeadFacts(
            head=head,
            scores={name: float(values[number]) for name, values in self.scores.items()},
            shares=self.shares[number],
            eigenvalues=self.eigenvalues[number],
            untrained=self.untrained[number],
            attention=self.attention[number],
            positional=self.positional[number],
            tokens=self.tokens[0],
            pattern=self.pattern[0, number],
            moved=self.moved[0, number],
            partners={
                kind: scores[number] if self.layer == 0 else scores[:, number]
                for kind, scores in self.composition.items()
            },
            strongest=table_rows(self.model, head, strongest, OUTPUTS, common),
            frequent=table_rows(self.model, head, frequent, OUTPUTS, common),
            raised=largest(ov, ids),
            lowered=largest(ov, ids, most=False),
            wanted=largest(qk, ids),
        )


@lru_cache
def vocabulary() -> tuple[Bool[Tensor, " d_vocab"], Int[Tensor, " sources"]]:
    """Which tokens tables are read among (frequent in training), and the most frequent few."""
    counts = shipped_counts()
    common = common_tokens(counts)
    frequent = frequent_tokens(counts, 4 * SOURCES)
    return common, frequent[common[frequent]][:SOURCES]


def largest(circuit: FactoredMatrix, ids: Int[Tensor, " n"], most: bool = True) -> list[Pair]:
    """The PAIRS largest (or smallest) entries, with token ids for rows and columns."""
    values, rows, columns = circuit.topk(PAIRS, largest=most)
    return list(zip(ids[rows].tolist(), ids[columns].tolist(), values.tolist()))


def composition_nulls(model: AttentionOnlyTransformer) -> dict[str, tuple[float, float, float]]:
    """By kind: mean and sd when layer 0's outputs are turned at random, and the largest reverse score.

    The last is that of pairs in the wrong order, between which there is no path.
    """
    if model.config.n_layers != 2:
        return {}
    return {
        kind: (*rotation_null(model, kind), float(reverse_scores(model, kind).max()))
        for kind in KINDS
    }
