"""What the weights say at every snapshot of a run: composition and matching, against tokens seen.

A run's log holds losses and head scores. This adds what the log lacks, from the snapshots, which do
not all ship; the numbers do: `python -m pathsum.development measure RUN NAME` rewrites them for the
model NAME, and a test measures the snapshots that ship again.
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.checkpoints import CheckpointError, load_run, model_card
from pathsum.composition import KINDS, composition_scores
from pathsum.files import write_atomically
from pathsum.induction import matching_circuit_scores
from pathsum.model import AttentionOnlyTransformer

QUANTITIES: dict[str, Callable[[dict], float]] = {  # of one record of a run's log
    "held-out loss (nats)": lambda r: r["heldout_loss"],
    "in-context score (nats)": lambda r: r["in_context_score"],
    "second copy less first (nats)": lambda r: r["second_copy"] - r["first_copy"],
    "best prefix-matching score": lambda r: max(r["prefix_matching"][-1]),
    "best previous-token score, L0": lambda r: max(r["previous_token"][0]),
    "share of heads with copying > 0.5": lambda r: float(np.mean(np.array(r["copying"]) > 0.5)),
}
RESULTS = Path(str(resources.files("pathsum") / "data" / "development.json"))


def weight_record(model: AttentionOnlyTransformer) -> dict[str, list[list[float]]]:
    """Q, K and V composition and matching scores between layers 0 and 1, (earlier, later) lists."""
    scores = {kind: composition_scores(model, kind) for kind in KINDS}
    heads = range(model.config.n_heads)
    scores["matching"] = torch.stack([matching_circuit_scores(model, head) for head in heads])
    return {k: [[round(x, 4) for x in row] for row in v.tolist()] for k, v in scores.items()}


def measure(run: Path) -> list[dict]:
    """`weight_record` of every snapshot of a run, with its step and tokens, first to last."""
    steps = sorted(int(path.stem[5:]) for path in run.glob("snapshots/step-*.safetensors"))
    config = json.loads((run / "run.json").read_text(encoding="utf-8"))["config"]
    if config["model"]["n_layers"] < 2 or config["model"]["norm"] or config["model"].get("smear"):
        raise CheckpointError(
            f"{run} has {config['model']['n_layers']} layers, norm={config['model']['norm']!r}: "
            "composition is measured between two layers without LayerNorm; its log has the rest"
        )
    tokens = config["batch"] * config["model"]["n_ctx"]
    return [
        {"step": step, "tokens": step * tokens, **weight_record(load_run(run, step))}
        for step in steps
    ]


def development(name: str) -> list[dict]:
    """The weight records of a shipped model's run; CheckpointError if it was not measured."""
    known = json.loads(RESULTS.read_text(encoding="utf-8"))
    if name not in known:
        raise CheckpointError(
            f"the weights of {name!r} over training are not among {', '.join(known)}: "
            f"measure its run with python -m pathsum.development measure RUN {name}"
        )
    return known[name]


def measured_names() -> list[str]:
    """Models whose weights over training ship, in order."""
    return sorted(json.loads(RESULTS.read_text(encoding="utf-8")))


def curve(
    log: list[dict], quantity: Callable[[dict], float]
) -> tuple[Float[Tensor, " records"], Float[Tensor, " records"]]:
    """(tokens seen, a quantity) of every record of a run's log."""
    x, y = ([float(f(record)) for record in log] for f in (lambda r: r["tokens"], quantity))
    return torch.tensor(x), torch.tensor(y)


def pair_history(
    weights: list[dict], log: list[dict]
) -> tuple[tuple[int, int], dict[str, list[float]]]:
    """The pair of heads with the highest K-composition at the end, and its numbers over training.

    `weights` are the records of `development`, `log` those of the run; both have the same steps.
    """
    K = np.array(weights[-1]["K"])
    first, second = (int(i) for i in np.unravel_index(K.argmax(), K.shape))
    return (first, second), {
        "copying (OV)": [r["copying"][1][second] for r in log],
        "matching (QK)": [r["matching"][first][second] for r in weights],
        "K-composition": [r["K"][first][second] for r in weights],
        "previous token": [r["previous_token"][0][first] for r in log],
        "prefix matching": [r["prefix_matching"][1][second] for r in log],
    }


def rises(tokens: Sequence[int | float], score: Sequence[int | float], part: float) -> float:
    """Tokens at which a score passes `part` of its last value for good, between records.

    For good: what it does before it last falls below, as in the first moments of training, is passed
    over. ValueError if the score does not end above 0.
    """
    t, s = (np.asarray(x, dtype=float) for x in (tokens, score))
    if not s[-1] > 0:
        raise ValueError(f"the score must end above 0, got {s[-1]}: it has not risen")
    below = np.flatnonzero(s < part * s[-1])
    if not len(below):
        return float(t[0])
    i = below[-1]  # the last record below, so that what comes after stays above
    share = (part * s[-1] - s[i]) / (s[i + 1] - s[i])
    return float(t[i] + share * (t[i + 1] - t[i]))


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m pathsum.development", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    measurer = commands.add_parser("measure", help="measure a run's snapshots, rewrite its part")
    measurer.add_argument("run", type=Path)
    measurer.add_argument("name", help="the shipped model that came of the run")
    options = parser.parse_args(arguments)
    try:
        model_card(options.name)
        records = measure(options.run)
    except (CheckpointError, OSError) as error:
        sys.exit(f"pathsum.development: {error}")
    known = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    known[options.name] = records
    parts = (
        f"{json.dumps(name)}: [\n" + ",\n".join(map(json.dumps, records)) + "\n]"
        for name, records in sorted(known.items())
    )
    write_atomically(RESULTS, "{\n" + ",\n".join(parts) + "\n}\n")


if __name__ == "__main__":
    main()
