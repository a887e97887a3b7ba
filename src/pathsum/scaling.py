"""What the methods cost as models grow: counted, and measured by `python -m pathsum.scaling run`.

Each method runs in a process of its own on models of random weights with 2 to 30 layers, and on the
shipped one with two, so that seconds are processor seconds of one thread and memory is its own. Weights
decide what a method finds and nothing of what it costs.
"""

import argparse
import gc
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from tqdm.auto import tqdm

from pathsum.checkpoints import load_model
from pathsum.circuits import full_ov_eigenvalues
from pathsum.composition import ov_circuits, pair_scores, qk_circuits
from pathsum.contrasts import induction_contrast
from pathsum.edges import circuit_run, edge_attributions, graph_of, head_attributions
from pathsum.files import write_atomically
from pathsum.model import AttentionOnlyTransformer, Config, cache
from pathsum.tracing import patched_heads

RESULTS = Path(__file__).resolve().parents[2] / "book" / "results" / "scaling.json"
LAYERS = (2, 4, 8, 15, 30)
HEADS = 8
PROMPTS = {"batch": 4, "period": 6}  # 10 positions with the start token and half of the second copy
POSITIONS = 1 + PROMPTS["period"] + PROMPTS["period"] // 2


def counts(n_layers: int, n_heads: int = HEADS, positions: int = POSITIONS) -> dict[str, int]:
    """How many things there are to look at in a model without MLPs; exact whole numbers.

    `heads`; `patches`, a head at a position; `pairs` of heads in different layers, in order; `edges`
    of the graph; `paths` from the embedding to the logits with patterns frozen, (1 + n_heads) to the
    power n_layers. ValueError for sizes below zero layers, one head or one position.
    """
    if n_layers < 0 or n_heads < 1 or positions < 1:
        raise ValueError(
            "needs n_layers >= 0, n_heads >= 1 and positions >= 1, got "
            f"{n_layers}, {n_heads} and {positions}"
        )
    heads = n_layers * n_heads
    pairs = n_heads**2 * n_layers * (n_layers - 1) // 2
    return {
        "heads": heads,
        "patches": heads * positions,
        "pairs": pairs,
        "edges": 3 * (heads + pairs) + heads + 1,
        "paths": (1 + n_heads) ** n_layers,
    }


def _model(n_layers: int) -> AttentionOnlyTransformer:
    return AttentionOnlyTransformer(Config(n_layers, n_heads=HEADS)).requires_grad_(False)


def _one_edge(model: AttentionOnlyTransformer) -> None:
    """One edge cut, and the runs that are made once for all edges."""
    run, mask = circuit_run(model, _contrast(model)), graph_of(model).whole()
    mask[0, -1] = 0
    with torch.no_grad():
        run(mask)


def _contrast(model: AttentionOnlyTransformer):
    return induction_contrast(model.config.d_vocab, **PROMPTS)


def _eigenvalues(model: AttentionOnlyTransformer) -> None:
    full_ov_eigenvalues(model.W_E, ov_circuits(model), model.W_U)


def _composition(model: AttentionOnlyTransformer) -> None:
    writes, reads = ov_circuits(model), qk_circuits(model)
    for second in (reads, reads.mT, writes):
        pair_scores(writes, second)


METHODS: dict[str, Callable[[AttentionOnlyTransformer], object]] = {
    "one run": lambda model: cache(model, _contrast(model).clean),
    "eigenvalues of all heads": _eigenvalues,
    "composition of all pairs": _composition,
    "attribution of all heads": lambda model: head_attributions(model, _contrast(model)),
    "attribution of all edges": lambda model: edge_attributions(model, _contrast(model)),
    "patching of all heads by position": lambda model: patched_heads(
        model, _contrast(model), progress=False
    ),
    "patching of one edge": _one_edge,
}


def work_of(method: str, n_layers: int) -> float:
    """How much a method has to do, in units of its own: how it grows and not how long it takes.

    Layers run, for methods that run the model (a patch in layer l runs what comes after it); heads or
    pairs, for those that read weights; and for edges, what all receivers add up.
    ValueError for an unknown method.
    """
    if method not in METHODS:
        raise ValueError(f"there is no method {method!r}: choose one of {', '.join(METHODS)}")
    n = counts(n_layers)
    after = POSITIONS * HEADS * n_layers * (n_layers - 1) / 2  # layers after each patch, summed
    units = {
        "one run": n_layers,
        "eigenvalues of all heads": n["heads"],
        "composition of all pairs": n["heads"] ** 2,
        "attribution of all heads": n_layers,
        "attribution of all edges": n["edges"],
        "patching of all heads by position": after,
        "patching of one edge": n["edges"],
    }
    return float(units[method])


def measured(method: str, n_layers: int, real: bool = False) -> dict:
    """Processor seconds and MiB above what was there before, in this process. One thread.

    Of what takes less than half a second the fastest of five; memory is that of the first.
    """
    torch.set_num_threads(1)
    model = load_model("attn-only-2l") if real else _model(n_layers)
    cache(model, torch.zeros(1, 2, dtype=torch.int64))  # what is done once does not count
    gc.collect()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds, more = [], 0
    while not seconds or (seconds[0] < 0.5 and len(seconds) < 5):
        start = time.process_time()
        METHODS[method](model)
        seconds.append(time.process_time() - start)
        more = more or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return {"seconds": round(min(seconds), 4), "extra_mib": round(more / 2**10, 1)}


def growth(rows: dict[str, dict], first: int = 8, last: int = 30) -> float:
    """The exponent k of seconds ~ layers^k between two sizes, from rows by number of layers."""
    ratio = rows[str(last)]["seconds"] / rows[str(first)]["seconds"]
    return float(torch.tensor(ratio).log() / torch.tensor(last / first).log())


def predicted(rows: dict[str, dict], method: str, n_layers: int, known: int = 30) -> float:
    """Seconds at another size, from those at `known` layers and how the work grows."""
    return rows[str(known)]["seconds"] * work_of(method, n_layers) / work_of(method, known)


def results() -> dict[str, dict[str, dict]]:
    """The result file: method -> number of layers, or "trained" -> seconds and extra_mib."""
    return json.loads(RESULTS.read_text(encoding="utf-8"))


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m pathsum.scaling", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    runner = commands.add_parser("run", help="measure everything and rewrite the result file")
    runner.add_argument("--out", type=Path, default=RESULTS)
    single = commands.add_parser("one", help="measure one method in this process and print it")
    single.add_argument("method", choices=METHODS)
    single.add_argument("layers", help="a number of layers, or trained")
    options = parser.parse_args(arguments)
    if options.command == "one":
        real = options.layers == "trained"
        print(json.dumps(measured(options.method, 2 if real else int(options.layers), real)))
        return
    found: dict[str, dict] = {method: {} for method in METHODS}
    sizes = [*map(str, LAYERS), "trained"]
    for method, size in tqdm([(m, s) for m in METHODS for s in sizes], unit="process"):
        command = [sys.executable, "-m", "pathsum.scaling", "one", method, size]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        found[method][size] = json.loads(done.stdout)
        write_atomically(options.out, json.dumps(found, indent=1) + "\n")
    for method, rows in found.items():
        print(f"{method}: " + ", ".join(f"{s} {r['seconds']:.3g} s" for s, r in rows.items()))


if __name__ == "__main__":
    main()
