"""Build the executed book into `_build/html`; `make book` calls this.

Warnings and cell errors fail the build. Executed cells are cached, but the cache of the
notebook tools knows only the text of the cells: here it is also keyed on the package, its data
and the pinned versions, so that a changed helper executes every chapter again.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from live import lay_out
from vendor import VendorError, vendor

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "_build"


def digest(root: Path, *names: str) -> str:
    """A hash of the files of these names, folders with all that is in them."""
    total = hashlib.sha256(sys.version.encode())
    for name in names:
        place = root / name
        for path in sorted(place.rglob("*")) if place.is_dir() else [place]:
            if path.is_file() and path.suffix != ".pyc" and ".egg-info" not in str(path):
                total.update(f"{path.relative_to(root)}\0{path.stat().st_size}\0".encode())
                total.update(path.read_bytes())
    return total.hexdigest()


def execution_key(root: Path = ROOT) -> str:
    """A hash of all that the output of a cell depends on besides the cell."""
    return digest(root, "requirements.lock", "src")


def page_key(root: Path = ROOT) -> str:
    """A hash of all that a page depends on besides its text and the outputs of its cells."""
    made = ("_vendor/made-from", "_build/site")
    return digest(root, "requirements.lock", "_config.yml", "_toc.yml", "ext", "book/static", *made)


def forget_stale_results(root: Path = ROOT) -> None:
    """Drop what was made under another key: the executed cells, or only the pages."""
    built = root / "_build"
    built.mkdir(exist_ok=True)
    for name, key, stale in (
        ("execution-key", execution_key(root), (".jupyter_cache", ".doctrees", "html")),
        ("page-key", page_key(root), (".doctrees", "html")),
    ):
        stamp = built / name
        if not stamp.exists() or stamp.read_text() != key:
            for folder in stale:
                shutil.rmtree(built / folder, ignore_errors=True)
            stamp.write_text(key)


def build(extra: list[str]) -> int:
    """Run Jupyter Book in the project root; its exit status."""
    forget_stale_results()
    environment = {**os.environ, "CIRCUITS_BOOK": "1", "PYTHONHASHSEED": "0"}
    environment.setdefault("PYDEVD_DISABLE_FILE_VALIDATION", "1")
    # The kernel must be this interpreter, whatever environment the caller has active.
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    command = [Path(sys.executable).parent / "jupyter-book", "build", "-W", "-n", "--keep-going"]
    return subprocess.run([*command, *extra, "."], cwd=ROOT, env=environment).returncode


if __name__ == "__main__":
    started = time.monotonic()
    try:
        vendor()
    except VendorError as error:
        sys.exit(f"vendor: {error}")
    lay_out()
    status = build(sys.argv[1:])
    if status:
        sys.exit(f"book: the build failed with status {status}; the first warning or traceback above says why")
    minutes, seconds = divmod(round(time.monotonic() - started), 60)
    print(f"\nThe book is ready ({minutes} min {seconds} s): run `make serve` and open the address it")
    print(f"prints, or open this file in a browser: {(BUILD / 'html/index.html').as_uri()}")
