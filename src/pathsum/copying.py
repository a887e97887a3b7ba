"""How much heads copy: four measures of it, their null, and what copying alone adds to the logits."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pathsum.circuits import copying_eigenvalues, diagonal_ranks, full_ov_circuits, positivity_null
from pathsum.composition import ov_circuits
from pathsum.factored import FactoredMatrix
from pathsum.heads import positivity
from pathsum.model import AttentionOnlyTransformer, Config
from pathsum.paths import patterns_of


def positivity_of(model: AttentionOnlyTransformer) -> Float[Tensor, "n_layers n_heads"]:
    """Sum of the eigenvalues over the sum of their sizes of every head's full OV circuit."""
    layers = range(model.config.n_layers)
    return torch.stack([positivity(copying_eigenvalues(model, layer)) for layer in layers])


def null_of(config: Config, seed: int = 0) -> tuple[float, float]:
    """Mean and standard deviation of the score for random heads of the model's sizes."""
    return positivity_null(config.d_model, config.d_head, torch.Generator().manual_seed(seed))


def copying_measures(
    model: AttentionOnlyTransformer, layer: int = 0, top: int = 5
) -> dict[str, Float[Tensor, " n_heads"]]:
    """Four measures of how much each head copies; all grow with copying.

    "eigenvalues": the score of `positivity`. "trace": the trace in standard deviations of its null,
    what a head reads and writes being turned at random; the sd is ||W_OV|| ||W_U W_E|| / d_model.
    "rank": the share of output tokens that a source token raises less than itself, in the middle
    case. "top 5": the share of source tokens that are among the `top` tokens they raise most.
    """
    circuit, ov = full_ov_circuits(model, layer), ov_circuits(model)[layer]
    ranks = diagonal_ranks(circuit)
    scale = FactoredMatrix(model.W_U.detach(), model.W_E.detach()).norm() / model.config.d_model
    return {
        "eigenvalues": positivity(copying_eigenvalues(model, layer)).double(),
        "trace": circuit.trace() / (ov.norm() * scale),
        "rank": 1 - ranks.median(-1).values.double() / (model.config.d_vocab - 1),
        f"top {top}": (ranks < top).double().mean(-1),
    }


def rank_correlation(x: Float[Tensor, " n"], y: Float[Tensor, " n"]) -> float:
    """Spearman's correlation: Pearson's of the ranks, equal values sharing their mean rank."""

    def ranks(values: Tensor) -> Tensor:
        below = (values[None, :] < values[:, None]).double().sum(1)
        return below + (values[None, :] == values[:, None]).double().sum(1) / 2

    return float(torch.corrcoef(torch.stack([ranks(x), ranks(y)]))[0, 1])


def copied_logits(
    model: AttentionOnlyTransformer, tokens: Int[Tensor, "batch pos"]
) -> Float[Tensor, "batch pos d_vocab"]:
    """What the heads of a one-layer model add to the logits through the diagonals of their OV tables.

    Each source token raises itself, by its entry of the diagonal times the attention it gets, and
    nothing else. ValueError unless the model has one layer.
    """
    if model.config.n_layers != 1:
        raise ValueError(f"diagonals are the whole story of one layer, got {model.config.n_layers}")
    pattern = patterns_of(model, tokens)[0]  # (batch, head, dest, src)
    own = full_ov_circuits(model, 0).diagonal()[:, tokens].movedim(0, 1)  # (batch, head, src)
    raised = (pattern * own[:, :, None]).sum(1)
    logits = torch.zeros(*tokens.shape, model.config.d_vocab)
    return logits.scatter_add(2, tokens[:, None].expand_as(raised), raised)


def initial_scores(config: Config, seeds: int = 8) -> Float[Tensor, "seeds n_heads"]:
    """The eigenvalue scores of untrained models, one row per seed."""
    models = (AttentionOnlyTransformer(config, seed) for seed in range(seeds))
    return torch.stack([positivity_of(model).flatten() for model in models])
