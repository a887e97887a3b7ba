"""The direct path W_E @ W_U as a table over pairs of tokens, read in blocks of rows."""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pathsum.bigrams import BigramCounts, KneserNey

ROWS = 256  # rows of the (d_vocab, d_vocab) table held at a time
LogProbRows = Callable[[Tensor], Tensor]  # token ids (rows,) -> log-probabilities (rows, d_vocab)


def direct_rows(
    W_E: Float[Tensor, "d_vocab d_model"], W_U: Float[Tensor, "d_model d_vocab"]
) -> LogProbRows:
    """Rows of log softmax(W_E @ W_U): ln p(. | token) if nothing but the direct path speaks.

    For a model without layers this is the whole model.
    """
    return lambda tokens: (W_E[tokens] @ W_U).log_softmax(dim=-1)


def table_rows(table: KneserNey) -> LogProbRows:
    """Rows of ln p(. | token) of a smoothed count table."""
    return lambda tokens: torch.stack([table.row(t) for t in tokens.tolist()]).log()


def pair_log_probs(rows: LogProbRows, pairs: BigramCounts) -> Float[Tensor, " entries"]:
    """ln p(second | first) of each different pair in `pairs`, in its order.

    Only ROWS rows of the table exist at any time, so memory stays at a few megabytes.
    """
    result = torch.empty(len(pairs.counts))
    lengths = pairs.starts.diff().long()
    for tokens in lengths.nonzero().flatten().split(ROWS):
        low, high = int(pairs.starts[tokens[0]]), int(pairs.starts[tokens[-1] + 1])
        which = torch.arange(len(tokens)).repeat_interleave(lengths[tokens])
        result[low:high] = rows(tokens)[which, pairs.following[low:high].long()]
    return result


def pair_loss(rows: LogProbRows, pairs: BigramCounts) -> float:
    """Mean loss in nats of predicting the second token from the first, over all counted pairs."""
    weights = pairs.counts.double()
    return float(-(weights * pair_log_probs(rows, pairs)).sum() / weights.sum())


def first_tokens(pairs: BigramCounts) -> Int[Tensor, " entries"]:
    """The first token of each different pair, in the order of `following` and `counts`."""
    return torch.arange(pairs.d_vocab).repeat_interleave(pairs.starts.diff().long())


def singular_factors(
    W_E: Float[Tensor, "d_vocab d_model"], W_U: Float[Tensor, "d_model d_vocab"]
) -> tuple[
    Float[Tensor, "d_vocab d_model"], Float[Tensor, " d_model"], Float[Tensor, "d_model d_vocab"]
]:
    """Left vectors, singular values and right vectors of W_E @ W_U, without forming the product.

    QR of both factors leaves a (d_model, d_model) matrix whose SVD is the product's. Cut all three
    to r and multiply: the nearest table of rank r (Eckart and Young 1936).
    """
    left, inner_left = torch.linalg.qr(W_E)
    right, inner_right = torch.linalg.qr(W_U.mT)
    u, values, vh = torch.linalg.svd(inner_left @ inner_right.mT)
    return left @ u, values, vh @ right.mT


def cut_to_rank(
    W_E: Float[Tensor, "d_vocab d_model"], W_U: Float[Tensor, "d_model d_vocab"], rank: int
) -> tuple[Float[Tensor, "d_vocab rank"], Float[Tensor, "rank d_vocab"]]:
    """Factors of the table of this rank that is nearest to W_E @ W_U, up to a constant per row.

    The softmax ignores a constant added to a row, so W_U is centred first: no rank is spent on it.
    ValueError for a rank outside 1..d_model.
    """
    if not 1 <= rank <= W_E.shape[1]:
        raise ValueError(f"rank must lie in 1..d_model={W_E.shape[1]}, got {rank}")
    left, values, right = singular_factors(W_E, W_U - W_U.mean(dim=1, keepdim=True))
    return left[:, :rank] * values[:rank], right[:rank]


def own_ranks(rows: LogProbRows, tokens: Int[Tensor, " tokens"]) -> Int[Tensor, " tokens"]:
    """Place of each token in its own row, 0 for the likeliest: what "A again" is worth after A."""
    places = []
    for part in tokens.split(ROWS):
        table = rows(part)
        places.append((table > table.gather(1, part[:, None])).sum(dim=1))
    return torch.cat(places)


def correlation(
    x: Float[Tensor, " n"], y: Float[Tensor, " n"], weights: Float[Tensor, " n"]
) -> float:
    """Pearson correlation of x and y in which each point counts as often as its weight says."""
    share = weights.double() / weights.double().sum()
    x, y = (v.double() - (share * v).sum() for v in (x, y))
    return float((share * x * y).sum() / ((share * x * x).sum() * (share * y * y).sum()).sqrt())


def times_counted(pairs: BigramCounts, counts: BigramCounts) -> Int[Tensor, " entries"]:
    """How often each different pair in `pairs` occurs in `counts`, 0 for a pair that does not."""
    keys, wanted = (first_tokens(p) * p.d_vocab + p.following for p in (counts, pairs))
    place = torch.searchsorted(keys, wanted).clamp(max=len(keys) - 1)
    return torch.where(keys[place] == wanted, counts.counts[place].long(), 0)


@torch.no_grad()
def trained_further(
    W_E: Float[Tensor, "d_vocab d_model"],
    W_U: Float[Tensor, "d_model d_vocab"],
    counts: BigramCounts,
    steps: int,
    lr: float = 0.02,
) -> tuple[Float[Tensor, "d_vocab d_model"], Float[Tensor, "d_model d_vocab"]]:
    """New W_E and W_U after `steps` steps of Adam, each on all counted pairs at once.

    The gradient is exact: d loss / d logits is softmax minus share, weighted by the row's share of
    the text. The rate rises over 3 steps and falls linearly to 0.
    """
    W_E, W_U = W_E.clone(), W_U.clone()
    adam = torch.optim.Adam([W_E, W_U], lr=lr, betas=(0.9, 0.98))
    totals, lengths = counts.totals(), counts.starts.diff().long()
    everything = totals.sum()
    for step in range(steps):
        adam.param_groups[0]["lr"] = lr * min(1.0, (step + 1) / 3) * (1 - step / steps)
        W_E.grad, W_U.grad = torch.zeros_like(W_E), torch.zeros_like(W_U)
        for tokens in torch.arange(counts.d_vocab).split(2 * ROWS):
            error = (W_E[tokens] @ W_U).softmax(1).mul_(totals[tokens, None])
            low, high = int(counts.starts[tokens[0]]), int(counts.starts[tokens[-1] + 1])
            which = torch.arange(len(tokens)).repeat_interleave(lengths[tokens])
            entries = which * counts.d_vocab + counts.following[low:high].long()
            error.view(-1)[entries] -= counts.counts[low:high]
            error /= everything
            W_E.grad[tokens] = error @ W_U.mT
            W_U.grad += W_E[tokens].mT @ error
        adam.step()
    return W_E, W_U
