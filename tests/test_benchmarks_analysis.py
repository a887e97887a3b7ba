"""The benchmark runs, its arithmetic is right, and the page says what its results file says."""

import importlib.util
import json
import math
import re
import subprocess
import sys
from pathlib import Path
from statistics import median

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def analysis():
    """The script as a module."""
    place = importlib.util.spec_from_file_location("analysis", ROOT / "benchmarks/analysis.py")
    module = importlib.util.module_from_spec(place)
    before = list(sys.path)
    place.loader.exec_module(module)
    sys.path[:] = before
    return module


@pytest.fixture(scope="module")
def results(analysis) -> dict:
    return json.loads(analysis.RESULTS.read_text(encoding="utf-8"))


class Canned:
    """A worker with seconds and results of its own, in order."""

    given: dict

    def __init__(self, library: str, task: str, size: dict) -> None:
        self.answers = iter(self.given[library])

    def __enter__(self) -> "Canned":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def measure(self, size: dict) -> tuple[dict, torch.Tensor]:
        seconds, memory, value = next(self.answers)
        return {"cpu_s": seconds, "extra_mib": memory}, torch.tensor([0.0, value])


SIDES = [("transformer_lens", "eigenvalues")]


def test_a_ratio_is_the_median_of_the_turns_and_memory_the_most(analysis, monkeypatch):
    Canned.given = {
        "pathsum": [(1.0, 7, 0.5), (2.0, 9, 0.5), (4.0, 8, 0.5)],
        "transformer_lens": [(10.0, 70, 0.5001), (60.0, 90, 0.5), (80.0, 80, 0.5)],
    }
    monkeypatch.setattr(analysis, "Worker", Canned)
    found = analysis.compare("eigenvalues", analysis.TINY, SIDES, 3)
    theirs = found["sides"]["transformer_lens/eigenvalues"]
    assert theirs["ratio"] == 20  # of 10, 30 and 20; the ratio of the medians would be 30
    assert theirs["extra_mib"] == 90 and theirs["cpu_s"] == [10.0, 60.0, 80.0]
    assert theirs["largest_difference"] == pytest.approx(1e-4, rel=1e-2)
    assert found["sides"]["pathsum/eigenvalues"]["ratio"] == 1


@pytest.mark.parametrize("value", [0.502, math.nan])
def test_sides_that_disagree_stop_the_run(analysis, monkeypatch, value):
    Canned.given = {"pathsum": [(1.0, 7, 0.5)], "transformer_lens": [(10.0, 70, value)]}
    monkeypatch.setattr(analysis, "Worker", Canned)
    with pytest.raises(RuntimeError, match="within 0.001, and differs by"):
        analysis.compare("eigenvalues", analysis.TINY, SIDES, 1)


def test_a_side_without_room_in_memory_is_left_out_and_named(analysis, monkeypatch):
    Canned.given = {"pathsum": [(1.0, 7, 0.5)]}
    monkeypatch.setattr(analysis, "Worker", Canned)
    monkeypatch.setattr(analysis, "free_gib", lambda: 2.0)
    found = analysis.compare("eigenvalues", analysis.GPT2, SIDES, 1)
    assert found["left_out"] == ["transformer_lens/eigenvalues"]
    assert list(found["sides"]) == ["pathsum/eigenvalues"]


def test_a_tiny_run_measures_what_the_file_holds(analysis, results):
    parts = ["composition", "table"]
    command = [sys.executable, "benchmarks/analysis.py", "--quick", "--alone", *parts]
    done = subprocess.run(command, cwd=ROOT, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    tiny = json.loads(done.stdout)
    for kind, part in (("comparisons", "composition"), ("growth", "table")):
        assert tiny[kind][part].keys() == results[kind][part].keys()
    side = tiny["comparisons"]["composition"]["sides"]["pathsum/composition"]
    assert (
        side.keys() == results["comparisons"]["composition"]["sides"]["pathsum/composition"].keys()
    )
    assert side["cpu_s"][0] > 0 and side["ratio"] == 1
    assert [point["d_vocab"] for point in tiny["growth"]["table"]["points"]] == [4, 8, 16]


@pytest.mark.slow
@pytest.mark.network
def test_a_tiny_run_beside_transformer_lens_agrees_with_it(analysis):
    """The run itself stops if the two libraries disagree."""
    parts = ["eigenvalues", "composition", "terms"]
    command = [sys.executable, "benchmarks/analysis.py", "--quick", *parts]
    done = subprocess.run(command, cwd=ROOT, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    tiny = json.loads(done.stdout)
    assert tiny["machine"]["transformer_lens"].startswith("3.9")
    for part in parts:
        theirs = tiny["comparisons"][part]["sides"][f"transformer_lens/{part}"]
        assert theirs["largest_difference"] < analysis.TOLERANCE and theirs["ratio"] > 0


def test_an_unknown_part_is_refused_and_ratios_are_not_thrown_away(analysis, capsys):
    for arguments, message in (
        (["speed"], "no such part: speed"),
        (["--alone"], "goes with --quick"),
    ):
        with pytest.raises(SystemExit):
            analysis.main(arguments)
        assert message in capsys.readouterr().err


def test_the_file_was_written_by_this_script_at_full_size(analysis, results):
    assert results["comparisons"].keys() == analysis.COMPARISONS.keys()
    assert results["growth"].keys() == analysis.GROWTH.keys()
    for name, (task, size, sides, goal) in analysis.COMPARISONS.items():
        part = results["comparisons"][name]
        assert (part["size"], part["goal"]) == (size, goal) and part["repeats"] >= 3
        assert list(part["sides"]) == ["/".join(side) for side in [("pathsum", task), *sides]]
        ours = part["sides"][f"pathsum/{task}"]["cpu_s"]
        for found in part["sides"].values():
            ratios = [theirs / one for theirs, one in zip(found["cpu_s"], ours, strict=True)]
            assert found["ratio"] == round(median(ratios), 1) and len(ratios) == part["repeats"]
            assert found["largest_difference"] < analysis.TOLERANCE
    for name, (task, field, values, size) in analysis.GROWTH.items():
        part = results["growth"][name]
        assert (part["task"], part["field"], part["size"]) == (task, field, size)
        assert [point[field] for point in part["points"]] == values


def test_no_analysis_takes_a_gigabyte_beyond_the_weights(results):
    ours = [
        found["extra_mib"]
        for part in results["comparisons"].values()
        for side, found in part["sides"].items()
        if side.startswith("pathsum")
    ]
    ours += [point["extra_mib"] for name in ("vocabulary", "layers", "table")
             for point in results["growth"][name]["points"]]  # fmt: skip
    assert max(ours) < 1000


def slope(results, name: str) -> float:
    """The power of size that the time grows with, over the upper half of the sizes."""
    part = results["growth"][name]
    low, high = part["points"][len(part["points"]) // 2], part["points"][-1]
    field = part["field"]
    return math.log(high["cpu_s"] / low["cpu_s"]) / math.log(high[field] / low[field])


def test_the_captions_of_the_figures_are_true_of_the_file(results):
    assert 0.5 < slope(results, "vocabulary") < 1.1, "at most in proportion"
    assert 1.6 < slope(results, "table") < 2.4, "with the square"
    assert slope(results, "context") > 1.1, "faster than in proportion"
    all_heads = {p["d_vocab"]: p["cpu_s"] for p in results["growth"]["vocabulary"]["points"]}
    table = {p["d_vocab"]: p["cpu_s"] for p in results["growth"]["table"]["points"]}
    shared = all_heads.keys() & table.keys()
    assert shared and all(table[n] > all_heads[n] for n in shared), "one table lies above"


def test_what_the_text_says_of_the_ratios_is_true_of_the_file(results):
    """Eigenvalues reach their goal; for two layers the list of terms costs about as much."""
    parts = results["comparisons"]
    eigenvalues = parts["eigenvalues"]
    assert (
        eigenvalues["sides"]["transformer_lens/eigenvalues"]["ratio"] >= eigenvalues["goal"] == 15
    )
    assert parts["composition"]["sides"]["transformer_lens/composition"]["ratio"] > 5
    assert 0.8 < parts["terms"]["sides"]["pathsum/terms_one_by_one"]["ratio"] < 2


def test_prose_about_speed_prints_no_number_of_its_own():
    """Ratios and seconds on the page come from cells that read the file."""
    text = (ROOT / "book/benchmarks.md").read_text(encoding="utf-8")
    prose = "".join(text.split("```")[::2])

    assert not re.search(r"\d+(\.\d+)?\s*(times|x\b|×|s\b|seconds|MiB|GB)", prose)
