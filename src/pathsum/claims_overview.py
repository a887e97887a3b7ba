"""The claims of the Transformer Overview, measured on our models.

Each `measure_...` takes what it measures as arguments, so that a test can hand it something for
which the claim is false; the registered functions call them with the shipped models.
"""

from copy import deepcopy

import torch
from einops import einsum, rearrange
from jaxtyping import Float, Int
from torch import Tensor

from pathsum import stream
from pathsum.checkpoints import load_model
from pathsum.claims import Measurement, claim
from pathsum.dataset import heldout_sample
from pathsum.demo import DEMO_TEXT
from pathsum.heads import present_token_score
from pathsum.model import AttentionOnlyTransformer, Config, cache
from pathsum.tokenizer import load_tokenizer

PAGE = "transformer-overview"
NULL_SD = 1.5  # sd of the eigenvalue score of a random W_OV, times d_head: 1.4 to 1.7 in simulation


def demo_tokens() -> Int[Tensor, "1 pos"]:
    return load_tokenizer().encode(DEMO_TEXT)[None]


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


def measure_product(model: AttentionOnlyTransformer, tokens: Tensor) -> Measurement:
    model = deepcopy(model).double()
    values, c = cache(model, tokens), model.config
    x = values["L0.resid"][0]
    A1, A2 = values["L0.pattern"][0], values["L1.pattern"][0]
    A = einsum(A2, A1, "h2 dest mid, h1 mid src -> h1 h2 dest src")
    W1, W2 = model.W_V[0] @ model.W_O[0], model.W_V[1] @ model.W_O[1]
    W = einsum(W1, W2, "h1 i j, h2 j k -> h1 h2 i k")
    rows, ahead = float((A.sum(-1) - 1).abs().max()), float(A.triu(1).abs().max())
    singular = torch.linalg.svdvals(W)
    beyond = float((singular[..., c.d_head :] / singular[..., :1]).max())
    through = einsum(A1, x, W1, "h1 dest src, src i, h1 i j -> h1 dest j")
    twice = einsum(A2, through, W2, "h2 dest src, h1 src i, h2 i j -> h1 h2 dest j")
    once = einsum(A, x, W, "h1 h2 dest src, src i, h1 h2 i j -> h1 h2 dest j")
    off = worst(once, twice)
    exact = max(rows, off) < 1e-5 and ahead == 0 and beyond < 1e-10
    return Measurement(
        rows,
        "largest difference of a row sum from 1",
        "exact" if exact else "not seen",
        f"for all {c.n_heads**2} pairs: rows sum to 1 within {rows:.1e}, nothing ahead of the "
        f"destination, singular values after the {c.d_head}th below {beyond:.1e} of the first, and "
        f"the virtual head gives what the two give, within {off:.1e}",
    )


def measure_bandwidth(model: AttentionOnlyTransformer, seed: int = 0) -> Measurement:
    c, generator = model.config, torch.Generator().manual_seed(seed)
    embed, unembed, noise = (
        stream.dimensions_for(shares)
        for shares in (
            stream.variance_shares(model.W_E),
            stream.variance_shares(model.W_U.mT),
            stream.noise_shares(c.d_vocab, c.d_model, generator),
        )
    )
    of_E, of_U = stream.joint_components(model.W_E, model.W_U)
    share = of_E / (of_E + of_U)
    single = int(((share < 0.1) | (share > 0.9)).sum())
    below = (embed < noise) + (unembed < noise)
    return Measurement(
        float(max(embed, unembed)),
        "dimensions",
        ("not seen", "weaker", "holds" if single else "weaker")[below],
        f"90% of the variance takes {embed} of {c.d_model} dimensions for W_E, {unembed} for W_U, "
        f"{noise} for noise; of the joint components {single} are used by one alone (below 10% or "
        f"above 90% of W_E), W_E's shares run from {float(share.min()):.0%} to "
        f"{float(share.max()):.0%}",
    )


def eigenvalue_score(model: AttentionOnlyTransformer) -> Float[Tensor, "n_layers n_heads"]:
    """Sum of the eigenvalues of each W_OV over the sum of their sizes, -1 (deletes) to 1."""
    small = model.W_O.detach().double() @ model.W_V.detach().double()  # non-zero ones are the same
    values = torch.linalg.eigvals(small)
    return values.sum(-1).real / values.abs().sum(-1)


def attention_to_self(
    model: AttentionOnlyTransformer, inputs: Int[Tensor, "batch pos"]
) -> Float[Tensor, "n_layers n_heads"]:
    """Mean attention of each head from a token to itself, on these sequences."""
    values = cache(model, inputs)
    layers = range(model.config.n_layers)
    return torch.stack([present_token_score(values[f"L{i}.pattern"]).mean(0) for i in layers])


def measure_memory(model: AttentionOnlyTransformer, inputs: Tensor) -> Measurement:
    score, itself = eigenvalue_score(model), attention_to_self(model, inputs)
    bar = -5 * NULL_SD / model.config.d_head
    negative = score < bar
    both = negative & (itself > 0.3)
    layer, head = divmod(int(score.argmin()), model.config.n_heads)
    return Measurement(
        float(both.sum()),
        "heads",
        "holds" if both.any() else "weaker" if negative.any() else "not seen",
        f"{int(negative.sum())} of {score.numel()} heads have a score below {bar:.2f}, and "
        f"{int(both.sum())} of these give more than 0.3 of their attention to the present token; "
        f"most negative is L{layer}H{head} with {float(score[layer, head]):.2f}, attention to itself "
        f"{float(itself[layer, head]):.2f}",
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
def concatenation() -> Measurement:
    return measure_concatenation(load_model("attn-only-2l"), demo_tokens())


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
def two_matrices() -> Measurement:
    return measure_two_matrices(load_model("attn-only-2l"), demo_tokens())


@claim(
    id="A4",
    section="Attention Heads as Information Movement",
    statement="Queries, keys and values are by-products: others give the same model.",
    paper="argument",
    criterion="logits change < 1e-4 while queries, keys and values change",
    page=PAGE,
)
def superficial() -> Measurement:
    model = load_model("attn-only-2l")
    return measure_superficial(model, reparametrised(model), demo_tokens())


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
def rotation() -> Measurement:
    return measure_rotation(load_model("attn-only-2l"), demo_tokens(), random_layer_norm_model())


@claim(
    id="A11",
    section="Attention Heads as Information Movement",
    statement="The product of two heads is a head again, with pattern A² A¹ and matrix W_OV¹ W_OV².",
    paper="identity",
    criterion="rows of the product sum to 1, causal, rank at most d_head",
    page=PAGE,
)
def product() -> Measurement:
    return measure_product(load_model("attn-only-2l"), demo_tokens())


@claim(
    id="O11",
    section="Subspaces and Residual Stream Bandwidth (footnote)",
    statement="Embedding and unembedding use few dimensions much; some dimensions are shared by "
    "both, some used by one alone.",
    paper="qualitative",
    criterion="dimensions for 90% of the variance below the Marchenko-Pastur expectation for both, "
    "and components used by one alone",
    page=PAGE,
)
def bandwidth() -> Measurement:
    return measure_bandwidth(load_model("attn-only-2l"))


@claim(
    id="O12",
    section="Subspaces and Residual Stream Bandwidth",
    statement="Some heads seem to clear memory: eigenvalues of W_OV far below 0, attention mostly "
    "to the present token.",
    paper="hints",
    criterion="no bar in the paper; we say holds if one head is 5 sd below a random W_OV and gives "
    "more than 0.3 of its attention to the present token, weaker if only the first",
    page=PAGE,
)
def memory() -> Measurement:
    return measure_memory(load_model("attn-only-2l"), heldout_sample()[0][:16])
