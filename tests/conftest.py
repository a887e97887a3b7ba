"""Shared by all tests: checked shapes, the built book, a browser."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from jaxtyping import install_import_hook

# Every annotated function of the package has its arguments and result checked from here on. It
# stands before the first import of the package, which test modules do after this file is read.
install_import_hook("pathsum", "beartype.beartype")

ROOT = Path(__file__).resolve().parent.parent
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
NO_BROWSER = (
    "no Chromium or Chrome was found for the browser tests: install one "
    "(Debian, Ubuntu: apt-get install chromium; macOS: brew install --cask chromium)"
)


@pytest.fixture(scope="session")
def root() -> Path:
    """The project's root."""
    return ROOT


@pytest.fixture(scope="session")
def built_book() -> Path:
    """The folder with the pages of the book, built by the command behind `make book`."""
    command = [sys.executable, "tools/book.py"]
    run = subprocess.run(command, cwd=ROOT, text=True, capture_output=True)
    if run.returncode:
        pytest.fail(f"the book does not build:\n{run.stdout[-3000:]}\n{run.stderr[-6000:]}")
    return ROOT / "_build" / "html"


@pytest.fixture(scope="session")
def chromium() -> Iterator[object]:
    """A running headless browser; without one the tests are skipped, in CI they fail."""
    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if found is None:
        if os.environ.get("PATHSUM_CI"):
            pytest.fail(NO_BROWSER)
        pytest.skip(NO_BROWSER)
    from playwright.sync_api import sync_playwright

    quiet = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
    quiet += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=quiet)
        yield browser
        browser.close()


@pytest.fixture
def run_solutions() -> Callable[[str], int]:
    """Runs a chapter's exercise and check cells in order after its import cell; how many checks."""

    def run(chapter: str) -> int:
        text = (ROOT / f"book/{chapter}.md").read_text(encoding="utf-8")
        cells = re.findall(r"```\{code-cell\} python\n(?:---\n(.*?)---\n)?(.*?)```", text, re.DOTALL)
        space: dict = {}
        exec(cells[0][1], space)
        checks = 0
        for options, code in cells[1:]:
            is_check = re.fullmatch(r"(?:from .*\n\n)?check_\w+\(\w+\)\n", code) is not None
            if "exercise" in options or is_check:
                exec(code, space)
            checks += is_check and "exercise" not in options
        return checks

    return run
