"""Claims on two layers: they fail where they are false, and are as recorded on the shipped models."""

import pytest
import torch

from pathsum import claims
from pathsum import claims_two_layers as two
from pathsum.by_hand import N_PLACES, by_composition, distinct_repeats
from pathsum.checkpoints import model_names
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


def test_paths_and_scores_add_up_and_a_model_that_leaves_out_terms_is_caught(
    untrained, monkeypatch
):
    tokens = text()[0][:2, :9]
    assert two.measure_path_sum(untrained, tokens).verdict == "exact"
    assert two.measure_score_sum(untrained, tokens).verdict == "exact"
    terms, scores = two.path_terms(untrained, tokens), two.score_terms
    terms.values[3] = 0
    monkeypatch.setattr(two, "path_terms", lambda model, tokens: terms)
    assert two.measure_path_sum(untrained, tokens).verdict == "not seen"
    monkeypatch.setattr(two, "score_terms", lambda m, t, h: scores(m, t, h)[:, :-1])
    assert two.measure_score_sum(untrained, tokens).verdict == "not seen"


def test_a_previous_token_head_is_seen_and_an_untrained_one_is_not(built, untrained):
    inputs, _ = text()
    assert two.measure_previous(built, inputs).verdict == "holds"
    assert two.measure_previous(untrained, inputs).verdict == "not seen"


def test_partners_must_be_the_right_heads_and_far_above_the_null():
    K = torch.full((4, 3), 0.06)
    K[2, 1] = 0.16
    assert two.measure_partners(K, [1], [2, 0], 0.003, 0.0625).verdict == "holds"
    assert two.measure_partners(K, [1], [3, 0], 0.003, 0.0625).verdict == "weaker"
    assert two.measure_partners(K, [1], [3, 0], 0.05, 0.0625).verdict == "not seen"
    assert two.measure_partners(K, [], [2, 0], 0.003, 0.0625).verdict == "not seen"


def test_k_above_v_is_asked_of_the_weights(built, untrained):
    assert two.measure_slight(built).verdict == "holds"
    planted = AttentionOnlyTransformer(untrained.config, seed=2).requires_grad_(False)
    planted.W_V[1, 0] = planted.W_O[0, 0].mT  # reads just what head 0 writes
    assert two.measure_slight(planted).verdict == "not seen"


def test_most_pairs_below_the_null_fails_for_heads_that_all_read_all_writes(untrained):
    planted = AttentionOnlyTransformer(untrained.config, seed=2).requires_grad_(False)
    one = planted.W_O[0, 0]
    planted.W_O[0] = one
    planted.W_V[1] = planted.W_K[1] = planted.W_Q[1] = one.mT
    seen = two.measure_below(planted)
    assert seen.verdict == "not seen" and seen.number == 0


def test_moving_factors_round_keeps_the_trace_and_not_the_norm(untrained, monkeypatch):
    trace, eigenvalue, norm = two.circle_check(untrained)
    assert max(trace, eigenvalue) < 1e-6 and norm > 0.01
    monkeypatch.setattr(two, "published_scores", two.composition_scores)  # no contrast to gain
    assert two.measure_erratum(untrained).verdict == "weaker"


def test_rotating_what_is_written_leaves_chance(untrained):
    mean, sd = two.rotation_null(untrained, "K", draws=20)
    assert mean == pytest.approx(null_score(24), rel=0.1)
    assert 0 < sd < 0.5 * mean


def test_repeats_need_induction_and_a_control_without_it(built, untrained):
    scores = two.induction_scores(built)
    assert two.induction_heads(scores) == [0] and scores[0].max() < 0.1
    assert two.induction_heads(two.induction_scores(untrained)) == []
    sharp = by_composition(V, N_CTX, 300.0)[0]
    sharp.W_U.mul_(20)  # sure of itself, so that the loss falls
    assert two.measure_repeats(sharp, untrained).verdict == "holds"
    assert two.measure_repeats(sharp, sharp).verdict == "not seen"  # the control fails
    assert two.measure_repeats(untrained, untrained).verdict == "not seen"
    assert two.measure_repeats(built, untrained).verdict in ("holds", "weaker")


def test_resting_needs_both_a_high_weight_and_a_small_value(untrained, monkeypatch):
    quiet = AttentionOnlyTransformer(untrained.config, seed=2).requires_grad_(False)
    quiet.W_E[0] *= 0.1
    before, after = two.resting(untrained, 0), two.resting(quiet, 0)
    torch.testing.assert_close(after[1], 0.1 * before[1])
    torch.testing.assert_close(after[2], 0.1 * before[2])
    for weight, ratio, verdict in [
        (0.9, 0.1, "holds"),
        (0.9, 0.8, "weaker"),
        (0.2, 0.8, "not seen"),
    ]:
        seen = (torch.tensor([weight]), torch.tensor([ratio]), torch.tensor([ratio]))
        monkeypatch.setattr(two, "resting", lambda model, layer, seen=seen: seen)
        assert two.measure_resting(untrained, [0]).verdict == verdict
    assert two.measure_resting(untrained, []).verdict == "not seen"


def test_the_corner_needs_both_circuits_and_a_distance_to_the_others():
    OV, QK = torch.tensor([0.9, 0.1, 0.2, -0.3]), torch.tensor([0.8, 0.1, 0.0, 0.2])
    assert two.measure_corner(OV, QK, [0], 0.05).verdict == "holds"
    assert two.measure_corner(-OV, QK, [0], 0.05).verdict == "not seen"
    assert two.measure_corner(OV, QK, [1], 0.05).verdict == "not seen"
    assert two.measure_corner(OV, QK, [0], 0.2).verdict == "weaker"
    assert two.measure_corner(OV, QK, [], 0.05).verdict == "not seen"


def test_the_matching_circuit_is_positive_for_the_head_built_to_match(built):
    assert two.matching_circuit_scores(built, 0)[0] > 0.99


def test_copying_is_read_off_the_heads_own_logits(built, untrained):
    inputs, targets = text()
    assert two.measure_copying(built, inputs, targets, [0]).verdict == "holds"
    assert two.measure_copying(untrained, inputs, targets, [0]).verdict == "not seen"
    again = two.seen_pair_before(inputs, targets)
    assert not again[:, :41].any() and again[:, 41:].all()


def test_a_construction_that_never_works_is_not_exact():
    tokens = distinct_repeats(3, 10, 15, torch.Generator().manual_seed(0))

    def broken(gain):
        model, hook = by_composition(15, 21, gain)
        model.W_K[1] = 0
        return model, hook

    good = {"K": lambda gain: by_composition(15, 21, gain)}
    assert two.measure_by_hand(good, tokens).verdict == "exact"
    assert two.measure_by_hand({**good, "broken": broken}, tokens).verdict == "not seen"


def test_attention_by_offset_is_a_share(built):
    inputs, _ = text()
    back = two.looking_back(two.patterns_of(built, inputs)[0], most=4)
    assert back.shape == (1, 5) and back[0].argmax() == 1 and N_PLACES == 16


EXPECTED = {
    "A8": "exact", "A9": "exact", "T1": "holds", "T2": "holds", "T3": "holds", "T4": "holds",
    "T5": "holds", "T8": "holds", "T9": "holds", "T10": "holds", "T16": "exact",
}  # fmt: skip


@pytest.mark.skipif("attn-only-2l" not in model_names(), reason="the model is not in this checkout")
def test_the_shipped_model_gives_the_verdicts_that_the_chapters_speak_of():
    rows = claims.measure(*EXPECTED)
    assert {row["id"]: row["verdict"] for row in rows} == EXPECTED
    pages = {row["id"]: row["page"] for row in rows}
    assert {pages[i] for i in ("A8", "A9", "T2", "T3", "T4", "T5")} == {"composition"}
    assert {pages[i] for i in ("T1", "T8", "T9", "T10", "T16")} == {"induction-heads"}


@pytest.mark.skipif("attn-only-1l" not in model_names(), reason="the model is not in this checkout")
def test_one_layer_is_the_control_of_the_repeats():
    (row,) = claims.measure("T6")
    assert row["verdict"] == "holds" and "strong" in row["detail"]


@pytest.mark.skipif("attn-only-2l" not in model_names(), reason="the model is not in this checkout")
def test_the_shipped_model_shows_what_the_chapters_say_of_stories_and_cuts():
    from pathsum.evaluate import token_losses
    from pathsum.idealised import recovered, substituted_losses, uncomposed_hook
    from pathsum.patching import ablated_losses

    model, (text, following) = claims_model(), two.held_out(16)
    again = two.repeats(4096)[:, : 2 * two.PERIOD + 1]

    def share(heads, x, y, first, **story):
        losses = [token_losses(model, x, y), ablated_losses(model, x, y, heads)]
        losses.append(substituted_losses(model, x, y, **story))
        return recovered(*(float(value[:, first:].mean()) for value in losses))

    before, after = [(0, 6)], [(1, 6), (1, 7)]
    x, y, second = again[:, :-1], again[:, 1:], two.PERIOD + 1
    assert 0.95 < share(before, text, following, 0, previous=before) < 1.05
    one = share(after, text, following, 0, induction=after)
    longer = share(after, text, following, 0, induction=after, context=2, least=2)
    assert 0.2 < one < 0.5 and longer > one + 0.03
    assert share(after, x, y, second, induction=after) > 1

    def cut(kinds):
        return float(token_losses(model, x, y, uncomposed_hook(model, kinds))[:, second:].mean())

    assert cut("K") - cut("") > cut("Q") - cut("") > 1 > cut("V") - cut("")


def claims_model():
    return two.load_model(two.TWO)
