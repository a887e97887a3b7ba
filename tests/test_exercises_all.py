"""What holds for every exercise of the book, those of new chapters too: they are found, not listed."""

import ast
import importlib.util
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

import pathsum
from pathsum.exercises.core import ExerciseFailed, require
from pathsum.exercises.progress import all_checks, results, seed_checks
from pathsum.notebooks import Chapter, toc_pages

ROOT = Path(__file__).resolve().parent.parent
CHECKS = all_checks()
NAMES = [check.__name__.removeprefix("check_") for check in CHECKS.values()]
TITLE = re.compile(
    r"^:::\{admonition\} (Exercise|Question) (\d+\.\d+): .+ "
    r"\((easy|medium|hard), (\d+) minutes, [\w ,]+\)$",
    re.MULTILINE,
)


@pytest.fixture(autouse=True)
def everyones_numbers():
    yield
    seed_checks("")
    results.clear()


class Hostile:
    """Refuses everything that a check might ask of it."""

    def __getattr__(self, name):
        raise RuntimeError("no attributes")

    def refuse(self, *_):
        raise RuntimeError("no")

    __repr__ = __str__ = __len__ = __iter__ = __float__ = __int__ = __bool__ = refuse
    __array__ = __eq__ = __lt__ = __hash__ = __getitem__ = __contains__ = refuse


RETURNED = {
    "None": None,
    "text": "the answer is 42",
    "a huge whole number": 10**400,
    "NaN": float("nan"),
    "a complex number": 1j,
    "True": True,
    "a dict": {"a": 1},
    "an empty list": [],
    "an empty tuple": (),
    "a list that holds itself": (loop := []) or loop.append(loop) or loop,
    "a generator": (x for x in "ab"),
    "a function": lambda: None,
    "a hostile object": Hostile(),
    "hostile objects, two": (Hostile(), Hostile()),
    "hostile objects, three": [Hostile()] * 3,
    "hostile objects, four": [Hostile()] * 4,
    "Nones, two": (None, None),
    "Nones, four": (None,) * 4,
    "texts, four": ["a", "b", "c", "d"],
    "nested lists, four": ([[1]], [[2]], None, "x"),
    "numbers far off, four": ([10**30], [10**30], 10**30, -1),
    "a numpy array": np.ones((3, 3)),
    "numpy objects": np.array([None, "x"], dtype=object),
    "an empty tensor": torch.empty(0),
    "a tensor of one": torch.tensor(1e30),
    "a long tensor": torch.arange(5),
    "bools": torch.ones(3, 3, dtype=torch.bool),
    "a complex tensor": torch.ones(3, 3, dtype=torch.complex64),
    "tensors of NaN, two": (torch.full((3, 3), float("nan")),) * 2,
    "a tensor of NaN, 3 x 3": torch.full((3, 3), float("nan")),
    "a tensor of NaN, 2 x 2, two": (torch.full((2, 2), float("nan")),) * 2,
    "a tensor on another device": torch.ones(3, 3, device="meta"),
    "whole numbers on another device": torch.ones(6, device="meta", dtype=torch.int64),
    "tensors on another device, four": (torch.ones(3, device="meta"),) * 4,
    "a sparse tensor": torch.eye(3).to_sparse(),
    "a class": torch.Tensor,
}  # fmt: skip


@pytest.mark.parametrize("returned", RETURNED.values(), ids=RETURNED)
def test_no_check_breaks_on_anything_that_an_answer_returns(returned):
    for exercise, check in CHECKS.items():
        with pytest.raises(ExerciseFailed) as caught:
            check(lambda *_, **__: returned)
        (line,) = caught.value._render_traceback_()
        assert line.startswith(f"{exercise}: ") and "\n" not in line and len(line) < 700, line
        assert results[exercise] == "not right yet"


@pytest.mark.parametrize("check", CHECKS.values(), ids=NAMES)
def test_an_answer_in_the_shape_of_the_right_one_may_hold_anything(check, solutions):
    """The right answer, spoilt in every way that keeps its form; none may pass or break the check."""
    right = solutions[check.__name__.removeprefix("check_")]

    def spoil(value, how):
        if isinstance(value, torch.Tensor):
            return how(value)
        if isinstance(value, (list, tuple)):
            return type(value)(spoil(v, how) for v in value)
        return how(torch.tensor(float(value))) if isinstance(value, (int, float)) else how(value)

    spoilt = (
        lambda v: v * float("nan") if isinstance(v, torch.Tensor) else None,
        lambda v: v.to("meta") if isinstance(v, torch.Tensor) else None,
        lambda v: v.to(torch.complex64) * 1j if isinstance(v, torch.Tensor) else Hostile(),
        lambda v: v.double().numpy() if isinstance(v, torch.Tensor) and v.ndim else None,
        lambda v: Hostile(),
    )
    for how in spoilt:
        with pytest.raises(ExerciseFailed):
            check(lambda *inputs, how=how: spoil(right(*inputs), how))
    for how in (  # these may count as one number, and then they are right
        lambda v: v[None, None] if isinstance(v, torch.Tensor) else [v],
        lambda v: v.tolist() if isinstance(v, torch.Tensor) else str(v),
    ):
        try:
            check(lambda *inputs, how=how: spoil(right(*inputs), how))
        except ExerciseFailed as failure:
            assert "expected" in str(failure)


@pytest.mark.parametrize("check", CHECKS.values(), ids=NAMES)
def test_an_answer_that_breaks_or_is_none_at_all_is_told_so(check, capsys):
    def leaves(*_):
        sys.exit()

    def divides(*_):
        return 1 // 0

    def unwritten(*_):
        raise NotImplementedError

    for answer, words in (
        (leaves, "SystemExit"),
        (divides, "ZeroDivisionError"),
        (None, "expected a function"),
    ):
        with pytest.raises(ExerciseFailed, match=words):
            check(answer)
    check(unwritten)
    assert capsys.readouterr().out == f"{check.exercise}: not written yet\n"
    with pytest.raises(ExerciseFailed, match="not written yet"):
        require(check, unwritten)


@pytest.fixture(scope="module")
def chapters() -> dict[str, Chapter]:
    """Every chapter by its number."""
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
    return {
        number: Chapter(ROOT / f"{file}.md", number) for file, number in toc_pages(toc) if number
    }


@pytest.fixture(scope="module")
def solutions(chapters) -> dict[str, object]:
    """The chapters' own solutions by the name of the check, each run after its chapter's imports alone."""
    found = {}
    for chapter in chapters.values():
        code = [cell for cell in chapter.notebook.cells if cell.cell_type == "code"]
        imports: dict = {}
        exec(code[0].source, imports)
        for i, cell in enumerate(code):
            if "exercise" in cell.metadata.get("tags", []):
                space = dict(imports)
                exec(cell.source, space)
                call = re.search(r"^check_(\w+)\((\w+)\)$", code[i + 1].source, re.MULTILINE)
                assert call, f"no check right after an exercise of {chapter.name}"
                found[call[1]] = space[call[2]]
    return found


def test_every_exercise_has_a_check_and_every_check_an_exercise(solutions):
    assert sorted(solutions) == sorted(NAMES)
    assert len(solutions) >= 40


@pytest.mark.parametrize("student", ["", "ada", "Łukasz", "7", "b" * 500])
def test_every_solution_passes_with_the_numbers_of_any_student(student, solutions, capsys):
    """Each solution is run after its chapter's import cell alone, so order and lost cells do not matter."""
    seed_checks(student)
    for check in CHECKS.values():
        check(solutions[check.__name__.removeprefix("check_")])
    said = capsys.readouterr().out.splitlines()
    assert len(said) == len(CHECKS) and all(": correct" in line for line in said)
    assert all(f"(numbers of {student})" in line for line in said) == bool(student)


def test_another_student_gets_other_numbers(solutions):
    seen = {}
    for student in ("ada", "ben", "ada"):
        seed_checks(student)
        for name, check in zip(NAMES, CHECKS.values()):
            inputs = []

            def watched(*given, inputs=inputs, name=name):
                inputs.append(
                    [g.tolist() if isinstance(g, torch.Tensor) else repr(g) for g in given]
                )
                return solutions[name](*given)

            check(watched)
            seen.setdefault(name, []).append(inputs)
    assert all(first == again for first, _, again in seen.values()), "not repeatable"
    same = {name for name, (first, other, _) in seen.items() if first == other}
    fixed = {
        "not_cyclic",
        "deceiver",
        "inseparable",
        "one_back",
        "path_counts",
        "split_words",
        "fourth_entry",
    }
    assert same <= fixed, f"these checks draw no numbers of a student's own: {same - fixed}"


def planted_mistakes() -> Counter:
    """How many wrong answers the tests plant for each check, with words that the message must hold.

    They stand in tests/test_exercises_*.py as parameters (check or its name, answer, words).
    """
    counts: Counter = Counter()
    for path in sorted(ROOT.glob("tests/test_exercises_*.py")):
        if path == Path(__file__):
            continue
        spec = importlib.util.spec_from_file_location(path.stem + "_planted", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        for test in vars(module).values():
            for mark in getattr(test, "pytestmark", []):
                names = mark.args[0] if mark.name == "parametrize" else ""
                names = (
                    [n.strip() for n in names.split(",")] if isinstance(names, str) else list(names)
                )
                if len(names) == 3 and names[2] == "words":
                    planted = {
                        (getattr(v[0], "__name__", v[0]), v[2])
                        for v in (getattr(value, "values", value) for value in mark.args[1])
                        if v[2].strip()
                    }
                    counts.update(name.removeprefix("check_") for name, _ in planted)
    return counts


def test_at_least_three_mistakes_are_planted_for_every_check():
    counts = planted_mistakes()
    assert {name: counts[name] for name in NAMES if counts[name] < 3} == {}


def test_every_exercise_has_a_difficulty_minutes_and_a_hint_before_its_solution(chapters):
    for chapter in chapters.values():
        text = (ROOT / f"book/{chapter.name}.md").read_text(encoding="utf-8")
        boxes = re.findall(r"^:::\{admonition\} (?:Exercise|Question) [\d.]+.*", text, re.MULTILINE)
        rated = [match[0] for match in TITLE.finditer(text)]
        assert rated == boxes, f"{chapter.name}: {set(boxes) - set(rated)}"
        after = [text[m.end() : m.end() + 2500] for m in TITLE.finditer(text) if m[1] == "Exercise"]
        for rest in after:
            box, _, following = rest.partition("\n:::\n")
            fold, _, _ = following.partition("### BEGIN SOLUTION")
            assert ":::{dropdown} Hint\n" in fold, f"no hint in {chapter.name} for: {box[:80]}"


def test_checks_hold_no_generator_of_their_own():
    """Each draws from `generator`, or a student's own numbers would not reach it."""
    for path in sorted((ROOT / "src/pathsum/exercises").glob("*.py")):
        if path.stem != "progress":
            assert "manual_seed" not in path.read_text(encoding="utf-8"), path.name


def test_no_check_reads_a_file_or_a_solution():
    for path in sorted((ROOT / "src/pathsum/exercises").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in ("open", "exec", "eval"), f"{path.name}: {node.func.id}"


def test_progress_lists_what_is_done(solutions, capsys):
    chapter = int(next(iter(CHECKS)).split()[1].split(".")[0])
    first, second, *_ = [e for e in CHECKS if e.startswith(f"Exercise {chapter}.")]
    CHECKS[first](solutions[CHECKS[first].__name__.removeprefix("check_")])
    with pytest.raises(ExerciseFailed):
        CHECKS[second](lambda *_: None)
    seen = pathsum.progress()
    assert (
        seen.states[first] == "done" and seen.states[second] == "not right yet" and seen.done == 1
    )
    assert set(seen.states) == {e for e in CHECKS if e.startswith(f"Exercise {chapter}.")}
    assert repr(seen).splitlines()[-1] == f"1 of {len(seen.states)} done"
    assert len(pathsum.progress(chapter + 1).states) >= 4
    with pytest.raises(ValueError, match="has no exercises; these have"):
        pathsum.progress(99)


def test_progress_is_plain_text_wherever_it_is_asked_for():
    code = "import pathsum; print(pathsum.progress())"
    said = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True)
    assert said.returncode == 0, said.stderr
    assert said.stdout.count("not tried") == len(CHECKS)
    assert said.stdout.endswith(f"0 of {len(CHECKS)} done\n")
