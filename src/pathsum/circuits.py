"""QK and OV circuits over the vocabulary, the direct path, positions, and copying statistics."""

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum import heads
from pathsum.composition import ov_circuits, qk_circuits
from pathsum.factored import CHUNK, FactoredMatrix
from pathsum.heads import positivity
from pathsum.model import AttentionOnlyTransformer, check_numbers

Head = tuple[int, int]  # (layer, head)


def full_ov_circuits(model: AttentionOnlyTransformer, layer: int) -> FactoredMatrix:
    """How attending to each source token moves the logit of each output token, per head.

    W_E @ W_V @ W_O @ W_U, shape (n_heads, d_vocab source, d_vocab output), rank d_head; logits per
    unit of attention, by the direct route from the embedding. IndexError if there is no such layer.
    Source: Elhage et al. 2021, Splitting Attention Head Terms into Circuits.
    """
    check_layer(model, layer)
    ov = ov_circuits(model)[layer]
    return model.W_E.detach() @ ov @ model.W_U.detach()


def full_qk_circuits(model: AttentionOnlyTransformer, layer: int) -> FactoredMatrix:
    """How much each destination token wants each source token, per head, positions left out.

    W_E @ W_Q @ W_K.mT @ W_E.mT / sqrt(d_head), shape (n_heads, d_vocab dest, d_vocab source); nats of
    score. Rows may be compared within themselves only: softmax ignores a constant added to one.
    IndexError if there is no such layer. Source: as for `full_ov_circuits`.
    """
    check_layer(model, layer)
    W_E = model.W_E.detach()
    return (W_E / model.config.d_head**0.5) @ qk_circuits(model)[layer] @ W_E.mT


def direct_path(model: AttentionOnlyTransformer) -> FactoredMatrix:
    """W_E @ W_U: what each token alone says of the next; (d_vocab source, d_vocab output), logits."""
    return FactoredMatrix(model.W_E.detach(), model.W_U.detach())


def positional_scores(
    model: AttentionOnlyTransformer, layer: int, max_offset: int | None = None
) -> Float[Tensor, "n_heads offset"]:
    """The part of the scores that positions alone make, as a function of dest - src, in nats.

    Entry [h, k] is the mean of W_pos[i] @ W_QK @ W_pos[i - k].T / sqrt(d_head) over all i with
    i - k >= 0, for k = 0 .. max_offset (n_ctx - 1 by default). Sinusoids make it nearly the same
    for every i. IndexError for a layer, ValueError for an offset outside the context.
    Source: Elhage et al. 2021, Interpretation as Skip-Trigrams (primarily positional heads).
    """
    check_layer(model, layer)
    n_ctx = model.config.n_ctx
    max_offset = n_ctx - 1 if max_offset is None else max_offset
    if not 0 <= max_offset < n_ctx:
        raise ValueError(f"max_offset must lie in 0..{n_ctx - 1}, got {max_offset}")
    q, k = model.W_pos @ model.W_Q[layer].detach(), model.W_pos @ model.W_K[layer].detach()
    scores = q @ k.mT / model.config.d_head**0.5
    check_numbers(scores, "the scores")
    offsets = range(max_offset + 1)
    return torch.stack([scores.diagonal(-o, dim1=-2, dim2=-1).mean(-1) for o in offsets], dim=-1)


def copying_eigenvalues(model: AttentionOnlyTransformer, layer: int) -> Tensor:
    """The d_head eigenvalues of one layer's full OV circuits, (n_heads, d_head) complex128.

    As `pathsum.heads.copying_eigenvalues`; IndexError if there is no such layer.
    """
    check_layer(model, layer)
    return heads.copying_eigenvalues(model, layer)


def full_ov_eigenvalues(
    W_E: Float[Tensor, "d_vocab d_model"],
    ov: FactoredMatrix,
    W_U: Float[Tensor, "d_model d_vocab"],
) -> Tensor:
    """Non-zero eigenvalues of W_E @ ov @ W_U for stacked heads of any model, largest first, complex128.

    `ov` is FactoredMatrix(W_V, W_O) with any batch axes, (layer, head) for a whole model; the result
    is (*batch, d_head). They are the eigenvalues of ov @ (W_U @ W_E), so the vocabulary is summed
    over once for all heads, in pieces. Products have the weights' own precision, sums over pieces
    and the small d_head x d_head matrices float64: for float32 weights good to about 1e-6 of the
    largest; pass float64 ones for more.
    """
    round_trip = torch.zeros(len(W_U), len(W_U), dtype=torch.float64, device=W_U.device)
    for columns, rows in zip(W_U.split(4096, dim=1), W_E.split(4096)):
        round_trip += columns @ rows
    return (ov @ round_trip.to(ov.B.dtype)).eigenvalues()


def positivity_null(
    d_model: int, d_head: int, generator: torch.Generator, draws: int = 200
) -> tuple[float, float]:
    """Mean and standard deviation of `positivity` for random heads of these sizes.

    The small matrix W_O @ M @ W_V with independent Gaussian factors is drawn `draws` times; the mean
    is 0 by symmetry and the sd about 1.5 / d_head. What a head scores is judged in these units.
    """
    if min(d_model, d_head) < 1 or draws < 2:
        raise ValueError(
            f"sizes must be at least 1 and draws at least 2, got {d_model}, {d_head} and {draws}"
        )
    scores = []
    for _ in range(draws):
        W_O = torch.randn(d_head, d_model, generator=generator, dtype=torch.float64)
        M = torch.randn(d_model, d_model, generator=generator, dtype=torch.float64)
        W_V = torch.randn(d_model, d_head, generator=generator, dtype=torch.float64)
        scores.append(positivity(torch.linalg.eigvals(W_O @ M @ W_V)))
    values = torch.stack(scores)
    return float(values.mean()), float(values.std())


def diagonal_ranks(
    circuit: FactoredMatrix, chunk: int | None = None
) -> Float[Tensor, "n_heads d_vocab"]:
    """For each source token, how many output tokens its head raises more than itself; 0 is best.

    `circuit` is a batch of square matrices, as from `full_ov_circuits`; rows are scanned in chunks,
    by default of so many that they have about factored.CHUNK entries in all heads together.
    """
    if circuit.shape[-1] != circuit.shape[-2]:
        raise ValueError(f"only a square circuit has a diagonal of tokens, got {circuit.shape}")
    ranks, n_heads = [], max(1, circuit.A[..., 0, 0].numel())
    chunk = max(1, CHUNK // (n_heads * circuit.shape[-1])) if chunk is None else chunk
    for index in torch.arange(circuit.shape[-2]).split(chunk):
        rows = circuit.rows(index)
        own = rows.gather(-1, index.expand(*rows.shape[:-2], -1)[..., None])
        ranks.append((rows > own).sum(-1))
    return torch.cat(ranks, dim=-1).float()


def check_layer(model: AttentionOnlyTransformer, layer: int) -> None:
    """IndexError unless the model has this layer."""
    if not 0 <= layer < model.config.n_layers:
        raise IndexError(
            f"layer must lie in 0..{model.config.n_layers - 1}, got {layer}"
            if model.config.n_layers
            else f"the model has no attention layers, got layer {layer}"
        )


def check_head(model: AttentionOnlyTransformer, head: Head) -> Head:
    """The head itself; IndexError, saying what there is, if the model has no such head."""
    layers, heads = model.config.n_layers, model.config.n_heads
    if not layers:
        raise IndexError(f"the model has no attention layers, so no head {head}")
    if not (0 <= head[0] < layers and 0 <= head[1] < heads):
        raise IndexError(
            f"a head is (layer, head) with layer in 0..{layers - 1} and head in 0..{heads - 1}, "
            f"got {head}: L0H7 is (0, 7)"
        )
    return head
