"""What the chapter on training says in words, held against the records and the models."""

import json
from importlib import resources

import pytest
import torch

from pathsum import ablations
from pathsum.checkpoints import load_model
from pathsum.development import QUANTITIES, curve, development, measured_names, pair_history, rises
from pathsum.evaluate import in_context_score
from pathsum.heads import prefix_matching_score, previous_token_score
from pathsum.model import cache
from pathsum.patching import ablated_losses
from pathsum.samples import spread_sample
from pathsum.seeds import by_kind
from pathsum.snapshots import load_snapshot
from pathsum.tokenizer import load_tokenizer

KINDS = by_kind()
INDUCTION = [(1, 6), (1, 7)]


def last(run, quantity: str) -> float:
    return float(curve(run.log, QUANTITIES[quantity])[1][-1])


@pytest.mark.parametrize("seed", KINDS["two"])
def test_with_two_layers_induction_comes_within_a_few_million_tokens(seed):
    tokens, prefix = curve(KINDS["two"][seed].log, QUANTITIES["best prefix-matching score"])
    begins, ends = (rises(tokens.tolist(), prefix.tolist(), part) for part in (0.1, 0.5))
    assert 1e6 < begins < 6e6 and begins < ends < 12e6
    assert prefix[tokens < 1e6].max() < 0.02
    _, gain = curve(KINDS["two"][seed].log, QUANTITIES["second copy less first (nats)"])
    assert gain[-1] < -2 and gain[tokens < 2e6].min() > -0.5


@pytest.mark.parametrize("seed", KINDS["one"])
def test_with_one_layer_heads_copy_and_nothing_else_of_it_happens(seed):
    log = KINDS["one"][seed].log
    tokens, copying = curve(log, QUANTITIES["share of heads with copying > 0.5"])
    assert copying[tokens > 2e6].min() >= 0.5, "most of the heads copy"
    assert curve(log, QUANTITIES["best prefix-matching score"])[1].max() < 0.1
    assert curve(log, QUANTITIES["best previous-token score, L0"])[1].max() < 0.5
    assert abs(last(KINDS["one"][seed], "second copy less first (nats)")) < 0.3


def test_two_layers_end_below_one_by_many_times_what_the_seeds_differ():
    losses = {
        kind: [last(run, "held-out loss (nats)") for run in KINDS[kind].values()]
        for kind in ("one", "two")
    }
    spread = max(max(x) - min(x) for x in losses.values())
    assert min(losses["one"]) - max(losses["two"]) > max(0.2, 5 * spread)


def test_until_the_change_the_second_layer_is_worth_little_and_then_more_with_more_context():
    with_one = {r["step"]: torch.tensor(r["loss_by_position"]) for r in KINDS["one"][0].log}
    with_two = {r["step"]: torch.tensor(r["loss_by_position"]) for r in KINDS["two"][0].log}
    worth = {step: with_one[step] - with_two[step] for step in (202, 657, 882, 1185, 6000)}
    for step in (202, 657):
        assert 0.05 < worth[step].mean() < 0.15
        assert abs(worth[step][128:].mean() - worth[step][:64].mean()) < 0.06
    assert worth[882].mean() < worth[1185].mean() < worth[6000].mean()
    for step in (1185, 6000):
        assert worth[step][128:].mean() - worth[step][:64].mean() > 0.1


@pytest.mark.slow
def test_silencing_the_induction_heads_takes_the_in_context_score_away():
    two, (text, following) = load_model("attn-only-2l"), spread_sample(24)

    def score(heads):
        losses = ablated_losses(two, text, following, heads, freeze_patterns=True)
        return in_context_score(losses)

    intact = score([])
    assert intact < -0.15 and abs(score(INDUCTION)) < 0.1 * abs(intact)
    changes = {head: score([head]) - intact for head in [*INDUCTION, (1, 4), (1, 0), (0, 6)]}
    assert min(changes[head] for head in INDUCTION) > 0.04
    assert changes[1, 4] < changes[1, 0] < 0


def test_signs_come_first_and_behaviour_last():
    log = KINDS["two"][0].log
    pair, history = pair_history(development("attn-only-2l"), log)
    assert pair[0] == 6 and (1, pair[1]) in INDUCTION
    tokens = [record["tokens"] for record in log]
    half = {name: rises(tokens, values, 0.5) for name, values in history.items()}
    order = ["copying (OV)", "matching (QK)", "K-composition", "previous token", "prefix matching"]
    assert sorted(half, key=half.get) == order
    at = next(i for i, seen in enumerate(tokens) if seen > 2e6)
    assert history["copying (OV)"][at] > 0.85 and history["matching (QK)"][at] > 0.75
    assert history["previous token"][at] < 0.5 and history["prefix matching"][at] < 0.01


@pytest.mark.parametrize("name", measured_names())
def test_in_every_measured_seed_prefix_matching_is_the_last(name):
    (run,) = [run for run in KINDS["two"].values() if run.source == name]
    _, history = pair_history(development(name), run.log)
    tokens = [record["tokens"] for record in run.log]
    half = {quantity: rises(tokens, values, 0.5) for quantity, values in history.items()}
    assert max(half, key=half.get) == "prefix matching"


def test_k_composition_grows_and_the_others_stay():
    records = development("attn-only-2l")
    top = {k: torch.tensor([r[k] for r in records]).flatten(1).amax(1) for k in "QKV"}
    assert all(abs(top[kind][0] - 256**-0.5) < 0.01 for kind in "QKV")
    assert top["K"][-1] > 1.3 * max(top["Q"].max(), top["V"].max())
    assert top["K"].argmax() > len(records) - 6


def test_the_stripe_of_the_slider_appears_between_its_moments():
    tokenizer = load_tokenizer()
    again = tokenizer.encode(2 * " Maren Holt lit the lamp.")[None]
    period = (again.shape[1] - 1) // 2

    def scores(step):
        values = cache(load_snapshot("attn-only-2l", step), again)
        prefix = prefix_matching_score(values["L1.pattern"][0, 6:8], period)
        return prefix.max(), previous_token_score(values["L0.pattern"][0, 6])

    before, after = scores(657), scores(6000)
    assert before[0] < 0.2 and after[0] > 0.6
    assert before[1] < 0.7 and after[1] > 0.95


@pytest.mark.skipif("two_normed" not in KINDS, reason="no LayerNorm model ships")
def test_with_layernorm_it_comes_later():
    tokens, prefix = curve(KINDS["two_normed"][0].log, QUANTITIES["best prefix-matching score"])
    begins = rises(tokens.tolist(), prefix.tolist(), 0.1)
    assert begins > 2 * 3.4e6 and prefix[-1] > 0.3


def test_what_rounding_costs_is_what_the_chapter_prints():
    file = resources.files("pathsum") / "data/snapshots/index.json"
    entries = json.loads(file.read_text())["attn-only-2l"].values()
    assert max(e["heldout_loss"] - e["heldout_loss_fp16"] for e in entries) < 0.0025


def test_the_small_model_of_the_ablations_learns_induction():
    log = ablations.records("baseline")
    tokens, prefix = curve(log, QUANTITIES["best prefix-matching score"])
    assert prefix[-1] > 0.5 and prefix[tokens < 0.3e6].max() < 0.1
    assert float(curve(log, QUANTITIES["second copy less first (nats)"])[1][-1]) < -3


def test_without_muon_no_head_finds_the_previous_token_and_half_the_amplitude_hardly_matters():
    prefix, previous = {}, {}
    for name in ("baseline", "adamw", "adamw-slow", "amplitude-1"):
        log = ablations.records(name)
        prefix[name] = curve(log, QUANTITIES["best prefix-matching score"])[1]
        previous[name] = curve(log, QUANTITIES["best previous-token score, L0"])[1]
    for name in ("adamw", "adamw-slow"):
        assert previous[name].max() < 0.15 and prefix[name].max() < 0.05
    first = {name: int((prefix[name] >= 0.1).nonzero()[0]) for name in ("baseline", "amplitude-1")}
    assert first["amplitude-1"] == first["baseline"]
    assert 0.7 < previous["amplitude-1"][-1] / previous["baseline"][-1] < 0.9


def test_one_layer_with_smeared_keys_learns_induction():
    log = ablations.records("smeared")
    prefix = curve(log, QUANTITIES["best prefix-matching score"])[1]
    first = [int((score >= 0.1).nonzero()[0]) for score in (prefix, _small_prefix("baseline"))]
    assert prefix[-1] > 0.5 and first[0] == first[1]
    assert len(log[-1]["prefix_matching"]) == 1
    assert _small_prefix("one-layer").max() < 0.05, "and with plain keys it does not"
    assert float(curve(log, QUANTITIES["second copy less first (nats)"])[1][-1]) < -3


def _small_prefix(name: str):
    return curve(ablations.records(name), QUANTITIES["best prefix-matching score"])[1]


def test_with_a_third_of_the_repeats_induction_has_hardly_begun_at_the_end():
    assert 0.03 < _small_prefix("repeats-third").max() < 0.1
    log = ablations.records("repeats-third")
    assert curve(log, QUANTITIES["best previous-token score, L0"])[1][-1] > 0.4
