"""Short runs that each change one thing of the recipe: `python -m pathsum.ablations run NAME`.

They take a minute or two on a laptop and no network: a small model, 1,024 tokens (the shipped
tokenizer's first merges), the text sample of the package, a constant learning rate. So that induction
is learnt so soon, every sequence is a short piece of text over and over. Measured is, as in
every run, held-out text as it is, and random tokens that repeat.
"""

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path

import numpy as np
import tokenizers
import torch
from jaxtyping import UInt16

from pathsum.dataset import TokenData, encoded
from pathsum.files import write_atomically
from pathsum.model import Config
from pathsum.presets import TrainConfig
from pathsum.runs import Run, RunError, log_lines
from pathsum.tokenizer import Tokenizer, load_tokenizer
from pathsum.train import keep_freed_memory

RECORDS = Path(str(resources.files("pathsum") / "data" / "ablations"))
SMALL = TrainConfig(
    model=Config(n_layers=2, n_heads=4, d_model=128, d_vocab=1024, n_ctx=128),
    data="sample",
    steps=800,
    batch=8,
    decay=0.0,
    records=20,
    save_every=100,
)
REPEATED = 1.0  # share of sequences that repeat a short text, unless an ablation says otherwise


@dataclass(frozen=True)
class Ablation:
    """One departure from the recipe."""

    about: str  # what differs, for a legend
    change: Callable[[TrainConfig], TrainConfig] = lambda config: config
    repeated: float = REPEATED  # share of the training sequences that repeat a short text
    attention_adam_lr: float | None = None  # AdamW at this rate for attention matrices, not Muon


def _model(**sizes: object) -> Callable[[TrainConfig], TrainConfig]:
    """The change of some fields of the model's configuration."""
    return lambda config: replace(config, model=replace(config.model, **sizes))


ABLATIONS = {
    "baseline": Ablation("the recipe"),
    "amplitude-1": Ablation("position amplitude 1", _model(position_amplitude=1.0)),
    "amplitude-half": Ablation("position amplitude 0.5", _model(position_amplitude=0.5)),
    "adamw": Ablation("AdamW, rate 0.003", attention_adam_lr=0.003),
    "adamw-slow": Ablation("AdamW, rate 0.001", attention_adam_lr=0.001),
    "one-head": Ablation("1 head of 128", _model(n_heads=1, d_head=128)),
    "one-layer": Ablation("1 layer", _model(n_layers=1)),
    "smeared": Ablation("1 layer, smeared keys", _model(n_layers=1, smear=True)),
    "repeats-third": Ablation("a third repeats", repeated=0.33),
    "repeats-tenth": Ablation("a tenth repeats", repeated=0.1),
    "repeats-none": Ablation("nothing repeats", repeated=0.0),
}


def small_tokenizer(d_vocab: int = SMALL.model.d_vocab) -> Tokenizer:
    """The shipped tokenizer with its first `d_vocab` tokens alone: its later merges left out."""
    file = json.loads(load_tokenizer().file_text)
    model = file["model"]
    model["vocab"] = {token: id for token, id in model["vocab"].items() if id < d_vocab}
    model["merges"] = model["merges"][: d_vocab - 257]  # ids: start, 256 bytes, one per merge
    text = json.dumps(file, ensure_ascii=False)
    return Tokenizer(tokenizers.Tokenizer.from_str(text), text)


def with_repeats(
    tokens: UInt16[np.ndarray, " tokens"], n_ctx: int, blocks: int, share: float, seed: int = 0
) -> UInt16[np.ndarray, " trained"]:
    """`blocks` sequences of n_ctx tokens; about `share` of them are a short text over and over.

    The short text has n_ctx / 8 to n_ctx / 2 tokens, by chance: with one length for all, looking so
    many positions back would do, and nobody would have to learn induction. Each sequence starts where
    the one before it ended in the text, and the text starts again at its end.
    """
    generator = np.random.default_rng(seed)
    again = generator.random(blocks) < share
    periods = generator.integers(n_ctx // 8, n_ctx // 2 + 1, blocks)
    lengths = np.where(again, periods, n_ctx)
    starts = np.concatenate([[0], lengths.cumsum()[:-1]])
    columns = np.arange(n_ctx) % lengths[:, None]
    return tokens[(starts[:, None] + columns) % len(tokens)].ravel()


def text_of(ablation: Ablation, train: TrainConfig, cache: Path | None = None) -> TokenData:
    """The sample as an ablation reads it, and its held-out part as it is."""
    data = encoded(train.data, cache, small_tokenizer())
    wanted = train.steps * train.batch
    tokens = with_repeats(np.asarray(data.train), train.model.n_ctx, wanted, ablation.repeated)
    return replace(data, train=tokens, fingerprint=f"{data.fingerprint} {ablation.repeated}")


def with_adam(run: Run, lr: float) -> Run:
    """The run with AdamW at rate `lr` for the attention matrices too."""
    attention = [run.model.W_Q, run.model.W_K, run.model.W_V, run.model.W_O]
    rest = [p for p in run.model.parameters() if not any(p is q for q in attention)]
    groups = [{"params": rest, "lr": run.config.adam_lr}, {"params": attention, "lr": lr}]
    adam = torch.optim.AdamW(groups, betas=(0.9, 0.98), weight_decay=0.0, fused=True)
    run.optimizers, run.full_rates = [adam], [[group["lr"] for group in groups]]
    return run


def prepared(
    name: str, folder: Path, cache: Path | None = None, make: Callable[..., Run] = Run
) -> Run:
    """The ablation as a run that can be started in `folder`; `make` may be a kind of `Run`."""
    ablation = ABLATIONS[name]
    train = ablation.change(SMALL)
    run = make(folder, train, text_of(ablation, train, cache))
    return run if ablation.attention_adam_lr is None else with_adam(run, ablation.attention_adam_lr)


def recorded() -> list[str]:
    """Ablations whose records ship, in the order of ABLATIONS."""
    return [name for name in ABLATIONS if (RECORDS / f"{name}.jsonl").exists()]


def records(name: str) -> list[dict]:
    """The shipped records of an ablation, first step to last."""
    text = (RECORDS / f"{name}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def export(run: Path, name: str) -> None:
    """Put a finished run's records into the package; RunError if it is not finished."""
    lines, steps = log_lines(run), ABLATIONS[name].change(SMALL).steps
    if not lines or lines[-1]["step"] != steps:
        raise RunError(f"{run} has not reached step {steps}: run it again to go on")
    compact = (
        json.loads(json.dumps(line), parse_float=lambda number: round(float(number), 5))
        for line in lines
    )
    write_atomically(
        RECORDS / f"{name}.jsonl", "".join(json.dumps(line) + "\n" for line in compact)
    )


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m pathsum.ablations", description=__doc__)
    parser.add_argument("action", choices=["run", "export"], help="export: rewrite what ships")
    parser.add_argument("name", choices=ABLATIONS)
    parser.add_argument("--out", type=Path, help="run folder (default: runs/ablation-NAME)")
    options = parser.parse_args(arguments)
    folder = options.out or Path("runs") / f"ablation-{options.name}"
    try:
        if options.action == "export":
            export(folder, options.name)
            return
        keep_freed_memory()
        run = prepared(options.name, folder)
        run.start(resume=True)
        run.train()
    except (RunError, OSError, ValueError) as error:
        sys.exit(f"pathsum.ablations: {error}")


if __name__ == "__main__":
    main()
