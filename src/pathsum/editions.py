"""Every edition from the one source: `python -m pathsum.editions` writes them to `_build/editions`.

    reader/       stubs, no solution, no output: what students get
    instructor/   solutions, and notes for the teacher after each exercise
    nbgrader/     source/ with solutions and hidden checks, release/ without, and the settings

`--course FILE.yml` takes the chapters and exercises of a course (see pathsum.courses), and `--out`
another folder. The same source gives the same bytes. Run it in the project's root.
"""

import argparse
import hashlib
import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import yaml

from pathsum.courses import (
    QUESTION,
    CourseError,
    Exercise,
    chosen_text,
    exercises,
    read_course,
    whole_book,
)
from pathsum.files import write_atomically
from pathsum.notebooks import STUB, Chapter, notebook, read_book
from pathsum.plain_markdown import PlainMarkdownError

NOTES = Path("book/teaching.yml")
HIDDEN_BEGIN, HIDDEN_END = "### BEGIN HIDDEN TESTS", "### END HIDDEN TESTS"
ANSWER = "*Write your answer here.*"
SETTINGS = f"""\
# nbgrader's settings for this folder; made by pathsum.editions.
c = get_config()
c.CourseDirectory.course_id = "pathsum"
c.ClearSolutions.code_stub = {{"python": {STUB!r}}}
c.ClearSolutions.text_stub = {ANSWER!r}
c.Execute.timeout = 600
"""
README = """\
# {title}

Made from the book by `python -m pathsum.editions`; change the chapters, not these files.

- `reader/`: for students, with stubs in place of the solutions.
- `instructor/`: with solutions and teaching notes. Not for students.
- `nbgrader/`: run nbgrader here. `release/` is for students; `source/` holds solutions and hidden checks.

Chapters: {chapters}. Exercises with a check: {exercises}. Points: {points}.
"""


def teaching(root: Path) -> dict[str, Any]:
    """The notes, rubrics and misconceptions of the teacher's guide."""
    path = root / NOTES
    return yaml.safe_load(path.read_text(encoding="utf-8")) if path.exists() else {}


def _dump(content: dict[str, Any]) -> str:
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def _markdown(identity: str, text: str, **metadata: Any) -> dict[str, Any]:
    lines = text.splitlines(keepends=True)
    return {"cell_type": "markdown", "id": identity, "metadata": metadata, "source": lines}


def with_notes(text: str, notes: dict[str, Any]) -> str:
    """The solved notebook with a cell for the teacher after each check, where there is one to say."""
    content, cells = json.loads(text), []
    for cell in content["cells"]:
        cells.append(cell)
        name = cell["id"].removeprefix("check-")
        if name == cell["id"]:
            continue
        lines = [f"- {note}" for note in [notes.get("notes", {}).get(name, "")] if note]
        for error in notes.get("misconceptions", []):
            if name in error.get("exercises", []):
                lines.append(f"- Often believed: *{error['belief']}* Instead: {error['truth']}")
                lines.append(f"- To find out who believes it, ask: *{error['ask']}*")
        if lines:
            cells.append(
                _markdown(f"note-{name}"[:64], "**For the teacher**\n\n" + "\n".join(lines))
            )
    return _dump(content | {"cells": cells})


def _checksum(cell: dict[str, Any], grading: dict[str, Any]) -> str:
    """What nbgrader calls the checksum of a cell."""
    parts = ["".join(cell["source"]), cell["cell_type"]]
    parts += [str(grading[key]) for key in ("grade", "solution", "locked")]
    parts.append(grading["grade_id"])
    if grading["grade"]:
        parts.append(str(float(grading["points"])))
    return hashlib.md5("".join(parts).encode(), usedforsecurity=False).hexdigest()


def graded(text: str, chapter: Chapter, secret: str, release: bool) -> str:
    """An assignment of nbgrader from a notebook (stubs for `release`, else marked solutions)."""
    content: dict[str, Any] = json.loads(text)
    by_check = {exercise.check: exercise for exercise in exercises(chapter)}
    questions = QUESTION.findall(chapter.text)

    def mark(cell: dict[str, Any], grade: bool, solution: bool, points: int = 0) -> None:
        grading = {"grade": grade, "grade_id": cell["id"], "locked": not solution}
        grading |= {"schema_version": 3, "solution": solution, "task": False}
        grading |= {"points": points} if grade else {}
        if release:
            grading |= {"cell_type": cell["cell_type"], "checksum": _checksum(cell, grading)}
        cell["metadata"]["nbgrader"] = grading
        if not solution:
            cell["metadata"] |= {"deletable": False, "editable": False} if release else {}

    cells = []
    for cell in content["cells"]:
        cells.append(cell)
        source = "".join(cell["source"])
        if cell["id"] == "setup":
            mark(cell, False, False)
        elif cell["id"].startswith("exercise-"):
            mark(cell, False, True)
        elif cell["id"].startswith("check-"):
            exercise = by_check[cell["id"].removeprefix("check-")]
            if not release:
                cell["source"] = (source + hidden(exercise, secret)).splitlines(keepends=True)
            mark(cell, True, False, exercise.points)
        elif cell["cell_type"] == "markdown":
            for number, _ in questions:
                if f"Question {number}: " in source:
                    answer = _markdown(f"question-{number.replace('.', '-')}", ANSWER)
                    cells.append(answer)
                    mark(answer, True, True, 3)
    return _dump(content | {"cells": cells})


def hidden(exercise: Exercise, secret: str) -> str:
    """The lines that no student sees: the check again, with numbers of three made-up students."""
    names = [hashlib.sha256(f"{secret}\0{i}".encode()).hexdigest()[:12] for i in range(3)]
    return (
        f"\n{HIDDEN_BEGIN}\n"
        "from pathsum.exercises.core import require as _require\n"
        "from pathsum.exercises.progress import all_checks as _all_checks\n\n"
        f'_hidden = _all_checks()["Exercise {exercise.number}"]\n'
        f'_require(_hidden, {exercise.function}, "", *{names})\n'
        f"{HIDDEN_END}"
    )


def course_files(root: Path, course_file: Path | None = None) -> dict[str, str]:
    """The text of every file of the course folder, by its path in it.

    PlainMarkdownError on bad chapters, CourseError on a bad course file.
    """
    chapters, book, setup, timings = read_book(root)
    course = read_course(course_file, chapters) if course_file else whole_book(chapters)
    notes, named = teaching(root), {chapter.name: chapter for chapter in chapters}
    repository = yaml.safe_load((root / "_config.yml").read_text(encoding="utf-8"))["repository"]
    away = f"{repository['url']}/blob/{repository['branch']}/notebooks"
    files, total, points = {"nbgrader/nbgrader_config.py": SETTINGS}, 0, 0

    def linked(text: str) -> str:
        """Links to chapters that are not in the course lead to the book."""
        return re.sub(
            r"\]\(([\w-]+)\.ipynb",
            lambda found: found[0] if found[1] in course.chapters else f"]({away}/{found[1]}.ipynb",
            text,
        )

    for name, wanted in course.chapters.items():
        whole = named[name]
        text = chosen_text(whole, wanted, course.sheets)
        chapter = Chapter(root / f"book/{name}.md", whole.number, text)
        list(chapter.labels())  # numbers the captions
        times = {} if course.sheets else timings  # those are of the whole chapter
        made = {
            answers: linked(notebook(chapter, book, setup, answers, times))
            for answers in ("stub", "solved", "marked")
        }
        files[f"reader/{name}.ipynb"] = made["stub"]
        files[f"instructor/{name}.ipynb"] = with_notes(made["solved"], notes)
        if found := exercises(chapter):
            files[f"nbgrader/source/{name}/{name}.ipynb"] = graded(
                made["marked"], chapter, course.secret, False
            )
            files[f"nbgrader/release/{name}/{name}.ipynb"] = graded(
                made["stub"], chapter, course.secret, True
            )
            total, points = total + len(found), points + sum(e.points for e in found)
            points += 3 * len(QUESTION.findall(chapter.text))
    listed = ", ".join(named[name].title() for name in course.chapters)
    files["README.md"] = README.format(
        title=course.title, chapters=listed, exercises=total, points=points
    )
    return files


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    options.add_argument("--course", type=Path, help="a course file; without it, the whole book")
    options.add_argument(
        "--out", type=Path, default=Path("_build/editions"), help="the folder to write"
    )
    chosen = options.parse_args()
    marker = chosen.out / "nbgrader/nbgrader_config.py"
    if chosen.out.exists() and any(chosen.out.iterdir()) and not marker.exists():
        sys.exit(f"editions: {chosen.out} holds other things; name an empty folder with --out")
    try:
        files = course_files(Path.cwd(), chosen.course)
    except (PlainMarkdownError, CourseError) as error:
        sys.exit(f"editions: {error}")
    for folder in ("reader", "instructor", "nbgrader/source", "nbgrader/release"):
        shutil.rmtree(chosen.out / folder, ignore_errors=True)
    for path, text in files.items():
        write_atomically(chosen.out / path, text)
    print(f"{len(files)} files in {chosen.out}")


if __name__ == "__main__":
    main()
