"""Methods that ask the same question of the same heads, side by side: `python -m pathsum.agreement run`.

Which heads carry an answer? By patching, by three ablations, by attribution, and by what the weights and
patterns say. The result file holds this for every shipped two-layer model without special features.
"""

import argparse
import json
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.contrasts import CHANGES, Contrast, induction_contrast
from pathsum.copying import positivity_of, rank_correlation
from pathsum.edges import circuit_run, edge_attributions, graph_of, head_effects
from pathsum.files import write_atomically
from pathsum.induction import induction_scores
from pathsum.model import AttentionOnlyTransformer, cache
from pathsum.patching import KINDS, ablation_hook
from pathsum.pruning import complement, faithfulness_of, first_edges, pruned, random_order
from pathsum.seeds import by_kind

RESULTS = Path(__file__).resolve().parents[2] / "book" / "results" / "causal.json"
SIZE = {"batch": 32, "period": 12}  # of the prompts
TOLERANCE = 0.02  # share of the score that one cut of the pruning may cost
RANDOM = 20  # circuits of as many edges, drawn at random
HeadTable = Float[Tensor, "n_layers n_heads"]


@torch.no_grad()
def ablation_effects(model: AttentionOnlyTransformer, contrast: Contrast, kind: str) -> HeadTable:
    """By how much the mean score on the clean prompts falls when one head is ablated.

    Mean and resample take outputs from the clean prompts themselves. ValueError for an unknown kind.
    """
    scored, reference = contrast.scorer(model), cache(model, contrast.clean)
    intact = scored(reference["resid_final"][:, -1]).mean()
    effects, c = torch.zeros(model.config.n_layers, model.config.n_heads), model.config
    for layer in range(c.n_layers):
        for head in range(c.n_heads):
            generator = torch.Generator().manual_seed(0)
            hook = ablation_hook([(layer, head)], kind, reference, generator)
            final = model.final_residual(contrast.clean, hook)[:, -1]
            effects[layer, head] = intact - scored(final).mean()
    return effects


def measured(model: AttentionOnlyTransformer, change: str) -> dict:
    """What the result file holds for one model and one change of the prompts; plain lists."""
    contrast = induction_contrast(model.config.d_vocab, change, **SIZE)
    graph, score = graph_of(model), circuit_run(model, contrast)
    attributions = edge_attributions(model, contrast)
    tables = {  # effects in logits of the answer
        "patching": head_effects(model, contrast),
        "attribution": attributions[1:].sum(1).reshape(model.config.n_layers, -1),
        **{f"{kind} ablation": ablation_effects(model, contrast, kind) for kind in KINDS},
    }
    mask = pruned(score, graph, attributions, TOLERANCE, progress=False)
    count = int(mask.sum())
    random = [first_edges(graph, random_order(graph, seed), count) for seed in range(RANDOM)]
    exact = tables["patching"].flatten()
    with torch.no_grad():
        clean, corrupted = (float(score(m).mean()) for m in (graph.whole(), 0 * graph.whole()))
    faithful, complete, *by_chance = faithfulness_of(
        score, graph, [mask, complement(graph, mask), *random]
    )
    return {
        "clean": clean,
        "corrupted": corrupted,
        "heads": {name: table.tolist() for name, table in tables.items()},
        "rank_correlation": {
            name: rank_correlation(exact, table.flatten()) for name, table in tables.items()
        },
        "prefix_matching": induction_scores(model).tolist(),
        "copying": positivity_of(model).tolist(),
        "circuit": [graph.name(edge) for edge in graph.edges() if mask[edge]],
        "edges": len(graph.edges()),
        "faithfulness": faithful,
        "completeness": complete,
        "best_random_faithfulness": max(by_chance),
    }


def results() -> dict[str, dict[str, dict]]:
    """The result file: model -> change -> what `measured` gives."""
    return json.loads(RESULTS.read_text(encoding="utf-8"))


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m pathsum.agreement", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    runner = commands.add_parser("run", help="measure all seeds and rewrite the result file")
    runner.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    found = {}
    for one in by_kind()["two"].values():
        found[one.source] = {change: measured(one.model, change) for change in CHANGES}
        for change, row in found[one.source].items():
            print(
                f"{one.source} {change}: {len(row['circuit'])} of {row['edges']} edges, "
                f"faithfulness {row['faithfulness']:.2f}, without them {row['completeness']:.2f}"
            )
    options.out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(options.out, json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
