"""The claims on depth can fail: each measurement is given something for which it is false."""

from dataclasses import replace

import pytest
import torch
from toys import TOY, lively, texts

from pathsum.by_hand import by_composition
from pathsum.claims_depth import (
    context_gain,
    losses_at_equal_tokens,
    measure_control,
    measure_gap,
    measure_in_context,
    measure_smeared,
    repeat_gain,
)
from pathsum.model import AttentionOnlyTransformer, Config
from pathsum.seeds import Checkpoint


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


def smeared_toy(strength: float) -> AttentionOnlyTransformer:
    """One layer with keys of the token before, which a query finds with this strength."""
    c = Config(n_layers=1, n_heads=2, d_model=90, d_head=90, d_vocab=90, n_ctx=61, smear=True)
    model = AttentionOnlyTransformer(c, seed=0).requires_grad_(False)
    model.W_E[:], model.W_pos[:], model.W_Q[0, 1] = torch.eye(90), 0, strength * torch.eye(90)
    model.W_K[0, 1], model.smear_logit[0, 1] = torch.eye(90), -20.0
    return model


def test_one_layer_does_induction_only_with_smeared_keys_that_match():
    plain = AttentionOnlyTransformer(
        Config(n_layers=1, n_heads=2, d_model=24, d_head=5, d_vocab=90, n_ctx=61), seed=0
    ).requires_grad_(False)
    strong, weak = smeared_toy(300.0), smeared_toy(0.0)
    found = measure_smeared(strong, plain)
    assert found.verdict == "holds" and found.number > 0.8 and "L0H1" in found.detail
    assert "100% from the token before" in found.detail
    assert measure_smeared(weak, plain).verdict == "not seen"
    assert measure_smeared(strong, strong).verdict == "not seen"  # the control does it too


def test_no_head_of_one_layer_may_do_induction():
    induction = by_composition(90, 61, 300.0)[0]
    assert measure_control(lively(), 10**4).verdict == "holds"
    found = measure_control(induction, 10**9)
    assert found.verdict == "not seen" and found.number > 0.8 and "and 0% of its" in found.detail


@pytest.mark.parametrize(
    ("one", "two", "verdict"),
    [
        ([3.9, 3.92], [3.5, 3.49], "holds"),
        ([3.9, 3.6], [3.5, 3.49], "weaker"),  # seeds of the first differ by as much
        ([3.9], [3.5, 3.49], "weaker"),  # the spread is not known
        ([3.5, 3.51], [3.6, 3.61], "not seen"),
    ],
)
def test_a_gap_between_depths_must_exceed_the_spread_between_seeds(one, two, verdict):
    found = measure_gap(torch.tensor(one), torch.tensor(two), 5_000_000)
    assert found.verdict == verdict and "5.0 million tokens" in found.detail
    assert ("no spread known" in found.detail) == (len(one) == 1)


def test_losses_are_compared_at_the_last_tokens_that_all_runs_share():
    def run(seed, **losses):
        one = Checkpoint("nowhere", replace(TOY, n_layers=1), seed)
        log = [{"tokens": int(name[1:]), "heldout_loss": loss} for name, loss in losses.items()]
        vars(one)["log"] = log
        return one

    every = {
        "one": {0: run(0, t0=8.0, t5=4.0, t9=3.0), 1: run(1, t0=8.1, t5=4.1)},
        "two": {0: run(0, t0=8.2, t5=3.5, t9=2.0)},
    }
    tokens, losses = losses_at_equal_tokens(every)
    assert tokens == 5
    torch.testing.assert_close(losses["one"], torch.tensor([4.0, 4.1]))
    torch.testing.assert_close(losses["two"], torch.tensor([3.5]))
