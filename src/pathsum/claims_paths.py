"""The claims that a model is a sum of paths: logits, scores, frozen patterns, heads in a row.

Each `measure_...` takes what it measures as arguments, so that a test can hand it something for
which the claim is false; the registered functions call them with trained models.
"""

from collections.abc import Callable
from copy import deepcopy

import torch
from einops import einsum
from jaxtyping import Float, Int
from torch import Tensor

from pathsum.claims import Measurement, claim
from pathsum.claims_overview import worst
from pathsum.model import AttentionOnlyTransformer, cache
from pathsum.patching import frozen_hook
from pathsum.paths import Patterns, path_terms, patterns_of
from pathsum.samples import demo_tokens, spread_sample
from pathsum.score_paths import score_terms


def measure_expansion(
    model: AttentionOnlyTransformer, tokens: Int[Tensor, "batch pos"], terms: Callable = path_terms
) -> Measurement:
    """A6: the direct path and one term per head add up to the logits."""
    found = terms(model, tokens)
    off = worst(found.values.sum(0) @ model.W_U, model(tokens))
    return Measurement(
        off,
        "largest difference of a logit",
        "exact" if off < 1e-4 else "not seen",
        f"{len(found.paths)} terms; their sum is the model's logits within {off:.1e}",
    )


def mixed_logits(
    model: AttentionOnlyTransformer,
    texts: Int[Tensor, "texts pos"],
    weights: Float[Tensor, " texts"],
    patterns: Patterns | None = None,
) -> Float[Tensor, "pos d_vocab"]:
    """Logits for a weighted sum of texts: each position holds sum_i weights[i] * W_E[texts[i]].

    With `patterns`, a run's patterns, attention is forced to those; without, it is computed anew.
    """
    mixed = (weights[:, None, None] * model.W_E[texts]).sum(0)[None]
    force = frozen_hook(patterns) if patterns is not None else lambda site, value: None
    return model(texts[:1], hook=lambda s, v: mixed if s == "embed" else force(s, v))[0]


def linearity_errors(
    model: AttentionOnlyTransformer,
    texts: Int[Tensor, "texts pos"],
    weights: Float[Tensor, " texts"],
) -> dict[str, float]:
    """How far f(a t + b t') is from a f(t) + b f(t'), with "frozen" and with "free" patterns.

    The frozen ones are those of the first text. Largest difference of a logit.
    """
    off = {}
    for name, patterns in ("frozen", patterns_of(model, texts[:1])), ("free", None):
        apart = [mixed_logits(model, t[None], torch.ones(1), patterns) for t in texts]
        combined = sum(w * logits for w, logits in zip(weights, apart))
        off[name] = worst(mixed_logits(model, texts, weights, patterns), combined)
    return off


def measure_linearity(
    model: AttentionOnlyTransformer, texts: Int[Tensor, "texts pos"]
) -> Measurement:
    """A7: with frozen patterns the model is linear in its tokens; without, it is not."""
    off = linearity_errors(model, texts, torch.tensor([0.7, -1.3]))
    linear, broken = off["frozen"] < 1e-4, off["free"] > 0.1
    return Measurement(
        off["frozen"],
        "largest difference of a logit",
        "exact" if linear and broken else "not seen",
        f"0.7 of one text minus 1.3 of another: {off['frozen']:.1e} from linear with frozen "
        f"patterns, {off['free']:.1f} with free ones",
    )


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


def measure_product(model: AttentionOnlyTransformer, tokens: Tensor) -> Measurement:
    model = deepcopy(model).double()
    values, c = cache(model, tokens), model.config
    x = values["L0.resid"][0]
    A1, A2 = values["L0.pattern"][0], values["L1.pattern"][0]
    A = einsum(A2, A1, "h2 dest mid, h1 mid src -> h1 h2 dest src")
    W1, W2 = model.W_V[0] @ model.W_O[0], model.W_V[1] @ model.W_O[1]
    W = einsum(W1, W2, "h1 i j, h2 j k -> h1 h2 i k")
    rows, ahead = float((A.sum(-1) - 1).abs().max()), float(A.triu(1).abs().max())
    singular = torch.linalg.svdvals(W)
    beyond = float((singular[..., c.d_head :] / singular[..., :1]).max())
    through = einsum(A1, x, W1, "h1 dest src, src i, h1 i j -> h1 dest j")
    twice = einsum(A2, through, W2, "h2 dest src, h1 src i, h2 i j -> h1 h2 dest j")
    once = einsum(A, x, W, "h1 h2 dest src, src i, h1 h2 i j -> h1 h2 dest j")
    off = worst(once, twice)
    exact = max(rows, off) < 1e-5 and ahead == 0 and beyond < 1e-10
    return Measurement(
        rows,
        "largest difference of a row sum from 1",
        "exact" if exact else "not seen",
        f"for all {c.n_heads**2} pairs: rows sum to 1 within {rows:.1e}, nothing ahead of the "
        f"destination, singular values after the {c.d_head}th below {beyond:.1e} of the first, and "
        f"the virtual head gives what the two give, within {off:.1e}",
    )


@claim(
    id="A11",
    section="Attention Heads as Information Movement",
    statement="The product of two heads is a head again, with pattern A² A¹ and matrix W_OV¹ W_OV².",
    paper="identity",
    criterion="rows of the product sum to 1, causal, rank at most d_head",
    page="transformer-overview",
)
def product(two: AttentionOnlyTransformer) -> Measurement:
    return measure_product(two, demo_tokens())


@claim(
    id="A6",
    section="The Path Expansion Trick",
    statement="The logits of a one-layer model are a sum: the direct path and one term per head.",
    paper="identity",
    criterion="largest difference of a logit < 1e-4",
    page="one-layer",
)
def expansion(one: AttentionOnlyTransformer) -> Measurement:
    return measure_expansion(one, spread_sample(4)[0])


@claim(
    id="A7",
    section="Splitting Attention Head Terms into Circuits",
    statement="With frozen attention patterns the logits are linear in the tokens.",
    paper="argument",
    criterion="largest difference < 1e-4 with frozen patterns; clearly broken with free ones",
    page="one-layer",
)
def linearity(one: AttentionOnlyTransformer) -> Measurement:
    texts = spread_sample(2)[0][:, :64]
    return measure_linearity(one, texts)


@claim(
    id="A8",
    section="Path Expansion of Logits",
    statement="The logits of a two-layer model are the sum of a direct path, 2H single heads and H² virtual heads.",
    paper="identity",
    criterion="sum of all terms equal to the logits within 1e-4",
    page="composition",
)
def path_sum(two: AttentionOnlyTransformer) -> Measurement:
    return measure_path_sum(two, demo_tokens())


@claim(
    id="A9",
    section="Path Expansion of Attention Scores",
    statement="The scores of a second-layer head are the sum of terms without composition, with Q-, with K-composition, and with both.",
    paper="identity",
    criterion="sum equal to the scores before the mask within 1e-4, for all heads",
    page="composition",
)
def score_sum(two: AttentionOnlyTransformer) -> Measurement:
    return measure_score_sum(two, demo_tokens())
