"""The chapters as notebooks: `python -m pathsum.notebooks` writes them, `--check` compares.

Each chapter `book/NAME.md` becomes `notebooks/NAME.ipynb`, the reader's edition with every
solution replaced by a stub, and `notebooks/solutions/NAME.ipynb`. Both are plain Markdown and
code without outputs, begin with a cell that installs this package where it is missing, and come
out byte for byte the same from the same source. Run it in the project's root. What a teacher needs
besides is made by `pathsum.editions`.

Needs the packages under "the notebooks" in requirements.lock.
"""

import argparse
import hashlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jupytext
import yaml
from pybtex.database import parse_file

from pathsum.files import write_atomically
from pathsum.plain_markdown import Book, Label, Page, PlainMarkdownError, directive, parser

BEGIN, END = "### BEGIN SOLUTION", "### END SOLUTION"
CHECK = re.compile(r"^check_(\w+)\((\w+)\)$", re.MULTILINE)  # the check and what is checked
TIMINGS = Path("book/results/timings.json")  # written by pathsum.timings
STUB = 'raise NotImplementedError("write this, then run the cell again")'
KEPT_TAGS = ("exercise", "raises-exception", "skip-execution")
SETUP = '''\
# Setup, run this first: installs the book's package where it is missing, as on Colab.
import importlib.util

if importlib.util.find_spec("pathsum") is None:
    %pip install --quiet "pathsum[viewers] @ git+{url}@{branch}"
try:
    import pathsum
except ImportError:
    raise ImportError(
        "pathsum could not be installed; the lines above say why. "
        "Check the network connection, then run this cell again."
    ) from None
print("pathsum", pathsum.__version__, "is ready")'''


def toc_pages(toc: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """(file, chapter number or "") for each page, in reading order."""

    def walk(node: dict[str, Any], numbered: bool) -> Iterator[tuple[str, str]]:
        nonlocal count
        numbered = bool(node.get("numbered", numbered))
        if "file" in node:
            count += numbered
            yield node["file"], str(count) if numbered else ""
        for child in node.get("parts", []) + node.get("chapters", []):
            yield from walk(child, numbered)

    count = 0
    yield toc["root"], ""
    yield from walk({k: v for k, v in toc.items() if k != "root"}, False)


def citations(bib: Path) -> dict[str, tuple[str, str, str, str]]:
    """For each key: authors as cited, year, address, and the full entry in Markdown."""
    entries = {}
    for key, entry in parse_file(str(bib)).entries.items():
        people = entry.persons["author"]
        names = [" ".join(person.last_names) for person in people]
        short = " and ".join(names) if len(names) < 3 else f"{names[0]} et al."
        fields = entry.fields
        url = fields.get("url") or f"https://doi.org/{fields['doi']}"
        place = fields.get("journal") or fields.get("booktitle") or fields.get("publisher", "")
        full = f"{short} ({fields['year']}). [{fields['title']}]({url}). {place}.".replace(" .", "")
        entries[key] = (short, fields["year"], url, full)
    return entries


class Chapter:
    """One chapter's source, split into cells."""

    def __init__(self, path: Path, number: str, text: str | None = None):
        self.name, self.number = path.stem, number
        self.text = path.read_text(encoding="utf-8") if text is None else text
        self.notebook = jupytext.reads(self.text, fmt="md:myst")
        self.executable = any(cell.cell_type == "code" for cell in self.notebook.cells)

    def labels(self) -> Iterator[tuple[str, str]]:
        """(label, text when referred to) for each figure, table, equation and heading target.

        Numbers run per chapter and follow Sphinx: every figure and table with a caption
        counts, and every labelled equation.
        """
        counts = {"Figure": 0, "Table": 0, "": 0}

        def numbered(kind: str) -> str:
            counts[kind] += 1
            number = f"{self.number}.{counts[kind]}" if self.number else str(counts[kind])
            return f"{kind} {number}".strip()

        def within(text: str) -> Iterator[tuple[str, str]]:
            target, heading = "", False
            for token in parser().parse(text):
                if form := directive(token):
                    name, argument, options, body = form
                    if (name == "figure" and body) or (name == "table" and argument):
                        yield options.get("name", ""), numbered(name.capitalize())
                    elif name == "math" and "label" in options:
                        yield options["label"], numbered("")
                    elif name not in ("code-block", "code", "math"):
                        yield from within(body)
                elif token.type == "math_block_label":
                    yield token.info, numbered("")
                elif token.type == "myst_target":
                    target = token.content
                elif token.type == "heading_open":
                    heading = True
                elif token.type == "inline" and heading:
                    if target:
                        yield target, token.content
                    target, heading = "", False

        for cell in self.notebook.cells:
            if cell.cell_type == "markdown":
                yield from within(cell.source)
            elif "caption" in (figure := cell.metadata.get("mystnb", {}).get("figure", {})):
                text = numbered("Figure")
                cell.metadata["figure_text"] = text
                yield figure.get("name", ""), text

    def title(self) -> str:
        """The text of the first heading."""
        for cell in self.notebook.cells:
            tokens = parser().parse(cell.source) if cell.cell_type == "markdown" else []
            for opening, inline in zip(tokens, tokens[1:]):
                if opening.type == "heading_open" and opening.tag == "h1":
                    return inline.content
        raise PlainMarkdownError(f"book/{self.name}.md: has no title, a line that begins with '# '")


def edition(source: str, answers: str, where: str) -> str:
    """A code cell's source with its answer as a "stub", as "solved", or "marked" as in the chapter."""
    solved = answers != "stub"
    lines, inside = [], False
    for line in source.split("\n"):
        mark = line.strip()
        if mark in (BEGIN, END):
            if inside != (mark == END):
                raise PlainMarkdownError(f"{where}: {mark!r} without its partner")
            inside = mark == BEGIN
            if answers == "marked":
                lines.append(line)
            if inside and not solved:
                lines.append(line.replace(BEGIN, STUB))
        elif solved or not inside:
            lines.append(line)
    if inside:
        raise PlainMarkdownError(f"{where}: {BEGIN!r} without its partner")
    return "\n".join(lines)


def measured(chapter: str, timings: dict[str, Any]) -> str:
    """A sentence with the measured time and memory of a chapter's notebook; "" if there is none."""
    if chapter not in timings:
        return ""
    seconds, memory = timings[chapter]["seconds"], timings[chapter]["peak_mb"]
    time = f"{max(10, round(seconds, -1)):.0f} seconds" if seconds < 95 else f"{seconds / 60:.1f} minutes"
    return (
        f"*With the package installed, all of this notebook takes about {time} of one CPU core and "
        f"{memory / 1000:.1f} GB of memory, as measured. No GPU is needed.*"
    )


def notebook(chapter: Chapter, book: Book, setup: str, answers: str, timings: dict) -> str:
    """One edition of a chapter, as the text of an .ipynb file; for `answers` see `edition`."""
    page, cells, seen = Page(book, chapter.name), [], {}

    def add(kind: str, source: str, name: str = "", **metadata: Any) -> None:
        name = re.sub(r"[^\w-]", "-", name or hashlib.sha256(source.encode()).hexdigest()[:10])
        seen[name] = seen.get(name, 0) + 1
        identity = name[:56] if seen[name] == 1 else f"{name[:56]}-{seen[name]}"
        cell = {"cell_type": kind, "id": identity, "metadata": metadata}
        if kind == "code":
            cell |= {"execution_count": None, "outputs": []}
        cells.append(cell | {"source": source.splitlines(keepends=True)})

    if chapter.executable:
        add("code", setup, "setup", cellView="form", jupyter={"source_hidden": True})
        if text := measured(chapter.name, timings):
            add("markdown", text, "measured")
    for cell in chapter.notebook.cells:
        if cell.cell_type == "markdown":
            if text := page.plain(cell.source):
                add("markdown", text)
            continue
        tags, settings = cell.metadata.get("tags", []), cell.metadata.get("mystnb", {})
        metadata = {"tags": kept} if (kept := [tag for tag in tags if tag in KEPT_TAGS]) else {}
        figure = settings.get("figure", {})
        defined = re.search(r"^(?:def|class) (\w+)", cell.source, re.MULTILINE)
        name = f"exercise-{defined[1]}" if defined and "exercise" in tags else figure.get("name", "")
        if "exercise" not in tags and (checked := CHECK.search(cell.source)):
            name = f"check-{checked[1]}"
        source = edition(cell.source, answers, f"book/{chapter.name}.md")
        add("code", source, name, **metadata)
        if "caption" in figure:
            text = f"**{cell.metadata['figure_text']}.** {page.plain(figure['caption'].strip())}"
            if alt := settings.get("image", {}).get("alt"):
                words = page.plain(alt.strip())
                text += f"\n\n<details>\n<summary>This figure in words</summary>\n\n{words}\n\n</details>"
            add("markdown", text, f"{name}-caption" if name else "")
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    whole = {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


def read_book(root: Path) -> tuple[list[Chapter], Book, str, dict[str, Any]]:
    """All chapters, what references resolve to, the setup cell, and the measured times."""
    if not (root / "_toc.yml").is_file():
        raise PlainMarkdownError(f"no _toc.yml in {root.resolve()}: run this in the project's root")
    config = yaml.safe_load((root / "_config.yml").read_text(encoding="utf-8"))
    toc = yaml.safe_load((root / "_toc.yml").read_text(encoding="utf-8"))
    chapters = [Chapter(root / f"{file}.md", number) for file, number in toc_pages(toc)]
    book = Book(citations=citations(root / "book/references.bib"), folder=root / "book")
    for chapter in chapters:
        book.titles[chapter.name] = chapter.title()
        for label, text in chapter.labels():
            if label in book.labels:
                raise PlainMarkdownError(f"book/{chapter.name}.md: the label {label!r} is used twice")
            if label:
                book.labels[label] = Label(text, chapter.name)
    timings = root / TIMINGS
    found = json.loads(timings.read_text(encoding="utf-8"))["chapters"] if timings.exists() else {}
    return chapters, book, SETUP.format(**config["repository"]), found


def editions(root: Path) -> dict[Path, str]:
    """The text of every notebook, by its path from the root. PlainMarkdownError on bad sources."""
    chapters, book, setup, timings = read_book(root)
    folders = {"stub": "notebooks", "solved": "notebooks/solutions"}
    return {
        Path(folder, f"{chapter.name}.ipynb"): notebook(chapter, book, setup, answers, timings)
        for chapter in chapters
        for answers, folder in folders.items()
    }


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("--check", action="store_true", help="compare with the files, write nothing")
    check, root = options.parse_args().check, Path.cwd()
    try:
        made = editions(root)
    except PlainMarkdownError as error:
        sys.exit(f"notebooks: {error}")
    old = {path.relative_to(root) for path in (root / "notebooks").rglob("*.ipynb")}
    old = {path for path in old if not any(part.startswith(".") for part in path.parts)}
    stale = sorted(
        path
        for path in old | made.keys()
        if path not in made or path not in old or (root / path).read_text(encoding="utf-8") != made[path]
    )
    if check:
        names = "".join(f"\n  {path}" for path in stale)
        sys.exit(f"These differ from their chapters; run `make notebooks`:{names}" if stale else 0)
    for path in stale:
        if path in made:
            write_atomically(root / path, made[path])
        else:
            (root / path).unlink()
        print("wrote" if path in made else "removed", path)
    print(f"{len(made)} notebooks are up to date")


if __name__ == "__main__":
    main()
