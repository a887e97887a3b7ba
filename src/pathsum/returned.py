"""A notebook that comes back from a student, in whatever state, made gradable again.

    python -m pathsum.returned RETURNED.ipynb RELEASE.ipynb SUBMITTED.ipynb

Cells may have been copied, deleted, moved, or stripped of their metadata. So nothing is asked of
them: each function that the release asks for is looked up by its name, the last one that is more
than a stub counts, and it goes into its place in a fresh copy of the release. What the student
wrote besides (helpers, imports) stands before the answer that it stood before.
"""

import argparse
import ast
import json
import re
import sys
from pathlib import Path
from typing import Any

from pathsum.files import write_atomically
from pathsum.notebooks import STUB

MAGIC = re.compile(r"^(\s*)[%!?].*$", re.MULTILINE)


class ReturnedError(ValueError):
    """A file that is no notebook."""


def _cells(text: str, name: str) -> list[dict[str, Any]]:
    try:
        cells = json.loads(text)["cells"]
        for cell in cells:
            cell["source"] = "".join(cell["source"])
    except (ValueError, KeyError, TypeError):
        raise ReturnedError(
            f"{name} is not a notebook of format 4: save it again as .ipynb"
        ) from None
    return cells


def defined(source: str) -> set[str]:
    """Functions that a code cell defines at its top level, also when other lines of it are broken."""
    try:
        tree = ast.parse(MAGIC.sub(r"\1pass", source))
    except (SyntaxError, ValueError):
        return set(re.findall(r"^def (\w+)\s*\(", source, re.MULTILINE))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def _same(source: str) -> str:
    return "".join(source.split())


def restored(returned: str, release: str) -> tuple[str, list[str]]:
    """The release with the answers of a returned notebook, and remarks on what was repaired.

    ReturnedError if one of them is no notebook.
    """
    given, fresh = _cells(returned, "the returned file"), _cells(release, "the release")
    known = {_same(cell["source"]) for cell in fresh}
    wanted = {
        (defined(cell["source"]) & {cell["id"].removeprefix("exercise-")}).pop(): cell
        for cell in fresh
        if cell["id"].startswith("exercise-")
    }
    answers: dict[str, str] = {}
    helpers: dict[str, list[str]] = {name: [] for name in wanted}
    own, remarks, question, written = [], [], "", {}
    for cell in given:
        source = cell["source"]
        if cell["cell_type"] == "markdown":
            if found := re.search(r"Question (\d+)\.(\d+): ", source):
                question = f"question-{found[1]}-{found[2]}"
            elif question and _same(source) not in known:
                written.setdefault(question, source)
            continue
        if cell["cell_type"] != "code" or _same(source) in known:
            continue
        names = defined(source) & wanted.keys()
        for name in names:
            if STUB not in source:
                if name in answers:
                    remarks.append(f"{name} was written more than once; the last one counts")
                answers[name] = source
                helpers[name] += own
        own = [] if names else [*own, source]
    cells = []
    for cell in fresh:
        name = cell["id"].removeprefix("exercise-")
        if name in answers and cell["id"] != name:
            for i, source in enumerate(helpers[name], 1):
                identity = f"own-{name}-{i}"[:64]
                cells.append(
                    {"cell_type": "code", "id": identity, "metadata": {}, "source": source}
                )
                cells[-1] |= {"execution_count": None, "outputs": []}
            cell["source"] = answers[name]
        elif cell["id"] in written:
            cell["source"] = written[cell["id"]]
        cells.append(cell)
    remarks += [f"{name} is not written" for name in wanted if name not in answers]
    for cell in cells:
        cell["source"] = cell["source"].splitlines(keepends=True)
    content = json.loads(release) | {"cells": cells}
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n", remarks


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    for name in ("returned", "release", "submitted"):
        options.add_argument(name, type=Path)
    chosen = options.parse_args()
    try:
        text, remarks = restored(
            chosen.returned.read_text(encoding="utf-8"), chosen.release.read_text(encoding="utf-8")
        )
    except (OSError, UnicodeDecodeError, ReturnedError) as error:
        sys.exit(f"returned: {error}")
    write_atomically(chosen.submitted, text)
    print("\n".join([*remarks, f"wrote {chosen.submitted}"]))


if __name__ == "__main__":
    main()
