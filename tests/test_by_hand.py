"""The hand-built heads do induction, by the mechanism that they are named after."""

import pytest
import torch

from pathsum.by_hand import (
    BASE,
    N_PLACES,
    accuracy_curve,
    by_composition,
    by_pointer,
    distinct_repeats,
    repeat_accuracy,
    shift_matrix,
    smallest_gain,
)
from pathsum.composition import composition_scores
from pathsum.model import sinusoidal_positions

V, PERIOD = 23, 15
N_CTX = 2 * PERIOD + 1


@pytest.fixture(scope="module")
def tokens():
    return distinct_repeats(6, PERIOD, V, torch.Generator().manual_seed(0))


def patterns(built, tokens):
    model, hook = built
    kept = {}

    def record(site, value):
        kept[site] = value
        return hook(site, value) if hook else None

    model(tokens, hook=record)
    return kept["L0.pattern"][:, 0], kept["L1.pattern"][:, 0]


def test_turning_by_an_offset_moves_every_position_by_it():
    places = sinusoidal_positions(40, N_PLACES, base=BASE)
    for offset in (-3, 1, 7):
        moved = places[10:20] @ shift_matrix(offset)
        torch.testing.assert_close(moved, places[10 + offset : 20 + offset], atol=1e-5, rtol=0)


@pytest.mark.parametrize("build", [by_composition, by_pointer])
def test_with_gain_every_repeated_token_is_predicted_and_without_it_none_need_be(build, tokens):
    assert repeat_accuracy(build(V, N_CTX, 100.0), tokens) == 1
    assert repeat_accuracy(build(V, N_CTX, 0.0), tokens) < 0.3


def test_the_first_heads_look_one_back_and_at_the_earlier_copy(tokens):
    second_copy = torch.arange(PERIOD + 1, N_CTX)
    first, second = patterns(by_composition(V, N_CTX, 300.0), tokens)
    assert (first.argmax(-1)[:, 1:] == torch.arange(N_CTX - 1)).all()
    stripe = second_copy - PERIOD + 1
    assert (second.argmax(-1)[:, PERIOD + 1 :] == stripe).all()
    first, second = patterns(by_pointer(V, N_CTX, 300.0), tokens)
    assert (first.argmax(-1)[:, PERIOD + 1 :] == second_copy - PERIOD).all()
    assert (second.argmax(-1)[:, PERIOD + 1 :] == stripe).all()


def test_one_head_composes_by_keys_and_the_other_by_queries():
    model, _ = by_composition(V, N_CTX, 10.0)
    assert composition_scores(model, "K").item() > 0.1
    assert composition_scores(model, "Q").item() == composition_scores(model, "V").item() == 0
    model, _ = by_pointer(V, N_CTX, 10.0)
    assert composition_scores(model, "Q").item() > 0.1
    assert composition_scores(model, "K").item() == composition_scores(model, "V").item() == 0


def test_the_pointer_fails_when_positions_are_not_in_the_stream(tokens):
    model, _ = by_pointer(V, N_CTX, 300.0)
    assert repeat_accuracy((model, None), tokens) < 0.3


@pytest.mark.parametrize("build", [by_composition, by_pointer])
def test_the_smallest_gain_is_enough_and_a_little_less_is_not(build, tokens):
    def made(gain):
        return build(V, N_CTX, gain)

    gain = smallest_gain(made, tokens)
    below, at, above = accuracy_curve(made, tokens, torch.tensor([0.95, 1.0, 2.0]) * gain)
    assert below < 1 and at == 1 and above == 1


def test_a_head_that_cannot_do_it_is_reported(tokens):
    def broken(gain):
        model, hook = by_composition(V, N_CTX, gain)
        model.W_O[0] = 0
        return model, hook

    with pytest.raises(ValueError, match="accuracy stays below 1"):
        smallest_gain(broken, tokens, limit=64.0)


def test_repeats_have_no_collisions(tokens):
    assert tokens.shape == (6, N_CTX) and (tokens[:, 0] == 0).all()
    assert torch.equal(tokens[:, 1 : PERIOD + 1], tokens[:, PERIOD + 1 :])
    assert all(len(set(row[1 : PERIOD + 1].tolist())) == PERIOD for row in tokens)
    with pytest.raises(ValueError, match="period < d_vocab"):
        distinct_repeats(1, V, V, torch.Generator())
