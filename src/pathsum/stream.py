"""The residual stream as a space: turning it, folding LayerNorm away, and how full it is."""

from copy import deepcopy

import torch
from einops import einsum
from jaxtyping import Float
from torch import Tensor

from pathsum.model import AttentionOnlyTransformer, Hook, smeared
from pathsum.standard import refuse_mlps


def random_rotation(
    d_model: int, generator: torch.Generator, keep_mean: bool = False
) -> Float[Tensor, "d_model d_model"]:
    """A random orthogonal matrix in float64, uniform over all rotations and reflections.

    With `keep_mean` uniform over those that leave the vector (1, ..., 1) where it is: they commute
    with subtracting the mean over the coordinates, as LayerNorm does.
    """
    if not keep_mean:
        Q, R = torch.linalg.qr(
            torch.randn(d_model, d_model, generator=generator, dtype=torch.float64)
        )
        return Q * R.diagonal().sign()
    if d_model < 2:
        raise ValueError(f"keep_mean needs d_model of at least 2, got {d_model}")
    start = torch.eye(d_model, dtype=torch.float64)
    start[:, 0] = 1
    basis = torch.linalg.qr(start).Q  # the first column is (1, ..., 1) / sqrt(d_model), up to sign
    turn = torch.eye(d_model, dtype=torch.float64)
    turn[1:, 1:] = random_rotation(d_model - 1, generator)
    return basis @ turn @ basis.mT


def rotated(
    model: AttentionOnlyTransformer, R: Float[Tensor, "d_model d_model"]
) -> AttentionOnlyTransformer:
    """A copy whose residual stream is the model's times `R`: every weight on the stream is turned.

    What writes is multiplied from the right (W_E, W_pos, W_O), what reads by the inverse from the
    left (W_Q, W_K, W_V, W_U). LayerNorm's gain and bias stay as they are: they belong to the
    coordinates, which is why a model that has them is not the same afterwards.
    Source: Elhage et al. 2021, Virtual Weights and the Residual Stream.
    """
    refuse_mlps(model, "rotated")
    other = deepcopy(model).requires_grad_(False)
    R = R.to(other.W_E)
    for name in ("W_E", "W_pos", "W_O"):
        getattr(other, name).copy_(getattr(other, name) @ R)
    for name in ("W_Q", "W_K", "W_V", "W_U"):
        getattr(other, name).copy_(R.mT @ getattr(other, name))
    return other


def folded(model: AttentionOnlyTransformer) -> tuple[AttentionOnlyTransformer, Hook]:
    """A pre-LN model with gain, bias and positions moved out of the stream's coordinates.

    LayerNorm's output x_hat * gain + bias is read by matrices, so the gain moves into their rows,
    and what is constant, (bias + W_pos) @ W, is added to queries, keys, values and logits. The copy
    has gain 1, bias 0 and W_pos 0; run it with the hook that comes with it, which adds the constants
    to sequences of any length. ValueError for a model without LayerNorm.
    Source: Elhage et al. 2021, Technical Details (handling layer normalization).
    """
    refuse_mlps(model, "folded")
    if model.config.norm != "pre":
        raise ValueError('only a model with norm="pre" has something to fold, got norm=None')
    other = deepcopy(model).requires_grad_(False)
    constants: dict[str, Tensor] = {}
    gains, biases = model.norm_gain.detach(), model.norm_bias.detach()
    for layer in range(model.config.n_layers):
        for name in ("q", "k", "v"):
            W = getattr(model, f"W_{name.upper()}")[layer].detach()
            const = biases[layer] + (model.W_pos if name != "v" else torch.zeros_like(model.W_pos))
            added = einsum(const, W, "pos m, head m d -> head pos d")
            if name == "k" and model.config.smear:  # the hook adds it after the keys are smeared
                added = smeared(added[None], model.smear_logit[layer].detach())[0]
            constants[f"L{layer}.{name}"] = added
            getattr(other, f"W_{name.upper()}")[layer] = gains[layer][:, None] * W
    constants["logits"] = biases[-1] @ model.W_U.detach()
    other.W_U.copy_(gains[-1][:, None] * model.W_U)
    other.norm_gain.fill_(1)
    other.norm_bias.zero_()
    other.W_pos.zero_()

    def add_constants(site: str, value: Tensor) -> Tensor | None:
        if site not in constants:
            return None
        constant = constants[site]
        return value + (constant if site == "logits" else constant[:, : value.shape[-2]])

    return other, add_constants


def variance_shares(vectors: Float[Tensor, "n d"]) -> Float[Tensor, " d"]:
    """The share of the variance along each principal component, largest first; sums to 1."""
    centred = vectors.double() - vectors.double().mean(0)
    variances = torch.linalg.eigvalsh(centred.mT @ centred).flip(0).clamp_min(0)
    return variances / variances.sum()


def dimensions_for(shares: Float[Tensor, " d"], part: float = 0.9) -> int:
    """How many of the largest shares it takes to reach `part` of the whole."""
    return int((shares.cumsum(0) < part - 1e-12).sum()) + 1


def noise_shares(n: int, d: int, generator: torch.Generator) -> Float[Tensor, " d"]:
    """`variance_shares` of independent Gaussian numbers of the same shape.

    They follow the Marchenko-Pastur law of ratio d / n; sizes of hundreds show little scatter.
    """
    return variance_shares(torch.randn(n, d, generator=generator, dtype=torch.float64))


def joint_components(
    W_E: Float[Tensor, "d_vocab d_model"], W_U: Float[Tensor, "d_model d_vocab"]
) -> tuple[Float[Tensor, " d_model"], Float[Tensor, " d_model"]]:
    """Principal components that W_E and W_U share: (variance of W_E, of W_U) along each.

    Rows of W_E and columns of W_U are centred and each matrix is scaled to total variance 1, then
    both are stacked; components come in the order of their joint variance. A component on which
    only one of the two has variance is used by that one alone.
    Source: Elhage et al. 2021, Subspaces and Residual Stream Bandwidth, footnote.
    """
    parts = []
    for vectors in (W_E.double(), W_U.mT.double()):
        centred = vectors - vectors.mean(0)
        parts.append(centred / centred.norm())
    covariances = [part.mT @ part for part in parts]
    axes = torch.linalg.eigh(covariances[0] + covariances[1]).eigenvectors.flip(1)
    embed, unembed = (einsum(axes, c, axes, "i k, i j, j k -> k") for c in covariances)
    return embed, unembed
