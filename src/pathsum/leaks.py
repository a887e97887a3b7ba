"""A search for solutions in what students get: `python -m pathsum.leaks FOLDER`.

Every text file of the folder is read: notebooks with their metadata, pages, page sources and the
search index. A leak is a line that stands only in solutions, a marker of a solution or of a hidden
check, a note for the teacher, or an output in a notebook that is handed out. (Behind the pages of a
built book stand executed notebooks: there outputs are searched, and may be.)
"""

import argparse
import html
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pathsum.notebooks import BEGIN, Chapter, edition, read_book

KINDS = (".ipynb", ".html", ".md", ".txt", ".js", ".json", ".py", ".yml", ".xml")
MARKERS = ("BEGIN SOLUTION", "END SOLUTION", "HIDDEN TESTS", "_require(", "For the teacher")
SHORTEST = 14  # characters without spaces; shorter lines such as `return x` say nothing
SKIPPED = ("_static", "vendor")  # folders of scripts and styles that are the same in every edition


def squeezed(text: str) -> str:
    """The text without white space, so that no wrapping hides a line."""
    return "".join(text.split())


def solution_lines(chapters: list[Chapter]) -> dict[str, str]:
    """Lines that stand in solutions and nowhere else in the book -> the chapter; squeezed."""
    open_text = squeezed("\n".join(edition(c.text, "stub", c.name) for c in chapters))
    found = {}
    for chapter in chapters:
        inside = False
        for line in chapter.text.split("\n"):
            if line.strip().startswith("### "):
                inside = line.strip() == BEGIN
            elif inside and len(key := squeezed(line)) >= SHORTEST and key not in open_text:
                found[key] = chapter.name
    return found


def solution_words(chapters: list[Chapter]) -> set[str]:
    """Words of five letters or more that stand in solutions and nowhere else in the book."""
    pattern = re.compile(r"[A-Za-z_]{5,}")
    whole = {word.lower() for c in chapters for word in pattern.findall(c.text)}
    stripped = {
        word.lower() for c in chapters for word in pattern.findall(edition(c.text, "stub", ""))
    }
    return whole - stripped


def _texts(value: Any) -> Iterator[str]:
    """All strings inside a JSON value; lists of lines are joined."""
    if isinstance(value, dict):
        for key, entry in value.items():
            yield str(key)
            yield from _texts(entry)
    elif isinstance(value, list):
        if all(isinstance(entry, str) for entry in value):
            yield "".join(value)
        else:
            for entry in value:
                yield from _texts(entry)
    else:
        yield str(value)


def shown_text(path: Path) -> str:
    """What a file says, whatever it is wrapped in."""
    text = path.read_text(encoding="utf-8", errors="replace")
    if path.suffix in (".ipynb", ".json"):
        return "\n".join(_texts(json.loads(text)))
    if path.suffix == ".html":  # as written, and as read: code is coloured word by word
        return html.unescape(text + "\n" + re.sub(r"<[^>]*>", "", text))
    return text


def leaks(folder: Path, chapters: list[Chapter]) -> list[str]:
    """One line for each leak in the folder; empty if there is none."""
    lines, words, found = solution_lines(chapters), solution_words(chapters), []
    for path in sorted(folder.rglob("*")):
        where = path.relative_to(folder)
        if path.suffix not in KINDS or not path.is_file() or set(SKIPPED) & set(where.parts):
            continue
        text = shown_text(path)
        flat = squeezed(text)
        found += [
            f"{where}: a solution of {lines[key]}: {key[:60]}" for key in lines if key in flat
        ]
        found += [f"{where}: the marker {marker!r}" for marker in MARKERS if marker in text]
        if path.suffix == ".ipynb" and "_sources" not in where.parts:  # a page's source is executed
            cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
            found += [f"{where}: an output" for cell in cells if cell.get("outputs")]
        if path.name == "searchindex.js":
            terms = set(re.findall(r"[a-z_]{5,}", text.lower()))
            found += [f"{where}: the word {word!r}" for word in sorted(words & terms)]
    return found


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    options.add_argument("folder", type=Path)
    folder = options.parse_args().folder
    if not folder.is_dir():
        sys.exit(f"leaks: there is no folder {folder}")
    chapters, *_ = read_book(Path.cwd())
    found = leaks(folder, chapters)
    print("\n".join(found or [f"no solution in {folder}"]))
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
