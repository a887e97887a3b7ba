"""Losses and repeat scores on models whose answers are known."""

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

from pathsum.evaluate import in_context_score, repeat_scores, token_losses, training_record
from pathsum.model import AttentionOnlyTransformer, Config

TOY = Config(n_layers=2, n_heads=3, d_model=12, d_head=5, d_vocab=17, n_ctx=16)


def model():
    return AttentionOnlyTransformer(TOY, seed=0).requires_grad_(False)


def batch(rows=19):
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(17, (rows, 16), generator=generator) for _ in range(2)]


def test_token_losses_equal_torch_over_several_batches():
    inputs, targets = batch()
    expected = cross_entropy(model()(inputs).flatten(0, 1), targets.flatten(), reduction="none")
    assert_close(token_losses(model(), inputs, targets), expected.reshape(19, 16))


def test_more_use_of_context_is_more_negative():
    falling = torch.arange(16, 0, -1.0).expand(3, 16)
    assert in_context_score(falling) == pytest.approx(1.5 - 13.5)
    assert in_context_score(torch.ones(3, 16)) == 0
    with pytest.raises(ValueError, match="at least 8"):
        in_context_score(torch.ones(3, 7))


def test_an_untrained_model_gains_nothing_from_the_second_copy():
    scores = repeat_scores(model(), sequences=64)
    assert scores["first_copy"] == pytest.approx(scores["second_copy"], abs=0.05)
    assert torch.tensor(scores["prefix_matching"]).shape == (2, 3)


def hand_built_induction():
    """Layer 0 writes the previous token beside the present one; layer 1 matches and copies.

    The stream holds three parts: present token, previous token, and two dimensions that only the
    positions use (sine and cosine of a small angle a step).
    """
    n, n_ctx = 17, 15
    model = AttentionOnlyTransformer(Config(2, 1, 2 * n + 2, n, n, n_ctx)).requires_grad_(False)
    for parameter in model.parameters():
        parameter.zero_()
    present, previous = torch.eye(2 * n + 2)[:, :n], torch.eye(2 * n + 2)[:, n : 2 * n]
    model.W_E.copy_(present.T)
    angle = 0.2 * torch.arange(n_ctx)
    model.W_pos.zero_()
    model.W_pos[:, -2:] = torch.stack([angle.cos(), angle.sin()], dim=1)
    cos, sin = angle[1].cos(), angle[1].sin()
    model.W_Q[0, 0, -2:, :2] = 3000 * torch.stack(
        [torch.stack([cos, -sin]), torch.stack([sin, cos])]
    )
    model.W_K[0, 0, -2:, :2] = torch.eye(2)
    model.W_V[0, 0], model.W_O[0, 0] = present, previous.T
    model.W_Q[1, 0], model.W_K[1, 0] = 60 * present, previous
    model.W_V[1, 0], model.W_O[1, 0] = present, present.T
    model.W_U.copy_(10 * present)
    return model


def test_a_hand_built_induction_head_is_seen_in_every_number():
    """Not exactly 1: among seven random tokens of sixteen some repeat within a copy."""
    scores = repeat_scores(hand_built_induction(), sequences=64)
    assert scores["previous_token"][0][0] > 0.99
    assert scores["prefix_matching"][1][0] > 0.75
    assert scores["second_copy"] < scores["first_copy"] - 2


def test_the_record_holds_what_the_chapters_draw():
    record = training_record(model(), *batch())
    assert set(record) == {
        "heldout_loss",
        "in_context_score",
        "loss_by_position",
        "first_copy",
        "second_copy",
        "prefix_matching",
        "previous_token",
        "copying",
    }
    assert record["heldout_loss"] == pytest.approx(sum(record["loss_by_position"]) / 16, abs=1e-4)
