"""A standard model's paths, neurons and heads, measured: `python -m pathsum.standard_results run`."""

import argparse
import json
from pathlib import Path

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from pathsum.bigrams import KneserNey, shipped_counts
from pathsum.checkpoints import load_model, load_run
from pathsum.circuits import copying_eigenvalues
from pathsum.dataset import heldout_sample
from pathsum.evaluate import in_context_score, repeat_scores, token_losses
from pathsum.files import write_atomically
from pathsum.heads import positivity
from pathsum.model import cache
from pathsum.neurons import (
    direct_logits,
    holders,
    neuron_contributions,
    neuron_hook,
    token_share,
    top_inputs,
)
from pathsum.standard import StandardTransformer
from pathsum.standard_circuits import standard_copying
from pathsum.standard_losses import (
    AT_A_TIME,
    all_but,
    class_means,
    ladder,
    loss_with,
    loss_with_gates,
    losses_of,
    mean_gates,
    mlp_ablation_hook,
)
from pathsum.standard_paths import ATTENTION_ONLY
from pathsum.tokenizer import load_tokenizer

RESULTS = Path(__file__).resolve().parents[2] / "book" / "results" / "standard.json"
MODEL = "standard-2l"
SPREAD = 8  # every so manieth block is measured; as many others give means
COUNTS = (1, 10, 50, 100, 200, 400, 768)  # neurons held at their means
SHOWN = 8  # neurons of a layer that are described


def texts(spread: int = SPREAD) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs and targets to measure on, and inputs of other held-out text to take means from."""
    inputs, targets = heldout_sample()
    size = len(inputs[::spread]) // AT_A_TIME * AT_A_TIME
    return inputs[::spread][:size], targets[::spread][:size], inputs[spread // 2 :: spread][:size]


def pair_seen(
    inputs: Int[Tensor, "batch pos"], targets: Int[Tensor, "batch pos"]
) -> Bool[Tensor, "batch pos"]:
    """Whether the pair (input, target) has come earlier in the same context."""
    pairs = inputs * (int(targets.max()) + 1) + targets
    same = pairs[:, :, None] == pairs[:, None, :]
    return same.tril(-1).any(-1)


def kinds_of(targets: Int[Tensor, "batch pos"]) -> dict[str, Bool[Tensor, "batch pos"]]:
    """Places by what the token to be predicted looks like; every place is of one kind."""
    names = ("begins a word", "goes on a word", "digits", "line or space", "other signs")
    tokenizer = load_tokenizer()
    of_token = torch.tensor([_kind(tokenizer.decode([i])) for i in range(tokenizer.d_vocab)])
    return {name: of_token[targets] == n for n, name in enumerate(names)}


def _kind(text: str) -> int:
    bare = text.strip()
    if not bare:
        return 3
    if bare.isalpha():
        return 0 if text[0].isspace() else 1
    return 2 if bare.isdigit() else 4


def path_losses(model: StandardTransformer, inputs: Tensor, targets: Tensor, other: Tensor) -> dict:
    """Losses by classes of paths, by what is left out, and where attention-only paths fall short."""
    means, found = class_means(model, other), {}
    for how, put in ("zero", None), ("mean", means):
        sets = {f"ladder {name}": kinds for name, kinds in ladder().items()}
        sets |= {f"without {name}": kinds for name, kinds in all_but().items()}
        sets["attention only"] = ATTENTION_ONLY
        losses = losses_of(model, inputs, targets, sets, put)
        found[how] = {
            "ladder": {n: float(losses[f"ladder {n}"].mean()) for n in ladder()},
            "without": {n: float(losses[f"without {n}"].mean()) for n in all_but()},
            "attention_only": float(losses["attention only"].mean()),
        }
    whole = losses["ladder + both MLPs"]
    missing = losses["attention only"] - whole  # with means in place of the rest
    kinds = kinds_of(targets) | {"pair seen before": pair_seen(inputs, targets)}
    tokens = {}
    for token in targets.unique(return_counts=True)[1].topk(200).indices.tolist():
        here = targets == targets.unique()[token]
        tokens[str(int(targets.unique()[token]))] = [int(here.sum()), float(missing[here].mean())]
    return found | {
        "kinds": {
            name: {
                "share": float(mask.float().mean()),
                "attention_only": float(losses["attention only"][mask].mean()),
                "model": float(whole[mask].mean()),
            }
            for name, mask in kinds.items()
        },
        "missing_by_token": tokens,
    }


def reference_losses(
    model: StandardTransformer, inputs: Tensor, targets: Tensor
) -> dict[str, dict[str, float]]:
    """The same text's loss for constants, tables and models of the book; in-context scores."""
    counts = shipped_counts()
    seen = torch.bincount(counts.following.long(), counts.counts.double(), counts.d_vocab) + 0.01
    unigram = -(seen / seen.sum()).log()[targets].float()
    found = {
        "uniform": torch.full(targets.shape, float(counts.d_vocab)).log(),
        "unigram": unigram,
        "bigram table": KneserNey(counts).losses(inputs, targets),
    }
    models = {name: load_model(f"attn-only-{name}") for name in ("0l", "1l", "2l", "2l-ln")}
    for name, one in ({f"attn-only-{n}": m for n, m in models.items()} | {MODEL: model}).items():
        found[name] = token_losses(one, inputs, targets)
    return {
        name: {"loss": float(losses.mean()), "in_context_score": in_context_score(losses)}
        for name, losses in found.items()
    }


def ablations(model: StandardTransformer, inputs: Tensor, targets: Tensor, other: Tensor) -> dict:
    """Losses with MLPs replaced by nothing or their mean, nothing frozen; and with frozen parts exchanged."""
    layers = range(model.config.n_layers)
    sums = [torch.zeros(model.config.d_model) for _ in layers]
    for part in other.split(AT_A_TIME):
        values = cache(model, part)
        for layer in layers:
            sums[layer] += values[f"L{layer}.mlp"].sum((0, 1))
    means = {layer: sums[layer] / other.numel() for layer in layers}
    found: dict[str, dict[str, float]] = {"mlps": {}}
    for chosen in ((0,), (1,), (0, 1)):
        for how, put in ("zero", None), ("mean", means):
            hook = mlp_ablation_hook(chosen, put)
            name = f"{'both MLPs' if len(chosen) > 1 else f'MLP {chosen[0]}'}, {how}"
            found["mlps"][name] = float(token_losses(model, inputs, targets, hook).mean())
    exchanged = {"nothing": [], "scales": ["scales", "mlp_scales"], "gates": ["gates"],
                 "patterns": ["patterns"]}  # fmt: skip
    found["of_another_text"] = {n: loss_with(model, inputs, targets, f) for n, f in exchanged.items()}
    gates = mean_gates(model, other)
    found["mean_gates"] = loss_with_gates(model, inputs, targets, gates)
    return found


def neuron_facts(model: StandardTransformer, inputs: Tensor, targets: Tensor, other: Tensor) -> dict:
    """Per layer: what neurons add on average, how few hold it, what opens the first, what they say."""
    tokenizer, layers = load_tokenizer(), range(model.config.n_layers)
    post: list[list[Tensor]] = [[] for _ in layers]
    given: list[list[Tensor]] = [[] for _ in layers]
    gates = torch.zeros(model.config.n_layers, 2)
    for x, y in zip(inputs.split(AT_A_TIME), targets.split(AT_A_TIME)):
        values = cache(model, x)
        for layer, one in enumerate(neuron_contributions(model, x, y)):
            given[layer].append(one.half())  # added up in fp32 below
            post[layer].append(values[f"L{layer}.post"])
            gates[layer, 0] += (values[f"L{layer}.pre"] < -1.2816).float().mean()  # Phi < 0.1
            gates[layer, 1] += (values[f"L{layer}.pre"] > 1.2816).float().mean()  # Phi > 0.9
    parts = len(inputs) // AT_A_TIME
    found = {}
    for layer in layers:
        all_given, all_post = torch.cat(given[layer]).float(), torch.cat(post[layer])
        means = all_given.mean((0, 1))
        order = means.argsort(descending=True)
        described = []
        for neuron in order[:SHOWN].tolist():
            opened, share = top_inputs(all_post[..., neuron], inputs)
            said = direct_logits(model, layer, [neuron])[0].topk(5).indices
            described.append({
                "neuron": neuron, "adds": float(means[neuron]),
                "active": float((all_post[..., neuron] > 0.1).float().mean()),
                "opened_by": tokenizer.token_strings(opened), "share_of_these": share,
                "raises": tokenizer.token_strings(said),
            })  # fmt: skip
        found[f"MLP {layer}"] = {
            "adds": [round(v, 5) for v in means.tolist()],
            "total": float(means.sum()),
            "half_of_means": int(holders(means)),
            "half_at_a_place": float(holders(all_given).float().mean()),
            "token_share": float(token_share(all_post, inputs).median()),
            "shut": float(gates[layer, 0] / parts), "open": float(gates[layer, 1] / parts),
            "first": described,
            "held_at_mean": held_at_mean(model, layer, inputs, targets, other),
        }  # fmt: skip
    return found


def held_at_mean(
    model: StandardTransformer, layer: int, inputs: Tensor, targets: Tensor, other: Tensor
) -> dict[str, list]:
    """Losses when the first neurons, by what they add on *other* text, or random ones, are at their means."""
    given, post = torch.zeros(2, model.config.d_mlp)
    next_tokens = other.roll(-1, 1)
    for x, y in zip(other.split(AT_A_TIME), next_tokens.split(AT_A_TIME)):
        given += neuron_contributions(model, x, y)[layer][:, :-1].sum((0, 1))
        post += cache(model, x)[f"L{layer}.post"].mean((0, 1))
    means = post / (len(other) // AT_A_TIME)
    orders = {
        "first": given.argsort(descending=True),
        "random": torch.randperm(len(means), generator=torch.Generator().manual_seed(0)),
    }
    found: dict[str, list] = {"counts": list(COUNTS)}
    for name, order in orders.items():
        hooks = [neuron_hook(layer, order[:count], means) for count in COUNTS]
        found[name] = [float(token_losses(model, inputs, targets, hook).mean()) for hook in hooks]
    return found


def head_facts(model: StandardTransformer) -> dict:
    """Patterns on random tokens that repeat, and four readings of how much each head copies."""
    other = load_model("attn-only-2l")
    raw = [positivity(copying_eigenvalues(model, n)).tolist() for n in range(2)]
    return {
        **repeat_scores(model),
        "copying": {
            "raw": raw,
            "with gains": standard_copying(model).tolist(),
            "of what MLP 0 makes": standard_copying(model, effective=True).tolist(),
        },
        "attn-only-2l": repeat_scores(other),
    }


def measured(model: StandardTransformer, spread: int = SPREAD) -> dict:
    """What the result file holds."""
    inputs, targets, other = texts(spread)
    return {
        "tokens_measured": targets.numel(),
        "references": reference_losses(model, inputs, targets),
        "paths": path_losses(model, inputs, targets, other),
        "ablations": ablations(model, inputs, targets, other),
        "neurons": neuron_facts(model, inputs, targets, other),
        "heads": head_facts(model),
    }


def results() -> dict:
    """The result file, by the keys of `measured`."""
    return json.loads(RESULTS.read_text(encoding="utf-8"))


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m pathsum.standard_results", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    runner = commands.add_parser("run", help="measure the shipped model and rewrite the result file")
    runner.add_argument("--run", type=Path, help="a run's folder instead of the shipped model")
    runner.add_argument("--out", type=Path, default=RESULTS)
    runner.add_argument("--spread", type=int, default=SPREAD)
    options = parser.parse_args(arguments)
    model = load_run(options.run) if options.run else load_model(MODEL)
    found = measured(model, options.spread)
    write_atomically(options.out, json.dumps(found, indent=1) + "\n")
    for how in ("zero", "mean"):
        print(how, {k: round(v, 3) for k, v in found["paths"][how]["ladder"].items()})


if __name__ == "__main__":
    main()
