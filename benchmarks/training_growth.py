"""How the cost of a training step grows with the model: `python benchmarks/training_growth.py`.

Each size is trained for a few steps on random tokens in a process of its own, so that its peak
memory is its own. Tokens are counted per second of processor time of one thread, which other work on
the machine disturbs less than the clock. What the machine could do is timed in the same process, on matrix products
in fp32 and, for the logits, with factors rounded to bf16, as the trainer does it. The result file is read by the chapter on training.
"""

import argparse
import json
import platform
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from importlib import resources
from pathlib import Path

import numpy as np
import torch

from pathsum import cost
from pathsum.dataset import TokenData
from pathsum.files import write_atomically
from pathsum.loss import rounded_products
from pathsum.presets import BOOK, TrainConfig
from pathsum.runs import Run
from pathsum.train import keep_freed_memory

RESULTS = Path(str(resources.files("pathsum") / "data" / "growth.json"))
ROUNDS = 4  # timed steps; the fastest counts
GROWS = {
    "width": ("d_model", (128, 256, 512)),
    "layers": ("n_layers", (0, 1, 2, 4)),
    "context": ("n_ctx", (64, 256, 1024)),
    "vocabulary": ("d_vocab", (1024, 4096, 16384)),
}


def sizes() -> list[tuple[str, TrainConfig]]:
    """Every size to show, as (what grows, settings); the book's own is among each four.

    Heads of 32, as many as the width holds; 4,096 tokens a step whatever the context.
    """
    found = []
    for grows, (field, values) in GROWS.items():
        for value in values:
            model = replace(BOOK.model, **{field: value})
            model = replace(model, n_heads=model.d_model // model.d_head)
            found.append((grows, replace(BOOK, model=model, batch=4096 // model.n_ctx)))
    return found


def matmul_rate(seconds: float = 0.4, size: int = 1024) -> float:
    """Operations a second of processor time in products of `size` x `size` fp32 matrices."""
    a, b = torch.randn(size, size), torch.randn(size, size)
    (a @ b).sum()
    best = float("inf")
    end = time.process_time() + seconds
    while time.process_time() < end:
        began = time.process_time()
        a @ b
        best = min(best, time.process_time() - began)
    return 2 * size**3 / best


def measure(train: TrainConfig) -> dict:
    """One size, in this process: tokens a second of processor time, peak memory, matmul rate."""
    torch.set_num_threads(1)
    keep_freed_memory()
    generator = np.random.default_rng(0)
    tokens = generator.integers(1, train.model.d_vocab, 400_000, dtype=np.uint16)
    data = TokenData(tokens, tokens[:8192], "random", {})
    before = peak()
    with tempfile.TemporaryDirectory() as folder:
        run = Run(Path(folder), train, data)
        run._one_step()  # allocates what later steps reuse
        best = float("inf")
        for _ in range(ROUNDS):
            began = time.process_time()
            run._one_step()
            best = min(best, time.process_time() - began)
    return {
        "tokens_per_second": round(cost.tokens_per_step(train) / best, 1),
        "peak_bytes": peak() - before,
        "counted_bytes": cost.memory_bytes(train),
        **rates(),
    }


def rates() -> dict[str, int]:
    """What the machine could do: products in fp32, and with factors rounded where that is faster."""
    exact = matmul_rate()
    with rounded_products():
        rounded = matmul_rate()
    return {"fp32_flops": round(exact), "rounded_flops": round(max(exact, rounded))}


def utilisation(row: dict, train: TrainConfig) -> float:
    """Share of the time in which the counted products could be done at the machine's rates."""
    logits = 6 * train.model.d_model * train.model.d_vocab
    rest = cost.flops_per_token(train.model) - logits
    least = logits / row["rounded_flops"] + rest / row["fp32_flops"]
    return row["tokens_per_second"] * least


def peak() -> int:
    """Most memory that this process has held, in bytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"rewrite {RESULTS.name}")
    parser.add_argument("--size", type=int, help="measure one size in this process, print JSON")
    options = parser.parse_args()
    if options.size is not None:
        print(json.dumps(measure(sizes()[options.size][1])))
        return
    rows, known = [], {}
    for number, (grows, train) in enumerate(sizes()):
        if train not in known:  # the book's own size stands in every group and is measured once
            command = [sys.executable, __file__, "--size", str(number)]
            done = subprocess.run(command, check=False, capture_output=True, text=True)
            if done.returncode:
                sys.exit(f"size {number} failed:\n{done.stderr}")
            known[train] = json.loads(done.stdout)
        value = getattr(train.model, GROWS[grows][0])
        row = {"grows": grows, "value": value, **known[train]}
        row["flops_per_token"] = cost.flops_per_token(train.model)
        row["utilisation"] = share = round(utilisation(row, train), 4)
        rows.append(row)
        print(f"{grows:<11} {value:>6}: {row['tokens_per_second']:9,.0f} tokens/s", end=" ")
        print(
            f"{row['peak_bytes'] / 1e6:7.0f} MB (counted {row['counted_bytes'] / 1e6:.0f})", end=" "
        )
        print(f"{share:.0%} of the least time", flush=True)
    if options.write:
        machine = {
            "torch": torch.__version__,
            "processor": platform.machine(),
            "capability": torch.backends.cpu.get_cpu_capability(),
            "threads": 1,
            "date": time.strftime("%Y-%m-%d"),
        }
        about = {"machine": machine, "batch_tokens": 4096, "rows": rows}
        write_atomically(RESULTS, json.dumps(about, indent=1) + "\n")


if __name__ == "__main__":
    main()
