"""Several processes, accumulated pieces and precisions: the same run, computed otherwise."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from pathsum.engine import ON_CPU, Engine, RunError, start_engine, usable_device, usable_precision
from pathsum.model import AttentionOnlyTransformer
from pathsum.runs import Run, log_lines
from test_runs import TINY, made_up_data, trained, without_clock

CPU = torch.device("cpu")
STEPS, BATCH = 24, 4
# What each of two processes does: train the tiny model, and die at a step if told to.
SCRIPT = """
import json, os, signal, sys
from pathlib import Path
from pathsum.dataset import TokenData
from pathsum.engine import RunError, start_engine
from pathsum.presets import TrainConfig
from pathsum.runs import Run
import numpy as np

folder, settings, data, dies, resume = sys.argv[1:]
train, heldout = (np.load(data)[part] for part in ("train", "heldout"))
engine = start_engine("cpu")
config = TrainConfig.from_dict(json.loads(settings))
run = Run(Path(folder), config, TokenData(train, heldout, "made up 0", {}), engine)
step = run._one_step

def watched():
    if engine.rank == 1 and run.step == int(dies):
        os.kill(os.getpid(), signal.SIGKILL)
    with open(f"{folder}-seen-by-{engine.rank}", "a") as file:
        for piece in engine.pieces(list(range(config.batch))):
            file.write(" ".join(map(str, piece)) + "\\n")
    return step()

run._one_step = watched
try:
    run.start(resume == "resume")
    run.train(progress=False)
except RunError as error:
    sys.exit(f"pathsum.train: {error}")
"""


def assert_same_end(weights, model):
    """Weights lie within half a percent of the way that training moved those of the model.

    Sums in another order differ in the last bits, and AdamW divides small gradients by themselves.
    """
    started = dict(AttentionOnlyTransformer(model.config, seed=TINY.seed).named_parameters())
    for name, expected in model.named_parameters():
        way = (expected - started[name]).norm()
        assert way > 0.1 and (weights[name] - expected).norm() < 5e-3 * way, name


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory):
    """Runs the tiny model on two gloo processes under `accelerate launch`; the finished command."""
    place = tmp_path_factory.mktemp("two")
    data = made_up_data()
    np.savez(place / "data.npz", train=data.train, heldout=data.heldout)
    (place / "script.py").write_text(SCRIPT)
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu"]
    launch += ["--num_processes", "2", "--num_machines", "1", "--main_process_port", "0"]
    launch += ["--mixed_precision", "no", "--dynamo_backend", "no"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}

    def run(folder, dies=-1, resume=False):
        arguments = [folder, json.dumps(TINY.to_dict()), place / "data.npz", dies]
        command = [*launch, place / "script.py", *arguments, "resume" if resume else "start"]
        return subprocess.run(
            list(map(str, command)), capture_output=True, text=True, check=False, env=environment
        )

    return run


@pytest.fixture(scope="module")
def whole(two_processes, tmp_path_factory):
    """The folder of a run of two processes from the first step to the last."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    done = two_processes(folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
def test_two_processes_train_like_one_with_the_same_batch(whole, tmp_path):
    one = trained(tmp_path / "run")
    curves = [log_lines(folder) for folder in (tmp_path / "run", whole)]
    for key in ("train_loss", "heldout_loss"):
        alone, together = ([line[key] for line in lines if line[key]] for lines in curves)
        assert together == pytest.approx(alone, abs=1e-5), key
    weights = load_file(whole / "last.safetensors")
    assert_same_end({n: weights[f"model.{n}"] for n, _ in one.model.named_parameters()}, one.model)


@pytest.mark.slow
def test_each_process_reads_its_own_part_and_the_first_alone_writes(whole):
    seen = [(whole.parent / f"run-seen-by-{rank}").read_text().splitlines() for rank in (0, 1)]
    assert seen == [["0 1"] * STEPS, ["2 3"] * STEPS]
    about = json.loads((whole / "run.json").read_text())
    assert (about["processes"], about["accumulate"], about["precision"]) == (2, 1, "fp32")
    steps = [line["step"] for line in log_lines(whole)]
    assert steps == sorted(set(steps)) and not list(whole.glob("**/*.tmp"))


@pytest.mark.slow
def test_a_killed_process_ends_the_run_with_advice_and_the_run_resumes(
    whole, two_processes, tmp_path
):
    done = two_processes(tmp_path / "run", dies=15)
    assert done.returncode != 0
    assert "pathsum.train: " in done.stderr and "--resume to go on" in done.stderr
    assert log_lines(tmp_path / "run")[-1]["step"] < STEPS
    done = two_processes(tmp_path / "run", resume=True)
    assert done.returncode == 0, done.stderr
    assert without_clock(log_lines(tmp_path / "run")) == without_clock(log_lines(whole))
    got, expected = (load_file(f / "last.safetensors") for f in (tmp_path / "run", whole))
    assert all(torch.equal(got[name], expected[name]) for name in expected)


@pytest.mark.parametrize("accumulate", [2, 4])
def test_accumulated_pieces_train_like_the_whole_batch(accumulate, tmp_path):
    engine = replace(ON_CPU, accumulate=accumulate)
    runs = [Run(tmp_path / str(e.accumulate), TINY, made_up_data(), e) for e in (ON_CPU, engine)]
    losses = [[run._one_step() for _ in range(STEPS)] for run in runs]
    assert losses[1] == pytest.approx(losses[0], abs=1e-5)
    assert_same_end(dict(runs[1].model.named_parameters()), runs[0].model)


@pytest.mark.parametrize(("processes", "accumulate"), [(1, 1), (3, 1), (2, 3), (6, 2)])
def test_every_sequence_of_a_batch_comes_to_exactly_one_process(processes, accumulate):
    batch, seen = list(range(100, 112)), []
    for rank in range(processes):
        fellow = SimpleNamespace(num_processes=processes, process_index=rank)
        pieces = Engine(CPU, accumulate=accumulate, accelerator=fellow).pieces(batch)
        assert len(pieces) == accumulate and len({len(piece) for piece in pieces}) == 1
        seen += [number for piece in pieces for number in piece]
    assert seen == batch


def test_a_batch_that_cannot_be_split_is_refused_before_the_run_begins(tmp_path):
    with pytest.raises(RunError, match=r"batch of 4 .* 3 pieces \(1 processes x 3 accumulated\)"):
        Run(tmp_path, TINY, made_up_data(), replace(ON_CPU, accumulate=3))


def test_bfloat16_products_train_nearly_as_well(tmp_path):
    runs = [
        Run(tmp_path / p, TINY, made_up_data(), replace(ON_CPU, precision=p))
        for p in ("fp32", "bf16")
    ]
    losses = [[run._one_step() for _ in range(STEPS)] for run in runs]
    assert losses[1] != losses[0]
    assert losses[1] == pytest.approx(losses[0], abs=0.05)
    assert runs[1].model.W_Q.dtype == torch.float32


@pytest.mark.parametrize("name", ["gpu", "cuda:many", "xpu"])
def test_a_name_that_is_no_device_is_answered_with_those_that_are(name):
    with pytest.raises(RunError, match=f"auto, cpu, cuda, cuda:NUMBER or mps, got '{name}'"):
        usable_device(name)


def test_a_device_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(RunError, match=r"no device 'cuda' here: torch .* sees cpu"):
        usable_device("cuda")
    assert usable_device("auto") == CPU
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(RunError, match=r"no device 'cuda:2' here: .*2 CUDA devices"):
        usable_device("cuda:2")
    assert usable_device("auto") == torch.device("cuda")
    assert usable_device("cuda:1").index == 1


def test_the_precision_is_the_launchers_unless_one_is_named(monkeypatch):
    cuda = torch.device("cuda")
    assert [usable_precision("auto", d) for d in (CPU, cuda)] == ["fp32", "bf16"]
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    assert usable_precision("auto", CPU) == "bf16"
    assert usable_precision("fp32", cuda) == "fp32"
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "fp16")
    with pytest.raises(RunError, match="precision is fp32 or bf16, got 'fp16'"):
        usable_precision("auto", cuda)


def test_several_processes_without_accelerate_are_told_how_to_get_it(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(RunError, match="--device is auto or cpu, got 'cuda:1'"):
        start_engine("cuda:1")
    monkeypatch.setitem(sys.modules, "accelerate", None)
    with pytest.raises(RunError, match=r'pip install "pathsum\[accelerate\]"'):
        start_engine()


def test_pieces_are_counted_from_one():
    with pytest.raises(RunError, match="1 or more pieces, got 0"):
        start_engine(accumulate=0)
