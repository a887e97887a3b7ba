"""The claims about two-layer models, composition and induction heads, measured on our models.

Each `measure_...` takes what it measures as arguments, so that a test can hand it something for
which the claim is false; the registered functions call them with the shipped models.
"""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from pathsum.by_hand import Built, by_composition, by_pointer, distinct_repeats, smallest_gain
from pathsum.checkpoints import load_model
from pathsum.circuits import copying_eigenvalues, positivity, positivity_null
from pathsum.claims import Measurement, claim
from pathsum.composition import (
    composition_scores,
    null_score,
    ov_circuits,
    published_scores,
    qk_circuits,
)
from pathsum.dataset import heldout_sample
from pathsum.demo import DEMO_TEXT
from pathsum.evaluate import token_losses
from pathsum.heads import (
    prefix_matching_score,
    present_token_score,
    previous_token_score,
    repeated_tokens,
    start_token_score,
)
from pathsum.model import AttentionOnlyTransformer, cache
from pathsum.paths import path_terms, patterns_of
from pathsum.score_paths import score_terms
from pathsum.stream import random_rotation
from pathsum.tokenizer import load_tokenizer

PAGES = {"composition": "composition", "induction": "induction-heads"}
PERIOD, COPIES = 20, 3  # of the random repeats, as in the paper
INDUCTION = 0.4  # prefix-matching score from which a head is called an induction head


def held_out(sequences: int) -> tuple[Int[Tensor, "batch pos"], Int[Tensor, "batch pos"]]:
    """This many sequences of the shipped held-out text, evenly spread over it, and their targets."""
    inputs, targets = heldout_sample()
    picks = torch.linspace(0, len(inputs) - 1, sequences).long()
    return inputs[picks], targets[picks]


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


def rotation_null(
    model: AttentionOnlyTransformer, kind: str, draws: int = 10, seed: int = 0
) -> tuple[float, float]:
    """Mean and sd of the composition score after layer 0's outputs are turned at random.

    The heads keep their spectra and lose every relation: what is left is chance. Over all pairs and
    `draws` rotations.
    """
    generator, turned = torch.Generator().manual_seed(seed), []
    W_O = model.W_O
    for _ in range(draws):
        R = random_rotation(model.config.d_model, generator).float()
        rotated = AttentionOnlyTransformer(model.config).requires_grad_(False)
        rotated.load_state_dict(model.state_dict())
        rotated.W_O[0] = W_O[0] @ R
        turned.append(composition_scores(rotated, kind))
    values = torch.stack(turned)
    return float(values.mean()), float(values.std())


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


def measure_path_sum(model: AttentionOnlyTransformer, tokens: Tensor) -> Measurement:
    terms, logits = path_terms(model, tokens), model(tokens)
    off = float((terms.values.sum(0) @ model.W_U - logits).abs().max())
    counts = [sum(len(path) == order for path in terms.paths) for order in range(3)]
    heads = model.config.n_heads
    complete = counts == [1, 2 * heads, heads**2]
    return Measurement(
        off,
        "largest difference of a logit",
        "exact" if off < 1e-4 and complete else "not seen",
        f"{counts[0]} + {counts[1]} + {counts[2]} = {len(terms.paths)} terms add up to the logits "
        f"within {off:.1e}",
    )


def measure_score_sum(model: AttentionOnlyTransformer, tokens: Tensor) -> Measurement:
    scores, off = cache(model, tokens)["L1.scores"], 0.0
    for head in range(model.config.n_heads):
        t = score_terms(model, tokens, head)
        none, Q, K = t[0, 0], t[1:, 0].sum(0), t[0, 1:].sum(0)
        both = t[1:, 1:].sum((0, 1))
        off = max(off, float((none + Q + K + both - scores[:, head]).abs().max()))
    return Measurement(
        off,
        "largest difference of a score",
        "exact" if off < 1e-4 else "not seen",
        f"for all {model.config.n_heads} heads of layer 1, none + Q + K + both equal the scores "
        f"within {off:.1e}",
    )


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


def measure_partners(
    K: Float[Tensor, "earlier later"],
    induction: list[int],
    partners: list[int],
    sd: float,
    null: float,
) -> Measurement:
    """T2: `partners` are the previous-token head and the one that looks several tokens back."""
    if not induction:
        return Measurement(0.0, "sd above the null", "not seen", "there is no induction head")
    tops = {head: int(K[:, head].argmax()) for head in induction}
    z = {head: float((K[:, head].max() - null) / sd) for head in induction}
    right, strong = all(t in partners for t in tops.values()), min(z.values()) > 10
    second = int(K.sum(1).argsort(descending=True)[1])
    words = [
        f"L1H{head} reads L0H{tops[head]} ({float(K[:, head].max()):.3f}, {z[head]:.0f} sd above "
        f"{null:.4f})"
        for head in induction
    ]
    return Measurement(
        min(z.values()),
        "sd above the null",
        "holds" if right and strong else "weaker" if right or strong else "not seen",
        "; ".join(words)
        + f"; the next layer-0 head is L0H{second} with up to {float(K[second].max()):.3f}",
    )


def measure_slight(model: AttentionOnlyTransformer) -> Measurement:
    top = {kind: float(composition_scores(model, kind).max()) for kind in "QKV"}
    null = {kind: rotation_null(model, kind) for kind in "QKV"}
    z = {kind: (value - null[kind][0]) / null[kind][1] for kind, value in top.items()}
    return Measurement(
        top["K"] - top["V"],
        "largest K score less largest V score",
        "holds" if top["K"] > top["V"] else "not seen",
        "largest scores: "
        + ", ".join(f"{kind} {top[kind]:.3f} ({z[kind]:.0f} sd above chance)" for kind in "QKV")
        + "; so Q- and V-composition are smaller, but not nothing",
    )


def measure_below(model: AttentionOnlyTransformer) -> Measurement:
    null = null_score(model.config.d_model)
    below = {kind: composition_scores(model, kind) < null for kind in "QKV"}
    share = float(torch.stack(list(below.values())).double().mean())
    parts = ", ".join(f"{kind} {float(b.double().mean()):.0%}" for kind, b in below.items())
    return Measurement(
        share,
        "share of pairs",
        "holds" if share > 0.5 else "not seen",
        f"{share:.0%} of all pairs lie below {null:.4f} ({parts})",
    )


def circle_check(model: AttentionOnlyTransformer) -> tuple[float, float, float]:
    """Relative differences that moving a product's factors round makes, over K pairs, at most.

    (of the trace, of the largest eigenvalue's size, of the Frobenius norm), for
    W_V W_O W_K W_Q^T against W_Q^T W_V W_O W_K, in float64.
    """
    off = torch.zeros(3, dtype=torch.float64)
    W_Q, W_K = model.W_Q[1].double(), model.W_K[1].double()
    for V, O in zip(model.W_V[0].double(), model.W_O[0].double()):
        for Q, K in zip(W_Q, W_K):
            whole, around = V @ O @ K @ Q.mT, Q.mT @ V @ O @ K
            norms = [torch.linalg.matrix_norm(m) for m in (whole, around)]
            small = torch.linalg.eigvals(around).abs().max()
            large = torch.linalg.eigvals(O @ K @ Q.mT @ V).abs().max()
            trace = (whole.trace() - around.trace()).abs() / norms[0]
            seen = torch.stack([trace, (small / large - 1).abs(), (norms[1] / norms[0] - 1).abs()])
            off = torch.maximum(off, seen)
    trace_off, eigenvalue_off, norm_off = off.tolist()
    return trace_off, eigenvalue_off, norm_off


def measure_erratum(model: AttentionOnlyTransformer) -> Measurement:
    trace, eigenvalue, norm = circle_check(model)
    contrast = {}
    for kind in "QKV":
        both = published_scores(model, kind), composition_scores(model, kind)
        contrast[kind] = [float(s.max() / s.median()) for s in both]
    wrong, right = contrast["K"]
    exact = max(trace, eigenvalue) < 1e-6 < norm
    others = "; ".join(f"{k} {contrast[k][0]:.1f} against {contrast[k][1]:.1f}" for k in "QV")
    return Measurement(
        wrong / right,
        "contrast of the wrong K score over that of the right one",
        "holds" if exact and wrong > right else "weaker" if exact else "not seen",
        f"moved round, the trace differs by {trace:.0e}, the largest eigenvalue by {eigenvalue:.0e}, "
        f"the norm by up to {norm:.0%}; the largest K score is {wrong:.1f} times the median as "
        f"published and {right:.1f} times corrected ({others})",
    )


def copy_losses(
    model: AttentionOnlyTransformer, tokens: Int[Tensor, "batch pos"]
) -> Float[Tensor, " copies"]:
    """Mean loss in nats within each copy of `repeats`; each copy's first token is left out."""
    losses = token_losses(model, tokens[:, :-1], tokens[:, 1:])
    return losses.unfold(1, PERIOD, PERIOD)[..., 1:].mean((0, 2))


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


def next_token_ranks(
    model: AttentionOnlyTransformer,
    inputs: Int[Tensor, "batch pos"],
    targets: Int[Tensor, "batch pos"],
    head: int,
) -> Int[Tensor, "batch pos"]:
    """Place of the true next token in what head (1, head) alone adds to the logits; 0 is first."""
    logits = cache(model, inputs)["L1.result"][:, head] @ model.W_U
    return (logits > logits.gather(-1, targets[..., None])).sum(-1)


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


def demo_tokens() -> Int[Tensor, "1 pos"]:
    return load_tokenizer().encode(DEMO_TEXT)[None]


TWO = "attn-only-2l"


@claim(
    id="A8",
    section="Path Expansion of Logits",
    statement="The logits of a two-layer model are the sum of a direct path, 2H single heads and H² virtual heads.",
    paper="identity",
    criterion="sum of all terms equal to the logits within 1e-4",
    page=PAGES["composition"],
)
def path_sum() -> Measurement:
    return measure_path_sum(load_model(TWO), demo_tokens())


@claim(
    id="A9",
    section="Path Expansion of Attention Scores",
    statement="The scores of a second-layer head are the sum of terms without composition, with Q-, with K-composition, and with both.",
    paper="identity",
    criterion="sum equal to the scores before the mask within 1e-4, for all heads",
    page=PAGES["composition"],
)
def score_sum() -> Measurement:
    return measure_score_sum(load_model(TWO), demo_tokens())


@claim(
    id="T1",
    section="Two-Layer Attention-Only Transformers",
    statement="A head of the first layer attends mostly to the previous token.",
    paper="seen in the pattern; no number",
    criterion="mean attention to the previous token at least 0.4 in the best head, on held-out text",
    page=PAGES["induction"],
)
def previous() -> Measurement:
    return measure_previous(load_model(TWO), held_out(8)[0])


@claim(
    id="T2",
    section="Analyzing a Two-Layer Model",
    statement="K-composition is concentrated: induction heads read the previous-token head, and (corrected) one that looks several tokens back.",
    paper="one layer-0 head in the original figure, a second one in the corrected",
    criterion="each induction head's strongest K partner is one of these two, more than 10 sd above the null",
    page=PAGES["composition"],
)
def partners() -> Measurement:
    model = load_model(TWO)
    back = looking_back(patterns_of(model, held_out(8)[0])[0])
    one_back = int(back[:, 1].argmax())
    several = back[:, 2:5].sum(1)
    several[one_back] = 0
    pair = [one_back, int(several.argmax())]
    _, sd = rotation_null(model, "K")
    return measure_partners(
        composition_scores(model, "K"),
        induction_heads(induction_scores(model)),
        pair,
        sd,
        null_score(model.config.d_model),
    )


@claim(
    id="T3",
    section="Analyzing a Two-Layer Model",
    statement="Q- and V-composition are slight beside K-composition.",
    paper="none of significance in the original figure",
    criterion="largest K score above the largest V score; Q may be above the null and is reported",
    page=PAGES["composition"],
)
def slight() -> Measurement:
    return measure_slight(load_model(TWO))


@claim(
    id="T4",
    section="Analyzing a Two-Layer Model",
    statement="Most pairs of heads compose less than random matrices would.",
    paper="stated in passing",
    criterion="more than half of all pairs below 1 / sqrt(d_model)",
    page=PAGES["composition"],
)
def below() -> Measurement:
    return measure_below(load_model(TWO))


@claim(
    id="T5",
    section="Comments: correction of the composition diagram",
    statement="The published figure used a norm as if it were cyclic like a trace; the wrong quantity singles out induction.",
    paper="two figures, original and corrected",
    criterion="trace and eigenvalues agree when factors are moved round, norms do not; largest over median score larger for the wrong K score",
    page=PAGES["composition"],
)
def erratum() -> Measurement:
    return measure_erratum(load_model(TWO))


@claim(
    id="T6",
    section="Induction Heads",
    statement="Induction heads work on random tokens that repeat: stripes in the pattern, and a lower loss. One layer cannot.",
    paper="stripes on 20 random tokens three times",
    criterion="best head at least 0.4 (0.7: strong); loss at least 2 nats lower on later copies; 1-layer model below 0.1",
    page=PAGES["induction"],
)
def repeats_claim() -> Measurement:
    return measure_repeats(load_model(TWO), load_model("attn-only-1l"))


@claim(
    id="T8",
    section="Induction Heads",
    statement="Without a match an induction head rests on the first token, whose value is small.",
    paper="remark",
    criterion="more than half of the attention on the start token where nothing repeats; its value shorter than half of the median",
    page=PAGES["induction"],
)
def resting_claim() -> Measurement:
    model = load_model(TWO)
    return measure_resting(model, induction_heads(induction_scores(model)))


@claim(
    id="T9",
    section="Induction Heads (checking the mechanism)",
    statement="Induction heads have both a copying OV circuit and a matching QK circuit through the previous-token head.",
    paper="scatter: extreme corner",
    criterion="positivity of both more than 5 sd above the null for every induction head, and above the median of the other heads",
    page=PAGES["induction"],
)
def corner() -> Measurement:
    model = load_model(TWO)
    first = int(previous_token_score(patterns_of(model, held_out(8)[0])[0]).mean(0).argmax())
    c = model.config
    _, sd = positivity_null(c.d_model, c.d_head, torch.Generator().manual_seed(0), draws=100)
    return measure_corner(
        positivity(copying_eigenvalues(model, 1)),
        matching_circuit_scores(model, first),
        induction_heads(induction_scores(model)),
        sd,
    )


@claim(
    id="T10",
    section="Induction Heads",
    statement="What an induction head adds to the logits raises the token it attends to, the one that follows.",
    paper="shown on pieces of text",
    criterion="true next token among the head's first 10 on at least half of the repeats, for every induction head",
    page=PAGES["induction"],
)
def copying() -> Measurement:
    model = load_model(TWO)
    return measure_copying(model, *held_out(16), induction_heads(induction_scores(model)))


@claim(
    id="T16",
    section="Exercises; Pointer Arithmetic",
    statement="Induction can be written into weights by hand, through K-composition or through pointer arithmetic.",
    paper="exercises, no scales given",
    criterion="accuracy 1.0 on random repeats without collisions; the gain needed is reported",
    page=PAGES["induction"],
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
