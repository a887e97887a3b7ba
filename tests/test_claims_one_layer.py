"""The claims on one layer can fail: each measurement is given something for which it is false."""

import math
from dataclasses import replace

import pytest
import torch

from pathsum.claims_one_layer import (
    context_gain,
    linearity_errors,
    measure_expansion,
    measure_in_context,
    measure_linearity,
    measure_positional,
    measure_rows,
    measure_source_alone,
    mixed_logits,
    moved_rows,
    offset_table,
    repeat_gain,
)
from pathsum.model import AttentionOnlyTransformer, Config
from pathsum.paths import PathTerms, path_terms

TOY = Config(n_layers=1, n_heads=3, d_model=12, d_head=5, d_vocab=17, n_ctx=80)


def lively(n_layers=1, seed=0):
    """An untrained model whose weights are large enough for attention to be uneven."""
    model = AttentionOnlyTransformer(replace(TOY, n_layers=n_layers), seed).requires_grad_(False)
    for weights in (model.W_E, model.W_Q, model.W_K, model.W_V, model.W_O, model.W_U):
        weights *= 4
    return model


def texts(rows=4, length=80):
    return torch.randint(17, (rows, length), generator=torch.Generator().manual_seed(0))


def test_the_expansion_fails_if_a_head_is_left_out():
    def without_the_last(model, tokens):
        found = path_terms(model, tokens)
        return PathTerms(found.paths[:-1], found.values[:-1])

    assert measure_expansion(lively(), texts()).verdict == "exact"
    assert measure_expansion(lively(), texts(), without_the_last).verdict == "not seen"


def test_a_text_by_itself_is_the_model():
    model, tokens = lively(), texts(1)
    alone = mixed_logits(model, tokens, torch.ones(1))
    torch.testing.assert_close(alone, model(tokens)[0], atol=1e-5, rtol=1e-5)


def test_only_frozen_patterns_make_it_linear():
    model, pair = lively(), texts(2)
    assert measure_linearity(model, pair).verdict == "exact"
    off = linearity_errors(model, pair, torch.tensor([0.7, -1.3]))
    assert off["frozen"] < 1e-4 < 0.1 < off["free"]


def test_without_attention_nothing_is_broken_and_the_claim_not_seen():
    model = lively()
    model.W_V.zero_()
    assert measure_linearity(model, texts(2)).verdict == "not seen"


def test_offsets_explain_a_head_that_sees_only_positions():
    model = lively()
    model.W_Q[0, 1], model.W_K[0, 1] = 0, 0
    model.W_pos.zero_()
    angle = 0.07 * torch.arange(80)  # less than a full turn
    model.W_pos[:, 0], model.W_pos[:, 1] = 60 * angle.cos(), 60 * angle.sin()
    model.W_E[:, :2] = 0
    turn = [[math.cos(0.07), -math.sin(0.07)], [math.sin(0.07), math.cos(0.07)]]  # towards one back
    model.W_Q[0, 1, :2, :2], model.W_K[0, 1, :2, :2] = torch.tensor(turn), torch.eye(2)
    model.W_Q[0, 0] = 0  # a head that prefers nothing
    explained, attention = offset_table(model, texts())
    assert explained[1] > 0.999 and attention[1, 1] > 0.8
    assert attention[0, :2].max() < 0.1
    found = measure_positional(explained, attention)
    assert found.verdict == "holds" and "H1 gives" in found.detail and "previous" in found.detail
    assert measure_positional(explained[[0]], attention[[0]]).verdict == "not seen"


def test_a_source_of_a_second_layer_does_not_act_alone():
    assert measure_source_alone(lively()).verdict == "exact"
    assert measure_source_alone(lively(n_layers=2), layer=1).verdict == "not seen"


def test_constants_in_rows_change_the_order_and_not_the_attention():
    pattern, best = moved_rows(lively(), texts())
    assert pattern < 1e-5 and best > 0.3
    assert measure_rows(1e-7, 0.9).verdict == "exact"
    assert measure_rows(0.1, 0.9).verdict == "not seen"
    assert measure_rows(1e-7, 0.1).verdict == "not seen"


def test_an_untrained_model_gains_nothing_from_repeats():
    model = AttentionOnlyTransformer(TOY, seed=0).requires_grad_(False)
    assert repeat_gain(model, 8).mean().abs() < 0.05


def test_far_context_is_worth_nothing_to_a_model_that_never_looks_there():
    model, tokens = lively(), texts(6)
    tokens[:, 0] = 0
    model.W_V.zero_()
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    assert context_gain(model, inputs, targets, last=8).abs().max() < 1e-4
    assert context_gain(lively(), inputs, targets, last=8).abs().max() > 1e-3
    with pytest.raises(ValueError, match="below 79 positions, got last=40"):
        context_gain(model, inputs, targets, last=40)


@pytest.mark.parametrize(
    ("one", "two", "far", "verdict"),
    [
        (0.5, 5.0, 0.0, "holds"),
        (0.0, 5.0, 0.5, "holds"),
        (2.0, 5.0, 0.5, "not seen"),  # not weak
        (0.0, 5.0, 0.0, "weaker"),  # weak, and not shown to exist
        (0.5, 0.0, 0.5, "not seen"),  # two layers do not either
    ],
)
def test_learning_in_context_must_exist_and_be_weak(one, two, far, verdict):
    noise = 0.1 * torch.randn(16, generator=torch.Generator().manual_seed(0))
    noise = noise - noise.mean()
    repeats = {"1 layer": one + noise, "2 layers": two + noise}
    texts = {"1 layer": far + noise, "2 layers": 1 + noise}
    assert measure_in_context(repeats, texts).verdict == verdict
