"""Do the links to other sites still lead somewhere? `python tools/links.py`, once a week.

Every address in the chapters, the bibliography and the README is asked for, with retries and pauses,
since hosts are sometimes busy. A host that refuses a robot (401, 403, 429) is there, and is only
remarked on. Needs nothing but Python and a network.
"""

import argparse
import re
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ADDRESS = re.compile(r"https?://[^\s<>\"'`{}|\\^\[\]]+")
LOCAL = re.compile(r"https?://(127\.0\.0\.1|localhost|example\.)")
REFUSED = (401, 403, 405, 429)
AGENT = "Mozilla/5.0 (link check of a book)"


def addresses(root: Path) -> dict[str, list[str]]:
    """Every outside address and the files that it stands in."""
    found: dict[str, list[str]] = {}
    for path in [
        root / "README.md",
        root / "NOTICE",
        *sorted((root / "book").glob("*.md")),
        root / "book/references.bib",
    ]:
        for address in ADDRESS.findall(path.read_text(encoding="utf-8") if path.exists() else ""):
            address = address.split("#")[0].rstrip(".,;:*_")
            while address.endswith(")") and address.count("(") < address.count(")"):
                address = address[:-1]
            if not LOCAL.match(address) and path.name not in found.setdefault(address, []):
                found[address].append(path.name)
    return found


def answer(address: str, tries: int, pause: float, timeout: float = 30) -> str:
    """ "" if the address is there, else why not; "refused: ..." if its host refuses robots."""
    problem = ""
    for attempt in range(tries):
        if attempt:
            time.sleep(pause * 2 ** (attempt - 1))
        request = urllib.request.Request(address, headers={"User-Agent": AGENT})
        try:
            with urllib.request.urlopen(request, timeout=timeout):
                return ""
        except urllib.error.HTTPError as error:
            if error.code in REFUSED:
                return f"refused: {error.code}"
            problem = f"{error.code} {error.reason}"
            if error.code in (404, 410):
                return problem
        except (OSError, ValueError) as error:
            problem = str(error) or type(error).__name__
    return f"{problem}, after {tries} tries"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("--tries", type=int, default=4)
    options.add_argument(
        "--pause", type=float, default=10, help="seconds before the second try, then doubled"
    )
    options.add_argument("--report", type=Path, help="also write what was found there")
    chosen = options.parse_args()
    dead, lines = 0, []
    for address, files in sorted(addresses(ROOT).items()):
        problem = answer(address, chosen.tries, chosen.pause)
        if problem:
            dead += not problem.startswith("refused")
            lines.append(f"{problem}: {address} in {', '.join(files)}")
            print(lines[-1], flush=True)
    lines.append(f"{dead} dead links")
    print(lines[-1])
    if chosen.report:
        chosen.report.write_text("\n".join(lines) + "\n", encoding="utf-8")
    sys.exit(bool(dead))


if __name__ == "__main__":
    main()
