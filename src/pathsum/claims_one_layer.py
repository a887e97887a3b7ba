"""The claims about one-layer models: path expansion, circuits, positions, learning in context.

Each `measure_...` takes what it measures as arguments, so that a test can hand it something for
which the claim is false; the registered functions call them with the shipped models.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pathsum.checkpoints import load_model
from pathsum.circuits import full_ov_circuits, full_qk_circuits
from pathsum.claims import Measurement, claim
from pathsum.claims_overview import demo_tokens, worst
from pathsum.claims_terms import spread_sample
from pathsum.evaluate import token_losses
from pathsum.heads import repeated_tokens
from pathsum.model import AttentionOnlyTransformer, cache
from pathsum.patching import frozen_hook
from pathsum.paths import Patterns, path_terms, patterns_of

PAGE = "one-layer"
WINDOW = 64  # offsets 0 to 63, over which scores are compared with positions


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


def offset_table(
    model: AttentionOnlyTransformer, inputs: Int[Tensor, "batch pos"], layer: int = 0
) -> tuple[Float[Tensor, " n_heads"], Float[Tensor, "n_heads offset"]]:
    """What offsets alone explain of each head's scores, and its mean attention at each offset.

    First: the share (0 to 1) of the variance of scores within a row that is explained by the mean
    score at each offset 0 .. WINDOW - 1; rows with fewer sources are left out, so that every row has
    the same offsets. Second: mean of A[i, i - k] over the same rows.
    """
    values = cache(model, inputs)
    rows = torch.arange(WINDOW, inputs.shape[1])

    def by_offset(site: str) -> Float[Tensor, "batch n_heads row offset"]:
        value = values[f"L{layer}.{site}"]
        return torch.stack([value[..., rows, rows - k] for k in range(WINDOW)], dim=-1)

    scores = by_offset("scores")
    scores = scores - scores.mean(-1, keepdim=True)  # softmax ignores a constant in a row
    explained = scores.mean((0, 2)).square().mean(-1) / scores.square().mean((0, 2, 3))
    return explained, by_offset("pattern").mean((0, 2))


def measure_positional(
    explained: Float[Tensor, " n_heads"], attention: Float[Tensor, "n_heads offset"]
) -> Measurement:
    """O6: is there a head that looks mostly at the present or the previous token?"""
    best, offset = attention[:, :2].max(-1)
    chosen = [h for h in range(len(best)) if best[h] > 0.3]
    words = [
        f"H{h} gives {best[h]:.2f} to the {('present', 'previous')[offset[h]]} token, and offsets "
        f"explain {explained[h]:.0%} of its scores"
        for h in chosen
    ]
    none = f"no head gives more than {float(best.max()):.2f} to either"
    return Measurement(
        float(best.max()),
        "mean attention",
        "holds" if chosen else "not seen",
        "; ".join(words) or none,
    )


def measure_source_alone(
    model: AttentionOnlyTransformer, layer: int = 0, weight: float = 0.37, seed: int = 0
) -> Measurement:
    """O7: at equal attention, does a source token do the same whatever surrounds it?

    Eight random texts share one token at one place, and every later position is made to attend to it
    with `weight`, the rest going to the start token.
    """
    c, length, place = model.config, min(24, model.config.n_ctx), 5
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(1, c.d_vocab, (8, length), generator=generator)
    tokens[:, 0], tokens[:, place] = 0, 1 + c.d_vocab // 2
    pattern = torch.zeros(8, c.n_heads, length, length)
    pattern[..., 0], pattern[..., place] = 1 - weight, weight
    found = {}

    def hook(site: str, value: Tensor) -> Tensor | None:
        if site == f"L{layer}.result":
            found["written"] = value[:, :, place:] @ model.W_U
        return pattern if site == f"L{layer}.pattern" else None

    with torch.no_grad():
        model(tokens, hook=hook)
    written = found["written"]  # (text, head, destination, d_vocab)
    spread = worst(written, written[:1, :, :1].expand_as(written))
    rows = full_ov_circuits(model, layer).rows([0, int(tokens[0, place])])
    predicted = (1 - weight) * rows[:, 0] + weight * rows[:, 1]
    off = worst(written[0, :, 0], predicted)
    return Measurement(
        spread,
        "largest difference of a logit",
        "exact" if spread < 1e-4 and off < 1e-4 else "not seen",
        f"in 8 texts and at {length - place} destinations, equal attention to one token moves the "
        f"logits equally within {spread:.1e}, and as its row of the OV table says within {off:.1e}",
    )


def moved_rows(
    model: AttentionOnlyTransformer, tokens: Int[Tensor, "batch pos"], seed: int = 0
) -> tuple[float, float]:
    """After adding a random constant to each token's row of every QK table: what changes?

    The largest change of an attention weight on `tokens`, and the share of source tokens for which
    another destination now has the largest entry (among the first 500 tokens of the vocabulary).
    """
    generator = torch.Generator().manual_seed(seed)
    table = full_qk_circuits(model, 0).A[:, :500] @ full_qk_circuits(model, 0).B[..., :500]
    constant = table.std() * torch.randn(model.config.d_vocab, generator=generator)
    before, after = patterns_of(model, tokens)[0], {}

    def hook(site: str, value: Tensor) -> Tensor | None:
        if site == "L0.pattern":
            after["pattern"] = value
        return value + constant[tokens][:, None, :, None] if site == "L0.scores" else None

    with torch.no_grad():
        model(tokens, hook=hook)
    shifted = table + constant[: table.shape[-2], None]
    changed = (table.argmax(-2) != shifted.argmax(-2)).float().mean()
    return worst(before, after["pattern"]), float(changed)


def measure_rows(changed_pattern: float, changed_best: float) -> Measurement:
    """O10: entries of different rows of a QK table say nothing about each other."""
    return Measurement(
        changed_pattern,
        "largest difference of an attention weight",
        "exact" if changed_pattern < 1e-5 and changed_best > 0.5 else "not seen",
        f"with a random constant added to each row, attention changes by at most "
        f"{changed_pattern:.1e}, and for {changed_best:.0%} of source tokens the destination with "
        "the largest entry is another one",
    )


def repeat_gain(
    model: AttentionOnlyTransformer, sequences: int = 16, seed: int = 0
) -> Float[Tensor, " batch"]:
    """Loss on the first copy of random tokens minus that on the second, nats a token, per sequence.

    The first token of each copy is left out, since nothing predicts it.
    """
    period = (model.config.n_ctx - 1) // 2
    generator = torch.Generator().manual_seed(seed)
    tokens = repeated_tokens(sequences, period, 2, model.config.d_vocab, generator)
    losses = token_losses(model, tokens[:, :-1], tokens[:, 1:])
    return losses[:, 1:period].mean(1) - losses[:, period + 1 :].mean(1)


def context_gain(
    model: AttentionOnlyTransformer,
    inputs: Int[Tensor, "batch pos"],
    targets: Int[Tensor, "batch pos"],
    last: int = 32,
) -> Float[Tensor, " batch"]:
    """What the far context is worth: loss without it minus loss with it, nats a token, per sequence.

    Over the last `last` positions; without it they see the start token and only the nearest `last`
    to 2 * `last` - 1 tokens. The same tokens are predicted both times, so the text's own ups and downs
    cancel. ValueError if that would be the whole context.
    """
    if 2 * last >= inputs.shape[1]:
        raise ValueError(f"2 * last must be below {inputs.shape[1]} positions, got last={last}")
    short = torch.cat([inputs[:, :1], inputs[:, -2 * last :]], dim=1)
    with_it = token_losses(model, inputs, targets)[:, -last:]
    without = token_losses(model, short, targets[:, -2 * last - 1 :])[:, -last:]
    return (without - with_it).mean(1)


def measure_in_context(
    repeats: dict[str, Float[Tensor, " batch"]], far: dict[str, Float[Tensor, " sequences"]]
) -> Measurement:
    """O13: does the model of "1 layer" learn in context, and much less than that of "2 layers"?"""

    def stated(gains: dict[str, Tensor]) -> tuple[dict[str, float], dict[str, float], str]:
        mean = {name: float(gain.mean()) for name, gain in gains.items()}
        error = {name: float(gain.std() / len(gain) ** 0.5) for name, gain in gains.items()}
        words = " and ".join(f"{mean[n]:.3f} ± {error[n]:.3f} with {n}" for n in gains)
        return mean, error, words

    second, second_error, on_repeats = stated(repeats)
    more, more_error, on_text = stated(far)
    exists = any(
        mean["1 layer"] > 3 * error["1 layer"]
        for mean, error in ((second, second_error), (more, more_error))
    )
    seen = second["2 layers"] > 3 * second_error["2 layers"]
    weak = seen and second["1 layer"] < 0.25 * second["2 layers"]
    return Measurement(
        second["1 layer"] / second["2 layers"],
        "gain of one layer over that of two",
        "holds" if exists and weak else "weaker" if weak else "not seen",
        f"nats a token gained on the second copy of random tokens: {on_repeats}; on text, from having "
        f"more than the nearest 32 to 63 tokens: {on_text}",
    )


@claim(
    id="A6",
    section="The Path Expansion Trick",
    statement="The logits of a one-layer model are a sum: the direct path and one term per head.",
    paper="identity",
    criterion="largest difference of a logit < 1e-4",
    page=PAGE,
)
def expansion() -> Measurement:
    return measure_expansion(load_model("attn-only-1l"), spread_sample(4)[0])


@claim(
    id="A7",
    section="Splitting Attention Head Terms into Circuits",
    statement="With frozen attention patterns the logits are linear in the tokens.",
    paper="argument",
    criterion="largest difference < 1e-4 with frozen patterns; clearly broken with free ones",
    page=PAGE,
)
def linearity() -> Measurement:
    texts = spread_sample(2)[0][:, :64]
    return measure_linearity(load_model("attn-only-1l"), texts)


@claim(
    id="O6",
    section="Interpretation as Skip-Trigrams (primarily positional heads)",
    statement="A few heads care mostly for relative position.",
    paper="2 of 12 heads",
    criterion="at least one head gives more than 0.3 of its attention to the present or the previous "
    "token; otherwise none is reported",
    page=PAGE,
)
def positional() -> Measurement:
    return measure_positional(*offset_table(load_model("attn-only-1l"), spread_sample(16)[0]))


@claim(
    id="O7",
    section="Splitting Attention Head Terms into Circuits",
    statement="Once attention is given, what a source does to the logits depends on the source alone.",
    paper="argument",
    criterion="same source, other texts and destinations, equal attention: same effect, < 1e-4",
    page=PAGE,
)
def source_alone() -> Measurement:
    return measure_source_alone(load_model("attn-only-1l"))


@claim(
    id="O10",
    section="Interpretation as Skip-Trigrams",
    statement="Entries of a QK table cannot be compared between destinations (rows).",
    paper="remark",
    criterion="a constant added to each row leaves attention as it was (< 1e-5) and changes which "
    "entries are largest",
    page=PAGE,
)
def rows() -> Measurement:
    return measure_rows(*moved_rows(load_model("attn-only-1l"), demo_tokens()))


@claim(
    id="O13",
    section="Summary of Results",
    statement="One layer can learn in context, by copying, but only weakly.",
    paper="qualitative",
    criterion="on the second copy of random tokens less than a quarter of the two-layer model's gain; "
    "and some gain, there or from far context on text, more than 3 standard errors above 0",
    page=PAGE,
)
def in_context() -> Measurement:
    models = {"1 layer": load_model("attn-only-1l"), "2 layers": load_model("attn-only-2l")}
    sample = spread_sample(96)
    return measure_in_context(
        {name: repeat_gain(model) for name, model in models.items()},
        {name: context_gain(model, *sample) for name, model in models.items()},
    )
