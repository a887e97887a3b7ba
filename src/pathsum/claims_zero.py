"""The claims about zero-layer transformers and the direct path, measured on our models.

Each `measure_...` takes what it measures as arguments, so that a test can hand it something for
which the claim is false; the registered functions call them with the shipped models.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pathsum.bigrams import BigramCounts, KneserNey, count_bigrams, shipped_counts
from pathsum.claims import Measurement, claim
from pathsum.dataset import heldout_sample
from pathsum.direct_path import (
    correlation,
    cut_to_rank,
    direct_rows,
    first_tokens,
    own_ranks,
    pair_log_probs,
    pair_loss,
    table_rows,
)
from pathsum.model import AttentionOnlyTransformer

PAGE = "zero-layer"
FREQUENT = 1000  # the rows called frequent are those of this many most frequent tokens


def frequent_tokens(counts: BigramCounts, number: int = FREQUENT) -> Int[Tensor, " tokens"]:
    """Ids of the tokens followed most often, most frequent first."""
    return counts.totals().topk(number).indices


def measure_bigram(
    model: AttentionOnlyTransformer,
    counts: BigramCounts,
    heldout: BigramCounts,
    frequent: int = FREQUENT,
) -> Measurement:
    """Z1: is softmax(W_E W_U) the smoothed table of the text that the model was trained on?"""
    rows, table = direct_rows(model.W_E, model.W_U), table_rows(KneserNey(counts))
    ours, theirs = pair_log_probs(rows, counts), pair_log_probs(table, counts)
    weights = counts.counts.double()
    gap = float((weights * (theirs - ours)).sum() / weights.sum())
    often = torch.zeros(counts.d_vocab, dtype=torch.bool)
    often[frequent_tokens(counts, frequent)] = True
    kept = often[first_tokens(counts)]
    r = correlation(ours[kept], theirs[kept], counts.counts[kept].float())
    d_model = model.config.d_model
    ranks = [d_model // n for n in (1, 2, 4, 8, 16) if d_model // n]
    losses = [
        pair_loss(direct_rows(*cut_to_rank(model.W_E, model.W_U, rank)), counts) for rank in ranks
    ]
    extra = [loss - losses[0] for loss in losses[1:]]
    grows = all(a < b for a, b in zip(losses, losses[1:]))
    reached = [gap <= 0.1, r > 0.95, grows]
    new = pair_loss(rows, heldout) - pair_loss(table, heldout)
    cuts = ", ".join(f"{more:.2f} at {rank}" for more, rank in zip(extra, ranks[1:]))
    return Measurement(
        gap,
        "nats",
        "holds" if all(reached) else "weaker" if sum(reached) > 1 else "not seen",
        f"on its training text the model is {gap:.3f} nats above the smoothed table, on held-out text "
        f"{new:.3f}; log-probabilities of the pairs in the {frequent:,} most frequent rows correlate at "
        f"{r:.3f}; cut to a lower rank the table loses {cuts} nats",
    )


def measure_inverse(
    model: AttentionOnlyTransformer, counts: BigramCounts, frequent: int = FREQUENT
) -> Measurement:
    """Z2: does W_U undo W_E, so that the direct path predicts the token that was just read?"""
    tokens = frequent_tokens(counts, frequent)
    places = own_ranks(direct_rows(model.W_E, model.W_U), tokens)
    in_text = own_ranks(table_rows(KneserNey(counts)), tokens)
    top, middle = float((places == 0).float().mean()), int(places.median())
    entries = torch.stack([model.W_E.flatten(), model.W_U.mT.flatten()])
    r = float(torch.corrcoef(entries)[0, 1])
    reached = [top < 0.05, middle > 0.01 * counts.d_vocab, abs(r) < 0.2]
    return Measurement(
        top,
        "share of tokens",
        "holds" if all(reached) else "weaker" if any(reached) else "not seen",
        f"of the {frequent:,} most frequent tokens {top:.1%} predict themselves first (in the smoothed "
        f"table {float((in_text == 0).float().mean()):.1%}); the token itself stands at place "
        f"{middle + 1:,} of {counts.d_vocab:,} in the middle case (in the table {int(in_text.median()) + 1:,}); "
        f"entries of W_U and W_E transposed correlate at {r:+.3f}",
    )


def block_losses(
    model: AttentionOnlyTransformer, pairs: BigramCounts, inputs: Tensor, targets: Tensor
) -> Float[Tensor, " batch"]:
    """Each sequence's mean loss in nats under the direct path alone; `pairs` counts just these."""
    log_probs = pair_log_probs(direct_rows(model.W_E, model.W_U), pairs)
    keys = first_tokens(pairs) * pairs.d_vocab + pairs.following
    place = torch.searchsorted(keys, inputs * pairs.d_vocab + targets)
    return -log_probs[place].mean(dim=1)


def measure_residual(
    zero: AttentionOnlyTransformer,
    deeper: dict[str, AttentionOnlyTransformer],
    inputs: Int[Tensor, "batch pos"],
    targets: Int[Tensor, "batch pos"],
) -> Measurement:
    """Z3: how far is the direct path of deeper models from the bigram table that a 0-layer model is?"""
    pairs = count_bigrams(inputs.flatten(), targets.flatten(), zero.config.d_vocab)
    alone = block_losses(zero, pairs, inputs, targets)
    seen, certain, words = [], True, []
    for name, model in deeper.items():
        more = block_losses(model, pairs, inputs, targets) - alone
        mean, error = float(more.mean()), float(more.std() / len(more) ** 0.5)
        scaled = min(
            pair_loss(direct_rows(scale * model.W_E, model.W_U), pairs)
            for scale in (0.75, 1.0, 1.5)
        )
        best = scaled - float(alone.mean())
        seen.append(min(mean, best))
        certain &= min(mean, best) > max(0.1, 10 * error)
        words.append(f"{name} {mean:.2f} ± {error:.2f} ({best:.2f} at its best scale)")
    return Measurement(
        min(seen),
        "nats",
        "holds" if certain else "weaker" if min(seen) > 0 else "not seen",
        f"on held-out text the direct path alone is worse than the 0-layer model "
        f"({float(alone.mean()):.2f} nats) by: {'; '.join(words)}; ± is the standard error over "
        "sequences",
    )


@claim(
    id="Z1",
    section="Zero-Layer Transformers",
    statement="A model without layers can only learn which token follows which: W_E W_U comes to "
    "approximate bigram log-likelihoods.",
    paper="argument, no numbers",
    criterion="loss on the training text within 0.1 nat of the count table's; count-weighted "
    "correlation of log-probabilities above 0.95 on frequent rows; the gap grows as the rank falls",
    page=PAGE,
)
def bigram(zero: AttentionOnlyTransformer) -> Measurement:
    inputs, targets = heldout_sample()
    counts = shipped_counts()
    heldout = count_bigrams(inputs.flatten(), targets.flatten(), counts.d_vocab)
    return measure_bigram(zero, counts, heldout)


@claim(
    id="Z2",
    section="Zero-Layer Transformers",
    statement="W_U is not the inverse of W_E, and should not be expected to be: the table holds what "
    "follows a token, not the token.",
    paper="remark",
    criterion="the direct path does not predict the present token (top place for under 5% of "
    "frequent tokens, middle place below the first 1%) and W_U does not correlate with W_E transposed "
    "(between -0.2 and 0.2)",
    page=PAGE,
)
def inverse(zero: AttentionOnlyTransformer) -> Measurement:
    return measure_inverse(zero, shipped_counts())


@claim(
    id="Z3",
    section="Zero-Layer Transformers",
    statement="In a model with layers the same product is only what the other paths leave over of "
    "the bigram statistics.",
    paper="remark",
    criterion="direct path alone clearly worse than the 0-layer model on the same text (more than "
    "0.1 nat and 10 standard errors, even at its best scale), for 1 and 2 layers",
    page=PAGE,
)
def residual(
    two: AttentionOnlyTransformer, one: AttentionOnlyTransformer, zero: AttentionOnlyTransformer
) -> Measurement:
    deeper = {"1 layer": one, "2 layers": two}
    return measure_residual(zero, deeper, *heldout_sample())
