"""Every figure of the paper has its counterpart in the book, and a line on what differs."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAPER = {str(number) for number in range(1, 29)} | {"A", "B", "links"}  # its figures, in order
CHAPTERS = {path.stem: path.read_text(encoding="utf-8") for path in (ROOT / "book").glob("*.md")}


def table() -> list[list[str]]:
    """The rows of the table "The paper's figures and ours": number, what, ours, difference."""
    section = CHAPTERS["technical-details"].split("## The paper's figures and ours")[1]
    lines = re.findall(r"^\| .* \|$", section.split("\n## ")[0], re.MULTILINE)[2:]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def captions() -> dict[str, str]:
    """Captions of the book's figures by label."""
    found = {}
    for text in CHAPTERS.values():
        for options in re.findall(r"```\{code-cell\} python\n---\n(.*?)---\n", text, re.DOTALL):
            if name := re.search(r"name: (fig-\S+)", options):
                found[name[1]] = re.search(
                    r"caption: (.*?)\n    name|caption: (.*)", options, re.DOTALL
                )[0]
    return found


def test_the_table_has_every_figure_of_the_paper_once():
    numbers = [number for row in table() for number in row[0].split(", ")]
    assert sorted(numbers) == sorted(PAPER)
    assert all(len(row) == 4 and all(row) for row in table())


@pytest.mark.parametrize("row", table(), ids=lambda row: row[0])
def test_each_counterpart_exists_and_says_what_differs(row):
    figures = re.findall(r"\{numref\}`(fig-[\w-]+)`", row[2])
    equations = re.findall(r"\{eq\}`(eq-[\w-]+)`", row[2])
    pages = re.findall(r"\]\(([\w-]+)\.md\)", row[2])
    assert figures or equations or pages
    for label in figures:
        assert label in captions(), f"no figure is called {label}"
    for label in equations:
        text = [t for t in CHAPTERS.values() if f":label: {label}\n" in t]
        assert len(text) == 1, f"{label} is the label of {len(text)} equations"
    assert all(page in CHAPTERS for page in pages)
    if figures:
        assert any("*The paper's" in captions()[label] for label in figures), (
            "no line on what differs"
        )


def test_a_caption_speaks_of_the_papers_figure_only_if_the_table_does():
    named = set(re.findall(r"\{numref\}`(fig-[\w-]+)`", CHAPTERS["technical-details"]))
    speaking = {label for label, text in captions().items() if "*The paper's" in text}
    assert speaking <= named, speaking - named
