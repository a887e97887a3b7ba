"""The tables of the teacher's guide: `python -m pathsum.teaching` writes them into book/teaching.md.

They are made from book/teaching.yml, the chapters and the measured times, between lines
`% begin NAME` and `% end`; what stands outside of these is written by hand. Run it in the root.
"""

import argparse
import re
import sys
from pathlib import Path
from typing import Any

from pathsum.courses import QUESTION, exercises
from pathsum.editions import teaching
from pathsum.files import write_atomically
from pathsum.notebooks import Chapter, read_book

GUIDE = Path("book/teaching.md")
BLOCK = re.compile(r"^% begin (\w+)\n.*?^% end\n", re.MULTILINE | re.DOTALL)


class GuideError(ValueError):
    """A note that belongs to nothing, or an exercise without one."""


def _row(*cells: object) -> str:
    return f"| {' | '.join(str(cell) for cell in cells)} |"


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.1f}"


def chapters_table(chapters: list[Chapter], notes: dict[str, Any], timings: dict[str, Any]) -> str:
    """Goal, chapters needed before, exercises with their minutes, and measured time, per chapter."""
    titles = {chapter.name: chapter.title() for chapter in chapters}
    rows = [
        _row(
            "Chapter",
            "Afterwards, a student can",
            "Before it",
            "Exercises",
            "Their minutes",
            "Runs in, min",
        ),
        _row(*["---"] * 3, *["---:"] * 3),
    ]
    for chapter in chapters:
        if not chapter.number or chapter.name not in notes["goals"]:
            continue
        about = notes["goals"][chapter.name]
        found = re.findall(r"\{admonition\} (?:Exercise|Question) .*?(\d+) minutes", chapter.text)
        before = ", ".join(f"[{titles[name]}]({name}.md)" for name in about["before"]) or "nothing"
        run = timings.get(chapter.name)
        rows.append(
            _row(
                f"[{chapter.title()}]({chapter.name}.md)",
                about["goal"],
                before,
                len(found),
                sum(map(int, found)),
                _minutes(run["seconds"]) if run else "not measured",
            )
        )
    return "\n".join(rows)


def exercises_table(chapters: list[Chapter]) -> str:
    """Number, title, difficulty and minutes of every exercise and question."""
    rows = [_row("Number", "Exercise", "Difficulty", "Minutes", "Answer"), _row(*["---"] * 5)]
    pattern = r"\{admonition\} (Exercise|Question) ([\d.]+): (.*) \((\w+), (\d+) minutes, (.*)\)$"
    for chapter in chapters:
        for _, number, title, level, minutes, size in re.findall(
            pattern, chapter.text, re.MULTILINE
        ):
            rows.append(_row(f"[{number}]({chapter.name}.md)", title, level, minutes, size))
    return "\n".join(rows)


def rubric(chapters: list[Chapter], notes: dict[str, Any]) -> str:
    """What to look for in the answers to the open questions."""
    lines = []
    for chapter in chapters:
        for number, title in QUESTION.findall(chapter.text):
            if title not in notes["questions"]:
                raise GuideError(f"book/teaching.yml has no rubric for the question {title!r}")
            lines += [
                f"**Question {number}: {title}** ([{chapter.title()}]({chapter.name}.md))",
                "",
            ]
            lines += [f"- {point}" for point in notes["questions"][title]]
            lines.append("")
    return "\n".join(lines).rstrip()


def misconceptions_table(chapters: list[Chapter], notes: dict[str, Any]) -> str:
    """Each misconception with what is right, a question that finds it, and where the book meets it."""
    titles = {chapter.name: chapter.title() for chapter in chapters}
    numbers = {e.check: (e.number, c.name) for c in chapters for e in exercises(c)}
    asked = {
        title: (number, c.name) for c in chapters for number, title in QUESTION.findall(c.text)
    }
    rows = [_row("", "Often believed", "Instead", "Ask", "Met in"), _row(*["---"] * 5)]
    for i, error in enumerate(notes["misconceptions"], 1):
        met = []
        for kind, known, names in (
            ("exercise", numbers, error.get("exercises", [])),
            ("question", asked, error.get("questions", [])),
        ):
            for name in names:
                if name not in known:
                    raise GuideError(
                        f"misconception {i} names the {kind} {name!r}, which is not there"
                    )
                met.append(f"[{kind} {known[name][0]}]({known[name][1]}.md)")
        for page in error.get("pages", []):
            if page not in titles:
                raise GuideError(f"misconception {i} names the page {page!r}, which is not there")
            met.append(f"[{titles[page]}]({page}.md)")
        if not met:
            raise GuideError(f"misconception {i} is met nowhere")
        rows.append(_row(i, error["belief"], error["truth"], error["ask"], ", ".join(met)))
    return "\n".join(rows)


def guide(root: Path) -> str:
    """The guide's text with its tables made anew. GuideError where notes and chapters disagree."""
    chapters, _, _, timings = read_book(root)
    notes = teaching(root)
    checks = {e.check for c in chapters for e in exercises(c)}
    if missing := checks - notes["notes"].keys():
        raise GuideError(f"book/teaching.yml has no note for {sorted(missing)}")
    made = {
        "chapters": lambda: chapters_table(chapters, notes, timings),
        "exercises": lambda: exercises_table(chapters),
        "rubric": lambda: rubric(chapters, notes),
        "misconceptions": lambda: misconceptions_table(chapters, notes),
    }

    def fill(block: re.Match) -> str:
        if block[1] not in made:
            raise GuideError(f"the guide has a block {block[1]!r}; known are {sorted(made)}")
        return f"% begin {block[1]}\n\n{made[block[1]]()}\n\n% end\n"

    return BLOCK.sub(fill, (root / GUIDE).read_text(encoding="utf-8"))


def main() -> None:
    argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0]).parse_args()
    try:
        write_atomically(GUIDE, guide(Path.cwd()))
    except (GuideError, OSError) as error:
        sys.exit(f"teaching: {error}")
    print(f"wrote {GUIDE}")


if __name__ == "__main__":
    main()
