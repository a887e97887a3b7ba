"""The claims of the Technical Details and of the additional observations: LayerNorm, biases, convolution.

Each `measure_...` takes what it measures as arguments, so that a test can hand it something for
which the claim is false; the registered functions call them with trained models.
"""

from collections.abc import Callable
from copy import deepcopy

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import conv1d, pad

from pathsum import stream
from pathsum.claims import Measurement, claim
from pathsum.claims_overview import worst
from pathsum.model import AttentionOnlyTransformer
from pathsum.paths import path_terms
from pathsum.samples import demo_tokens

PAGE = "technical-details"


def biased_logits(
    model: AttentionOnlyTransformer,
    tokens: Int[Tensor, "batch pos"],
    biases: dict[str, Float[Tensor, "head width"]],
) -> Float[Tensor, "batch pos d_vocab"]:
    """Logits of the model with a bias per head at the named sites, such as {"L0.v": b}."""

    def hook(site: str, value: Tensor) -> Tensor | None:
        return value + biases[site][:, None] if site in biases else None

    return model(tokens, hook=hook)


def measure_norm_and_biases(
    free: AttentionOnlyTransformer,
    normed: AttentionOnlyTransformer,
    tokens: Int[Tensor, "batch pos"],
    fold: Callable = stream.folded,
    seed: int = 0,
) -> Measurement:
    """A12: LayerNorm folds to a scale per position; value and output biases to a constant."""
    plain, constants = fold(normed)
    folding = worst(plain(tokens, hook=constants), normed(tokens))
    summing = worst(path_terms(normed, tokens).values.sum(0) @ normed.W_U, normed(tokens))
    # random biases are large and so are the logits: the identity is looked at in float64
    free, generator, c = deepcopy(free).double(), torch.Generator().manual_seed(seed), free.config
    b_Q, b_K, b_V = torch.randn(3, c.n_heads, c.d_head, generator=generator).double()
    b_O = torch.randn(c.n_heads, c.d_model, generator=generator).double()
    before = free(tokens)
    moved = biased_logits(free, tokens, {"L0.v": b_V, "L0.result": b_O}) - before
    constant = ((b_V[:, None] @ free.W_O[0])[:, 0] + b_O).sum(0) @ free.W_U
    off = worst(moved, constant.expand_as(moved))
    query = biased_logits(free, tokens, {"L0.q": b_Q}) - before
    uneven = float((query - query.mean(1, keepdim=True)).abs().max())
    key = worst(biased_logits(free, tokens, {"L0.k": b_K}), before)
    exact = max(folding, summing, off) < 1e-4 and uneven > 100 * 1e-4
    return Measurement(
        folding,
        "largest difference of a logit",
        "exact" if exact else "not seen",
        f"gain, bias and centring folded: logits within {folding:.1e}; the paths with frozen scales "
        f"add up within {summing:.1e}; biases on values and outputs are one constant at all "
        f"positions within {off:.1e} (in float64); a bias on queries is not (logits move by up to {uneven:.1f} "
        f"from their mean over positions), one on keys does nothing ({key:.1e})",
    )


def convolution_of_heads(
    x: Float[Tensor, "pos d_in"], kernel: Float[Tensor, "d_out d_in width"]
) -> Float[Tensor, "pos d_out"]:
    """A causal convolution as a layer of heads: sum over offsets v of A^v @ x @ W_v.

    A^v looks v positions back and nowhere else (rows with no such source are empty); W_v is the
    kernel's slice for that offset, its last slice being the present position, as in conv1d.
    """
    n, width = len(x), kernel.shape[-1]
    patterns = [torch.eye(n, dtype=x.dtype).roll(v, 0).tril() for v in range(width)]
    return sum(A @ x @ kernel[..., width - 1 - v].mT for v, A in enumerate(patterns))


def measure_convolution(
    as_heads: Callable = convolution_of_heads, seed: int = 0, width: int = 4
) -> Measurement:
    """A13: a one-dimensional causal convolution is heads with patterns of fixed offset."""
    generator, off = torch.Generator().manual_seed(seed), {}
    x = torch.randn(23, 5, generator=generator, dtype=torch.float64)
    kernel = torch.randn(7, 5, width, generator=generator, dtype=torch.float64)
    for kind in (torch.float32, torch.float64):
        a, k = x.to(kind), kernel.to(kind)
        expected = conv1d(pad(a.mT[None], (width - 1, 0)), k)[0].mT
        off[kind] = worst(as_heads(a, k), expected)
    single, double = off.values()
    return Measurement(
        double,
        "largest difference",
        "exact" if double < 1e-6 else "not seen",
        f"kernel of width {width} as {width} heads: {double:.1e} from PyTorch's conv1d in float64, "
        f"{single:.1e} in float32",
    )


@claim(
    id="A12",
    section="Model Simplifications; Technical Details",
    statement="LayerNorm is a linear map and a number per position; biases mostly become a bias of "
    "the logits (not those of queries, which change patterns).",
    paper="argument",
    criterion="folded logits equal < 1e-4; what biases of values and outputs add is the same at all "
    "positions (without LayerNorm, one layer)",
    page=PAGE,
)
def norm_and_biases(
    one: AttentionOnlyTransformer, two_normed: AttentionOnlyTransformer
) -> Measurement:
    return measure_norm_and_biases(one, two_normed, demo_tokens())


@claim(
    id="A13",
    section="Additional Intuition and Observations (convolution)",
    statement="A convolution is a layer of heads, one per offset, whose patterns are fixed.",
    paper="identity",
    criterion="largest difference from a 1-D causal convolution < 1e-6",
    page=PAGE,
)
def convolution() -> Measurement:
    return measure_convolution()
