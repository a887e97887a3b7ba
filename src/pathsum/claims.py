"""The paper's claims, each with what we measure on our models, a pass criterion and a verdict."""

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import import_module
from inspect import signature
from math import isfinite
from pathlib import Path

from pathsum.claims_table import VERDICTS, ClaimsTable, page, spread
from pathsum.files import write_atomically
from pathsum.seeds import Checkpoint, by_kind

MODULES = (
    "pathsum.claims_overview",
    "pathsum.claims_stream",
    "pathsum.claims_paths",
    "pathsum.claims_zero",
    "pathsum.claims_one_layer",
    "pathsum.claims_depth",
    "pathsum.claims_skip_trigrams",
    "pathsum.claims_summarising",
    "pathsum.claims_composition",
    "pathsum.claims_induction",
    "pathsum.claims_training",
    "pathsum.claims_interventions",
    "pathsum.claims_terms",
    "pathsum.claims_details",
)  # where claims are registered
RESULTS = Path("book/results/claims.json")
PAGE = Path("book/claims.md")  # the same rows as a page of the book


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
    measure: Callable[..., Measurement]  # its arguments say on what, see `claim`


_REGISTRY: dict[str, Claim] = {}


def claim(**facts: str) -> Callable:
    """Decorator: register the function below as the measurement of a claim.

    The names of its arguments say what it is measured on: `two` is a two-layer model, `one`, `zero`,
    `one_smeared` and so on are the kinds of `pathsum.seeds`; `two_log` is the record of such a model's
    training; `every` is all checkpoints, by kind and seed. Without arguments it is measured once.
    """

    def register(measure: Callable[..., Measurement]) -> Callable[..., Measurement]:
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


def measured_by_seed(
    entry: Claim, checkpoints: dict[str, dict[int, Checkpoint]], seeds: int | None = None
) -> dict[int, Measurement]:
    """The claim's measurement for each seed of the model that its function names first.

    Other models come from the same seed or, where it has none, from their first. All seeds unless
    `seeds` limits their number. One entry, of seed 0, for a claim that needs no model of its own.
    """
    wanted = [name for name in signature(entry.measure).parameters if name != "every"]
    whole = {"every": checkpoints} if "every" in signature(entry.measure).parameters else {}
    kinds = [name.removesuffix("_log") for name in wanted]
    missing = [kind for kind in kinds if not checkpoints.get(kind)]
    if missing:
        why = f"needs a model of kind {missing[0]!r}, and none is shipped"
        return {0: Measurement(float("nan"), "", "not measured", why)}
    if not wanted:
        return {0: entry.measure(**whole)}
    found = {}
    for seed in list(checkpoints[kinds[0]])[:seeds]:
        given = {}
        for name, kind in zip(wanted, kinds):
            own = checkpoints[kind].get(seed) or next(iter(checkpoints[kind].values()))
            given[name] = own.log if name.endswith("_log") else own.model
        found[seed] = entry.measure(**given, **whole)
    return found


def measure(
    *ids: str, checkpoints: dict[str, dict[int, Checkpoint]] | None = None, seeds: int | None = 1
) -> list[dict]:
    """The named claims (all without names), measured now, on the shipped models unless others are given.

    Rows hold the claim's facts and the first seed's measurement. With `seeds` None, or above 1, also
    `seeds`, a list of seed, number and verdict, and `over_seeds`, the weakest verdict. KeyError for
    an unknown id.
    """
    claims = all_claims()
    unknown = [name for name in ids if name not in claims]
    if unknown:
        raise KeyError(f"no claim is called {unknown[0]!r}: there are {', '.join(claims)}")
    checkpoints = by_kind() if checkpoints is None else checkpoints
    rows = []
    for name in ids or claims:
        entry = claims[name]
        found = measured_by_seed(entry, checkpoints, seeds)
        facts = {k: v for k, v in vars(entry).items() if k != "measure"}
        row = {**facts, **_plain(next(iter(found.values())))}
        if seeds != 1:
            each = [{"seed": seed, **_plain(m)} for seed, m in found.items()]
            row["seeds"] = [{k: m[k] for k in ("seed", "number", "verdict")} for m in each]
            row["over_seeds"] = max((m["verdict"] for m in each), key=VERDICTS.index)
        rows.append(row)
    return rows


def _plain(measurement: Measurement) -> dict:
    """As JSON has it: no number is null, for JSON knows no NaN."""
    row = asdict(measurement)
    return {**row, "number": row["number"] if isfinite(row["number"]) else None}


def show(*ids: str) -> ClaimsTable:
    """Measure the named claims and show statement, criterion, what was seen and verdict."""
    return ClaimsTable(measure(*ids))


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m pathsum.claims", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    runner = commands.add_parser("run", help="measure all claims and rewrite the result file")
    runner.add_argument("--out", type=Path, default=RESULTS)
    runner.add_argument("--page", type=Path, default=PAGE)
    runner.add_argument(
        "--models",
        nargs="+",
        metavar="NAME_OR_FOLDER",
        help="shipped names or folders of runs (default: all shipped seeds)",
    )
    shower = commands.add_parser("show", help="measure some claims and print them")
    shower.add_argument("ids", nargs="+", metavar="ID")
    options = parser.parse_args(arguments)
    if options.command == "show":
        print(show(*options.ids))
        return
    checkpoints, rows = by_kind(options.models), []
    for name in all_claims():
        (row,) = measure(name, checkpoints=checkpoints, seeds=None)
        rows.append(row)
        over = f"  [{words}]" if (words := spread(row)) else ""
        print(f"{name:>4}  {row['over_seeds']:<8}  {row['detail']}{over}", flush=True)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(options.out, json.dumps(rows, indent=1, ensure_ascii=False) + "\n")
    write_atomically(options.page, page(rows))


if __name__ == "__main__":
    # not this module's own main: claims register in the module that is imported by name
    from pathsum.claims import main as registered_main

    registered_main()
