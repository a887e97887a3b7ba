"""Shipped snapshots: whole, close to what they were made from, and part of the run they say."""

import json

import pytest
import torch

from pathsum import snapshots
from pathsum.checkpoints import CheckpointError, load_model, training_log
from pathsum.dataset import heldout_sample
from pathsum.evaluate import repeat_scores, token_losses
from pathsum.snapshots import (
    index,
    load_snapshot,
    packed,
    snapshot_steps,
    snapshot_tokens,
    unpacked,
)

NAMES = sorted(snapshots.STEPS)


@pytest.mark.parametrize("name", NAMES)
def test_the_steps_that_the_exporter_names_ship_between_the_first_and_the_last(name):
    steps = snapshot_steps(name)
    assert steps[1:-1] == list(snapshots.STEPS[name])
    assert steps[0] == 0 and steps[-1] == training_log(name)[-1]["step"]


@pytest.mark.parametrize("name", NAMES)
def test_snapshots_score_on_repeats_what_the_log_of_its_run_says(name):
    log = {record["step"]: record for record in training_log(name)}
    for step in snapshot_steps(name)[:-1:2]:
        found, recorded = repeat_scores(load_snapshot(name, step)), log[step]
        for key in ("prefix_matching", "previous_token"):
            off = torch.tensor(found[key]) - torch.tensor(recorded[key])
            assert off.abs().max() < 0.01, (step, key)
        for key in ("first_copy", "second_copy"):
            assert found[key] == pytest.approx(recorded[key], abs=0.03), (step, key)


def test_the_index_states_what_rounding_costs_and_it_is_little():
    for name, entries in index().items():
        for step, entry in entries.items():
            cost = entry["heldout_loss"] - entry["heldout_loss_fp16"]
            assert abs(cost) < 0.003, (name, step)
            assert 0 < entry["rms_change"] < 0.1, (name, step)


def test_a_snapshot_has_the_loss_that_the_index_states():
    inputs, targets = (part[:: snapshots.SPREAD] for part in heldout_sample())
    losses = token_losses(load_snapshot("attn-only-2l", 1023), inputs, targets)
    stated = index()["attn-only-2l"]["1023"]["heldout_loss"]
    assert float(losses.mean()) == pytest.approx(stated, abs=1e-3)


def test_the_last_step_is_the_shipped_model_itself():
    last = load_snapshot("attn-only-1l", snapshot_steps("attn-only-1l")[-1])
    torch.testing.assert_close(last.W_E, load_model("attn-only-1l").W_E, atol=0, rtol=0)
    card = training_log("attn-only-1l")[-1]
    assert snapshot_tokens("attn-only-1l", card["step"]) == card["tokens"]


def test_packing_rounds_to_a_sixteenth_of_the_root_mean_square():
    generator = torch.Generator().manual_seed(0)
    sizes = {"W_E": 1e-2, "W_U": 3.0, "W_Q": 1.0}
    weights = {
        "W_E": torch.randn(17, 12, generator=generator) * sizes["W_E"],
        "W_U": torch.randn(12, 17, generator=generator) * sizes["W_U"],
        "W_Q": torch.randn(2, 3, 12, 5, generator=generator) * sizes["W_Q"],
    }
    weights["W_E"][3] *= 100  # a row of another size keeps its own scale
    back = unpacked(packed(weights))
    assert set(back) == set(weights)
    for name, weight in weights.items():
        axes = snapshots.SHARED.get(name, (-2, -1))
        scale = weight.square().mean(axes, keepdim=True).sqrt() / snapshots.LEVELS
        assert ((back[name] - weight).abs() <= 0.52 * scale).all(), name
        assert (back[name] - weight).abs().max() > 0.3 * scale.min(), name


def test_weights_that_are_all_zero_stay_so():
    assert torch.equal(
        unpacked(packed({"W_O": torch.zeros(1, 2, 3, 4)}))["W_O"], torch.zeros(1, 2, 3, 4)
    )


def test_an_unknown_step_is_refused_with_those_that_ship():
    with pytest.raises(CheckpointError, match=r"only of \[0, 174, .*take one of these"):
        load_snapshot("attn-only-2l", 100)
    with pytest.raises(CheckpointError, match="did you mean"):
        load_snapshot("attn-only-2", 0)


def test_a_changed_file_is_refused(tmp_path, monkeypatch):
    known = index()["attn-only-1l"]["882"]
    (tmp_path / "attn-only-1l").mkdir()
    content = bytearray((snapshots.SNAPSHOTS / known["file"]).read_bytes())
    content[1000] ^= 1
    (tmp_path / known["file"]).write_bytes(content)
    (tmp_path / "index.json").write_text(json.dumps({"attn-only-1l": {"882": known}}))
    monkeypatch.setattr(snapshots, "SNAPSHOTS", tmp_path)
    with pytest.raises(CheckpointError, match="changed or cut short"):
        load_snapshot("attn-only-1l", 882)


def test_all_that_ships_stays_within_its_budget():
    total = sum(p.stat().st_size for p in snapshots.SNAPSHOTS.rglob("*") if p.is_file())
    assert total < 20_000_000
