"""A lecturer's choice of chapters and exercises, read from one small YAML file.

    title: Circuits in one week
    secret: a phrase of your own      # numbers of the hidden checks; keep it to yourself
    sheets: false                     # true: problem sheets, exercises without the chapters' text
    chapters:
      zero-layer: all                 # every exercise
      composition: [k_composition, circled_norm]
      induction-heads: none           # to read only

A chapter is named by its file, `book/NAME.md`, an exercise by the function that it asks for. The
order is that of the file. Without a file, the course is the whole book.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from pathsum.notebooks import CHECK, Chapter

# An exercise from its box to its check, and an open question, in a chapter's text.
EXERCISE = re.compile(
    r"^:::\{admonition\} Exercise (\d+\.\d+): (.*?) \((?:(easy|medium|hard), )?.*?^check_(\w+)\((\w+)\)\n```\n+",
    re.MULTILINE | re.DOTALL,
)
QUESTION = re.compile(
    r"^:::\{admonition\} Question (\d+\.\d+): (.*?) \(.*?^:::\n", re.MULTILINE | re.DOTALL
)
CELL = re.compile(r"^```\{code-cell\} python\n.*?^```\n", re.MULTILINE | re.DOTALL)
POINTS = {"easy": 1, "medium": 2, "hard": 3, None: 1}


class CourseError(ValueError):
    """A course file that cannot be followed; the text says what to write instead."""


@dataclass(frozen=True)
class Exercise:
    """One exercise of a chapter."""

    number: str  # "7.2"
    title: str
    points: int  # in the graded edition, by difficulty
    check: str  # check_NAME without "check_"
    function: str  # the function that the reader writes


@dataclass(frozen=True)
class Course:
    """What a course is made of."""

    title: str
    chapters: dict[str, list[str] | None]  # chapter -> functions of its exercises; None is all
    secret: str = "the book's own"  # mixed into the numbers of the hidden checks
    sheets: bool = False  # problem sheets: imports and exercises, without the chapters' text


def exercises(chapter: Chapter) -> list[Exercise]:
    """The exercises of a chapter that have a check, in order."""
    return [
        Exercise(number, title, POINTS[level or None], check, function)
        for number, title, level, check, function in EXERCISE.findall(chapter.text)
    ]


def whole_book(chapters: list[Chapter]) -> Course:
    """Every chapter that has cells, with every exercise."""
    return Course(
        "Transformer Circuits, Executed", {c.name: None for c in chapters if c.executable}
    )


def read_course(path: Path, chapters: list[Chapter]) -> Course:
    """The course of a YAML file. CourseError for what is not in the book, with what is."""
    try:
        content: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise CourseError(f"{path} cannot be read as YAML: {error}") from None
    if not isinstance(content, dict) or not isinstance(content.get("chapters"), dict):
        raise CourseError(f"{path}: expected `chapters:` with a line `NAME: all` for each chapter")
    if unknown := set(content) - {"title", "secret", "sheets", "chapters"}:
        known_keys = "title, secret, sheets, chapters"
        raise CourseError(f"{path}: unknown {sorted(unknown)}; known are {known_keys}")
    if not isinstance(sheets := content.get("sheets", False), bool):
        raise CourseError(f"{path}: sheets is true or false, got {sheets!r}")
    known, chosen = {chapter.name: chapter for chapter in chapters}, {}
    for name, wanted in content["chapters"].items():
        if name not in known:
            raise CourseError(f"{path}: there is no chapter {name!r}; there are {sorted(known)}")
        there = [exercise.function for exercise in exercises(known[name])]
        if wanted in ("all", None):
            chosen[name] = None
        elif wanted in ("none", False):
            chosen[name] = []
        elif isinstance(wanted, list) and set(wanted) <= set(there):
            chosen[name] = wanted
        else:
            raise CourseError(
                f"{path}: {name}: expected all, none or a list of {there}, got {wanted}"
            )
    secret = str(content.get("secret", Course.secret))
    return Course(str(content.get("title", path.stem)), chosen, secret, sheets)


def chosen_text(chapter: Chapter, wanted: list[str] | None, sheet: bool = False) -> str:
    """The chapter's text without the exercises that are not wanted; a `sheet` is only exercises."""
    text = chapter.text
    if wanted is not None:
        text = EXERCISE.sub(lambda found: found[0] if found[5] in wanted else "", text)
    if not sheet:
        return text
    front = re.match(r"---\n.*?\n---\n", text, re.DOTALL)
    imports = CELL.search(text)
    tasks = sorted(
        [*EXERCISE.finditer(text), *QUESTION.finditer(text)], key=lambda found: found.start()
    )
    parts = [front[0] if front else "", f"# {chapter.title()}: exercises\n"]
    parts += [imports[0] if imports else "", *(_task(found[0]) for found in tasks)]
    return "\n".join(parts)


def _task(text: str) -> str:
    """An exercise less cells that need the chapter before it: all but answer and check."""
    return CELL.sub(
        lambda cell: cell[0] if "exercise" in cell[0] or CHECK.search(cell[0]) else "", text
    )
