"""What of a chapter is done, and numbers of each student's own.

`pathsum.progress()` is plain text, so that it looks the same in Colab, Jupyter and a terminal. It
knows what the checks said since the kernel was started, and asks no file and no server.
"""

import hashlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch

DONE, UNWRITTEN, WRONG, UNTRIED = "done", "not written yet", "not right yet", "not tried"
results: dict[str, str] = {}  # exercise -> what its check said last; `check` in core writes it
_student = ""


def seed_checks(student: str | int = "") -> None:
    """Let the checks draw their numbers for one student, by name or number; "" is everyone's.

    A right answer passes for every student. A copied number does not: it belongs to other inputs.
    """
    global _student
    _student = str(student).strip()


def student() -> str:
    """The name given to `seed_checks` last, or ""."""
    return _student


def generator(seed: int) -> torch.Generator:
    """The generator of one check: the same each time, and another one for each student."""
    if _student:
        mixed = hashlib.sha256(f"{seed}\0{_student}".encode()).digest()
        seed = int.from_bytes(mixed[:6], "big")
    return torch.Generator().manual_seed(seed)


def all_checks() -> dict[str, Callable[[Any], None]]:
    """Every check of the package by the name of its exercise, in the order of the numbers."""
    package = import_module("pathsum.exercises")
    found = {}
    for module in pkgutil.iter_modules(package.__path__, "pathsum.exercises."):
        for name, value in vars(import_module(module.name)).items():
            if name.startswith("check_") and getattr(value, "exercise", ""):
                found[value.exercise] = value
    return dict(sorted(found.items(), key=lambda item: _number(item[0])))


def _number(exercise: str) -> tuple[int, ...]:
    """(7, 2) for "Exercise 7.2"."""
    return tuple(int(part) for part in exercise.split()[-1].split("."))


@dataclass(frozen=True)
class Progress:
    """Exercises and their states; its text is what a notebook shows."""

    states: dict[str, str]  # exercise -> DONE, UNWRITTEN, WRONG or UNTRIED
    answers: dict[str, str]  # exercise -> the function that it asks for

    @property
    def done(self) -> int:
        """How many are done."""
        return sum(state == DONE for state in self.states.values())

    def __repr__(self) -> str:
        width = max((len(exercise) for exercise in self.states), default=0)
        lines = [
            f"{exercise:<{width}}  {state:<15}  {self.answers[exercise]}"
            for exercise, state in self.states.items()
        ]
        return "\n".join([*lines, f"{self.done} of {len(self.states)} done"])


def progress(chapter: int | None = None) -> Progress:
    """What the checks said last, for one chapter by its number, or for every chapter begun.

    Before any check has run, all chapters are listed. ValueError if the chapter has no exercises.
    """
    checks = all_checks()
    chapters = sorted({_number(exercise)[0] for exercise in checks})
    begun = {_number(exercise)[0] for exercise in results if exercise in checks}
    shown = {chapter} if chapter is not None else begun or set(chapters)
    if not shown <= set(chapters):
        raise ValueError(f"chapter {chapter!r} has no exercises; these have: {chapters}")
    chosen = [exercise for exercise in checks if _number(exercise)[0] in shown]
    return Progress(
        {exercise: results.get(exercise, UNTRIED) for exercise in chosen},
        {exercise: checks[exercise].__name__.removeprefix("check_") for exercise in chosen},
    )
