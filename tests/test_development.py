"""Weights over training: the shipped numbers against shipped snapshots, and the finding of moments."""

import json

import pytest
import torch

from pathsum import development
from pathsum.checkpoints import CheckpointError, model_names, training_log
from pathsum.development import measured_names, rises, weight_record
from pathsum.model import AttentionOnlyTransformer, Config
from pathsum.snapshots import STEPS, load_snapshot


@pytest.mark.parametrize("step", STEPS["attn-only-2l"][1::3])
def test_the_shipped_numbers_are_those_of_the_shipped_snapshots(step):
    (recorded,) = [r for r in development.development("attn-only-2l") if r["step"] == step]
    found = weight_record(load_snapshot("attn-only-2l", step))
    assert set(found) == {"Q", "K", "V", "matching"}
    for key, allowed in {"Q": 0.002, "K": 0.002, "V": 0.002, "matching": 0.05}.items():
        off = torch.tensor(found[key]) - torch.tensor(recorded[key])
        assert off.abs().max() < allowed, (key, float(off.abs().max()))


@pytest.mark.parametrize("name", measured_names())
def test_every_record_of_the_log_has_its_weights(name):
    assert name in model_names()
    log = [(record["step"], record["tokens"]) for record in training_log(name)]
    assert [(r["step"], r["tokens"]) for r in development.development(name)] == log


def test_what_was_not_measured_is_refused_with_the_command():
    with pytest.raises(
        CheckpointError, match="python -m pathsum.development measure RUN attn-only-1l"
    ):
        development.development("attn-only-1l")


def test_a_run_without_two_plain_layers_is_refused(tmp_path):
    config = {"model": Config(n_layers=1).to_dict(), "batch": 16}
    (tmp_path / "run.json").write_text(json.dumps({"config": config}))
    with pytest.raises(
        CheckpointError, match="1 layers, norm=None: composition is measured between"
    ):
        development.measure(tmp_path)


def test_random_weights_match_nothing():
    config = Config(n_layers=2, n_heads=3, d_model=24, d_head=5, d_vocab=50, n_ctx=7)
    record = weight_record(AttentionOnlyTransformer(config))
    matching = torch.tensor(record["matching"])
    assert matching.shape == (3, 3) and matching.abs().max() < 0.8
    assert abs(float(torch.tensor(record["K"]).mean()) - 24**-0.5) < 0.08


def test_a_rise_lies_between_the_records_around_it():
    tokens, score = [0, 10, 20, 30, 40], [0.0, 0.0, 0.2, 0.8, 1.0]
    assert rises(tokens, score, 0.5) == pytest.approx(25)
    assert rises(tokens, score, 0.1) == pytest.approx(15)
    assert rises(tokens, [2 * x for x in score], 0.5) == pytest.approx(25)


def test_a_rise_that_was_lost_again_does_not_count():
    assert rises([0, 10, 20, 30], [0.0, 0.9, 0.1, 1.0], 0.5) == pytest.approx(20 + 10 * 0.4 / 0.9)
    assert rises([5, 10], [0.9, 1.0], 0.5) == 5, "from the first record on"


def test_a_score_that_does_not_end_above_zero_has_no_rise():
    with pytest.raises(ValueError, match="must end above 0, got -0.5"):
        rises([0, 1], [0.0, -0.5], 0.5)
