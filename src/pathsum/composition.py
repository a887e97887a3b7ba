"""Composition scores: how much each head reads of what an earlier head writes, from weights."""

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.factored import FactoredMatrix
from pathsum.model import AttentionOnlyTransformer

KINDS = ("Q", "K", "V")
ROWS = 48  # of the d_model x d_model Gram matrices held at a time


def ov_circuits(model: AttentionOnlyTransformer) -> FactoredMatrix:
    """W_OV = W_V @ W_O of every head: what it reads to what it writes.

    Shape (n_layers, n_heads, d_model, d_model), rank d_head.
    """
    return FactoredMatrix(model.W_V.detach(), model.W_O.detach())


def qk_circuits(model: AttentionOnlyTransformer) -> FactoredMatrix:
    """W_QK = W_Q @ W_K.mT of every head: destination's stream (rows) against source's (columns).

    Shape (n_layers, n_heads, d_model, d_model), rank d_head. The division by sqrt(d_head) is left
    out, as in the paper; it changes no composition score and no sign of an eigenvalue.
    """
    return FactoredMatrix(model.W_Q.detach(), model.W_K.detach().mT)


def composition_scores(
    model: AttentionOnlyTransformer, kind: str, earlier: int = 0, later: int = 1
) -> Float[Tensor, "n_heads_earlier n_heads_later"]:
    """||product|| / (||first|| ||second||), Frobenius norms, for all pairs of heads; 0 to 1.

    With row vectors the products are Q: W_OV^1 @ W_QK^2, K: W_OV^1 @ W_QK^2.mT, V: W_OV^1 @ W_OV^2
    (the paper writes the transposes). Independent random factors give about 1 / sqrt(d_model), see
    `null_score`. ValueError for an unknown kind, IndexError for layers the model lacks or in the
    wrong order. Source: Elhage et al. 2021, Three Kinds of Composition; corrected as its erratum says.
    """
    return pair_scores(*_pair(model, kind, earlier, later))


def published_scores(
    model: AttentionOnlyTransformer, kind: str, earlier: int = 0, later: int = 1
) -> Float[Tensor, "n_heads_earlier n_heads_later"]:
    """The wrong quantity behind the published figure, for all pairs of heads.

    The same ratio with the factors of the product moved round in a circle: for A1 B1 A2 B2 the norm
    of B2 A1 B1 A2. A trace or eigenvalue does not notice; a Frobenius norm does. Its null is about
    sqrt(d_head) / d_model. Source: Elhage et al. 2021, comments, correction of February 2023.
    """
    first, second = _pair(model, kind, earlier, later)
    norms = []
    for head in range(first.shape[0]):
        around = second.B.double() @ first.A[head].double()  # (later, rank, rank)
        across = first.B[head].double() @ second.A.double()
        norms.append(torch.linalg.matrix_norm(around @ across))
    return torch.stack(norms) / (first.norm()[:, None] * second.norm()[None, :])


def reverse_scores(
    model: AttentionOnlyTransformer, kind: str, earlier: int = 0, later: int = 1
) -> Float[Tensor, "n_heads_later n_heads_earlier"]:
    """The same ratio with the later layer writing and the earlier one reading: no such path exists.

    An empirical null with trained spectra and subspaces. Source: an idea of Turner's talk that the
    paper links.
    """
    _check(model, kind, earlier, later)
    return pair_scores(ov_circuits(model)[later], _reader(model, kind)[earlier])


def pair_scores(
    first: FactoredMatrix, second: FactoredMatrix, dtype: torch.dtype = torch.float64
) -> Float[Tensor, "*pairs"]:
    """||first @ second|| / (||first|| ||second||) for every matrix of one batch with every of the other.

    The shape is that of both batches in a row: (layer, head, layer, head) for all heads of a model
    at once. No product is formed: its squared norm is <B1^T A1^T A1 B1, A2 B2 B2^T A2^T>, how much
    the first writes in each pair of directions times how much the second reads there, and both
    d_model x d_model matrices come from d_head x d_head Gram matrices. They are symmetric and made
    ROWS rows at a time, so 144 heads of GPT-2's size need some 100 MB. `dtype` is that of the
    products, whose sum is float64: float32 is three times as fast, and leaves about 1e-4 where
    float64 leaves 1e-8 when nothing of what is written is read. ValueError if the inner sizes differ.
    """
    if first.shape[-1] != second.shape[-2]:
        raise ValueError(
            f"the first matrix must write into what the second reads, got {first.shape} and "
            f"{second.shape}"
        )
    A1, B1 = (factor.flatten(0, -3).to(dtype) for factor in (first.A, first.B))
    A2, B2 = (factor.flatten(0, -3).to(dtype) for factor in (second.A, second.B))
    grams = [(A.mT @ A, B @ B.mT) for A, B in ((A1, B1), (A2, B2))]
    norms = [(a * b).double().sum((-1, -2)).clamp_min(0).sqrt() for a, b in grams]
    written, read = grams[0][0] @ B1, A2 @ grams[1][1]  # (head, rank, d_model) and transposed
    B1, A2 = B1.mT.contiguous(), A2.mT.contiguous()
    squares = torch.zeros(len(B1), len(A2), dtype=torch.float64, device=B1.device)
    for start in reversed(range(0, B1.shape[1], ROWS)):
        rows = slice(start, start + ROWS)
        writes, reads = B1[:, rows] @ written[:, :, start:], read[:, rows] @ A2[:, :, start:]
        squares += writes.flatten(1) @ reads.flatten(1).mT
        written[:, :, rows] *= 2  # for the rows above: they meet these columns and the mirror image
    scores = squares.clamp_min(0).sqrt() / (norms[0][:, None] * norms[1])
    return scores.view(first.shape[:-2] + second.shape[:-2])


def null_score(d_model: int) -> float:
    """1 / sqrt(d_model): root mean square score of two matrices turned at random, whatever they are.

    E||A R B||^2 = ||A||^2 ||B||^2 / d_model for a uniformly random rotation R.
    """
    if d_model < 1:
        raise ValueError(f"d_model must be at least 1, got {d_model}")
    return d_model**-0.5


def _reader(model: AttentionOnlyTransformer, kind: str) -> FactoredMatrix:
    qk = qk_circuits(model)
    return {"Q": qk, "K": qk.mT, "V": ov_circuits(model)}[kind]


def _pair(
    model: AttentionOnlyTransformer, kind: str, earlier: int, later: int
) -> tuple[FactoredMatrix, FactoredMatrix]:
    _check(model, kind, earlier, later)
    return ov_circuits(model)[earlier], _reader(model, kind)[later]


def _check(model: AttentionOnlyTransformer, kind: str, earlier: int, later: int) -> None:
    if kind not in KINDS:
        raise ValueError(f'kind must be "Q", "K" or "V", got {kind!r}')
    n_layers = model.config.n_layers
    if not 0 <= earlier < later < n_layers:
        raise IndexError(
            f"composition needs layers 0 <= earlier < later < n_layers={n_layers}, got {earlier} "
            f"and {later}"
        )
