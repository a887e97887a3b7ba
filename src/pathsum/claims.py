"""The paper's claims, each with what we measure on our models, a pass criterion and a verdict."""

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from html import escape
from importlib import import_module
from pathlib import Path

from pathsum.files import write_atomically

VERDICTS = ("exact", "holds", "weaker", "not seen")
MODULES = (
    "pathsum.claims_overview",
    "pathsum.claims_zero",
    "pathsum.claims_one_layer",
    "pathsum.claims_skip_trigrams",
    "pathsum.claims_summarising",
    "pathsum.claims_two_layers",
    "pathsum.claims_terms",
)  # where claims are registered
RESULTS = Path("book/results/claims.json")
PAGE = Path("book/claims.md")  # the same rows as a page of the book
INTRODUCTION = """# The claims, measured

*What does the paper claim, and which of it do we see in models of our own?*

Each row is a claim of {cite:t}`elhage2021` in our words, what the paper reports for it, what must be
seen here for the claim to hold, and what was seen in the shipped models. The criteria were
fixed beforehand, and none was loosened to pass. **exact** is an identity that holds to rounding error; **holds**
meets its criterion; **weaker** points the same way but misses part of it; **not seen** is what it
says: not in these models, which are far smaller than the paper's and saw other text. The chapter says
what we think the reason is.

This page and `book/results/claims.json` are written by `python -m pathsum.claims run`, and a test
measures a sample again.
"""


@dataclass(frozen=True)
class Measurement:
    """One claim measured: the numbers that were seen, and what follows."""

    number: float  # the quantity that the criterion speaks of
    unit: str  # "nats", "largest difference", "share", ...
    verdict: str  # one of VERDICTS
    detail: str  # one sentence with the numbers behind the verdict

    def __post_init__(self) -> None:
        if self.verdict not in VERDICTS:
            raise ValueError(f"verdict must be one of {VERDICTS}, got {self.verdict!r}")


@dataclass(frozen=True)
class Claim:
    """A statement of the paper, in our words, and how it is checked here."""

    id: str  # as in the claims table: A1, Z2, O11, ...
    section: str  # of the paper
    statement: str  # what the paper says
    paper: str  # its result: a number, "identity", "qualitative"
    criterion: str  # what must be seen for "holds" or "exact"
    page: str  # chapter whose cells show it
    measure: Callable[[], Measurement]


_REGISTRY: dict[str, Claim] = {}


def claim(**facts: str) -> Callable:
    """Decorator: register the function below as the measurement of a claim."""

    def register(measure: Callable[[], Measurement]) -> Callable[[], Measurement]:
        entry = Claim(measure=measure, **facts)
        if entry.id in _REGISTRY and _REGISTRY[entry.id].measure.__name__ != measure.__name__:
            raise ValueError(f"claim {entry.id} is registered twice")
        _REGISTRY[entry.id] = entry
        return measure

    return register


def all_claims() -> dict[str, Claim]:
    """Every registered claim by id, in the order of the modules."""
    for module in MODULES:
        import_module(module)
    return dict(_REGISTRY)


def measure(*ids: str) -> list[dict]:
    """The named claims (all without names), measured now on the shipped models.

    Rows hold the claim's facts and the measurement's. KeyError for an unknown id.
    """
    claims = all_claims()
    unknown = [name for name in ids if name not in claims]
    if unknown:
        raise KeyError(f"no claim is called {unknown[0]!r}: there are {', '.join(claims)}")
    rows = []
    for name in ids or claims:
        entry = claims[name]
        facts = {k: v for k, v in vars(entry).items() if k != "measure"}
        rows.append({**facts, **asdict(entry.measure())})
    return rows


class ClaimsTable:
    """Measured claims as a table: HTML in a page or notebook, plain text elsewhere."""

    def __init__(self, rows: list[dict]) -> None:
        self.rows = rows

    def _repr_html_(self) -> str:
        heads = ("claim", "statement", "criterion", "seen here", "verdict")
        keys = ("id", "statement", "criterion", "detail", "verdict")
        head = "".join(f'<th scope="col">{name}</th>' for name in heads)
        body = "".join(
            "<tr>" + "".join(f"<td>{escape(str(row[key]))}</td>" for key in keys) + "</tr>"
            for row in self.rows
        )
        return f'<table class="table claims"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'

    def __repr__(self) -> str:
        return "\n".join(f"{r['id']}: {r['verdict']}. {r['detail']}" for r in self.rows)


def show(*ids: str) -> ClaimsTable:
    """Measure the named claims and show statement, criterion, what was seen and verdict."""
    return ClaimsTable(measure(*ids))


def page(rows: list[dict]) -> str:
    """The claims page in Markdown: a count of verdicts, then one table a chapter."""
    counts = {v: sum(row["verdict"] == v for row in rows) for v in VERDICTS}
    text = [INTRODUCTION, ", ".join(f"{n} {v}" for v, n in counts.items() if n).capitalize() + "."]
    chapters = dict.fromkeys(row["page"] for row in rows)
    for chapter in chapters:
        name = chapter.replace("-", " ").capitalize()
        text += [f"\n## {name}\n", f"Shown in [{name}]({chapter}.md).\n"]
        text += ["| claim | statement | paper | criterion | seen here | verdict |"]
        text += ["| --- | --- | --- | --- | --- | --- |"]
        keys = ("id", "statement", "paper", "criterion", "detail")
        for row in (r for r in rows if r["page"] == chapter):
            cells = [row[key] for key in keys] + [f"**{row['verdict']}**"]
            text.append("| " + " | ".join(cells) + " |")
    return "\n".join(text) + "\n"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m pathsum.claims", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    runner = commands.add_parser("run", help="measure all claims and rewrite the result file")
    runner.add_argument("--out", type=Path, default=RESULTS)
    runner.add_argument("--page", type=Path, default=PAGE)
    shower = commands.add_parser("show", help="measure some claims and print them")
    shower.add_argument("ids", nargs="+", metavar="ID")
    options = parser.parse_args(arguments)
    if options.command == "show":
        print(show(*options.ids))
        return
    rows = measure()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(options.out, json.dumps(rows, indent=1, ensure_ascii=False) + "\n")
    write_atomically(options.page, page(rows))
    for row in rows:
        print(f"{row['id']:>4}  {row['verdict']:<8}  {row['detail']}")


if __name__ == "__main__":
    # not this module's own main: claims register in the module that is imported by name
    from pathsum.claims import main as registered_main

    registered_main()
