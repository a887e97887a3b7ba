"""Tokens per second of three ways to train one model: `python benchmarks/training.py`.

The model, its first weights, the batches, the optimisers (Muon and AdamW) and the rates are the
same: the book's two layers, by (ours) the package's trainer, (lens) TransformerLens 3's
HookedTransformer with shortformer positions, (plain) an ordinary module loop with all logits in one
tensor. Their losses must agree at every step. The three take turns, a few steps each, so that
whatever else the machine does falls on all of them; ratios are medians over the turns.

TransformerLens lives in an environment of its own, which is made first if need be (environment.py).
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

from pathsum.dataset import TokenData, blocks
from pathsum.files import write_atomically
from pathsum.model import AttentionOnlyTransformer
from pathsum.muon import PLAIN, Muon
from pathsum.presets import BOOK, TrainConfig, batch_indices, learning_rate_factor
from pathsum.runs import Run
from pathsum.train import keep_freed_memory

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from environment import python_with_transformer_lens

WAYS = ("ours", "lens", "plain")
GOALS = {"ours / lens": 2.5, "ours / plain": 1.3, "share of roofline": 0.7}
AGREEMENT = 0.02  # nats; sums in another order, and factors rounded to bf16 in ours


def settings(quick: bool) -> TrainConfig:
    """The book's recipe, or a tiny model that shows that everything runs."""
    if not quick:
        return BOOK
    return replace(
        BOOK, batch=4, model=replace(BOOK.model, d_vocab=128, d_model=64, n_heads=2, n_ctx=32)
    )


def token_ids(config: TrainConfig) -> np.ndarray:
    """A cycle of tokens with noise: something to learn, the same everywhere."""
    random = np.random.default_rng(0)
    ids = 1 + np.arange(200_000) % 97
    noisy = random.random(len(ids)) < 0.2
    return np.where(noisy, random.integers(1, config.model.d_vocab, len(ids)), ids).astype(
        np.uint16
    )


class Plain(nn.Module):
    """The same function as the package's model, as one would write it down."""

    def __init__(self, model: AttentionOnlyTransformer) -> None:
        super().__init__()
        c = self.config = model.config
        width = c.n_heads * c.d_head
        self.embed = nn.Embedding(c.d_vocab, c.d_model)
        self.reads = nn.ModuleList(
            nn.ModuleList(nn.Linear(c.d_model, width, bias=False) for _ in "QKV")
            for _ in range(c.n_layers)
        )
        self.writes = nn.ModuleList(
            nn.Linear(width, c.d_model, bias=False) for _ in range(c.n_layers)
        )
        self.unembed = nn.Linear(c.d_model, c.d_vocab, bias=False)
        self.register_buffer("positions", model.W_pos)
        with torch.no_grad():
            self.embed.weight.copy_(model.W_E)
            self.unembed.weight.copy_(model.W_U.T)
            for layer in range(c.n_layers):
                for linear, W in zip(self.reads[layer], (model.W_Q, model.W_K, model.W_V)):
                    linear.weight.copy_(W[layer].permute(0, 2, 1).reshape(width, c.d_model))
                self.writes[layer].weight.copy_(model.W_O[layer].reshape(width, c.d_model).T)

    def forward(self, tokens: Tensor) -> Tensor:
        resid = self.embed(tokens)
        for (Q, K, V), O in zip(self.reads, self.writes):
            placed = resid + self.positions
            heads = [x.unflatten(-1, (self.config.n_heads, -1)).transpose(1, 2)
                     for x in (Q(placed), K(placed), V(resid))]  # fmt: skip
            z = scaled_dot_product_attention(*heads, is_causal=True)
            resid = resid + O(z.transpose(1, 2).flatten(2))
        return self.unembed(resid)

    def groups(self) -> list[dict]:
        matrices = [linear.weight for layer in self.reads for linear in layer]
        return [{"params": matrices + [O.weight for O in self.writes], "layout": PLAIN}]


def lens(model: AttentionOnlyTransformer) -> tuple[nn.Module, list[dict]]:
    """HookedTransformer with the package's weights; its biases, which ours has not, stay at 0."""
    from transformer_lens import HookedTransformer, HookedTransformerConfig

    warnings.filterwarnings("ignore", "HookedTransformer is deprecated", DeprecationWarning)
    c = model.config
    theirs = HookedTransformer(
        HookedTransformerConfig(
            n_layers=c.n_layers, n_heads=c.n_heads, d_model=c.d_model, d_head=c.d_head,
            d_vocab=c.d_vocab, n_ctx=c.n_ctx, attn_only=True, normalization_type=None,
            positional_embedding_type="shortformer", device="cpu",
        )
    )  # fmt: skip
    inward, outward = [], []
    with torch.no_grad():
        theirs.W_E.copy_(model.W_E)
        theirs.W_U.copy_(model.W_U)
        theirs.pos_embed.W_pos.copy_(model.W_pos)
        for layer, block in enumerate(theirs.blocks):
            for name in ("W_Q", "W_K", "W_V", "W_O"):
                getattr(block.attn, name).copy_(getattr(model, name)[layer])
            inward += [block.attn.W_Q, block.attn.W_K, block.attn.W_V]
            outward.append(block.attn.W_O)
    for name, parameter in theirs.named_parameters():
        if name.split(".")[-1].startswith("b_") or name == "pos_embed.W_pos":
            parameter.requires_grad_(False)
    return theirs, [
        {"params": inward, "layout": "h m d -> 1 m (h d)"},
        {"params": outward, "layout": "h d m -> 1 (h d) m"},
    ]


def loop(way: str, config: TrainConfig) -> Callable[[], float]:
    """A function that takes one training step with all logits and returns its loss."""
    model = AttentionOnlyTransformer(config.model, seed=config.seed)
    if way == "lens":
        module, groups = lens(model)
    else:
        module = Plain(model)
        groups = module.groups()
    taken = {id(p) for group in groups for p in group["params"]}
    rest = [p for p in module.parameters() if p.requires_grad and id(p) not in taken]
    adam = torch.optim.AdamW(
        rest, lr=config.adam_lr, betas=(0.9, 0.98), weight_decay=0.0, fused=True
    )
    optimizers = [(Muon(groups, lr=config.muon_lr), config.muon_lr), (adam, config.adam_lr)]
    ids, n_ctx, step = token_ids(config), config.model.n_ctx, 0

    def one_step() -> float:
        nonlocal step
        x, y = blocks(ids, n_ctx, batch_indices(step, len(ids) // n_ctx, config))
        for optimizer, rate in optimizers:
            optimizer.zero_grad(set_to_none=True)
            for group in optimizer.param_groups:
                group["lr"] = rate * learning_rate_factor(step, config)
        loss = cross_entropy(module(x).flatten(0, 1), y.flatten())
        loss.backward()
        for optimizer, _ in optimizers:
            optimizer.step()
        step += 1
        return loss.item()

    return one_step


def ours(config: TrainConfig) -> Callable[[], float]:
    """The package's own step."""
    keep_freed_memory()
    ids = token_ids(config)
    folder = Path(tempfile.gettempdir())  # nothing is written without Run.start
    return Run(folder, config, TokenData(ids, ids, "made up", {}))._one_step


def work(way: str, config: TrainConfig) -> None:
    """In a process of its own: for each number read, take as many steps and print what they took."""
    step = ours(config) if way == "ours" else loop(way, config)
    for line in sys.stdin:
        seconds, busy, losses = [], [], []
        for _ in range(int(line)):
            began, cpu = time.perf_counter(), time.process_time()
            losses.append(step())
            seconds.append(time.perf_counter() - began)
            busy.append(time.process_time() - cpu)
        print(json.dumps({"seconds": seconds, "busy": busy, "losses": losses}), flush=True)


def matmul_flops(clock: Callable[[], float], seconds: float = 0.5, size: int = 1024) -> float:
    """The best rate in products of fp32 matrices now, operations per second of the clock."""
    a, b = torch.randn(size, size), torch.randn(size, size)
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        began = clock()
        a @ b
        best = min(best, clock() - began)
    return 2 * size**3 / best


def measure(ways: list[str], rounds: int, steps: int, quick: bool) -> dict:
    """The result file's content: every way's turns, and ratios over them."""
    config, workers, turns = settings(quick), {}, {way: [] for way in ways}
    clocks = {"seconds": time.perf_counter, "busy": time.process_time}
    for way in ways:
        interpreter = python_with_transformer_lens() if way == "lens" else sys.executable
        command = [str(interpreter), __file__, "--worker", way] + ["--quick"] * quick
        workers[way] = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def turn(way: str) -> dict:
        worker = workers[way]
        try:
            worker.stdin.write(f"{steps}\n")
            worker.stdin.flush()
        except BrokenPipeError:
            pass
        line = worker.stdout.readline()
        while line and not line.startswith("{"):  # what libraries print when they are loaded
            line = worker.stdout.readline()
        if not line:
            sys.exit(f"benchmark: {way!r} ended with status {worker.wait()}, see above")
        return json.loads(line)

    roofline = dict.fromkeys(clocks, 0.0)
    try:
        for way in ways:  # imports, allocations, first calls
            turns[way].append(turn(way))
        for number in range(rounds):
            for name, clock in clocks.items():
                roofline[name] = max(roofline[name], matmul_flops(clock))
            for way in ways:
                turns[way].append(turn(way))
            done = ", ".join(f"{w} {rate(turns[w][-1], config):,.0f}" for w in ways)
            print(f"round {number + 1} of {rounds}: {done} tokens/s", flush=True)
    finally:
        for worker in workers.values():
            worker.stdin.close()
            worker.wait()
    gap = disagreement(turns)
    if gap > AGREEMENT:
        sys.exit(
            f"benchmark: losses differ by {gap:.3f} nats (allowed: {AGREEMENT}): not the same model"
        )
    return summary(config, turns, roofline, gap, quick)


def rate(turn: dict, config: TrainConfig, clock: str = "seconds") -> float:
    """Tokens per second of the median step of a turn."""
    return config.batch * config.model.n_ctx / statistics.median(turn[clock])


def disagreement(turns: dict[str, list[dict]]) -> float:
    """Largest difference of two ways' losses at the same step, in nats."""
    curves = [[loss for turn in made for loss in turn["losses"]] for made in turns.values()]
    return max(max(column) - min(column) for column in zip(*curves))


def summary(config: TrainConfig, turns: dict, roofline: dict, gap: float, quick: bool) -> dict:
    """Medians over the measured turns (the first of each is a warm-up)."""
    c = config.model
    weights = 4 * c.n_layers * c.d_model * c.n_heads * c.d_head + c.d_model * c.d_vocab
    speed = {w: [rate(t, config) for t in made[1:]] for w, made in turns.items()}
    busy = {w: [rate(t, config, "busy") for t in made[1:]] for w, made in turns.items()}

    def ratio(rates: dict, other: str) -> float:
        return statistics.median(a / b for a, b in zip(rates["ours"], rates[other]))

    others = [way for way in turns if way != "ours"]
    ratios = {f"ours / {way}": ratio(speed, way) for way in others}
    share = statistics.median(speed["ours"]) * 6 * weights / roofline["seconds"]
    share_busy = statistics.median(busy["ours"]) * 6 * weights / roofline["busy"]
    met = {**ratios, "share of roofline": share}
    return {
        "machine": {
            "torch": torch.__version__,
            "processor": platform.machine(),
            "capability": torch.backends.cpu.get_cpu_capability(),
            "threads": torch.get_num_threads(),
            "cores": os.cpu_count(),
            "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
            "date": time.strftime("%Y-%m-%d"),
        },
        "quick": quick,
        "model": c.to_dict(),
        "tokens_per_step": config.batch * c.n_ctx,
        "rounds": len(speed["ours"]),
        "steps_per_round": len(turns["ours"][0]["seconds"]),
        "tokens_per_second": {w: round(statistics.median(s), 1) for w, s in speed.items()},
        "tokens_per_second_by_round": {w: [round(x, 1) for x in s] for w, s in speed.items()},
        "tokens_per_processor_second": {w: round(statistics.median(s), 1) for w, s in busy.items()},
        "ratios": {k: round(v, 3) for k, v in ratios.items()},
        "ratios_of_processor_time": {f"ours / {w}": round(ratio(busy, w), 3) for w in others},
        "fp32_matmul_flops": round(roofline["seconds"]),
        "fp32_matmul_flops_per_processor_second": round(roofline["busy"]),
        "flops_per_token": 6 * weights,  # products with weights; attention patterns not counted
        "share_of_roofline": round(share, 3),
        "share_of_roofline_of_processor_time": round(share_busy, 3),
        "largest_difference_of_losses": round(gap, 5),
        "goals": {}
        if quick
        else {k: {"goal": GOALS[k], "met": v >= GOALS[k]} for k, v in met.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--rounds", type=int, default=12, help="turns that count, of each way")
    parser.add_argument("--steps", type=int, default=5, help="steps in a turn")
    parser.add_argument("--quick", action="store_true", help="a tiny model: shows that all runs")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "training.json")
    parser.add_argument("--worker", choices=WAYS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        work(given.worker, settings(given.quick))
        return
    if min(given.rounds, given.steps) < 1:
        parser.error(f"rounds and steps must be 1 or more, got {given.rounds} and {given.steps}")
    if "ours" not in given.ways:
        parser.error("ours must be among the ways: the others are compared with it")
    result = measure(list(given.ways), given.rounds, given.steps, given.quick)
    write_atomically(given.out, json.dumps(result, indent=1) + "\n")
    for key in ("tokens_per_second", "ratios", "ratios_of_processor_time", "goals"):
        print(f"{key}: {result[key]}")
    print(
        f"{result['share_of_roofline']:.0%} of the roofline, "
        f"{result['share_of_roofline_of_processor_time']:.0%} by processor time; "
        f"written to {given.out}"
    )


if __name__ == "__main__":
    main()
