"""Claims on composition: they fail where they are false, and are as recorded on the shipped models."""

import pytest
import torch

from pathsum import claims
from pathsum import claims_composition as composition
from pathsum.by_hand import by_composition, distinct_repeats
from pathsum.composition import null_score
from pathsum.model import AttentionOnlyTransformer, Config

V, N_CTX = 90, 101


@pytest.fixture(scope="module")
def built():
    """A hand-built induction head of the first kind."""
    return by_composition(V, N_CTX, 300.0)[0]


@pytest.fixture(scope="module")
def untrained():
    config = Config(n_layers=2, n_heads=3, d_model=24, d_head=5, d_vocab=V, n_ctx=N_CTX)
    return AttentionOnlyTransformer(config, seed=2).requires_grad_(False)


def text(batch=6, seed=0):
    tokens = distinct_repeats(batch, 40, V, torch.Generator().manual_seed(seed))
    return tokens[:, :-1], tokens[:, 1:]


def test_partners_must_be_the_right_heads_and_far_above_the_null():
    K = torch.full((4, 3), 0.06)
    K[2, 1] = 0.16
    assert composition.measure_partners(K, [1], [2, 0], 0.003, 0.0625).verdict == "holds"
    assert composition.measure_partners(K, [1], [3, 0], 0.003, 0.0625).verdict == "weaker"
    assert composition.measure_partners(K, [1], [3, 0], 0.05, 0.0625).verdict == "not seen"
    assert composition.measure_partners(K, [], [2, 0], 0.003, 0.0625).verdict == "not seen"


def test_k_above_v_is_asked_of_the_weights(built, untrained):
    assert composition.measure_slight(built).verdict == "holds"
    planted = AttentionOnlyTransformer(untrained.config, seed=2).requires_grad_(False)
    planted.W_V[1, 0] = planted.W_O[0, 0].mT  # reads just what head 0 writes
    assert composition.measure_slight(planted).verdict == "not seen"


def test_most_pairs_below_the_null_fails_for_heads_that_all_read_all_writes(untrained):
    planted = AttentionOnlyTransformer(untrained.config, seed=2).requires_grad_(False)
    one = planted.W_O[0, 0]
    planted.W_O[0] = one
    planted.W_V[1] = planted.W_K[1] = planted.W_Q[1] = one.mT
    seen = composition.measure_below(planted)
    assert seen.verdict == "not seen" and seen.number == 0


def test_moving_factors_round_keeps_the_trace_and_not_the_norm(untrained, monkeypatch):
    trace, eigenvalue, norm = composition.circle_check(untrained)
    assert max(trace, eigenvalue) < 1e-6 and norm > 0.01
    no_contrast = composition.composition_scores
    monkeypatch.setattr(composition, "published_scores", no_contrast)
    assert composition.measure_erratum(untrained).verdict == "weaker"


def test_rotating_what_is_written_leaves_chance(untrained):
    mean, sd = composition.rotation_null(untrained, "K", draws=20)
    assert mean == pytest.approx(null_score(24), rel=0.1)
    assert 0 < sd < 0.5 * mean


def test_reversed_pairs_must_lie_in_the_middle_of_the_real_ones():
    real = {kind: torch.linspace(0.04, 0.08, 9).reshape(3, 3) for kind in "QKV"}
    same = composition.measure_reversed(real, real, 0.0625)
    assert (same.verdict, same.number) == ("holds", 0)
    above = {kind: scores + 0.02 for kind, scores in real.items()}
    assert composition.measure_reversed(real, above, 0.0625).verdict == "not seen"
    mixed = real | {"V": above["V"]}
    found = composition.measure_reversed(real, mixed, 0.0625)
    assert found.verdict == "weaker" and found.number == pytest.approx(1 / 3)
    assert "V 0.080 (real 0.060" in found.detail and "random matrices: 0.0625" in found.detail


EXPECTED = {
    "T2": "holds", "T3": "holds", "T4": "holds", "T5": "holds",
}  # fmt: skip


def test_the_shipped_model_gives_the_verdicts_that_the_chapter_speaks_of():
    rows = claims.measure(*EXPECTED)
    assert {row["id"]: row["verdict"] for row in rows} == EXPECTED
    assert {row["page"] for row in rows} == {"composition"}
