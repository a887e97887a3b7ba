"""The term-importance claims can fail: on a model without attention to speak of, or turned round."""

import math

import torch

from pathsum.claims_terms import measure_blind_spot, measure_layers, measure_orders
from pathsum.evaluate import token_losses
from pathsum.induction import previous_token_head
from pathsum.model import AttentionOnlyTransformer, Config

TOY = Config(n_layers=2, n_heads=3, d_model=12, d_head=5, d_vocab=17, n_ctx=16)


def text(rows=8):
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(17, (rows, 16), generator=generator) for _ in range(2)]


def test_orders_are_not_seen_in_a_model_whose_first_order_does_nothing():
    model = AttentionOnlyTransformer(TOY, seed=0).requires_grad_(False)
    assert measure_orders(model, *text()).verdict != "holds"


def test_the_second_layer_must_matter_more_than_five_times_as_much():
    assert measure_layers(torch.tensor([[1.0, 0.1], [3.0, 0.6]])).verdict == "holds"
    assert measure_layers(torch.tensor([[1.0, 0.2], [3.0, 0.6]])).verdict == "not seen"
    assert measure_layers(torch.tensor([[1.0, -0.1], [3.0, -0.6]])).verdict == "not seen"


def test_an_untrained_model_has_no_blind_spot_to_show():
    model = AttentionOnlyTransformer(TOY, seed=0).requires_grad_(False)
    found = measure_blind_spot(model, sequences=4)
    assert found.verdict == "not seen"
    assert abs(found.number) < 0.1


def test_the_previous_token_head_is_found_wherever_it_is():
    model = AttentionOnlyTransformer(TOY, seed=0).requires_grad_(False)
    model.W_Q[0, 1], model.W_K[0, 1] = 0, 0
    step = 0.4 * torch.arange(16)
    model.W_pos.zero_()
    model.W_pos[:, 0], model.W_pos[:, 1] = 40 * step.cos(), 40 * step.sin()
    turn = [[math.cos(0.4), -math.sin(0.4)], [math.sin(0.4), math.cos(0.4)]]
    model.W_Q[0, 1, :2, :2] = torch.tensor(turn)
    model.W_K[0, 1, :2, :2] = torch.eye(2)
    assert previous_token_head(model, text()[0]) == (0, 1)
    assert torch.isfinite(token_losses(model, *text())).all()
