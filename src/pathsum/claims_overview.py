"""The claims of the Transformer Overview: heads as sums and products of matrices.

Each `measure_...` takes what it measures as arguments, so that a test can hand it something for
which the claim is false; the registered functions call them with trained models.
"""

from copy import deepcopy

import torch
from einops import einsum, rearrange
from jaxtyping import Float
from torch import Tensor

from pathsum import stream
from pathsum.claims import Measurement, claim
from pathsum.model import AttentionOnlyTransformer, Config, cache
from pathsum.samples import demo_tokens

PAGE = "transformer-overview"


def worst(a: Tensor, b: Tensor) -> float:
    """Largest difference of two tensors."""
    return float((a - b).abs().max())


def measure_concatenation(model: AttentionOnlyTransformer, tokens: Tensor) -> Measurement:
    off = {}
    for kind in (torch.float32, torch.float64):
        copy = deepcopy(model).to(kind)
        values = cache(copy, tokens)
        off[kind] = 0.0
        for layer in range(model.config.n_layers):
            side_by_side = rearrange(values[f"L{layer}.z"], "b h pos f -> b pos (h f)")
            W_O = rearrange(copy.W_O[layer], "h f m -> (h f) m")
            total = values[f"L{layer}.result"].sum(1)
            off[kind] = max(off[kind], worst(side_by_side @ W_O, total))
    single, double = off.values()
    return Measurement(
        double,
        "largest difference",
        "exact" if single < 1e-5 and double < 1e-12 else "not seen",
        f"largest difference {single:.1e} in float32, {double:.1e} in float64",
    )


def three_readings(
    A: Float[Tensor, "dest src"], W: Float[Tensor, "out inner"], x: Float[Tensor, "src inner"]
) -> list[Tensor]:
    """(A x W) x as (dest, out) in three ways: both sides, Kronecker, four axes. W acts on columns."""
    dest, out = A.shape[0], W.shape[0]
    by_rows = x.flatten()  # row after row: the order for which kron(A, W) is right
    tensor4 = A[:, None, :, None] * W[None, :, None, :]  # (dest, out, src, inner)
    return [
        A @ x @ W.mT,
        (torch.kron(A, W) @ by_rows).reshape(dest, out),
        einsum(tensor4, x, "dest out src inner, src inner -> dest out"),
    ]


def measure_readings(readings=three_readings, seed: int = 0) -> Measurement:
    generator = torch.Generator().manual_seed(seed)
    A, W, x = (
        torch.randn(*shape, generator=generator, dtype=torch.float64)
        for shape in ((4, 3), (6, 5), (3, 5))
    )
    first, *others = readings(A, W, x)
    off = max(worst(first, other) for other in others)
    wrong_order = (torch.kron(A, W) @ x.mT.flatten()).reshape(4, 6)
    return Measurement(
        off,
        "largest difference",
        "exact" if off < 1e-12 and worst(first, wrong_order) > 0.1 else "not seen",
        f"largest difference {off:.1e} with vec(x) row after row; column after column is off by "
        f"{worst(first, wrong_order):.1f}, and needs kron(W, A)",
    )


def measure_two_matrices(model: AttentionOnlyTransformer, tokens: Tensor) -> Measurement:
    values, off_pattern, off_result = cache(model, tokens), 0.0, 0.0
    future = torch.ones(2 * tokens.shape[1:], dtype=torch.bool).triu(1)
    for layer in range(model.config.n_layers):
        x = values[f"L{layer}.resid"][0]
        placed = x + model.W_pos[: len(x)]
        for head in range(model.config.n_heads):
            W_QK = model.W_Q[layer, head] @ model.W_K[layer, head].mT
            W_OV = model.W_V[layer, head] @ model.W_O[layer, head]
            scores = placed @ W_QK @ placed.mT / model.config.d_head**0.5
            A = scores.masked_fill(future, float("-inf")).softmax(-1)
            off_pattern = max(off_pattern, worst(A, values[f"L{layer}.pattern"][0, head]))
            off_result = max(off_result, worst(A @ x @ W_OV, values[f"L{layer}.result"][0, head]))
    off = max(off_pattern, off_result)
    return Measurement(
        off,
        "largest difference",
        "exact" if off < 1e-5 else "not seen",
        f"over all heads, patterns differ by at most {off_pattern:.1e} and outputs by "
        f"{off_result:.1e}",
    )


def reparametrised(model: AttentionOnlyTransformer, seed: int = 0) -> AttentionOnlyTransformer:
    """The same W_QK and W_OV from other W_Q, W_K, W_V, W_O: an invertible matrix put in between."""
    other, generator = deepcopy(model), torch.Generator().manual_seed(seed)
    heads, d_head = model.W_Q.shape[:2], model.config.d_head
    for left, right in ((other.W_Q, other.W_K), (other.W_V, other.W_O)):
        M = torch.randn(*heads, d_head, d_head, generator=generator, dtype=torch.float64)
        M = torch.linalg.qr(M).Q * torch.linspace(0.5, 2, d_head, dtype=torch.float64)
        inverse = torch.linalg.inv(M)
        left.copy_(left.double() @ M)
        keys = right is other.W_K
        right.copy_(right.double() @ inverse.mT if keys else inverse @ right.double())
    return other


def measure_superficial(
    model: AttentionOnlyTransformer, other: AttentionOnlyTransformer, tokens: Tensor
) -> Measurement:
    before, after = cache(model, tokens), cache(other, tokens)
    off = worst(before["logits"], after["logits"])
    moved = min(
        float((before[s] - after[s]).norm() / before[s].norm())
        for s in before
        if s[-2:] in (".q", ".k", ".v", ".z")
    )
    return Measurement(
        off,
        "largest difference of a logit",
        "exact" if off < 1e-4 and moved > 0.1 else "not seen",
        f"logits change by at most {off:.1e}, while queries, keys and values all change by at "
        f"least {moved:.0%} of their length",
    )


def random_layer_norm_model(seed: int = 0) -> AttentionOnlyTransformer:
    """A pre-LN model of random weights, with gains and biases that differ by coordinate."""
    config = Config(n_layers=2, n_heads=4, d_model=64, d_head=16, d_vocab=100, n_ctx=64, norm="pre")
    model, generator = AttentionOnlyTransformer(config, seed), torch.Generator().manual_seed(seed)
    for parameter, around in ((model.norm_gain, 1.0), (model.norm_bias, 0.0)):
        noise = torch.randn(parameter.shape, generator=generator)
        parameter.data = around + 0.5 * noise
    return model.requires_grad_(False)


def measure_rotation(
    model: AttentionOnlyTransformer, tokens: Tensor, normed: AttentionOnlyTransformer, seed: int = 0
) -> Measurement:
    generator = torch.Generator().manual_seed(seed)
    R = stream.random_rotation(model.config.d_model, generator)
    free = worst(stream.rotated(model, R)(tokens), model(tokens))
    ids = torch.randint(normed.config.d_vocab, (4, 20), generator=generator)
    any_R = stream.random_rotation(normed.config.d_model, generator)
    mean_R = stream.random_rotation(normed.config.d_model, generator, keep_mean=True)
    expected = normed(ids)
    raw = worst(stream.rotated(normed, any_R)(ids), expected)
    unfolded = worst(stream.rotated(normed, mean_R)(ids), expected)
    plain, hook = stream.folded(normed)
    uncentred = worst(stream.rotated(plain, any_R)(ids, hook=hook), expected)
    repaired = worst(stream.rotated(plain, mean_R)(ids, hook=hook), expected)
    fails = min(raw, unfolded, uncentred) > 100 * 1e-4
    return Measurement(
        free,
        "largest difference of a logit",
        "exact" if free < 1e-4 and repaired < 1e-4 and fails else "not seen",
        f"without LayerNorm logits change by {free:.1e}; with it by {raw:.2f} (gain folded but mean "
        f"not kept: {uncentred:.2f}; mean kept but gain not folded: {unfolded:.2f}) and, with both "
        f"repairs, by {repaired:.1e}",
    )


@claim(
    id="A1",
    section="Attention Heads are Independent and Additive",
    statement="Setting the heads' outputs side by side and multiplying by one big W_O is the same "
    "as adding up what each head writes with its own W_O.",
    paper="identity",
    criterion="largest difference < 1e-5 in float32, < 1e-12 in float64",
    page=PAGE,
)
def concatenation(two: AttentionOnlyTransformer) -> Measurement:
    return measure_concatenation(two, demo_tokens())


@claim(
    id="A2",
    section="Attention Heads as Information Movement; Notation",
    statement="A ⊗ W applied to x is A x Wᵀ, is the Kronecker product on the entries of x, is a "
    "tensor of four axes.",
    paper="identity",
    criterion="largest difference < 1e-12, order of vec(x) stated",
    page=PAGE,
)
def readings() -> Measurement:
    return measure_readings()


@claim(
    id="A3",
    section="Attention Heads as Information Movement",
    statement="A head is two matrices: W_QK, with the stream, gives the pattern; W_OV what is moved.",
    paper="identity",
    criterion="largest difference < 1e-5",
    page=PAGE,
)
def two_matrices(two: AttentionOnlyTransformer) -> Measurement:
    return measure_two_matrices(two, demo_tokens())


@claim(
    id="A4",
    section="Attention Heads as Information Movement",
    statement="Queries, keys and values are by-products: others give the same model.",
    paper="argument",
    criterion="logits change < 1e-4 while queries, keys and values change",
    page=PAGE,
)
def superficial(two: AttentionOnlyTransformer) -> Measurement:
    return measure_superficial(two, reparametrised(two), demo_tokens())


@claim(
    id="A5",
    section="Virtual Weights and the Residual Stream as a Communication Channel",
    statement="The residual stream has no privileged basis: turn all matrices on it together and "
    "nothing changes.",
    paper="argument",
    criterion="logits change < 1e-4 without LayerNorm; with it they do change, until gains are "
    "folded and the rotation keeps the mean",
    page=PAGE,
)
def rotation(two: AttentionOnlyTransformer) -> Measurement:
    return measure_rotation(two, demo_tokens(), random_layer_norm_model())
