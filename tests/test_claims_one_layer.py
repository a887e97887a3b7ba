"""The claims on one layer can fail: each measurement is given something for which it is false."""

import math

import torch
from toys import lively, texts

from pathsum.claims_one_layer import (
    measure_positional,
    measure_rows,
    measure_source_alone,
    moved_rows,
    offset_table,
)


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
