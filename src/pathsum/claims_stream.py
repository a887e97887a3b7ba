"""The claims about the residual stream: how many dimensions are used, and who clears them.

Each `measure_...` takes what it measures as arguments, so that a test can hand it something for
which the claim is false; the registered functions call them with trained models.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pathsum import stream
from pathsum.claims import Measurement, claim
from pathsum.composition import ov_circuits
from pathsum.dataset import heldout_sample
from pathsum.heads import positivity, present_token_score
from pathsum.model import AttentionOnlyTransformer
from pathsum.paths import patterns_of

PAGE = "transformer-overview"
NULL_SD = 1.5  # sd of the eigenvalue score of a random W_OV, times d_head: 1.4 to 1.7 in simulation


def eigenvalue_score(model: AttentionOnlyTransformer) -> Float[Tensor, "n_layers n_heads"]:
    """Sum of the eigenvalues of each W_OV over the sum of their sizes, -1 (deletes) to 1."""
    return positivity(ov_circuits(model).eigenvalues())


def attention_to_self(
    model: AttentionOnlyTransformer, inputs: Int[Tensor, "batch pos"]
) -> Float[Tensor, "n_layers n_heads"]:
    """Mean attention of each head from a token to itself, on these sequences."""
    return torch.stack([present_token_score(A).mean(0) for A in patterns_of(model, inputs)])


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
    id="O11",
    section="Subspaces and Residual Stream Bandwidth (footnote)",
    statement="Embedding and unembedding use few dimensions much; some dimensions are shared by "
    "both, some used by one alone.",
    paper="qualitative",
    criterion="dimensions for 90% of the variance below the Marchenko-Pastur expectation for both, "
    "and components used by one alone",
    page=PAGE,
)
def bandwidth(two: AttentionOnlyTransformer) -> Measurement:
    return measure_bandwidth(two)


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
def memory(two: AttentionOnlyTransformer) -> Measurement:
    return measure_memory(two, heldout_sample()[0][:16])
