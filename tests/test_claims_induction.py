"""Claims on induction heads: they fail where they are false, and are as recorded on the shipped models."""

import pytest
import torch

from pathsum import claims
from pathsum import claims_induction as induction
from pathsum.by_hand import N_PLACES, by_composition, distinct_repeats
from pathsum.checkpoints import load_model
from pathsum.induction import (
    PERIOD,
    induction_heads,
    induction_scores,
    looking_back,
    matching_circuit_scores,
    repeats,
    resting,
    seen_pair_before,
)
from pathsum.model import AttentionOnlyTransformer, Config
from pathsum.paths import patterns_of
from pathsum.samples import spread_sample

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


def test_a_previous_token_head_is_seen_and_an_untrained_one_is_not(built, untrained):
    inputs, _ = text()
    assert induction.measure_previous(built, inputs).verdict == "holds"
    assert induction.measure_previous(untrained, inputs).verdict == "not seen"


def test_repeats_need_induction_and_a_control_without_it(built, untrained):
    scores = induction_scores(built)
    assert induction_heads(scores) == [0] and scores[0].max() < 0.1
    assert induction_heads(induction_scores(untrained)) == []
    sharp = by_composition(V, N_CTX, 300.0)[0]
    sharp.W_U.mul_(20)  # sure of itself, so that the loss falls
    assert induction.measure_repeats(sharp, untrained).verdict == "holds"
    assert induction.measure_repeats(sharp, sharp).verdict == "not seen"  # the control fails
    assert induction.measure_repeats(untrained, untrained).verdict == "not seen"
    assert induction.measure_repeats(built, untrained).verdict in ("holds", "weaker")


def test_resting_needs_both_a_high_weight_and_a_small_value(untrained, monkeypatch):
    quiet = AttentionOnlyTransformer(untrained.config, seed=2).requires_grad_(False)
    quiet.W_E[0] *= 0.1
    before, after = resting(untrained, 0), resting(quiet, 0)
    torch.testing.assert_close(after[1], 0.1 * before[1])
    torch.testing.assert_close(after[2], 0.1 * before[2])
    for weight, ratio, verdict in [
        (0.9, 0.1, "holds"),
        (0.9, 0.8, "weaker"),
        (0.2, 0.8, "not seen"),
    ]:
        seen = (torch.tensor([weight]), torch.tensor([ratio]), torch.tensor([ratio]))
        monkeypatch.setattr(induction, "resting", lambda model, layer, seen=seen: seen)
        assert induction.measure_resting(untrained, [0]).verdict == verdict
    assert induction.measure_resting(untrained, []).verdict == "not seen"


def test_the_corner_needs_both_circuits_and_a_distance_to_the_others():
    OV, QK = torch.tensor([0.9, 0.1, 0.2, -0.3]), torch.tensor([0.8, 0.1, 0.0, 0.2])
    assert induction.measure_corner(OV, QK, [0], 0.05).verdict == "holds"
    assert induction.measure_corner(-OV, QK, [0], 0.05).verdict == "not seen"
    assert induction.measure_corner(OV, QK, [1], 0.05).verdict == "not seen"
    assert induction.measure_corner(OV, QK, [0], 0.2).verdict == "weaker"
    assert induction.measure_corner(OV, QK, [], 0.05).verdict == "not seen"


def test_copying_is_read_off_the_heads_own_logits(built, untrained):
    inputs, targets = text()
    assert induction.measure_copying(built, inputs, targets, [0]).verdict == "holds"
    assert induction.measure_copying(untrained, inputs, targets, [0]).verdict == "not seen"
    again = seen_pair_before(inputs, targets)
    assert not again[:, :41].any() and again[:, 41:].all()


def test_a_construction_that_never_works_is_not_exact():
    tokens = distinct_repeats(3, 10, 15, torch.Generator().manual_seed(0))

    def broken(gain):
        model, hook = by_composition(15, 21, gain)
        model.W_K[1] = 0
        return model, hook

    good = {"K": lambda gain: by_composition(15, 21, gain)}
    assert induction.measure_by_hand(good, tokens).verdict == "exact"
    assert induction.measure_by_hand({**good, "broken": broken}, tokens).verdict == "not seen"


def test_the_matching_circuit_is_positive_for_the_head_built_to_match(built):
    assert matching_circuit_scores(built, 0)[0] > 0.99


def test_attention_by_offset_is_a_share(built):
    inputs, _ = text()
    back = looking_back(patterns_of(built, inputs)[0], most=4)
    assert back.shape == (1, 5) and back[0].argmax() == 1 and N_PLACES == 16


def test_the_shipped_model_shows_what_the_chapters_say_of_stories_and_cuts():
    from pathsum.evaluate import token_losses
    from pathsum.idealised import recovered, substituted_losses, uncomposed_hook
    from pathsum.patching import ablated_losses

    model, (text, following) = load_model("attn-only-2l"), spread_sample(16)
    again = repeats(4096)[:, : 2 * PERIOD + 1]

    def share(heads, x, y, first, **story):
        losses = [token_losses(model, x, y), ablated_losses(model, x, y, heads)]
        losses.append(substituted_losses(model, x, y, **story))
        return recovered(*(float(value[:, first:].mean()) for value in losses))

    before, after = [(0, 6)], [(1, 6), (1, 7)]
    x, y, second = again[:, :-1], again[:, 1:], PERIOD + 1
    assert 0.95 < share(before, text, following, 0, previous=before) < 1.05
    one = share(after, text, following, 0, induction=after)
    longer = share(after, text, following, 0, induction=after, context=2, least=2)
    assert 0.2 < one < 0.5 and longer > one + 0.03
    assert share(after, x, y, second, induction=after) > 1

    def cut(kinds):
        return float(token_losses(model, x, y, uncomposed_hook(model, kinds))[:, second:].mean())

    assert cut("K") - cut("") > cut("Q") - cut("") > 1 > cut("V") - cut("")


EXPECTED = {
    "T1": "holds",
    "T6": "holds",
    "T8": "holds",
    "T9": "holds",
    "T10": "holds",
    "T16": "exact",
}


def test_the_shipped_model_gives_the_verdicts_that_the_chapter_speaks_of():
    rows = claims.measure(*EXPECTED)
    assert {row["id"]: row["verdict"] for row in rows} == EXPECTED
    assert {row["page"] for row in rows} == {"induction-heads"}
    assert "strong" in rows[1]["detail"]
