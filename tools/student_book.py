"""The book without solutions, in `_build/student-book/_build/html`; `make student-book` calls this.

The pages are those of `make book`, made from a copy of the sources in which every solution is a stub
and the teacher's guide is left out. With --fast no cell is executed: pages without figures, for
tests. Run it in the project's root, in the book's environment.
"""

import argparse
import re
import shutil
import subprocess
import sys
from pathlib import Path

import yaml
from vendor import VendorError, vendor

from pathsum.leaks import leaks
from pathsum.notebooks import edition, read_book

ROOT = Path(__file__).resolve().parent.parent
COPIED = ("_config.yml", "_toc.yml", "requirements.lock", "book", "ext", "tools", "src", "_vendor")
TEACHERS = ("book/teaching", "book/teaching.yml", "book/courses")
FOLD = re.compile(
    r"tags: \[exercise, hide-input\]\nmystnb: \{code_prompt_show: Show a solution\}\n"
)


def without_guide(toc: dict) -> dict:
    """The table of contents without the teacher's pages."""
    for part in toc.get("parts", []):
        part["chapters"] = [c for c in part["chapters"] if c["file"] not in TEACHERS]
    return toc


def student_sources(root: Path, target: Path) -> None:
    """A copy of all that a build needs, in which nothing tells a solution."""
    for name in COPIED:
        old, new = root / name, target / name
        if new.is_dir() and not new.is_symlink():
            shutil.rmtree(new)
        new.parent.mkdir(parents=True, exist_ok=True)
        if old.is_dir():
            shutil.copytree(old, new, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        else:
            shutil.copyfile(old, new)
    for name in TEACHERS:
        for path in target.glob(f"{name}*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    toc = yaml.safe_load((target / "_toc.yml").read_text(encoding="utf-8"))
    (target / "_toc.yml").write_text(yaml.safe_dump(without_guide(toc), sort_keys=False))
    for path in (target / "book").glob("*.md"):
        text = edition(path.read_text(encoding="utf-8"), "stub", f"book/{path.name}")
        text = re.sub(r"\[([^\]]*)\]\(teaching\.md[^)]*\)", r"\1", text)
        path.write_text(FOLD.sub("tags: [exercise]\n", text), encoding="utf-8")


def settings(target: Path, fast: bool) -> None:
    """No button to the sources, which hold the solutions; with `fast`, nothing is executed."""
    path = target / "_config.yml"
    config = yaml.safe_load(path.read_text(encoding="utf-8"))
    config["html"]["use_repository_button"] = False
    if fast:
        config["execute"]["execute_notebooks"] = "off"
        config["sphinx"]["config"]["suppress_warnings"] = ["ref", "myst-nb.lexer"]
    path.write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("--fast", action="store_true", help="execute no cell")
    options.add_argument("--out", type=Path, default=ROOT / "_build/student-book")
    chosen = options.parse_args()
    target = chosen.out.resolve()
    try:
        vendor()
    except VendorError as error:
        sys.exit(f"vendor: {error}")
    student_sources(ROOT, target)
    settings(target, chosen.fast)
    built = subprocess.run([sys.executable, "tools/book.py"], cwd=target, check=False)
    if built.returncode:
        sys.exit("student-book: the build failed; the first warning or traceback above says why")
    chapters, *_ = read_book(ROOT)
    if found := leaks(target / "_build/html", chapters):
        sys.exit("\n".join(["student-book: solutions are still in it:", *found]))
    print(f"No solution is in {target / '_build/html'}")


if __name__ == "__main__":
    main()
