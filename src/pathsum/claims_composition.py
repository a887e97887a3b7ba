"""The claims about composition between two layers, measured on our models.

Each `measure_...` takes what it measures as arguments, so that a test can hand it something for
which the claim is false; the registered functions call them with trained models.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.claims import Measurement, claim
from pathsum.composition import composition_scores, null_score, published_scores, reverse_scores
from pathsum.induction import induction_heads, induction_scores, looking_back
from pathsum.model import AttentionOnlyTransformer
from pathsum.paths import patterns_of
from pathsum.samples import spread_sample
from pathsum.stream import random_rotation

PAGE = "composition"
_QUARTERS = torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64)


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


def measure_reversed(
    real: dict[str, Float[Tensor, "earlier later"]],
    reverse: dict[str, Float[Tensor, "later earlier"]],
    null: float,
) -> Measurement:
    """X5: are scores of pairs in the wrong order, which cannot compose, spread like the real ones?"""
    alike, words = [], []
    for kind, scores in real.items():
        low, middle, high = scores.flatten().double().quantile(_QUARTERS).tolist()
        chance = float(reverse[kind].median())
        alike.append(low <= chance <= high)
        words.append(
            f"{kind} {chance:.3f} (real {middle:.3f}, middle half {low:.3f} to {high:.3f}; largest "
            f"{float(reverse[kind].max()):.3f}, real {float(scores.max()):.3f})"
        )
    off = max(abs(float(reverse[kind].median() / real[kind].median()) - 1) for kind in real)
    return Measurement(
        off,
        "largest relative difference of medians",
        "holds" if all(alike) else "weaker" if any(alike) else "not seen",
        f"median score of reversed pairs: {'; '.join(words)}; random matrices: {null:.4f}",
    )


@claim(
    id="T2",
    section="Analyzing a Two-Layer Model",
    statement="K-composition is concentrated: induction heads read the previous-token head, and (corrected) one that looks several tokens back.",
    paper="one layer-0 head in the original figure, a second one in the corrected",
    criterion="each induction head's strongest K partner is one of these two, more than 10 sd above the null",
    page=PAGE,
)
def partners(two: AttentionOnlyTransformer) -> Measurement:
    back = looking_back(patterns_of(two, spread_sample(8)[0])[0])
    one_back = int(back[:, 1].argmax())
    several = back[:, 2:5].sum(1)
    several[one_back] = 0
    pair = [one_back, int(several.argmax())]
    _, sd = rotation_null(two, "K")
    return measure_partners(
        composition_scores(two, "K"),
        induction_heads(induction_scores(two)),
        pair,
        sd,
        null_score(two.config.d_model),
    )


@claim(
    id="T3",
    section="Analyzing a Two-Layer Model",
    statement="Q- and V-composition are slight beside K-composition.",
    paper="none of significance in the original figure",
    criterion="largest K score above the largest V score; Q may be above the null and is reported",
    page=PAGE,
)
def slight(two: AttentionOnlyTransformer) -> Measurement:
    return measure_slight(two)


@claim(
    id="T4",
    section="Analyzing a Two-Layer Model",
    statement="Most pairs of heads compose less than random matrices would.",
    paper="stated in passing",
    criterion="more than half of all pairs below 1 / sqrt(d_model)",
    page=PAGE,
)
def below(two: AttentionOnlyTransformer) -> Measurement:
    return measure_below(two)


@claim(
    id="T5",
    section="Comments: correction of the composition diagram",
    statement="The published figure used a norm as if it were cyclic like a trace; the wrong quantity singles out induction.",
    paper="two figures, original and corrected",
    criterion="trace and eigenvalues agree when factors are moved round, norms do not; largest over median score larger for the wrong K score",
    page=PAGE,
)
def erratum(two: AttentionOnlyTransformer) -> Measurement:
    return measure_erratum(two)


@claim(
    id="X5",
    section="Turner's talk, linked from the comments",
    statement="Pairs of heads in the wrong order, which cannot compose, score much like real pairs, so "
    "they are a second null.",
    paper="similar distributions, in larger models",
    criterion="shown beside the null of random matrices, with no bar; we say holds if the median "
    "reversed score lies in the middle half of the real ones for Q, K and V",
    page=PAGE,
)
def reversed_pairs(two: AttentionOnlyTransformer) -> Measurement:
    return measure_reversed(
        {kind: composition_scores(two, kind) for kind in "QKV"},
        {kind: reverse_scores(two, kind) for kind in "QKV"},
        null_score(two.config.d_model),
    )
