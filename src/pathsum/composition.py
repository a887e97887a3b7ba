"""Composition scores: how much each head reads of what an earlier head writes, from weights."""

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.factored import FactoredMatrix
from pathsum.model import AttentionOnlyTransformer

KINDS = ("Q", "K", "V")


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
    first, second = _pair(model, kind, earlier, later)
    return _pair_norms(first, second) / (first.norm()[:, None] * second.norm()[None, :])


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
    first, second = ov_circuits(model)[later], _reader(model, kind)[earlier]
    return _pair_norms(first, second) / (first.norm()[:, None] * second.norm()[None, :])


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


def _pair_norms(first: FactoredMatrix, second: FactoredMatrix) -> Float[Tensor, "one two"]:
    """||A1 B1 A2 B2|| for all pairs, through d_head x d_head blocks of one product.

    With A1 = Q1 R1 and B2.mT = Q2 R2 the orthogonal parts drop out of the norm: what is left is
    (R1 B1) (A2 R2.mT), for all heads at once.
    """
    R1 = torch.linalg.qr(first.A.double(), mode="r").R
    R2 = torch.linalg.qr(second.B.double().mT, mode="r").R
    left, right = R1 @ first.B.double(), second.A.double() @ R2.mT
    blocks = torch.einsum("aim,bmj->abij", left, right)
    return torch.linalg.matrix_norm(blocks)
