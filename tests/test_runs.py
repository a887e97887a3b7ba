"""Training: it learns, it resumes exactly, it refuses to overwrite, and it measures honestly."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch.testing import assert_close

from pathsum import train
from pathsum.dataset import TokenData
from pathsum.model import AttentionOnlyTransformer, Config
from pathsum.muon import Muon
from pathsum.presets import (
    PRESETS,
    TrainConfig,
    batch_indices,
    learning_rate_factor,
    record_steps,
)
from pathsum.runs import Run, RunError, log_lines, optimizers
from pathsum.tokenizer import load_tokenizer

TINY = TrainConfig(
    model=Config(n_layers=2, n_heads=3, d_model=12, d_head=5, d_vocab=17, n_ctx=16),
    data="made up",
    steps=24,
    batch=4,
    warmup=2,
    records=5,
    heldout_blocks=3,
    save_every=10,
)


def made_up_data(seed=0):
    """A cycle of tokens with some noise: easy to learn, not by luck."""
    random = np.random.default_rng(seed)
    ids = 1 + np.arange(6000) % 7
    ids = np.where(random.random(6000) < 0.1, random.integers(1, 17, 6000), ids)
    ids = ids.astype(np.uint16)
    return TokenData(ids[:5000], ids[5000:], f"made up {seed}", {})


def trained(folder, config=TINY, resume=False):
    run = Run(folder, config, made_up_data())
    run.start(resume)
    run.train(progress=False)
    return run


def without_clock(lines):
    return [{k: v for k, v in line.items() if k != "seconds"} for line in lines]


def test_training_reduces_the_held_out_loss(tmp_path):
    trained(tmp_path / "run", replace(TINY, steps=60))
    losses = [line["heldout_loss"] for line in log_lines(tmp_path / "run")]
    assert losses[0] == pytest.approx(np.log(17), abs=0.1)
    assert losses[-1] < losses[0] - 0.5


def test_the_folder_holds_settings_log_snapshots_and_checkpoint(tmp_path):
    run = trained(tmp_path / "run")
    about = json.loads((tmp_path / "run" / "run.json").read_text())
    assert about["config"] == TINY.to_dict()
    assert about["corpus_fingerprint"] == "made up 0"
    assert {"torch", "device", "threads", "commit"} <= set(about)
    lines = log_lines(tmp_path / "run")
    assert [line["step"] for line in lines] == record_steps(TINY)
    assert [line["tokens"] for line in lines] == [64 * step for step in record_steps(TINY)]
    last = lines[-1]
    assert len(last["loss_by_position"]) == 16
    assert np.array(last["prefix_matching"]).shape == (2, 3) == np.array(last["copying"]).shape
    snapshot = load_file(tmp_path / "run" / "snapshots" / "step-000024.safetensors")
    assert_close(snapshot["W_Q"], run.model.W_Q.detach().half())
    assert not list((tmp_path / "run").glob("**/*.tmp"))


def test_a_resumed_run_equals_an_unbroken_one_to_the_bit(tmp_path):
    whole = trained(tmp_path / "whole")
    broken = Run(tmp_path / "broken", TINY, made_up_data())
    broken.start(resume=False)
    original, calls = broken._one_step, iter(range(15))

    def stop_after_fifteen():
        if next(calls, None) is None:
            raise KeyboardInterrupt
        return original()

    broken._one_step = stop_after_fifteen
    with pytest.raises(KeyboardInterrupt):
        broken.train(progress=False)
    with open(tmp_path / "broken" / "log.jsonl", "a") as log:
        log.write('{"step": 15, "half a li')  # what a kill in the middle of a write leaves
    resumed = trained(tmp_path / "broken", resume=True)
    for name, parameter in whole.model.named_parameters():
        assert torch.equal(parameter, dict(resumed.model.named_parameters())[name]), name
    expected = without_clock(log_lines(tmp_path / "whole"))
    assert without_clock(log_lines(tmp_path / "broken")) == expected


@pytest.mark.slow
def test_a_run_killed_by_the_system_resumes_to_the_same_numbers(tmp_path):
    def command(out, *more):
        sizes = ["--steps", "30", "--save-every", "5", "--batch", "2"]
        return [sys.executable, "-m", "pathsum.train", "quick", "--out", str(out), *sizes, *more]

    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    subprocess.run(command(tmp_path / "whole"), check=True, **quiet)
    process = subprocess.Popen(command(tmp_path / "killed"), **quiet)
    deadline = time.time() + 120
    while not (tmp_path / "killed" / "last.safetensors").exists():
        assert time.time() < deadline and process.poll() is None
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    before = log_lines(tmp_path / "killed")
    subprocess.run(command(tmp_path / "killed", "--resume"), check=True, **quiet)
    assert before[-1]["step"] < 30, "the run was over before it could be killed"
    expected = without_clock(log_lines(tmp_path / "whole"))
    assert without_clock(log_lines(tmp_path / "killed")) == expected


def test_a_folder_with_a_run_is_not_overwritten(tmp_path):
    trained(tmp_path / "run")
    with pytest.raises(RunError, match="--resume"):
        Run(tmp_path / "run", TINY, made_up_data()).start(resume=False)


@pytest.mark.parametrize(
    ("config", "seed", "what"), [(replace(TINY, batch=5), 0, "config"), (TINY, 1, "fingerprint")]
)
def test_resuming_with_other_settings_or_data_is_refused(tmp_path, config, seed, what):
    trained(tmp_path / "run")
    with pytest.raises(RunError, match=f"another .*{what}"):
        Run(tmp_path / "run", config, made_up_data(seed)).start(resume=True)


def test_a_run_of_before_a_setting_existed_resumes_with_the_settings_default(tmp_path):
    trained(tmp_path / "run", replace(TINY, steps=12))
    about = json.loads((tmp_path / "run" / "run.json").read_text())
    del about["config"]["rounded_loss"], about["config"]["model"]["norm"]
    (tmp_path / "run" / "run.json").write_text(json.dumps(about))
    assert trained(tmp_path / "run", replace(TINY, steps=12), resume=True).step == 12
    about["config"]["colour"] = "red"
    (tmp_path / "run" / "run.json").write_text(json.dumps(about))
    with pytest.raises(RunError, match="another config"):
        trained(tmp_path / "run", replace(TINY, steps=12), resume=True)


def test_a_run_stopped_before_its_first_checkpoint_is_measured_once_more_from_the_start(tmp_path):
    config = replace(TINY, steps=8, save_every=100)
    run = Run(tmp_path / "run", config, made_up_data())
    run.start(resume=False)
    run.record()
    run._one_step()
    run.record()  # at step 1; then the process is killed
    trained(tmp_path / "run", config, resume=True)
    assert [line["step"] for line in log_lines(tmp_path / "run")] == record_steps(config)


def test_too_little_text_says_how_much_is_needed(tmp_path):
    data = made_up_data()
    with pytest.raises(RunError, match="has 3 training and 62 held-out.*at least 4 and 1"):
        Run(tmp_path / "run", TINY, replace(data, train=data.train[:50]))


def test_a_loss_that_is_no_number_stops_the_run(tmp_path):
    run = Run(tmp_path / "run", TINY, made_up_data())
    run.start(resume=False)
    with torch.no_grad():
        run.model.W_U.fill_(float("nan"))
    with pytest.raises(RunError, match="nan at step 0.*lower learning rate"):
        run._one_step()


def test_no_block_comes_twice_in_an_epoch_and_epochs_differ():
    config = replace(TINY, batch=4)
    epoch = [i for step in range(5) for i in batch_indices(step, 20, config)]
    again = [i for step in range(5, 10) for i in batch_indices(step, 20, config)]
    assert sorted(epoch) == sorted(again) == list(range(20))
    assert epoch != again
    assert epoch != [i for s in range(5) for i in batch_indices(s, 20, replace(config, seed=1))]


def test_a_batch_may_span_two_epochs():
    indices = batch_indices(1, 6, replace(TINY, batch=4))
    first = batch_indices(0, 6, replace(TINY, batch=4))
    assert sorted(first + indices[:2]) == list(range(6))
    assert all(0 <= i < 6 for i in indices)


def test_the_rate_rises_stays_and_falls():
    config = replace(TINY, steps=100, warmup=10, decay=0.4, final_lr=0.02)
    factors = [learning_rate_factor(step, config) for step in range(100)]
    assert factors[0] == pytest.approx(0.1)
    assert factors[10] == factors[55] == 1.0
    assert factors[60:] == sorted(factors[60:], reverse=True)
    assert factors[80] == pytest.approx(0.02 + 0.98 * 0.5)
    assert factors[99] < 0.05


def test_every_parameter_has_exactly_one_optimizer():
    for config in (TINY, PRESETS["book"], replace(TINY, model=Config(0, 3, 12, 5, 17, 16))):
        model = AttentionOnlyTransformer(replace(config.model, norm="pre"))
        owned = [p for o in optimizers(model, config) for g in o.param_groups for p in g["params"]]
        assert len(owned) == len({id(p) for p in owned})
        assert {id(p) for p in owned} == {id(p) for p in model.parameters() if p.numel()}
    muon, _ = optimizers(AttentionOnlyTransformer(TINY.model), TINY)
    assert isinstance(muon, Muon)
    assert sum(len(group["params"]) for group in muon.param_groups) == 4


@pytest.mark.slow
def test_the_quick_preset_learns_the_shipped_sample(tmp_path):
    command = [sys.executable, "-m", "pathsum.train", "quick", "--out", str(tmp_path / "run")]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    lines = log_lines(tmp_path / "run")
    assert lines[-1]["heldout_loss"] < 5.0, done.stdout
    assert lines[-1]["tokens"] == 800 * 16 * 128


@pytest.mark.slow
def test_the_paper_preset_takes_a_step_at_a_reduced_batch(tmp_path):
    config = replace(PRESETS["paper"], batch=1, heldout_blocks=1)
    random = np.random.default_rng(0)
    ids = random.integers(1, config.model.d_vocab, 3 * 2048).astype(np.uint16)
    run = Run(tmp_path, config, TokenData(ids[:4096], ids[4096:], "random ids", {}))
    before = run.model.W_Q.detach().clone()
    assert run._one_step() == pytest.approx(np.log(config.model.d_vocab), abs=0.5)
    assert run.model.W_Q.shape == (2, 12, 768, 64)
    assert (run.model.W_Q - before).abs().max() > 0


def test_the_command_says_what_is_wrong_in_one_line(tmp_path):
    (tmp_path / "run.json").write_text("{}")
    command = [sys.executable, "-m", "pathsum.train", "quick", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.strip().splitlines()[-1].startswith("pathsum.train: ")
    assert "--resume" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (["--layers", "101"], "n_layers must be 0 to 100, got 101"),
        (["--steps", "0"], "steps must be 1 or more, got 0"),
        (["--batch", "-3"], "batch must be 1 or more, got -3"),
        (["--muon-lr", "-1"], "muon_lr must lie between 0 and 10, got -1.0"),
        (["--adam-lr", "nan"], "adam_lr must lie between 0 and 10, got nan"),
        (["--device", "abacus"], "a device is auto, cpu, cuda, cuda:NUMBER or mps"),
        (["--precision", "fp8"], "precision is fp32 or bf16, got 'fp8'"),
        (["--accumulate", "0"], "--accumulate must be 1 or more pieces, got 0"),
        (["--accumulate", "3"], "a batch of 16 sequences can't be split evenly into 3 pieces"),
        (["--data", "nothing-like-it"], "No corpus is called 'nothing-like-it'"),
        (["--tokenizer", "nowhere.json"], "nowhere.json"),
    ],
)
def test_wrong_arguments_are_answered_in_one_line(tmp_path, arguments, answer):
    with pytest.raises(SystemExit) as stopped:
        train.main(["quick", "--out", str(tmp_path / "run"), *arguments])
    assert str(stopped.value).startswith("pathsum.train: ") and answer in str(stopped.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (KeyboardInterrupt(), "--resume goes on"),
        (torch.OutOfMemoryError("CUDA out of memory"), "--accumulate 4"),
    ],
)
def test_a_run_that_is_stopped_says_how_to_go_on(tmp_path, monkeypatch, error, advice):
    def stop(run):
        raise error

    monkeypatch.setattr(Run, "_one_step", stop)
    with pytest.raises(SystemExit, match=advice):
        train.main(["quick", "--out", str(tmp_path / "run"), "--accumulate", "2"])


def test_a_tokenizer_of_another_size_is_refused_with_the_command_that_makes_one(tmp_path):
    command = [sys.executable, "-m", "pathsum.train", "paper", "--out", str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and not (tmp_path / "run").exists()
    assert "d_vocab=50,257 and the tokenizer 4,096" in done.stderr
    assert "--d-vocab 50257 --out FILE" in done.stderr


def test_text_is_encoded_by_a_tokenizer_of_ones_own(tmp_path):
    from pathsum.dataset import encoded
    from pathsum.tokenizer import save_tokenizer, train_tokenizer

    text = "the quick brown fox jumps over the lazy dog, and the dog sleeps on. " * 400
    (tmp_path / "mine.txt").write_text(text)
    save_tokenizer(train_tokenizer([text], d_vocab=300), tmp_path / "tokenizer.json")
    tokenizer = load_tokenizer(tmp_path / "tokenizer.json")
    name = f"file:{tmp_path / 'mine.txt'}"
    data = encoded(name, tmp_path / "cache", tokenizer)
    assert data.fingerprint != encoded(name, tmp_path / "cache").fingerprint
    assert tokenizer.decode(data.train[:5].tolist()) in text
    assert data.train.max() < 300
