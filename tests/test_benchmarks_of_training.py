"""The benchmark scripts of training run from end to end, on tiny models."""

import importlib.util
import json
import os
import subprocess
import sys
import time

import numpy as np
import pytest
import torch


def script(root, name, *arguments):
    command = [sys.executable, str(root / "benchmarks" / name), *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


@pytest.mark.slow
def test_ours_and_the_plain_loop_train_the_same_model(root, tmp_path):
    out = tmp_path / "results" / "training.json"
    arguments = [
        "--quick",
        "--rounds",
        "2",
        "--steps",
        "3",
        "--ways",
        "ours",
        "plain",
        "--out",
        out,
    ]
    done = script(root, "training.py", *arguments)
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())
    assert found["quick"] and found["rounds"] == 2 and found["steps_per_round"] == 3
    # on some processors not one bit differs
    assert 0 <= found["largest_difference_of_losses"] < 1e-3, "nine steps of the same training"
    assert found["ratios"].keys() == found["ratios_of_processor_time"].keys() == {"ours / plain"}
    assert min(found["tokens_per_second"].values()) > 0
    assert 0 < found["share_of_roofline_of_processor_time"] < 1
    assert [path.name for path in out.parent.iterdir()] == ["training.json"]


def test_a_comparison_with_nothing_is_refused(root, tmp_path):
    done = script(root, "training.py", "--ways", "plain", "--out", tmp_path / "training.json")
    assert done.returncode == 2 and "ours must be among the ways" in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_the_gpu_script_runs_through_all_its_stages_on_a_cpu(root, tmp_path):
    text = tmp_path / "mine.txt"
    text.write_text("the quick brown fox jumps over the lazy dog and sleeps on. " * 800)
    tokens = tmp_path / "tokens.npz"
    done = script(root, "gpu.py", "prepare", tokens, "--data", f"file:{text}", "--d-vocab", "300")
    assert done.returncode == 0, done.stderr
    with np.load(tokens) as file:
        kinds = json.loads(str(file["facts"]))["d_vocab"]
        assert 0 < file["train"].max() < kinds <= 300
    out = tmp_path / "out"
    arguments = ["--device", "cpu", "--quick", "--minutes", "1.5", "--out", out, "--tokens", tokens]
    done = script(root, "gpu.py", "run", *arguments)
    assert done.returncode == 0, done.stderr
    stages = json.loads((out / "gpu.json").read_text())["stages"]
    assert list(stages) == [
        "products", "correctness book", "correctness paper", "speed book", "speed book compiled",
        "speed paper", "speed paper compiled", "paper run",
    ]  # fmt: skip
    assert not [name for name, found in stages.items() if "error" in found or "skipped" in found]
    for name in ("book", "paper"):
        for found in (stages[f"correctness {name}"][p] for p in ("fp32", "bf16")):
            assert found["passed"] and found["allowed"]["logits"] < 0.2
        assert stages[f"correctness {name}"]["bf16"]["largest_logit_difference"] > 0
        assert stages[f"speed {name} compiled"]["tokens_per_second"] > 0
    run = stages["paper run"]
    assert run["steps"] >= 1 and run["best_prefix_matching"]["head"][0] == "L"
    assert (out / "paper" / "log.jsonl").exists() and (out / "paper" / "last.safetensors").exists()
    again = script(root, "gpu.py", "run", *arguments)
    assert again.returncode == 1 and "holds a run already" in again.stderr


@pytest.fixture
def gpu(root):
    """The GPU script as a module."""
    spec = importlib.util.spec_from_file_location("gpu", root / "benchmarks" / "gpu.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        ([], "torch sees none here: run it where there is one"),
        (["--device", "cpu"], "add --quick"),
        (["--device", "xpu", "--quick"], "a device is auto, cpu, cuda"),
        (["--device", "cpu", "--quick", "--tokens", "nowhere.npz"], "nowhere.npz"),
    ],
)
def test_the_gpu_script_refuses_in_one_line(gpu, tmp_path, monkeypatch, arguments, advice):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit) as stopped:
        gpu.main(["run", "--out", str(tmp_path / "out"), *arguments])
    assert str(stopped.value).startswith("gpu: ") and advice in str(stopped.value)
    assert not (tmp_path / "out").exists()


def test_an_error_in_one_stage_is_noted_and_costs_no_other(gpu, tmp_path):
    stages = gpu.Stages(tmp_path / "gpu.json", {"about": 1}, minutes=1)

    def fails(end):
        raise RuntimeError("out of memory")

    stages.run("first", fails, 5)
    stages.run("second", lambda end: {"left": round(end - time.monotonic())}, 5)
    stages.end = time.monotonic()
    stages.run("third", fails, 5)
    found = json.loads((tmp_path / "gpu.json").read_text())["stages"]
    assert found["first"]["error"] == "RuntimeError: out of memory"
    assert found["second"]["left"] == 5 and found["third"]["skipped"] == "no time was left"
