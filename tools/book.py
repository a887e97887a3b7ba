"""Build the executed book into `_build/html`; `make book` calls this.

Warnings and cell errors fail the build. Executed cells are cached, but the cache of the
notebook tools knows only the text of the cells: here it is also keyed on the package, its data,
the page hooks and the pinned versions, so that a changed helper executes every chapter again.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from vendor import VendorError, vendor

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "_build"


def execution_key(root: Path = ROOT) -> str:
    """A hash of all that a page depends on besides its own text."""
    digest = hashlib.sha256(sys.version.encode())
    files = [root / "requirements.lock", *sorted((root / "ext").glob("*.py"))]
    files += sorted(p for p in (root / "src").rglob("*") if p.is_file())
    for path in files:
        if path.suffix == ".pyc" or ".egg-info" in str(path):
            continue
        digest.update(f"{path.relative_to(root)}\0{path.stat().st_size}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def forget_stale_results(key: str) -> None:
    """Drop the executed cells and parsed pages when they were made under another key."""
    stamp = BUILD / "execution-key"
    if not stamp.exists() or stamp.read_text() != key:
        for stale in (BUILD / ".jupyter_cache", BUILD / ".doctrees", BUILD / "html"):
            shutil.rmtree(stale, ignore_errors=True)
        BUILD.mkdir(exist_ok=True)
        stamp.write_text(key)


def build(extra: list[str]) -> int:
    """Run Jupyter Book in the project root; its exit status."""
    forget_stale_results(execution_key())
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
    status = build(sys.argv[1:])
    if status:
        sys.exit(f"book: the build failed with status {status}; the first warning or traceback above says why")
    minutes, seconds = divmod(round(time.monotonic() - started), 60)
    print(f"\nThe book is ready ({minutes} min {seconds} s): run `make serve` and open the address it")
    print(f"prints, or open this file in a browser: {(BUILD / 'html/index.html').as_uri()}")
