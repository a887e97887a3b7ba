"""The shipped models: load them offline, export runs to them, measure them against their bars."""

import argparse
import difflib
import hashlib
import json
import sys
from importlib import resources
from pathlib import Path

import torch
from safetensors.torch import load, load_file

from pathsum.bigrams import KneserNey, shipped_counts
from pathsum.cards import card_text, summary
from pathsum.dataset import heldout_sample
from pathsum.evaluate import token_losses, training_record
from pathsum.files import write_atomically
from pathsum.model import AttentionOnlyTransformer, Config
from pathsum.runs import log_lines, save_atomically
from pathsum.standard import config_of, transformer

MODELS = Path(str(resources.files("pathsum") / "data" / "models"))
PROBE_TOLERANCE = 1e-3  # largest difference of a stored logit, in nats, on any device


class CheckpointError(RuntimeError):
    """A model that can't be loaded or trusted, with what to do about it."""


def shipped_names() -> list[str]:
    """Names that `load_model` knows, sorted: the attention-only models, and `standard-2l` with MLPs."""
    return sorted(path.stem for path in MODELS.glob("*.safetensors"))


def model_names() -> list[str]:
    """Names of the shipped attention-only models, sorted."""
    return [name for name in shipped_names() if not name.startswith("standard-")]


def model_card(name: str) -> dict:
    """Facts of a shipped model: config, data, tokens, minutes, hash, probe. CheckpointError."""
    if name not in (names := shipped_names()):
        near = difflib.get_close_matches(name, names, n=1, cutoff=0.0)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise CheckpointError(
            f"no model is called {name!r}: {hint}there are {', '.join(names) or 'none'}; "
            "for a run of your own pass its folder to load_run"
        )
    return json.loads((MODELS / f"{name}.json").read_text(encoding="utf-8"))


def load_model(name: str, device: str = "cpu") -> AttentionOnlyTransformer:
    """A shipped model, from the package alone; `attn-only-0l`, `-1l`, `-2l` and others,
    and `standard-2l`, a StandardTransformer.

    Weights are fp32 tensors that hold fp16 numbers exactly, without gradients. The file's hash
    and some stored logits are checked on `device`: CheckpointError says which one differs.
    """
    card = model_card(name)
    path = MODELS / f"{name}.safetensors"
    content = path.read_bytes()
    found = hashlib.sha256(content).hexdigest()
    if found != card["sha256"]:
        raise CheckpointError(
            f"{path.name} has sha256 {found[:16]}..., expected {card['sha256'][:16]}...: the file "
            "was changed or cut short; install pathsum again"
        )
    model = _with_weights(config_of(card["config"]), load(content), path.name).to(device)
    expected = torch.tensor(card["probe"]["logits"])
    got = _probe_logits(model, card["probe"]["tokens"])
    worst = float((got - expected).abs().max())
    if not worst <= PROBE_TOLERANCE:
        raise CheckpointError(
            f"{name} on {device!r} gives logits up to {worst:.2g} away from the stored ones "
            f"(allowed: {PROBE_TOLERANCE}): this device or torch {torch.__version__} computes "
            'something else; use device="cpu" or another torch'
        )
    return model


def load_run(folder: str | Path, step: int | None = None) -> AttentionOnlyTransformer:
    """The model of a run of your own, at its last measured step or at another snapshot's.

    Rounded to fp16 like the shipped ones. CheckpointError if there is no such run or snapshot.
    """
    folder = Path(folder)
    files = {int(p.stem[5:]): p for p in folder.glob("snapshots/step-*.safetensors")}
    if not (folder / "run.json").exists() or not files:
        raise CheckpointError(
            f"{folder} holds no measured run (run.json and snapshots/): train one with "
            "python -m pathsum.train quick --out FOLDER"
        )
    step = max(files) if step is None else step
    if step not in files:
        raise CheckpointError(f"{folder} has no snapshot of step {step}, only of {sorted(files)}")
    config = config_of(json.loads((folder / "run.json").read_text())["config"]["model"])
    return _with_weights(config, load_file(files[step]), files[step].name)


def _with_weights(config: Config, weights: dict, source: str) -> AttentionOnlyTransformer:
    model = transformer(config)
    expected = {name: tuple(p.shape) for name, p in model.named_parameters()}
    got = {name: tuple(w.shape) for name, w in weights.items()}
    if expected != got:
        wrong = sorted(set(expected.items()) ^ set(got.items()))
        raise CheckpointError(f"{source} does not fit its config; names and shapes off: {wrong}")
    model.load_state_dict({name: w.float() for name, w in weights.items()})
    return model.requires_grad_(False).eval()


def _probe_logits(model: AttentionOnlyTransformer, tokens: list[int]) -> torch.Tensor:
    with torch.no_grad():
        logits = model(torch.tensor([tokens], device=model.W_E.device))
    return logits[0, ::4, ::512].cpu()


def export(run: Path, name: str) -> None:
    """Ship the last snapshot of a finished run as `name`: weights, card, record of the run."""
    about = json.loads((run / "run.json").read_text())
    records = log_lines(run)
    model, last = load_run(run), records[-1]
    if last["step"] != about["config"]["steps"]:
        raise CheckpointError(
            f"{run} stopped at step {last['step']} of {about['config']['steps']}: finish it with "
            "python -m pathsum.train ... --resume"
        )
    half = {k: v.half().contiguous() for k, v in model.named_parameters()}
    save_atomically(half, MODELS / f"{name}.safetensors")
    tokens = heldout_sample(32)[0][0].tolist()
    card = {
        "name": name,
        "config": model.config.to_dict(),
        "training": {k: v for k, v in about["config"].items() if k != "model"},
        **{k: v for k, v in about.items() if k != "config"},
        "parameters": sum(p.numel() for p in model.parameters()),
        "tokens": last["tokens"],
        "minutes": round(last["seconds"] / 60, 1),
        "sha256": hashlib.sha256((MODELS / f"{name}.safetensors").read_bytes()).hexdigest(),
        "final": _rounded(summary(last)),
        "probe": {"tokens": tokens, "logits": _probe_logits(model, tokens).tolist()},
    }
    write_atomically(MODELS / f"{name}.json", json.dumps(card, indent=1) + "\n")
    write_atomically(MODELS / f"{name}.md", card_text(card))
    compact = "".join(json.dumps(_rounded(r)) + "\n" for r in records)
    write_atomically(MODELS / f"{name}.log.jsonl", compact)


def training_log(name: str) -> list[dict]:
    """The records of the run behind a shipped model, first step to last."""
    model_card(name)
    text = (MODELS / f"{name}.log.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def _rounded(value):
    if isinstance(value, float):
        return round(value, 5)
    if isinstance(value, list):
        return [_rounded(v) for v in value]
    return {k: _rounded(v) for k, v in value.items()} if isinstance(value, dict) else value


def measured(names: list[str] | None = None) -> dict[str, dict]:
    """Each model's numbers on the shipped held-out text and on random tokens that repeat."""
    inputs, targets = heldout_sample()
    results = {}
    for name in names or model_names():
        record = training_record(load_model(name), inputs, targets)
        results[name] = _rounded({k: v for k, v in record.items() if k != "loss_by_position"})
    table = KneserNey(shipped_counts())
    results["bigram-table"] = {
        "heldout_loss": _rounded(float(table.losses(inputs, targets).mean()))
    }
    return results


def bars(results: dict[str, dict]) -> list[tuple[str, float, str, bool]]:
    """What the shipped models must reach: (statement, number, required, reached)."""
    zero, one, two = (results[f"attn-only-{n}l"] for n in (0, 1, 2))
    losses = [r["heldout_loss"] for r in (zero, one, two)]
    gap = abs(losses[0] - results["bigram-table"]["heldout_loss"])
    gain = two["first_copy"] - two["second_copy"]
    induction = max(two["prefix_matching"][1])
    previous, control = max(two["previous_token"][0]), max(one["prefix_matching"][0])
    return [
        ("2 layers: best prefix-matching score in layer 1", induction, ">= 0.5", induction >= 0.5),
        ("2 layers: best previous-token score in layer 0", previous, ">= 0.7", previous >= 0.7),
        ("2 layers: second copy below the first, nats", gain, ">= 2", gain >= 2),
        ("1 layer: best prefix-matching score", control, "< 0.1", control < 0.1),
        (
            "loss of 1 layer below 0 layers, nats",
            losses[0] - losses[1],
            "> 0",
            losses[1] < losses[0],
        ),
        (
            "loss of 2 layers below 1 layer, nats",
            losses[1] - losses[2],
            "> 0",
            losses[2] < losses[1],
        ),
        ("0 layers: distance to the bigram table, nats", gap, "<= 0.1", gap <= 0.1),
    ]


def report(write: Path | None = None) -> bool:
    """Print losses and bars; True if all are reached. Optionally rewrite the result file."""
    results = measured()
    for name, numbers in results.items():
        scores = " ".join(
            f"{key} {max((max(row) for row in value), default=0.0):.3f}"
            if isinstance(value, list)
            else f"{key} {value:.3f}"
            for key, value in numbers.items()
        )
        print(f"{name}: {scores}")
    rows = bars(results)
    for statement, number, required, reached in rows:
        print(f"{'reached' if reached else 'MISSED '}  {statement}: {number:.3f} ({required})")
    if write:
        write.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(write, json.dumps(results, indent=1) + "\n")
    return all(row[-1] for row in rows)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m pathsum.checkpoints", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    exporter = commands.add_parser("export", help="ship a finished run")
    exporter.add_argument("run", type=Path)
    exporter.add_argument("name")
    reporter = commands.add_parser("report", help="measure the shipped models, print the bars")
    reporter.add_argument("--write", type=Path, help="rewrite this result file (JSON)")
    options = parser.parse_args(arguments)
    if options.command == "export":
        try:
            export(options.run, options.name)
        except CheckpointError as error:
            sys.exit(f"pathsum.checkpoints: {error}")
    elif not report(options.write):
        sys.exit("pathsum.checkpoints: a bar is missed")


if __name__ == "__main__":
    main()
