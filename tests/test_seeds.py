"""Checkpoints by kind and seed: the shipped ones, and runs of one's own."""

import json

import pytest
import torch
from safetensors.torch import save_file

from pathsum.checkpoints import CheckpointError, load_model
from pathsum.model import AttentionOnlyTransformer, Config
from pathsum.seeds import Checkpoint, by_kind, checkpoint

TOY = Config(n_layers=1, n_heads=3, d_model=12, d_head=5, d_vocab=17, n_ctx=7)


@pytest.fixture
def run(tmp_path):
    """The folder of a run with seed 3, as the trainer leaves it."""
    about = {"config": {"model": TOY.to_dict(), "seed": 3}}
    (tmp_path / "run.json").write_text(json.dumps(about))
    (tmp_path / "log.jsonl").write_text('{"step": 0}\n{"step": 5}\n')
    (tmp_path / "snapshots").mkdir()
    weights = dict(AttentionOnlyTransformer(TOY, seed=3).named_parameters())
    save_file(weights, tmp_path / "snapshots" / "step-000005.safetensors")
    return tmp_path


def test_the_shipped_models_are_found_by_depth():
    found = by_kind()
    for kind, layers in (("zero", 0), ("one", 1), ("two", 2)):
        first = found[kind][0]
        assert first.source == f"attn-only-{layers}l" and next(iter(found[kind])) == 0
        assert first.config.n_layers == layers and first.kind == kind


def test_what_is_special_stands_in_the_kind():
    kinds = [
        Checkpoint("", Config(n_layers=2, norm="pre"), 0).kind,
        Checkpoint("", Config(n_layers=1, smear=True), 0).kind,
        Checkpoint("", Config(n_layers=3), 0).kind,
    ]
    assert kinds == ["two_normed", "one_smeared", "three"]


def test_a_shipped_checkpoint_is_kept_with_its_model_and_record():
    one = checkpoint("attn-only-0l")
    assert checkpoint("attn-only-0l").model is one.model
    torch.testing.assert_close(one.model.W_E, load_model("attn-only-0l").W_E)
    assert one.log[0]["step"] == 0


def test_a_run_has_the_seed_that_it_was_started_with(run):
    found = by_kind([str(run), "attn-only-1l"])
    assert list(found) == ["one"] and list(found["one"]) == [0, 3]
    own = found["one"][3]
    expected = AttentionOnlyTransformer(TOY, seed=3)
    torch.testing.assert_close(own.model.W_Q, expected.W_Q.detach())
    assert [record["step"] for record in own.log] == [0, 5]


def test_one_seed_of_a_kind_cannot_stand_twice(run):
    with pytest.raises(ValueError, match="both of kind 'one' and seed 3: name one of them"):
        by_kind([str(run), str(run)])


def test_what_is_neither_a_model_nor_a_run_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="did you mean 'attn-only-2l'"):
        by_kind(["attn-only-22l"])
    with pytest.raises(CheckpointError, match="no model is called"):
        by_kind([str(tmp_path)])
