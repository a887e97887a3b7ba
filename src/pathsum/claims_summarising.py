"""The claims about copying in one-layer models: eigenvalues, their null, and other measures.

Each `measure_...` takes what it measures as arguments, so that a test can hand it something for
which the claim is false; the registered functions call them with trained models.
"""

from dataclasses import replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pathsum.bigrams import shipped_counts
from pathsum.circuits import full_ov_circuits
from pathsum.claims import Measurement, claim
from pathsum.claims_zero import frequent_tokens
from pathsum.copying import (
    copying_measures,
    initial_scores,
    null_of,
    positivity_of,
    rank_correlation,
)
from pathsum.factored import FactoredMatrix
from pathsum.model import AttentionOnlyTransformer
from pathsum.seeds import checkpoint

PAGE = "summarising"
COUNTER_EXAMPLE = ((-1.0, 3.0), (-2.0, 4.0))  # eigenvalues 1 and 2, diagonal -1 and 4


def measure_low_rank(circuit: FactoredMatrix, d_head: int) -> Measurement:
    """A10: eigenvalues and SVD from the factors are those of the table multiplied out.

    `circuit` is a batch (n_heads, n, n) small enough to be multiplied out.
    """
    few = replace(circuit, A=circuit.A.double(), B=circuit.B.double())
    dense, n = few.dense(), few.shape[-1]
    whole = torch.linalg.eigvals(dense)
    largest = whole.abs().max(-1).values
    whole = whole.gather(-1, whole.abs().argsort(-1, descending=True))
    distance = (few.eigenvalues()[..., None] - whole[..., None, : few.rank]).abs()
    off = torch.maximum(distance.min(-1).values.amax(-1), distance.min(-2).values.amax(-1))
    rest = whole[..., few.rank :].abs().amax(-1)
    U, S, Vh = few.svd()
    rebuilt = float((U * S[..., None, :] @ Vh - dense).norm() / dense.norm())
    ranks = torch.linalg.matrix_rank(dense, rtol=1e-8).tolist()
    off, rest = float((off / largest).max()), float((rest / largest).max())
    exact = off < 1e-6 and rest < 1e-6 and rebuilt < 1e-6 and set(ranks) == {d_head}
    return Measurement(
        off,
        "largest difference of an eigenvalue, in units of the largest",
        "exact" if exact else "not seen",
        f"{len(ranks)} tables over {n} tokens: the {d_head} eigenvalues agree within {off:.0e}, the "
        f"others are below {rest:.0e}; ranks {min(ranks)} to {max(ranks)}; the SVD rebuilds the table "
        f"within {rebuilt:.0e}",
    )


def measure_copying(scores: Float[Tensor, " n_heads"], null: tuple[float, float]) -> Measurement:
    """O2: do most heads have a score far above chance and above a half?"""
    z = (scores - null[0]) / null[1]
    far, high = z > 5, (z > 5) & (scores > 0.5)
    half = len(scores) / 2
    listed = ", ".join(f"{float(s):.2f}" for s in scores)
    return Measurement(
        float(high.sum()),
        f"of {len(scores)} heads",
        "holds" if high.sum() > half else "weaker" if far.sum() > half else "not seen",
        f"{int(high.sum())} of {len(scores)} heads are above 0.5 and 5 sd (scores {listed}; sd of a "
        f"random head {null[1]:.3f}), {int((z < -5).sum())} below -5 sd",
    )


def measure_initial(
    scores: Float[Tensor, "seeds n_heads"], null: tuple[float, float]
) -> Measurement:
    """O3: before training, are positive and negative eigenvalues equally many?"""
    values, (_, sd) = scores.flatten(), null
    error = sd / len(values) ** 0.5
    mean, spread = float(values.mean()), float(values.std())
    allowed = 3 / (2 * len(values)) ** 0.5  # three standard errors of a standard deviation
    fits = abs(spread / sd - 1) < allowed
    return Measurement(
        mean,
        "mean score",
        "holds" if abs(mean) < 3 * error and fits else "not seen",
        f"{len(values)} untrained heads: mean {mean:+.4f} (standard error {error:.4f}), sd "
        f"{spread:.4f}, against {sd:.4f} for random matrices; largest size {values.abs().max():.2f}",
    )


def measure_agreement(measures: dict[str, Float[Tensor, " n_heads"]]) -> Measurement:
    """O4: do the other measures put the heads in the same order as the eigenvalues do?"""
    first, *others = measures
    found = {name: rank_correlation(measures[first], measures[name]) for name in others}
    reached = [r > 0.7 for r in found.values()]
    words = ", ".join(f"{name} {r:.2f}" for name, r in found.items())
    return Measurement(
        min(found.values()),
        "smallest rank correlation",
        "holds" if all(reached) else "weaker" if any(reached) else "not seen",
        f"rank correlations with the eigenvalue score over {len(measures[first])} heads: {words}",
    )


def measure_counter_example(
    matrix: Float[Tensor, "n n"],
    diagonal: Float[Tensor, " d_vocab"],
    frequent: Int[Tensor, " tokens"],
    head: str,
) -> Measurement:
    """O5: eigenvalues may all be positive and some diagonal entries negative.

    `diagonal` is that of the most positive head's table.
    """
    values = torch.linalg.eigvals(matrix.double())
    positive = bool((values.real > 0).all()) and float(values.imag.abs().max()) < 1e-9
    negative = float((diagonal < 0).float().mean())
    often = float((diagonal[frequent] < 0).float().mean())
    listed = " and ".join(f"{v:.0f}" for v in values.real.sort().values.tolist())
    return Measurement(
        negative,
        "share of tokens",
        "exact" if positive and bool((matrix.diagonal() < 0).any()) else "not seen",
        f"the example has eigenvalues {listed} and diagonal "
        f"{' and '.join(f'{d:.0f}' for d in matrix.diagonal().tolist())}; in {head}, our most "
        f"positive head, {negative:.1%} of all tokens and {often:.1%} of the {len(frequent):,} most "
        "frequent lower their own logit",
    )


@claim(
    id="A10",
    section="Technical Details (low-rank matrices)",
    statement="Eigenvalues and singular values of a circuit can be had from its small factors.",
    paper="identity",
    criterion="on a 500-token table, non-zero eigenvalues agree to 1e-6 and the rank is d_head",
    page=PAGE,
)
def low_rank(one: AttentionOnlyTransformer) -> Measurement:
    tokens = frequent_tokens(shipped_counts(), 500)
    circuit = full_ov_circuits(one, 0)
    few = FactoredMatrix(circuit.A[:, tokens], circuit.B[..., tokens])
    return measure_low_rank(few, one.config.d_head)


@claim(
    id="O2",
    section="Detecting Copying Behavior",
    statement="Most heads of a one-layer model copy: the eigenvalues of their OV circuits are "
    "mostly positive.",
    paper="10 of 12 heads",
    criterion="more than half of the heads above 0.5 and more than 5 sd of a random head",
    page=PAGE,
)
def copying(one: AttentionOnlyTransformer) -> Measurement:
    return measure_copying(positivity_of(one)[0], null_of(one.config))


@claim(
    id="O3",
    section="Detecting Copying Behavior",
    statement="At random initialisation the eigenvalues are symmetric about 0.",
    paper="figure",
    criterion="mean score of untrained heads within 3 standard errors of 0, sd as that of random "
    "matrices (within 3 standard errors)",
    page=PAGE,
)
def initial() -> Measurement:
    config = checkpoint("attn-only-1l").config
    return measure_initial(initial_scores(config), null_of(config))


@claim(
    id="O4",
    section="Detecting Copying Behavior",
    statement="The diagonal, and how often a token raises itself most, agree with the eigenvalues.",
    paper="remark",
    criterion="rank correlation over heads above 0.7 for each measure",
    page=PAGE,
)
def agreement(one: AttentionOnlyTransformer) -> Measurement:
    return measure_agreement(copying_measures(one))


@claim(
    id="O5",
    section="Detecting Copying Behavior",
    statement="Positive eigenvalues do not prove copying: a matrix with nothing else can lower some "
    "tokens' own logits.",
    paper="remark",
    criterion="an example, exactly; the share of such tokens in the most positive head is reported",
    page=PAGE,
)
def counter_example(one: AttentionOnlyTransformer) -> Measurement:
    head = int(positivity_of(one)[0].argmax())
    diagonal = full_ov_circuits(one, 0)[head].diagonal()
    frequent = frequent_tokens(shipped_counts())
    return measure_counter_example(torch.tensor(COUNTER_EXAMPLE), diagonal, frequent, f"L0H{head}")
