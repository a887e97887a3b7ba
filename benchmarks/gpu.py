"""Ten minutes on one GPU: is it right, how fast is it, and what does the paper's size learn?

    python benchmarks/gpu.py prepare tokens.npz      beforehand, where there is a network
    python benchmarks/gpu.py run --out FOLDER --tokens tokens.npz

`run` works through its stages and rewrites FOLDER/gpu.json after each, so that a stop loses only the
stage under way: logits and gradients against the CPU's, tokens per second, memory and model-FLOP
utilisation of the presets `book` and `paper` in bf16 with and without torch.compile, then the `paper`
preset for the time that is left, its record, snapshots and checkpoint in FOLDER/paper, about
3 GB. Without --tokens it trains on the shipped sample. `run --device cpu --quick` goes the same way
with tiny models. `prepare` learns a tokenizer of the preset's size first, unless it is given one.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from pathsum import cost
from pathsum.checkpoints import load_model
from pathsum.dataset import TokenData, encoded, heldout_sample
from pathsum.engine import Engine, RunError, start_engine
from pathsum.files import moved_into_place, write_atomically
from pathsum.presets import PRESETS, TrainConfig
from pathsum.runs import Run, log_lines
from pathsum.tokenizer import load_tokenizer, save_tokenizer, train_tokenizer

SPEED_STEPS = 20  # timed steps of each setting, or as many as its time box holds
# Allowed distance from the CPU's fp32, of logits as a share of their spread and of gradients as a share
# of their norm: the same products summed in another order, and factors rounded to 8 bits.
TOLERANCES = {
    "fp32": {"logits": 1e-4, "gradients": 1e-3},
    "bf16": {"logits": 0.1, "gradients": 0.05},
}
PEAKS = {"A100": cost.A100, "H100": cost.H100, "H200": cost.H100}  # the H200 computes like the H100


def presets(quick: bool) -> dict[str, TrainConfig]:
    """The two sizes to measure; tiny ones of the same kind when it has to be quick."""
    found = {name: PRESETS[name] for name in ("book", "paper")}
    if not quick:
        return found
    tiny = {"n_heads": 2, "d_model": 16, "d_head": 8, "d_vocab": 4096, "n_ctx": 32}
    return {
        name: replace(config, batch=4, model=replace(config.model, **tiny))
        for name, config in found.items()
    }


class Stages:
    """Runs stages one after another and keeps what they found in one file."""

    def __init__(self, path: Path, about: dict, minutes: float) -> None:
        self.path, self.report = path, {**about, "stages": {}}
        self.end = time.monotonic() + 60 * minutes

    def left(self) -> float:
        """Seconds until the whole must be over."""
        return self.end - time.monotonic()

    def run(self, name: str, stage: Callable[[float], dict], box: float) -> dict:
        """One stage with at most `box` seconds of what is left; an error is noted, and all goes on."""
        began, box = time.monotonic(), min(box, self.left())
        if box < 1:
            found = {"skipped": "no time was left"}
        else:
            try:
                found = stage(time.monotonic() + box)
            except Exception as error:  # a stage that fails must not cost the others
                found = {"error": f"{type(error).__name__}: {error}"}
        found["stage_seconds"] = round(time.monotonic() - began, 1)
        self.report["stages"][name] = found
        write_atomically(self.path, json.dumps(self.report, indent=1) + "\n")
        print(f"{name}: {json.dumps(found)[:300]}", flush=True)
        return found


def made_up(config: TrainConfig, blocks: int = 64) -> TokenData:
    """Random tokens, for what does not depend on the text."""
    random = np.random.default_rng(0)
    size = max(blocks, config.batch) * config.model.n_ctx
    ids = random.integers(1, config.model.d_vocab, size, dtype=np.uint16)
    return TokenData(ids, ids[: 2 * config.model.n_ctx], "random", {})


def correctness(config: TrainConfig, trained: str | None, device: torch.device, end: float) -> dict:
    """Logits and gradients of one sequence, against fp32 on the CPU.

    Of a shipped model on held-out text if one is named; else of first weights on random tokens.
    """
    config = replace(config, batch=1, rounded_loss=False)
    model = load_model(trained) if trained else None
    if model:
        config = replace(config, model=model.config)
    data, results = made_up(config, 2), {}
    if model:
        ids = heldout_sample(model.config.n_ctx)[1][:2].flatten().numpy().astype(np.uint16)
        data = TokenData(ids, ids, "held out", {})

    def passes(engine: Engine) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        run = Run(Path("unused"), config, data, engine)
        if model:
            run.model.load_state_dict(model.state_dict())
        tokens = run._blocks(data.train, [0])[0].to(engine.device)
        with torch.no_grad(), engine.autocast():
            logits = run.model(tokens).float().cpu()
        run._loss([0]).backward()
        return logits, {n: p.grad.cpu() for n, p in run.model.named_parameters()}

    logits, gradients = passes(Engine(torch.device("cpu")))
    for precision, allowed in TOLERANCES.items():
        if time.monotonic() > end:
            break
        other, theirs = passes(Engine(device, precision))
        off = float((other - logits).abs().max() / logits.std())
        shares = [float((theirs[n] - g).norm() / g.norm()) for n, g in gradients.items()]
        results[precision] = {
            "largest_logit_difference": off,
            "largest_gradient_difference": max(shares),
            "allowed": allowed,
            "passed": off <= allowed["logits"] and max(shares) <= allowed["gradients"],
        }
    return {"model": trained or "first weights", "spread_of_logits": float(logits.std()), **results}


@contextmanager
def device_memory(device: torch.device) -> Iterator[dict]:
    """Fills a dict with the peak of memory in the block, in bytes; None where it is not counted."""
    found = {"peak_bytes": None}
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    yield found
    if device.type == "cuda":
        found["peak_bytes"] = torch.cuda.max_memory_allocated(device)


def products_rate(device: torch.device, end: float, size: int = 8192) -> dict:
    """Operations a second of bf16 products here: what the utilisation is measured against."""
    size = size if device.type == "cuda" else 256
    a, b = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    best = float("inf")
    for _ in range(20):
        if time.monotonic() > end:
            break
        synchronise(device)
        began = time.perf_counter()
        a @ b
        synchronise(device)
        best = min(best, time.perf_counter() - began)
    return {"bf16_flops": 2 * size**3 / best}


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def speed(config: TrainConfig, engine: Engine, products: float | None, end: float) -> dict:
    """Tokens a second of training steps, peak memory, and the share of what the device could do."""
    with device_memory(engine.device) as memory:
        run = Run(Path("unused"), config, made_up(config), engine)
        began = time.perf_counter()
        for _ in range(3):  # compilation, allocation
            run._one_step()
        first = time.perf_counter() - began
        seconds = []
        while len(seconds) < SPEED_STEPS and (not seconds or time.monotonic() < end):
            began = time.perf_counter()
            run._one_step()  # ends with the loss on the CPU, hence with the device done
            seconds.append(time.perf_counter() - began)
    rate = cost.tokens_per_step(config) / float(np.median(seconds))
    name = str(engine.facts()["device"])
    peak = next((machine.flops for kind, machine in PEAKS.items() if kind in name), None)

    def share(flops: float | None) -> float | None:
        return flops and round(cost.utilisation(rate, config.model, flops), 4)

    return {
        "tokens_per_second": round(rate, 1),
        "steps": len(seconds),
        "seconds_of_first_three_steps": round(first, 2),
        **memory,
        "counted_bytes": cost.memory_bytes(config),
        "flops_per_token": cost.flops_per_token(config.model),
        "mfu_of_data_sheet": share(peak),
        "share_of_measured_products": share(products),
    }


class TimedRun(Run):
    """A run that ends at a moment, measured and saved, if its steps take longer than planned."""

    end = float("inf")

    def _one_step(self) -> float:
        if time.monotonic() > self.end:
            raise TimeoutError
        return super()._one_step()


def paper_run(
    config: TrainConfig, data: TokenData, engine: Engine, rate: float, out: Path, end: float
) -> dict:
    """Train for the time that is left, with a schedule that fits into it; the heads' scores."""
    left = end - time.monotonic()
    possible = int(0.65 * left * rate / cost.tokens_per_step(config))  # the rest is measurements
    config = replace(
        config, steps=max(1, min(config.steps, possible)), records=12, save_every=10**9
    )
    config = replace(config, warmup=min(config.warmup, config.steps // 4))
    run = TimedRun(out, config, data, engine)
    run.end = end - min(30.0, 0.1 * left)
    run.start(resume=False)
    try:
        run.train(progress=False)
        planned = True
    except TimeoutError:
        planned = False
        run.record()
        run._save()
    last = log_lines(out)[-1]

    def best(name: str) -> dict:
        scores = torch.tensor(last[name])
        layer, head = divmod(int(scores.argmax()), scores.shape[1])
        return {"head": f"L{layer}H{head}", "score": round(float(scores.max()), 4)}

    return {
        "steps": run.step,
        "steps_planned": config.steps,
        "finished_as_planned": planned,
        "tokens": last["tokens"],
        "tokens_in_text": len(data.train),
        "training_seconds": round(run.seconds, 1),
        **{k: last[k] for k in ("heldout_loss", "in_context_score", "first_copy", "second_copy")},
        "best_prefix_matching": best("prefix_matching"),
        "best_previous_token": best("previous_token"),
        "prefix_matching": last["prefix_matching"],
        "previous_token": last["previous_token"],
        "copying": last["copying"],
    }


def prepare(path: Path, name: str, d_vocab: int, tokenizer_file: Path | None) -> None:
    """Write a corpus as ids to one file that `run` reads without a network."""
    from pathsum.corpus import split

    if tokenizer_file is None:
        tokenizer_file = path.with_suffix(".tokenizer.json")
        train, _ = split(name)
        save_tokenizer(train_tokenizer((piece for _, piece in train), d_vocab), tokenizer_file)
    tokenizer = load_tokenizer(tokenizer_file)
    data = encoded(name, tokenizer=tokenizer)
    facts = {"name": name, "fingerprint": data.fingerprint, "start_id": data.start_id}
    facts = json.dumps({**facts, "d_vocab": tokenizer.d_vocab})
    with moved_into_place(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, train=data.train, heldout=data.heldout, facts=facts)
    print(f"{path}: {len(data.train):,} tokens of {name!r} ({tokenizer.d_vocab:,} kinds)")


def text(path: Path | None) -> tuple[TokenData, dict]:
    """The tokens to train on and what they are: a prepared file, or the shipped sample."""
    if path is None:
        data, facts = encoded("sample"), {"name": "sample", "d_vocab": load_tokenizer().d_vocab}
        return data, facts
    with np.load(path) as file:
        facts = json.loads(str(file["facts"]))
        train, heldout = file["train"], file["heldout"]
    return TokenData(train, heldout, facts["fingerprint"], {}, facts["start_id"]), facts


def run_all(out: Path, engine: Engine, tokens: Path | None, minutes: float, quick: bool) -> None:
    device, sizes = engine.device, presets(quick)
    data, facts = text(tokens)
    config = sizes["paper"]
    if facts["d_vocab"] > config.model.d_vocab:
        raise RunError(
            f"{tokens} has {facts['d_vocab']:,} kinds of tokens, more than the model's "
            f"{config.model.d_vocab:,}: prepare it with --d-vocab {config.model.d_vocab}"
        )
    config = replace(
        config, model=replace(config.model, d_vocab=facts["d_vocab"]), data=facts["name"]
    )
    about = {"torch": torch.__version__, **engine.facts(), "quick": quick, "text": facts}
    about["date"] = time.strftime("%Y-%m-%d")
    stages = Stages(out / "gpu.json", about, minutes)
    measured = stages.run("products", lambda end: products_rate(device, end), 20)
    products = measured.get("bf16_flops")  # None if that stage failed
    for name, size in sizes.items():
        trained = "attn-only-2l" if name == "book" else None
        stages.run(
            f"correctness {name}",
            lambda end, s=size, t=trained: correctness(s, t, device, end),
            60,
        )
    best_rate, best_engine = 0.0, engine
    backend = "aot_eager" if quick else "inductor"  # tiny models show the way, not the speed
    for name, size in sizes.items():
        for compiled in (None, backend):
            trial = replace(engine, compile=compiled)
            label = f"speed {name}{' compiled' if compiled else ''}"
            found = stages.run(label, lambda end, s=size, t=trial: speed(s, t, products, end), 60)
            if name == "paper" and found.get("tokens_per_second", 0) > best_rate:
                best_rate, best_engine = found["tokens_per_second"], trial
    best_rate = best_rate or 1.0
    stages.run(
        "paper run",
        lambda end: paper_run(config, data, best_engine, best_rate, out / "paper", end),
        stages.left() - 5,
    )


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    actions = parser.add_subparsers(dest="action", required=True)
    first = actions.add_parser("prepare", help="encode the text, where there is a network")
    first.add_argument("file", type=Path)
    first.add_argument("--data", default="wiki-code", help="corpus name, file:PATH or hf:NAME")
    first.add_argument("--d-vocab", type=int, default=PRESETS["paper"].model.d_vocab)
    first.add_argument("--tokenizer", type=Path, help="a tokenizer.json (default: train one)")
    second = actions.add_parser("run", help="measure, and write FOLDER/gpu.json")
    second.add_argument("--out", type=Path, required=True)
    second.add_argument("--tokens", type=Path, help="what `prepare` wrote (default: the sample)")
    second.add_argument("--minutes", type=float, default=9.0, help="for everything together")
    second.add_argument("--device", default="cuda")
    second.add_argument("--quick", action="store_true", help="tiny models")
    given = parser.parse_args(arguments)
    try:
        if given.action == "prepare":
            prepare(given.file, given.data, given.d_vocab, given.tokenizer)
            return
        if given.device.startswith("cuda") and not torch.cuda.is_available():
            raise RunError(
                "this measures a CUDA GPU, and torch sees none here: run it where there is one, or "
                "try the script itself with --device cpu --quick"
            )
        if given.device == "cpu" and not given.quick:
            raise RunError("on a CPU the paper's size takes hours: add --quick for tiny models")
        if (given.out / "paper").exists():
            raise RunError(f"{given.out} holds a run already: name another folder with --out")
        precision = "bf16" if given.device.startswith("cuda") else "fp32"
        engine = start_engine(given.device, precision)
        run_all(given.out, engine, given.tokens, given.minutes, given.quick)
    except (RunError, OSError, ValueError) as error:
        sys.exit(f"gpu: {error}")


if __name__ == "__main__":
    main()
