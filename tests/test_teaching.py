"""The teacher's guide: its tables are those of the chapters, and nothing in it points nowhere."""

import json
import re
import shutil
from pathlib import Path

import nbformat
import pytest
import yaml

from pathsum.courses import exercises
from pathsum.editions import teaching
from pathsum.notebooks import TIMINGS, measured, read_book
from pathsum.teaching import GUIDE, GuideError, guide
from pathsum.timings import measure


@pytest.fixture(scope="module")
def chapters(root: Path):
    return read_book(root)[0]


def test_the_guide_is_the_one_that_the_command_writes(root: Path):
    assert guide(root) == (root / GUIDE).read_text(encoding="utf-8"), (
        "run `python -m pathsum.teaching`"
    )


def test_forty_misconceptions_are_met_and_every_check_has_a_note(root: Path, chapters):
    notes = teaching(root)
    assert len(notes["misconceptions"]) == 40
    for error in notes["misconceptions"]:
        assert error["belief"] and error["truth"] and error["ask"].endswith((".", "?"))
    checks = {e.check for c in chapters for e in exercises(c)}
    assert checks <= notes["notes"].keys()


def test_the_guide_lists_every_exercise_and_chapter(root: Path, chapters):
    text = (root / GUIDE).read_text(encoding="utf-8")
    for chapter in chapters:
        if chapter.number:
            assert f"| [{chapter.title()}]({chapter.name}.md) |" in text, (
                f"no goal for {chapter.name}"
            )
        for exercise in exercises(chapter):
            assert f"| [{exercise.number}]({chapter.name}.md) | {exercise.title} |" in text


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda n: n["misconceptions"][0].update(exercises=["nothing"]), "exercise 'nothing'"),
        (lambda n: n["misconceptions"][0].update(pages=["nowhere"]), "page 'nowhere'"),
        (lambda n: n["notes"].pop("k_composition"), "no note for ['k_composition']"),
        (lambda n: n["questions"].clear(), "no rubric for the question"),
    ],
)
def test_a_note_that_fits_nothing_is_refused(change, words: str, root: Path, tmp_path: Path):
    for name in ("_toc.yml", "_config.yml", "book"):
        copy = shutil.copytree if (root / name).is_dir() else shutil.copyfile
        copy(root / name, tmp_path / name)
    notes = yaml.safe_load((tmp_path / "book/teaching.yml").read_text(encoding="utf-8"))
    change(notes)
    (tmp_path / "book/teaching.yml").write_text(yaml.safe_dump(notes), encoding="utf-8")
    with pytest.raises(GuideError) as caught:
        guide(tmp_path)
    assert words in str(caught.value)


def test_the_course_printed_in_the_guide_is_the_example(root: Path):
    printed = re.search(
        r"```yaml\n(.*?)```", (root / GUIDE).read_text(encoding="utf-8"), re.DOTALL
    )[1]
    example = (root / "book/courses/one-week.yml").read_text(encoding="utf-8")
    assert yaml.safe_load(printed) == yaml.safe_load(example)


def test_notebooks_state_the_measured_time_and_memory(root: Path, chapters):
    timings = json.loads((root / TIMINGS).read_text(encoding="utf-8"))["chapters"]
    assert set(timings) <= {chapter.name for chapter in chapters}
    assert len(timings) >= 12, "measure the chapters: `python -m pathsum.timings`"
    for name, row in timings.items():
        assert 0 < row["seconds"] < 600 and 0 < row["peak_mb"] < 8000 and row["cells"]
        for folder in ("notebooks", "notebooks/solutions"):
            cells = json.loads((root / folder / f"{name}.ipynb").read_text(encoding="utf-8"))[
                "cells"
            ]
            assert "".join(cells[1]["source"]) == measured(name, timings)


def notebook_of(*cells: str) -> str:
    content = nbformat.v4.new_notebook()
    content.cells = [
        nbformat.v4.new_code_cell(text, id=f"cell-{i}") for i, text in enumerate(cells)
    ]
    content.metadata["kernelspec"] = {"name": "python3", "display_name": "p", "language": "python"}
    return nbformat.writes(content)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_a_notebook_is_measured_and_its_figures_saved_as_svg(tmp_path: Path):
    plot = "import matplotlib.pyplot as plt\nplt.plot([1, 3, 2]);"
    (tmp_path / "one.ipynb").write_text(notebook_of("big = bytearray(80 * 2**20)", plot))
    found = measure(tmp_path / "one.ipynb", tmp_path, tmp_path / "slides")
    assert found["peak_mb"] > 120 and 0 < found["seconds"] and found["clock_seconds"] > 0
    assert {"cell-0", "cell-1"} <= found["cells"].keys()
    (saved,) = (tmp_path / "slides").glob("*.svg")
    assert saved.name == "cell-1.svg" and "<svg" in saved.read_text()
    (tmp_path / "bad.ipynb").write_text(notebook_of("1 / 0"))
    with pytest.raises(RuntimeError, match="bad.ipynb does not run: (.|\n)*ZeroDivisionError"):
        measure(tmp_path / "bad.ipynb", tmp_path)
