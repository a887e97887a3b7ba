"""Behaviour scores: what each head does, read off its attention patterns or its weights."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pathsum.model import AttentionOnlyTransformer, check_numbers


def repeated_tokens(
    batch: int,
    period: int,
    copies: int,
    d_vocab: int,
    generator: torch.Generator,
    start_id: int = 0,
) -> Int[Tensor, "batch pos"]:
    """The start token, then `period` random tokens repeated `copies` times; one row each.

    Tokens are uniform over all ids but the start token, so no bigram or skip-trigram helps: only
    what the context itself shows. pos = 1 + period * copies. ValueError for sizes below 1.
    Source: Elhage et al. 2021, Induction Heads.
    """
    if min(batch, period, copies) < 1 or d_vocab < 2:
        raise ValueError(
            "batch, period and copies must be at least 1 and d_vocab at least 2, got "
            f"{batch}, {period}, {copies}, {d_vocab}"
        )
    ids = torch.randint(d_vocab - 1, (batch, period), generator=generator)
    ids = ids + (ids >= start_id)
    start = torch.full((batch, 1), start_id)
    return torch.cat([start, ids.repeat(1, copies)], dim=1)


def previous_token_score(
    pattern: Float[Tensor, "*batch pos pos"],
) -> Float[Tensor, "*batch"]:
    """Mean attention from each position to the one before it, 0 to 1; the first is left out."""
    _need(pattern, 2)
    return pattern.diagonal(-1, dim1=-2, dim2=-1).mean(-1)


def present_token_score(pattern: Float[Tensor, "*batch pos pos"]) -> Float[Tensor, "*batch"]:
    """Mean attention from each position to itself, 0 to 1; the first is left out."""
    _need(pattern, 2)
    return pattern.diagonal(0, dim1=-2, dim2=-1)[..., 1:].mean(-1)


def start_token_score(pattern: Float[Tensor, "*batch pos pos"]) -> Float[Tensor, "*batch"]:
    """Mean attention from each position to the first, 0 to 1: where a head rests."""
    _need(pattern, 2)
    return pattern[..., 1:, 0].mean(-1)


def prefix_matching_score(
    pattern: Float[Tensor, "*batch pos pos"], period: int
) -> Float[Tensor, "*batch"]:
    """Mean attention from a repeated token to the tokens that followed its earlier copies, 0 to 1.

    `pattern` must come from `repeated_tokens(period=period)`: from position i of the second copy
    on, attention to i - m * period + 1 is summed over the earlier copies m = 1, 2, ... and averaged
    over i. The stripe of an induction head lies at offset period - 1, not period.
    Source: Olsson et al. 2022, with their 4 copies of 25 tokens replaced by sizes of your choice.
    """
    return _earlier_copies(pattern, period, shift=1)


def duplicate_token_score(
    pattern: Float[Tensor, "*batch pos pos"], period: int
) -> Float[Tensor, "*batch"]:
    """Mean attention from a repeated token to its earlier copies, 0 to 1.

    As `prefix_matching_score`, one position earlier: a head that scores here and not there finds the
    token itself, not what followed it.
    """
    return _earlier_copies(pattern, period, shift=0)


def value_weighted(
    pattern: Float[Tensor, "batch head dest src"], v: Float[Tensor, "batch head src d_head"]
) -> Float[Tensor, "batch head dest src"]:
    """Attention times the length of the value fetched: how much is moved, not where it looks.

    Source: Elhage et al. 2021, Analyzing a Two-Layer Model; Kobayashi et al. 2020.
    """
    if pattern.shape[:2] != v.shape[:2] or pattern.shape[-1] != v.shape[2]:
        raise ValueError(
            "pattern (batch, head, dest, src) and v (batch, head, src, d_head) must be of one run, got "
            f"{tuple(pattern.shape)} and {tuple(v.shape)}"
        )
    return pattern * v.norm(dim=-1)[:, :, None, :]


def copying_eigenvalues(
    model: AttentionOnlyTransformer, layers: int | slice = slice(None)
) -> Tensor:
    """Non-zero eigenvalues of each head's full OV circuit, (..., n_heads, d_head) complex128.

    The circuit W_E W_V W_O W_U is d_vocab x d_vocab of rank d_head; its non-zero eigenvalues are
    those of the small product W_O (W_U W_E) W_V, in float64, with W_U W_E contracted once for all
    heads. One layer's, or with a slice several layers' (all by default).
    """
    with torch.no_grad():
        round_trip = model.W_U.double() @ model.W_E.double()
        small = model.W_O[layers].double() @ round_trip @ model.W_V[layers].double()
        check_numbers(small, "W_O W_U W_E W_V")  # LAPACK does not come back from NaN
        return torch.linalg.eigvals(small.cpu())


def positivity(eigenvalues: Tensor) -> Float[Tensor, "*batch"]:
    """Sum of eigenvalues over sum of their sizes, -1 to 1: 1 if all are positive reals.

    Source: Elhage et al. 2021, Summarizing OV/QK Matrices; Olsson et al. 2022.
    """
    check_numbers(eigenvalues, "eigenvalues")
    return eigenvalues.sum(-1).real / eigenvalues.abs().sum(-1)


def copying_score(model: AttentionOnlyTransformer) -> Float[Tensor, "n_layers n_heads"]:
    """`positivity` of each full OV circuit, -1 to 1.

    1: attending to any combination of tokens raises it; for random weights mean 0, sd about
    1.5 / d_head. Source: Elhage et al. 2021, Summarizing OV/QK Matrices (detecting copying).
    """
    return positivity(copying_eigenvalues(model)).float()


def raised_share(
    model: AttentionOnlyTransformer,
    length: int = 25,
    samples: int = 10,
    generator: torch.Generator | None = None,
) -> Float[Tensor, "n_layers n_heads"]:
    """Copying as Olsson et al. 2022 ask for it: of what a head raises, the share on what it attends to.

    Each sample is `length` different random tokens. The head attends to one of them fully; of the
    logits that this adds by the direct route, those of the sample's tokens count, less their mean and
    where above it. The share of the attended token in the total, 0 to 1, is stretched to -1 to 1:
    1 if nothing else rises, -1 if the token itself never does, 2 / length - 1 on average by chance.
    The paper gives the idea in words; full attention in place of the head's own pattern is our choice,
    so that heads that rest on random text are scored too. Seed 0 without a generator. ValueError for
    more tokens than the vocabulary has beside the start token.
    """
    c = model.config
    if not 2 <= length < c.d_vocab or samples < 1:
        raise ValueError(
            f"length must lie in 2..{c.d_vocab - 1}, the tokens beside the start token, and samples "
            f"above 0, got {length} and {samples}"
        )
    generator = torch.Generator().manual_seed(0) if generator is None else generator
    own = total = torch.zeros(c.n_layers, c.n_heads, dtype=torch.float64)
    with torch.no_grad():
        for _ in range(samples):
            tokens = 1 + torch.randperm(c.d_vocab - 1, generator=generator)[:length]
            read = model.W_E[tokens].double() @ model.W_V.double() @ model.W_O.double()
            logits = read @ model.W_U[:, tokens].double()  # (layer, head, source, output)
            check_numbers(logits, "what heads add to the logits")
            logits = logits.cpu()
            rise = (logits - logits.mean(-1, keepdim=True)).relu()
            own = own + rise.diagonal(dim1=-2, dim2=-1).sum(-1)
            total = total + rise.sum((-1, -2))
    return (2 * own / total.clamp_min(1e-30) - 1).float()


def _need(pattern: Tensor, length: int) -> None:
    if pattern.ndim < 2 or pattern.shape[-1] != pattern.shape[-2] or pattern.shape[-1] < length:
        raise ValueError(
            f"pattern must be (..., pos, pos) with at least {length} positions, "
            f"got {tuple(pattern.shape)}"
        )
    check_numbers(pattern, "pattern")


def _earlier_copies(pattern: Tensor, period: int, shift: int) -> Tensor:
    """Mean over repeated positions of the attention to `shift` after each earlier copy."""
    n = pattern.shape[-1]
    if not 1 < period < n - 1:
        raise ValueError(
            f"period must lie between 2 and {n - 2} for a pattern over {n} tokens, got {period}"
        )
    dest = torch.arange(1 + period, n, device=pattern.device)
    total = torch.zeros(pattern.shape[:-2], device=pattern.device, dtype=pattern.dtype)
    for back in range(period, n, period):
        rows = dest[dest - back >= 1]
        total = total + pattern[..., rows, rows - back + shift].sum(-1)
    return total / len(dest)
