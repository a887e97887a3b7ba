"""The claims about skip-trigrams, measured on our one-layer model."""

from functools import lru_cache

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from pathsum.bigrams import BigramCounts, shipped_counts
from pathsum.bugs import Closure, Trigram, find_closures, followed, trigrams_at_work
from pathsum.claims import Measurement, claim
from pathsum.dataset import heldout_sample
from pathsum.lifts import Evidence, gather_evidence, removal_table
from pathsum.model import AttentionOnlyTransformer
from pathsum.samples import spread_sample
from pathsum.seeds import checkpoint
from pathsum.skip_trigrams import split_token_scores, split_tokens
from pathsum.tokenizer import Tokenizer, load_tokenizer
from pathsum.triples import TripleEvidence, triple_evidence

PAGE = "skip-trigrams"
MODEL = "attn-only-1l"
COMMON = 5000  # a table is read among tokens seen this often in training, so that text can test it
PAIRS, HEADS = 10, 3  # "at least 10 pairs per several heads"


def common_tokens(counts: BigramCounts, at_least: int = COMMON) -> Bool[Tensor, " d_vocab"]:
    """Which tokens were followed by something this often in training; the start token is not one."""
    common = counts.totals() >= at_least
    common[0] = False
    return common


@lru_cache(maxsize=4)
def evidence_of(one: AttentionOnlyTransformer) -> Evidence:
    """Tables and lifts of a one-layer model on 96 blocks of held-out text; kept once made."""
    return gather_evidence(one, spread_sample(96)[0], common_tokens(shipped_counts()))


def shipped_evidence() -> Evidence:
    """`evidence_of` the shipped one-layer model."""
    return evidence_of(checkpoint(MODEL).model)


@lru_cache(maxsize=4)
def triples_of(one: AttentionOnlyTransformer) -> TripleEvidence:
    """The triples of a one-layer model's tables on all shipped held-out text; kept once made."""
    return triple_evidence(one, heldout_sample()[0], evidence_of(one).rows)


def shipped_triples() -> TripleEvidence:
    """`triples_of` the shipped one-layer model."""
    return triples_of(checkpoint(MODEL).model)


@lru_cache(maxsize=4)
def trigrams_of(one: AttentionOnlyTransformer) -> list[dict[Trigram, tuple[int, float]]]:
    """For each head of a one-layer model its trigrams at work on 64 held-out blocks; kept once made."""
    sample = spread_sample(64)
    return [trigrams_at_work(one, (0, h), *sample) for h in range(one.config.n_heads)]


def shipped_trigrams() -> list[dict[Trigram, tuple[int, float]]]:
    """`trigrams_of` the shipped one-layer model."""
    return trigrams_of(checkpoint(MODEL).model)


def measure_pairs(evidence: TripleEvidence, n_heads: int) -> Measurement:
    """O1: do the triples in the tables show in behaviour, each (source, out) counted once?"""
    per_head = evidence.per_head(n_heads)
    survivors = evidence.survives
    copies = sum(s == o for (s, o), good in zip(evidence.pairs, survivors.tolist()) if good)
    passing, total = sum(n >= PAIRS for n in per_head), int(survivors.sum())
    counts = ", ".join(f"L0H{h} {n}" for h, n in enumerate(per_head))
    return Measurement(
        float(passing),
        f"heads with {PAIRS} pairs or more",
        "holds" if passing >= HEADS else "weaker" if total >= PAIRS and passing else "not seen",
        f"{evidence.named:,} triples are {evidence.different} different (source, out) pairs, "
        f"{len(evidence.pairs)} of them testable; {total} exceed {evidence.bar:.2f} nats, the 95th "
        f"percentile of matched random triples (chance: {0.05 * len(evidence.pairs):.0f}), {copies} of "
        f"these copy their source; by head: {counts}",
    )


def strongest_by_source(closures: list[Closure], number: int) -> list[Closure]:
    """The first closure of each source, `number` at most: no source is counted twice."""
    first: dict[int, Closure] = {}
    for closure in closures:
        first.setdefault(closure.source, closure)
    return list(first.values())[:number]


def measure_bugs(
    model: AttentionOnlyTransformer,
    inputs: Int[Tensor, "batch pos"],
    trigrams: list[dict[Trigram, tuple[int, float]]],
    seen: Bool[Tensor, "d_vocab d_vocab"],
    examples: int = 3,
) -> Measurement:
    """O8: are crossed trigrams raised with the true ones, and does it show in what the model says?"""
    g = torch.Generator().manual_seed(0)
    closures = [find_closures(model, (0, h), found, seen) for h, found in enumerate(trigrams)]
    every = [closure for found in closures for closure in found]
    if not every:
        return Measurement(0.0, "closures", "not seen", "no head has two trigrams with one source")
    positive = all(bool((closure.crossed > 0).all()) for closure in every)
    worst = max(abs(closure.interaction) for closure in every)
    raised = total = 0
    for found in closures:
        for closure in strongest_by_source(found, examples):
            ends = list(closure.destinations), list(closure.outputs)
            effect = removal_table(model, inputs, closure.source, *ends, g)
            crossed = torch.stack([effect[0, 1], effect[1, 0]])
            raised += int((crossed > 0).sum())
            total += int(crossed.isfinite().sum())
    return Measurement(
        worst,
        "largest interaction in log contributions",
        "exact" if positive and worst < 1e-4 else "not seen",
        f"{len(every)} times two trigrams at work in one head share their source while the crossed "
        f"ones never stood in training; the head raises {'all' if positive else 'not all'} crossed "
        f"ones, logs add up within {worst:.0e}; in the whole model {raised} of {total} crossed "
        "examples lose probability when the source is taken out of the text",
    )


def measure_split(
    model: AttentionOnlyTransformer,
    tokenizer: Tokenizer,
    counts: BigramCounts,
    at_least: int = 1000,
) -> Measurement:
    """O9: does some head copy the rest of a split word from the whole one?"""
    totals = counts.totals()
    triples = [t for t in split_tokens(tokenizer) if totals[t[0]] >= at_least]
    means, errors, wants = [], [], []
    for head in range(model.config.n_heads):
        raised, wanted = split_token_scores(model, (0, head), triples)
        means.append(float(raised.mean()))
        errors.append(float(raised.std() / len(raised) ** 0.5))
        wants.append(float(wanted.mean()))
    best = max(range(len(means)), key=means.__getitem__)
    clear = means[best] > 5 * errors[best]
    return Measurement(
        means[best],
        "mean z of OV(whole, rest)",
        "holds" if means[best] > 2 else "weaker" if clear else "not seen",
        f"over {len(triples)} words that are one token with a space and two without, the best head "
        f"(L0H{best}) raises the rest by {means[best]:.2f} ± {errors[best]:.2f} standard deviations "
        f"among sources; its destination looks for the whole word by {wants[best]:+.2f}",
    )


@claim(
    id="O1",
    section="Interpretation as Skip-Trigrams",
    statement="A one-layer model can be read, without running it, as tables of skip-trigrams.",
    paper="tables of top entries",
    criterion=f"in at least {HEADS} heads {PAIRS} or more different (source, out) pairs of the tables "
    "whose lift on held-out text, where their destinations stand, is positive and above the 95th "
    "percentile of matched random triples: same source and destinations, another output",
    page=PAGE,
)
def pairs(one: AttentionOnlyTransformer) -> Measurement:
    return measure_pairs(triples_of(one), one.config.n_heads)


@claim(
    id="O8",
    section="Interpretation as Skip-Trigrams",
    statement="A head that holds two trigrams also raises the two crossed ones: bugs.",
    paper="table: keep ... in bay",
    criterion="for two true trigrams in one head both crossed contributions are positive, and the "
    "logs of the 2 x 2 contributions are additive (within 0.0001)",
    page=PAGE,
)
def bugs(one: AttentionOnlyTransformer) -> Measurement:
    sample = spread_sample(64)
    seen = followed(shipped_counts())
    return measure_bugs(one, sample[0], trigrams_of(one), seen)


@claim(
    id="O9",
    section="Interpretation as Skip-Trigrams",
    statement="Some heads copy the rest of a word that is one token in one place and two in another.",
    paper="table: Ralph ... R -> alph",
    criterion="mean z of OV(whole, rest) above 2 in some head, over all such words of the vocabulary "
    "seen 1,000 times or more",
    page=PAGE,
)
def split(one: AttentionOnlyTransformer) -> Measurement:
    return measure_split(one, load_tokenizer(), shipped_counts())
