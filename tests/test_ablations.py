"""The ablation runs: each changes what it says and nothing else; their records are whole."""

import json

import numpy as np
import pytest
import torch

from pathsum import ablations
from pathsum.ablations import ABLATIONS, SMALL, recorded, records, small_tokenizer, with_repeats
from pathsum.dataset import TokenData
from pathsum.presets import learning_rate_factor, record_steps
from pathsum.runs import Run, RunError
from pathsum.tokenizer import load_tokenizer


def test_the_small_tokenizer_is_the_first_part_of_the_shipped_one():
    small, shipped = small_tokenizer(), load_tokenizer()
    assert small.d_vocab == SMALL.model.d_vocab < shipped.d_vocab
    assert small.token_bytes == shipped.token_bytes[: small.d_vocab]
    text = "def naïve(x):\n    return 'the Swiss clockmakers of 1848'\n"
    assert small.decode(small.encode(text)) == text
    assert len(small.encode(text)) > len(shipped.encode(text))


def test_about_the_share_of_sequences_repeats_with_lengths_that_differ():
    text = np.arange(1, 50_000, dtype=np.uint16)
    blocks = with_repeats(text, 64, 400, 0.5).reshape(400, 64).astype(int)
    plain = (np.diff(blocks, axis=1) == 1).all(1)
    assert 0.4 < plain.mean() < 0.6
    lengths = [int((row == row[0]).nonzero()[0][1]) for row in blocks[~plain]]
    assert min(lengths) >= 8 and max(lengths) <= 32 and len(set(lengths)) > 15
    for row, length in zip(blocks[~plain], lengths):
        assert (row == np.resize(row[:length], 64)).all()


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_all_or_none_repeat(share):
    text = np.arange(1, 3000, dtype=np.uint16)
    blocks = with_repeats(text, 16, 50, share).reshape(50, 16)
    assert [len(set(row)) < 16 for row in blocks] == [share == 1.0] * 50


def test_the_same_seed_gives_the_same_text():
    text = np.arange(1, 3000, dtype=np.uint16)
    assert (with_repeats(text, 16, 50, 0.5) == with_repeats(text, 16, 50, 0.5)).all()


@pytest.mark.parametrize("name", ABLATIONS)
def test_an_ablation_changes_one_thing(name):
    ablation, changed = ABLATIONS[name], ABLATIONS[name].change(SMALL)
    differing = {k for k, v in changed.to_dict().items() if v != SMALL.to_dict()[k]}
    model = {k for k in vars(SMALL.model) if getattr(changed.model, k) != getattr(SMALL.model, k)}
    others = (ablation.repeated != ablations.REPEATED) + (ablation.attention_adam_lr is not None)
    one_thing = [set(), {"n_layers"}, {"position_amplitude"}, {"n_heads", "d_head"}]
    assert model in [*one_thing, {"n_layers", "smear"}]
    assert differing <= {"model"} and bool(model) + others == (name != "baseline")
    width = changed.model.n_heads * changed.model.d_head
    assert width == changed.model.d_model, "heads take more or less of the width"


def test_the_rate_does_not_fall():
    assert {learning_rate_factor(step, SMALL) for step in (50, 200, SMALL.steps - 1)} == {1.0}


def test_with_adam_every_matrix_has_one_optimiser_and_its_rate(tmp_path):
    data = TokenData(np.ones(4096, np.uint16), np.ones(1024, np.uint16), "x", {})
    run = ablations.with_adam(Run(tmp_path, SMALL, data), 0.001)
    (adam,) = run.optimizers
    assert isinstance(adam, torch.optim.AdamW)
    rates = {p: group["lr"] for group in adam.param_groups for p in group["params"]}
    assert len(rates) == sum(len(g["params"]) for g in adam.param_groups) == 6
    for name, parameter in run.model.named_parameters():
        assert rates[parameter] == (
            0.001 if name in ("W_Q", "W_K", "W_V", "W_O") else SMALL.adam_lr
        )
    assert run.full_rates == [[SMALL.adam_lr, 0.001]]


@pytest.mark.parametrize("name", recorded())
def test_shipped_records_are_those_of_a_whole_run(name):
    config, lines = ABLATIONS[name].change(SMALL), records(name)
    assert [line["step"] for line in lines] == record_steps(config)
    tokens = config.batch * config.model.n_ctx
    assert [line["tokens"] for line in lines] == [tokens * line["step"] for line in lines]
    assert len(lines[-1]["prefix_matching"]) == config.model.n_layers
    assert lines[0]["heldout_loss"] == pytest.approx(np.log(1024), abs=0.1)


def test_a_run_that_is_not_finished_is_not_exported(tmp_path, monkeypatch):
    monkeypatch.setattr(ablations, "RECORDS", tmp_path / "records")
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "log.jsonl").write_text(json.dumps({"step": 5, "loss": 1.23456789}) + "\n")
    with pytest.raises(RunError, match=f"has not reached step {SMALL.steps}"):
        ablations.export(folder, "baseline")
    line = {"step": SMALL.steps, "loss": 1.23456789}
    (folder / "log.jsonl").write_text(json.dumps(line) + "\n")
    ablations.export(folder, "baseline")
    assert ablations.recorded() == ["baseline"]
    assert records("baseline") == [{"step": SMALL.steps, "loss": 1.23457}]
