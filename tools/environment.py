"""Write environment.yml from requirements.lock, the one source of the pins.

    python tools/environment.py            write it
    python tools/environment.py --check    exit 1 if it differs
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HEADER = """\
# Made from requirements.lock by tools/environment.py; edit that file, then run `make environment`.
name: pathsum
channels: [conda-forge]
dependencies:
  - python=3.11
  - pip
  - pip:
"""


def pins(lock: str) -> list[str]:
    """The requirement lines of a lock file, without comments and blank lines."""
    lines = (line.split("#")[0].strip() for line in lock.splitlines())
    return [line for line in lines if line]


def environment(lock: str) -> str:
    """The text of environment.yml for a lock file."""
    return HEADER + "".join(f"      - {pin}\n" for pin in pins(lock)) + "      - -e .\n"


if __name__ == "__main__":
    text = environment((ROOT / "requirements.lock").read_text())
    place = ROOT / "environment.yml"
    if sys.argv[1:] == ["--check"]:
        if place.read_text() != text:
            sys.exit("environment.yml differs from requirements.lock: run `make environment`")
    else:
        place.write_text(text)
