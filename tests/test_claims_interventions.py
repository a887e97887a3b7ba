"""Claims decided by interventions: they fail where they are false, on planted heads and made-up numbers."""

import math

import pytest
import torch

from pathsum.by_hand import by_composition, distinct_repeats
from pathsum.claims_interventions import (
    in_context_losses,
    measure_ablation,
    measure_gradient,
    measure_stories,
    replacement_effects,
    story_share,
)
from pathsum.evaluate import in_context_score, token_losses
from pathsum.idealised import recovered, substituted_losses
from pathsum.induction import PERIOD, repeats
from pathsum.model import AttentionOnlyTransformer, Config
from pathsum.patching import ablated_losses

V = 90


@pytest.fixture(scope="module")
def built():
    """A hand-built induction head, sure enough of itself for the loss to fall."""
    model = by_composition(V, 101, 300.0)[0]
    model.W_U.mul_(20)
    return model


@pytest.fixture(scope="module")
def untrained():
    config = Config(n_layers=2, n_heads=3, d_model=24, d_head=5, d_vocab=V, n_ctx=101)
    return AttentionOnlyTransformer(config, seed=2).requires_grad_(False)


@pytest.fixture(scope="module")
def text():
    tokens = distinct_repeats(20, 40, V, torch.Generator().manual_seed(0))
    return tokens[:, :-1], tokens[:, 1:]


def test_what_a_head_is_worth_in_context_is_the_change_of_the_score_with_patterns_kept(built, text):
    rises = in_context_losses(built, *text, [[(1, 0)], [(0, 0)], [(0, 0), (1, 0)]])
    intact = in_context_score(token_losses(built, *text))
    without = in_context_score(ablated_losses(built, *text, [(1, 0)], freeze_patterns=True))
    assert float(rises[0]) == pytest.approx(without - intact, abs=1e-4)
    assert rises[0] > 1 and abs(rises[1]) < 0.1 * rises[0]  # the first head acts through a pattern


def test_the_induction_heads_must_be_the_ones_that_cost_most():
    table = torch.tensor([[0.01, -0.02, 0.0], [0.3, 0.02, 0.2]])
    found = measure_ablation(table, 0.4, -0.5, [0, 2])
    assert found.verdict == "holds" and found.number == pytest.approx(0.8)
    assert "L1H0 +0.300, L1H2 +0.200" in found.detail and "1 of 6 heads leave more" in found.detail
    assert measure_ablation(table, 0.4, -0.5, [0, 1]).verdict == "weaker"
    assert measure_ablation(table, 0.4, -0.5, [1]).verdict == "not seen"
    assert measure_ablation(table, 0.4, -0.5, []).verdict == "not seen"


def test_stories_need_both_shares():
    assert measure_stories(0.95, 0.6).verdict == "holds"
    assert measure_stories(0.95, 0.5).verdict == measure_stories(0.8, 0.6).verdict == "weaker"
    assert measure_stories(0.8, 0.4).verdict == "not seen"
    assert measure_stories(float("nan"), float("nan")).verdict == "not seen"


def test_a_story_is_worth_what_the_exact_pattern_wins_back(built, untrained, text):
    assert story_share(built, *text, [(0, 0)], "previous") == pytest.approx(1, abs=0.02)
    losses = [
        token_losses(built, *text),
        ablated_losses(built, *text, [(1, 0)]),
        substituted_losses(built, *text, induction=[(1, 0)]),
    ]
    expected = recovered(*(float(loss.mean()) for loss in losses))
    assert story_share(built, *text, [(1, 0)], "induction") == pytest.approx(expected)
    silent = AttentionOnlyTransformer(untrained.config, seed=2).requires_grad_(False)
    silent.W_O.zero_()
    assert math.isnan(story_share(silent, *text, [(1, 0)], "induction"))


def test_the_first_order_effect_is_the_slope_of_the_real_one(untrained):
    tokens, dest = repeats(V, batch=3), PERIOD + 5
    effects, cost = replacement_effects(untrained, tokens, dest)
    assert effects.shape == (3, dest) and cost.shape == (3,)
    generator = torch.Generator().manual_seed(0)
    random = torch.randint(1, V, tokens.shape, generator=generator)
    place, target = dest - PERIOD, tokens[:, dest + 1]

    def log_prob(share: float) -> torch.Tensor:
        def hook(site, value):
            if site != "embed":
                return None
            value = value.clone()
            value[:, place] = torch.lerp(
                untrained.W_E[tokens[:, place]], untrained.W_E[random[:, place]], share
            )
            return value

        logits = untrained(tokens[:, : dest + 1], hook)[:, -1]
        return logits.log_softmax(-1).gather(-1, target[:, None])[:, 0].double()

    slope = (log_prob(0.0) - log_prob(0.01)) / 0.01
    torch.testing.assert_close(effects[:, place].double(), slope, rtol=0.05, atol=2e-4)
    torch.testing.assert_close(cost.double(), log_prob(0.0) - log_prob(1.0), rtol=1e-3, atol=1e-5)


def test_the_gradient_must_miss_what_the_ablation_finds():
    effects = torch.tensor([[0.5, 0.4, 0.3, 0.1, 0.0], [0.5, 0.4, 0.3, 0.1, 0.0]])
    prior, cost = torch.tensor([3, 3]), torch.tensor([4.0, 0.0])
    only_first, none = torch.tensor([True, False]), torch.zeros(2, dtype=torch.bool)
    found = measure_gradient(effects, prior, cost, only_first)
    assert (found.verdict, found.number) == ("holds", 4)
    assert (
        "at 1 of 2 places" in found.detail and "at 0.10 nats; in fact it costs 4.00" in found.detail
    )
    assert (
        measure_gradient(effects, prior - 2, cost, only_first).verdict == "weaker"
    )  # second, faint
    assert measure_gradient(10 * effects, prior - 2, cost, only_first).verdict == "not seen"
    assert measure_gradient(effects, prior, 0 * cost, only_first).verdict == "not seen"
    assert measure_gradient(effects, prior, cost, none).verdict == "not seen"
