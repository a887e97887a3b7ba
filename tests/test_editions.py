"""Every edition from one source: the same each time, no solution where students look, graded right."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from pathsum.courses import CourseError, exercises, read_course
from pathsum.editions import HIDDEN_BEGIN, course_files
from pathsum.files import write_atomically
from pathsum.leaks import leaks, solution_lines, solution_words
from pathsum.notebooks import BEGIN, STUB, read_book
from pathsum.returned import ReturnedError, restored

SHEET = """\
title: A sheet
secret: only for this test
sheets: true
chapters:
  term-importance: [path_counts, marginal_worth, v_composition]
"""
RIGHT = {
    "path_counts": "def path_counts(n_layers, n_heads):\n"
    "    return [comb(n_layers, k) * n_heads**k for k in range(n_layers + 1)]\n",
    "marginal_worth": "def marginal_worth(losses, d_vocab):\n"
    "    before = torch.cat([torch.tensor([float(d_vocab)]).log(), losses[:-1]])\n"
    "    return before - losses\n",
    "v_composition": "def v_composition(first, second):\n"
    "    return float((first @ second).norm() / first.norm() / second.norm())\n",
}
WRONG = {
    "path_counts": "def path_counts(n_layers, n_heads):\n    return [1] * (n_layers + 1)\n",
    "marginal_worth": "def marginal_worth(losses, d_vocab):\n    return losses\n",
    "v_composition": "def v_composition(first, second):\n    return None\n",
}
# Right for the inputs of the visible check, which a student sees, and for no others.
COPIED = RIGHT | {
    "marginal_worth": "seen = []\n\ndef marginal_worth(losses, d_vocab):\n"
    "    seen.append(losses)\n"
    "    before = torch.cat([torch.tensor([float(d_vocab)]).log(), losses[:-1]])\n"
    "    return before - losses if len(seen) <= 2 else losses\n",
}


@pytest.fixture(scope="module")
def chapters(root: Path):
    return read_book(root)[0]


@pytest.fixture(scope="module")
def whole(root: Path) -> dict[str, str]:
    return course_files(root)


@pytest.fixture(scope="module")
def folder(whole: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("editions")
    for path, text in whole.items():
        write_atomically(place / path, text)
    return place


@pytest.fixture(scope="module")
def sheet(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("sheet")
    (place / "sheet.yml").write_text(SHEET)
    for path, text in course_files(root, place / "sheet.yml").items():
        write_atomically(place / path, text)
    return place


def sources(text: str, kind: str = "code") -> dict[str, str]:
    cells = json.loads(text)["cells"]
    return {cell["id"]: "".join(cell["source"]) for cell in cells if cell["cell_type"] == kind}


def test_the_same_source_gives_the_same_bytes(root: Path, whole: dict[str, str]):
    assert course_files(root) == whole


def test_every_notebook_of_every_edition_is_valid_with_stable_ids(whole: dict[str, str]):
    for path, text in whole.items():
        if path.endswith(".ipynb"):
            content = json.loads(text)
            nbformat.validate(content)
            ids = [cell["id"] for cell in content["cells"]]
            assert len(ids) == len(set(ids)) and not any(c.get("outputs") for c in content["cells"])


def test_what_students_get_holds_no_solution_and_no_hidden_check(folder: Path, chapters):
    for edition in ("reader", "nbgrader/release"):
        assert leaks(folder / edition, chapters) == []
    assert leaks(folder / "instructor", chapters) and leaks(folder / "nbgrader/source", chapters)


@pytest.mark.parametrize("where", ["source", "metadata", "output", "hidden check", "page", "index"])
def test_the_search_finds_a_planted_leak(where: str, folder: Path, chapters, tmp_path: Path):
    line, word = "return A_2 @ A_1, W_OV_1 @ W_OV_2", sorted(solution_words(chapters))[0]
    assert line.replace(" ", "") in solution_lines(chapters)
    content = json.loads((folder / "reader/transformer-overview.ipynb").read_text(encoding="utf-8"))
    cell = next(c for c in content["cells"] if c["cell_type"] == "code")
    name = "planted.ipynb"
    if where == "source":
        cell["source"] = ["x = 1\n", f"    {line}\n"]
    elif where == "metadata":
        cell["metadata"]["note"] = line
    elif where == "output":
        cell["outputs"] = [{"output_type": "stream", "name": "stdout", "text": ["1\n"]}]
    elif where == "hidden check":
        cell["source"] = [f"{HIDDEN_BEGIN}\n"]
    text = json.dumps(content)
    if where == "page":
        name, text = (
            "page.html",
            "<pre><span>return</span> <b>A_2</b> @ A_1, W_OV_1 @\n W_OV_2</pre>",
        )
    if where == "index":
        name, text = "searchindex.js", f'Search.setIndex({{"terms":{{"{word}":0}}}})'
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert len(leaks(tmp_path, chapters)) == 1


def test_the_instructors_edition_holds_solutions_and_notes(whole: dict[str, str], chapters):
    notes = 0
    for chapter in chapters:
        if chapter.executable:
            text = whole[f"instructor/{chapter.name}.ipynb"]
            assert STUB not in text and BEGIN not in text
            notes += sum(name.startswith("note-") for name in sources(text, "markdown"))
    assert notes == sum(len(exercises(chapter)) for chapter in chapters)


def test_the_graded_edition_marks_every_exercise(whole: dict[str, str], chapters):
    for chapter in chapters:
        if not (found := exercises(chapter)):
            continue
        for kind in ("source", "release"):
            text = whole[f"nbgrader/{kind}/{chapter.name}/{chapter.name}.ipynb"]
            graded = {c["id"]: c["metadata"].get("nbgrader") for c in json.loads(text)["cells"]}
            for exercise in found:
                check = graded[f"check-{exercise.check}"]
                assert check["grade"] and check["locked"] and check["points"] == exercise.points
                answer = graded[f"exercise-{exercise.function}"]
                assert answer["solution"] and not answer["grade"]
            assert (HIDDEN_BEGIN in text) == (kind == "source")


def nbgrader(place: Path, *command: str) -> str:
    """What a command of the real nbgrader prints."""
    path = (
        f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # it calls alembic by name
    )
    command = (sys.executable, "-m", "nbgrader", *command)
    environment = {**os.environ, "PATH": path}
    done = subprocess.run(command, cwd=place, env=environment, text=True, capture_output=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def answered(release: str, answers: dict[str, str]) -> str:
    content = json.loads(release)
    for cell in content["cells"]:
        if (name := cell["id"].removeprefix("exercise-")) in answers:
            cell["source"] = answers[name]
    return json.dumps(content)


def mangled(text: str) -> str:
    """A right submission after a hard week: no metadata, ids gone, cells moved, copied and lost."""
    content = json.loads(text)
    cells = content["cells"]
    for cell in cells:
        cell["metadata"] = {}
        del cell["id"]
    stub = {"cell_type": "code", "metadata": {}, "execution_count": None, "outputs": []}
    helper = stub | {"source": "import math\n\ndef times(n, k):\n    return math.comb(n, k)"}
    mine = [dict(c) for c in cells if "def " in "".join(c["source"])]
    for cell in mine:
        cell["source"] = "".join(cell["source"]).replace("comb(n_layers, k)", "times(n_layers, k)")
    kept = [c for c in cells if "check_" not in "".join(c["source"]) and c not in mine][1:]
    first_try = stub | {"source": WRONG["path_counts"]}
    scratch = stub | {"source": "%matplotlib inline\n1 / 0  # a try"}
    content["cells"] = [*mine[::-1][:2], *kept, first_try, scratch, helper, mine[0], mine[0]]
    return json.dumps(content | {"nbformat_minor": 4})


@pytest.mark.slow
def test_the_real_nbgrader_gives_right_answers_full_marks_and_wrong_ones_none(sheet: Path):
    place, name = sheet / "nbgrader", "term-importance"
    release = (place / f"release/{name}/{name}.ipynb").read_text(encoding="utf-8")
    nbgrader(
        place, "generate_assignment", name, "--force", "--CourseDirectory.release_directory=theirs"
    )
    theirs = json.loads((place / f"theirs/{name}/{name}.ipynb").read_text(encoding="utf-8"))[
        "cells"
    ]
    ours = json.loads(release)["cells"]
    for one, other in zip(ours, theirs, strict=True):
        assert "".join(one["source"]) == "".join(other["source"])
        assert one["metadata"].get("nbgrader") == other["metadata"].get("nbgrader")

    hard_week, remarks = restored(mangled(answered(release, RIGHT)), release)
    assert any("last one counts" in remark for remark in remarks)
    half = {name: WRONG[name] for name in list(WRONG)[1:]}  # and the first one is not written
    for student, text in {
        "wrong": answered(release, half),
        "copied": answered(release, COPIED),
        "hard-week": hard_week,
    }.items():
        write_atomically(place / f"submitted/{student}/{name}/{name}.ipynb", text)
    nbgrader(place, "autograde", name, "--create")
    nbgrader(place, "export", "--to=grades.csv")
    with (place / "grades.csv").open() as file:
        scores = {row["student_id"]: float(row["score"]) for row in csv.DictReader(file)}
    points = {
        c["id"]: c["metadata"]["nbgrader"]["points"] for c in ours if c["id"].startswith("check-")
    }
    full = float(sum(points.values()))
    assert scores == {
        "wrong": 0,
        "copied": full - points["check-marginal_worth"],
        "hard-week": full,
    }


def test_what_comes_back_is_put_in_its_place(sheet: Path):
    release = (sheet / "nbgrader/release/term-importance/term-importance.ipynb").read_text("utf-8")
    again, remarks = restored(release, release)
    assert again == release
    assert remarks == [f"{name} is not written" for name in RIGHT]
    text, remarks = restored(mangled(answered(release, RIGHT)), release)
    cells = sources(text)
    assert list(cells)[0] == "setup" and "times(n_layers, k)" in cells["exercise-path_counts"]
    assert "def times" in "".join(cells[i] for i in cells if i.startswith("own-path_counts"))
    assert not any("is not written" in remark for remark in remarks)
    ids = {c["id"] for c in json.loads(text)["cells"]}
    assert {c["id"] for c in json.loads(release)["cells"]} <= ids


@pytest.mark.parametrize("broken", ["", "{}", "[]", '{"cells": 3}', '{"cells": [{}]}', "no json"])
def test_what_is_no_notebook_is_refused(broken: str):
    with pytest.raises(ReturnedError, match="save it again"):
        restored(broken, '{"cells": []}')


def test_a_broken_cell_does_not_hide_an_answer(sheet: Path):
    release = (sheet / "nbgrader/release/term-importance/term-importance.ipynb").read_text("utf-8")
    half = RIGHT["v_composition"] + "\nthis is (not python"
    text, _ = restored(answered(release, {"v_composition": half}), release)
    assert "this is (not python" in sources(text)["exercise-v_composition"]


def test_the_example_course_makes_a_folder_of_its_chapters(root: Path, chapters, tmp_path: Path):
    example = root / "book/courses/one-week.yml"
    command = [
        sys.executable,
        "-m",
        "pathsum.editions",
        "--course",
        example,
        "--out",
        tmp_path / "c",
    ]
    done = subprocess.run(command, cwd=root, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    course = read_course(example, chapters)
    assert {p.stem for p in (tmp_path / "c/reader").iterdir()} == set(course.chapters)
    assert leaks(tmp_path / "c/reader", chapters) == []
    for name, wanted in course.chapters.items():
        text = (tmp_path / f"c/reader/{name}.ipynb").read_text(encoding="utf-8")
        kept = [i.removeprefix("exercise-") for i in sources(text) if i.startswith("exercise-")]
        assert (
            wanted is None or kept == [e for e in kept if e in wanted] and len(kept) == len(wanted)
        )
        assert "](claims.ipynb" not in text, "a link to a chapter that is not in the course"
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.txt").write_text("x")
    refused = subprocess.run(
        [*command[:-1], tmp_path / "mine"], cwd=root, text=True, capture_output=True
    )
    assert refused.returncode == 1 and "name an empty folder" in refused.stderr


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("chapters: [zero-layer]", "expected `chapters:`", id="a list"),
        pytest.param("a: [", "cannot be read as YAML", id="no YAML"),
        pytest.param("chapters: {one: all}", "no chapter 'one'; there are", id="unknown chapter"),
        pytest.param(
            "chapters: {zero-layer: [x]}", "all, none or a list of", id="unknown exercise"
        ),
        pytest.param(
            "chapters: {zero-layer: all}\ncolour: red", "unknown ['colour']", id="unknown key"
        ),
        pytest.param("chapters: {zero-layer: all}\nsheets: 2", "true or false", id="sheets"),
    ],
)
def test_a_course_that_cannot_be_followed_is_refused_with_what_there_is(
    text, words, chapters, tmp_path
):
    (tmp_path / "course.yml").write_text(text)
    with pytest.raises(CourseError) as caught:
        read_course(tmp_path / "course.yml", chapters)
    assert words in str(caught.value)


@pytest.mark.slow
def test_the_book_for_students_holds_no_solution(root: Path, tmp_path: Path):
    """Built without executing, which changes nothing of what is said; the build searches its pages."""
    command = [sys.executable, "tools/student_book.py", "--fast", "--out", tmp_path / "book"]
    done = subprocess.run(command, cwd=root, text=True, capture_output=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    pages = tmp_path / "book/_build/html"
    page = (pages / "book/composition.html").read_text(encoding="utf-8")
    assert "write this, then run the cell again" in page and "Show a solution" not in page
    assert not (pages / "book/teaching.html").exists() and (pages / "searchindex.js").is_file()
    assert list(pages.glob("_sources/book/*.md")) or list(pages.glob("_sources/book/*.txt"))
