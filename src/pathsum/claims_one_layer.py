"""The claims about one-layer models: circuits over the vocabulary, and positions.

Each `measure_...` takes what it measures as arguments, so that a test can hand it something for
which the claim is false; the registered functions call them with trained models.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pathsum.circuits import full_ov_circuits, full_qk_circuits
from pathsum.claims import Measurement, claim
from pathsum.claims_overview import worst
from pathsum.model import AttentionOnlyTransformer, cache
from pathsum.paths import patterns_of
from pathsum.samples import demo_tokens, spread_sample

PAGE = "one-layer"
WINDOW = 64  # offsets 0 to 63, over which scores are compared with positions


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


@claim(
    id="O6",
    section="Interpretation as Skip-Trigrams (primarily positional heads)",
    statement="A few heads care mostly for relative position.",
    paper="2 of 12 heads",
    criterion="at least one head gives more than 0.3 of its attention to the present or the previous "
    "token; otherwise none is reported",
    page=PAGE,
)
def positional(one: AttentionOnlyTransformer) -> Measurement:
    return measure_positional(*offset_table(one, spread_sample(16)[0]))


@claim(
    id="O7",
    section="Splitting Attention Head Terms into Circuits",
    statement="Once attention is given, what a source does to the logits depends on the source alone.",
    paper="argument",
    criterion="same source, other texts and destinations, equal attention: same effect, < 1e-4",
    page=PAGE,
)
def source_alone(one: AttentionOnlyTransformer) -> Measurement:
    return measure_source_alone(one)


@claim(
    id="O10",
    section="Interpretation as Skip-Trigrams",
    statement="Entries of a QK table cannot be compared between destinations (rows).",
    paper="remark",
    criterion="a constant added to each row leaves attention as it was (< 1e-5) and changes which "
    "entries are largest",
    page=PAGE,
)
def rows(one: AttentionOnlyTransformer) -> Measurement:
    return measure_rows(*moved_rows(one, demo_tokens()))
