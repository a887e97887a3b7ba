"""The claims about induction heads, measured on our models.

Each `measure_...` takes what it measures as arguments, so that a test can hand it something for
which the claim is false; the registered functions call them with trained models.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.by_hand import Built, by_composition, by_pointer, distinct_repeats, smallest_gain
from pathsum.circuits import copying_eigenvalues, positivity_null
from pathsum.claims import Measurement, claim
from pathsum.heads import positivity, present_token_score, previous_token_score
from pathsum.induction import (
    copy_losses,
    induction_heads,
    induction_scores,
    looking_back,
    matching_circuit_scores,
    next_token_ranks,
    previous_token_head,
    repeats,
    resting,
    seen_pair_before,
)
from pathsum.model import AttentionOnlyTransformer
from pathsum.paths import patterns_of
from pathsum.samples import spread_sample

PAGE = "induction-heads"


def measure_previous(model: AttentionOnlyTransformer, inputs: Tensor) -> Measurement:
    pattern = patterns_of(model, inputs)[0]
    scores = previous_token_score(pattern).mean(0)
    head = int(scores.argmax())
    back = looking_back(pattern, 2)[head]
    present = float(present_token_score(pattern).mean(0)[head])
    best = float(scores[head])
    return Measurement(
        best,
        "mean attention to the previous token",
        "holds" if best >= 0.4 else "weaker" if best >= 0.2 else "not seen",
        f"L0H{head} gives {best:.3f} of its attention on held-out text to the previous token, "
        f"{present:.3f} to the present one, {float(back[2]):.3f} to the one before",
    )


def measure_repeats(two: AttentionOnlyTransformer, one: AttentionOnlyTransformer) -> Measurement:
    scores, control = induction_scores(two), float(induction_scores(one).max())
    best, head = float(scores.max()), divmod(int(scores.argmax()), scores.shape[1])
    first, second, third = copy_losses(two, repeats(two.config.d_vocab)).tolist()
    alone = copy_losses(one, repeats(one.config.d_vocab)).tolist()
    reached = [best >= 0.4, min(first - second, first - third) >= 2, control < 0.1]
    return Measurement(
        best,
        "prefix-matching score",
        "holds" if all(reached) else "weaker" if best >= 0.2 and control < best else "not seen",
        f"L{head[0]}H{head[1]} scores {best:.2f}{' (strong)' if best >= 0.7 else ''}; the loss falls "
        f"from {first:.1f} to {second:.1f} and {third:.1f} nats over the copies; the 1-layer model's "
        f"best head scores {control:.3f}, its losses are {alone[0]:.1f}, {alone[1]:.1f} and "
        f"{alone[2]:.1f}",
    )


def measure_resting(model: AttentionOnlyTransformer, induction: list[int]) -> Measurement:
    if not induction:
        return Measurement(0.0, "share of attention", "not seen", "there is no induction head")
    weight, ratio, moved = (x[induction] for x in resting(model, 1))
    high, small = bool((weight > 0.5).all()), bool((ratio < 0.5).all())
    words = [
        f"L1H{head} {float(w):.2f}, value {float(r):.2f} and what is moved {float(m):.2f} of the median"
        for head, w, r, m in zip(induction, weight, ratio, moved)
    ]
    return Measurement(
        float(weight.min()),
        "share of attention",
        "holds" if high and small else "weaker" if high or small else "not seen",
        "attention to the start token where nothing repeats: " + "; ".join(words),
    )


def measure_corner(
    OV: Float[Tensor, " n_heads"], QK: Float[Tensor, " n_heads"], induction: list[int], sd: float
) -> Measurement:
    """T9: are both circuits of the induction heads positive, and the other heads' less so?"""
    if not induction:
        return Measurement(0.0, "sd above 0", "not seen", "there is no induction head")
    others = [head for head in range(len(OV)) if head not in induction]
    least = {name: float(x[induction].min()) for name, x in (("OV", OV), ("QK", QK))}
    middle = {name: float(x[others].median()) for name, x in (("OV", OV), ("QK", QK))}
    z = min(least.values()) / sd
    above = all(least[name] > middle[name] for name in least)
    corner = [h for h in others if OV[h] >= 0.9 and QK[h] >= 0.9]
    also = f"; also in the corner: {', '.join(f'L1H{h}' for h in corner)}" if corner else ""
    return Measurement(
        z,
        "sd above 0",
        "holds" if z > 5 and above else "weaker" if z > 5 or above else "not seen",
        f"least positivity of the induction heads: OV {least['OV']:.3f} ({least['OV'] / sd:.0f} sd), "
        f"QK {least['QK']:.3f} ({least['QK'] / sd:.0f} sd); medians of the others {middle['OV']:.2f} "
        f"and {middle['QK']:.2f}{also}",
    )


def measure_copying(
    model: AttentionOnlyTransformer, inputs: Tensor, targets: Tensor, induction: list[int]
) -> Measurement:
    if not induction:
        return Measurement(0.0, "share of repeats", "not seen", "there is no induction head")
    again, shares, words = seen_pair_before(inputs, targets), [], []
    for head in induction:
        top = (next_token_ranks(model, inputs, targets, head) < 10).float()
        shares.append(float(top[again].mean()))
        words.append(f"L1H{head} {shares[-1]:.0%} (elsewhere {float(top[~again].mean()):.0%})")
    enough = [share >= 0.5 for share in shares]
    return Measurement(
        min(shares),
        "share of repeats",
        "holds" if all(enough) else "weaker" if any(enough) else "not seen",
        f"of {int(again.sum())} places in held-out text where a pair of tokens returns, the head's own "
        f"logits have the true next token among the first 10 in: {'; '.join(words)}",
    )


def measure_by_hand(builders: dict[str, Callable[[float], Built]], tokens: Tensor) -> Measurement:
    gains = {}
    for name, build in builders.items():
        try:
            gains[name] = smallest_gain(build, tokens)
        except ValueError:
            return Measurement(0.0, "nats", "not seen", f"{name}: accuracy never reaches 1")
    words = ", ".join(f"{name} from {gain:.1f} nats on" for name, gain in gains.items())
    return Measurement(
        max(gains.values()),
        "nats of score for a perfect match",
        "exact",
        f"accuracy 1.0 on {len(tokens)} random repeats without collisions: {words}",
    )


@claim(
    id="T1",
    section="Two-Layer Attention-Only Transformers",
    statement="A head of the first layer attends mostly to the previous token.",
    paper="seen in the pattern; no number",
    criterion="mean attention to the previous token at least 0.4 in the best head, on held-out text",
    page=PAGE,
)
def previous(two: AttentionOnlyTransformer) -> Measurement:
    return measure_previous(two, spread_sample(8)[0])


@claim(
    id="T6",
    section="Induction Heads",
    statement="Induction heads work on random tokens that repeat: stripes in the pattern, and a lower loss. One layer cannot.",
    paper="stripes on 20 random tokens three times",
    criterion="best head at least 0.4 (0.7: strong); loss at least 2 nats lower on later copies; 1-layer model below 0.1",
    page=PAGE,
)
def repeats_claim(two: AttentionOnlyTransformer, one: AttentionOnlyTransformer) -> Measurement:
    return measure_repeats(two, one)


@claim(
    id="T8",
    section="Induction Heads",
    statement="Without a match an induction head rests on the first token, whose value is small.",
    paper="remark",
    criterion="more than half of the attention on the start token where nothing repeats; its value shorter than half of the median",
    page=PAGE,
)
def resting_claim(two: AttentionOnlyTransformer) -> Measurement:
    return measure_resting(two, induction_heads(induction_scores(two)))


@claim(
    id="T9",
    section="Induction Heads (checking the mechanism)",
    statement="Induction heads have both a copying OV circuit and a matching QK circuit through the previous-token head.",
    paper="scatter: extreme corner",
    criterion="positivity of both more than 5 sd above the null for every induction head, and above the median of the other heads",
    page=PAGE,
)
def corner(two: AttentionOnlyTransformer) -> Measurement:
    _, first = previous_token_head(two, spread_sample(8)[0])
    c = two.config
    _, sd = positivity_null(c.d_model, c.d_head, torch.Generator().manual_seed(0), draws=100)
    return measure_corner(
        positivity(copying_eigenvalues(two, 1)),
        matching_circuit_scores(two, first),
        induction_heads(induction_scores(two)),
        sd,
    )


@claim(
    id="T10",
    section="Induction Heads",
    statement="What an induction head adds to the logits raises the token it attends to, the one that follows.",
    paper="shown on pieces of text",
    criterion="true next token among the head's first 10 on at least half of the repeats, for every induction head",
    page=PAGE,
)
def copying(two: AttentionOnlyTransformer) -> Measurement:
    return measure_copying(two, *spread_sample(16), induction_heads(induction_scores(two)))


@claim(
    id="T16",
    section="Exercises; Pointer Arithmetic",
    statement="Induction can be written into weights by hand, through K-composition or through pointer arithmetic.",
    paper="exercises, no scales given",
    criterion="accuracy 1.0 on random repeats without collisions; the gain needed is reported",
    page=PAGE,
)
def by_hand_claim() -> Measurement:
    d_vocab, period = 40, 30
    tokens = distinct_repeats(32, period, d_vocab, torch.Generator().manual_seed(0))
    n_ctx = tokens.shape[1]
    return measure_by_hand(
        {
            "K-composition": lambda gain: by_composition(d_vocab, n_ctx, gain),
            "pointer arithmetic": lambda gain: by_pointer(d_vocab, n_ctx, gain),
        },
        tokens,
    )
