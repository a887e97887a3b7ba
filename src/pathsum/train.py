"""Train a toy model: `python -m pathsum.train PRESET`. A run is a folder that can be resumed."""

import argparse
import ctypes
import json
import os
import platform
import subprocess
import sys
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from tqdm.auto import tqdm

from pathsum.dataset import TokenData, blocks, encoded
from pathsum.evaluate import training_record
from pathsum.loss import mean_cross_entropy
from pathsum.model import AttentionOnlyTransformer, Config
from pathsum.muon import HEADS_AS_COLUMNS, HEADS_AS_ROWS, Muon


@dataclass(frozen=True)
class TrainConfig:
    """Everything that decides the numbers of a run, beside the machine."""

    model: Config
    data: str  # a corpus name that `pathsum.corpus` knows
    steps: int  # optimiser steps
    batch: int = 16  # sequences of n_ctx tokens a step
    muon_lr: float = 0.015  # attention matrices
    adam_lr: float = 4e-3  # W_E, W_U and LayerNorm
    warmup: int = 50  # steps of linear rise
    decay: float = 0.4  # last part of the run in which the rate falls linearly ...
    final_lr: float = 0.02  # ... to this fraction
    seed: int = 0  # initial weights and order of the data
    records: int = 60  # log-spaced measurements; each also keeps an fp16 snapshot
    heldout_blocks: int = 64  # sequences of held-out text in a measurement
    save_every: int = 200  # steps between checkpoints that a run resumes from
    rounded_loss: bool = True  # logits products may use bf16 factors where hardware has them

    def to_dict(self) -> dict:
        return asdict(self)


BOOK = TrainConfig(model=Config(n_layers=2), data="wiki-code", steps=6000)
PRESETS = {
    "quick": TrainConfig(
        model=Config(n_layers=2, n_heads=4, d_model=128, n_ctx=128),
        data="sample",
        steps=800,
        records=12,
    ),
    "book": BOOK,
    "paper": TrainConfig(  # 12 heads of 64, context 2,048: for a GPU
        model=Config(
            n_layers=2,
            n_heads=12,
            d_model=768,
            d_head=64,
            d_vocab=50257,
            n_ctx=2048,
            position_base=10000.0,
        ),
        data="wiki-code",
        steps=4000,
        batch=32,
    ),
}


class RunError(RuntimeError):
    """A run that can't start or go on, with what to do about it."""


def learning_rate_factor(step: int, config: TrainConfig) -> float:
    """Share of the full learning rate at `step` (0-based): up, level, down to `final_lr`."""
    left = (config.steps - step) / max(1, config.decay * config.steps)
    fall = config.final_lr + (1 - config.final_lr) * min(1.0, left)
    return min(1.0, (step + 1) / max(1, config.warmup)) * fall


def record_steps(config: TrainConfig) -> list[int]:
    """Steps after which the run is measured: 0, about `records` log-spaced ones, and the last."""
    spaced = np.geomspace(1, config.steps, config.records).round().astype(int).tolist()
    return sorted({0, config.steps, *spaced})


def batch_indices(step: int, n_blocks: int, config: TrainConfig) -> list[int]:
    """Blocks of batch `step`: a fresh seeded shuffle each epoch, no block twice within one."""
    wanted = range(step * config.batch, (step + 1) * config.batch)
    return [int(_order(i // n_blocks, n_blocks, config.seed)[i % n_blocks]) for i in wanted]


@lru_cache(maxsize=2)
def _order(epoch: int, n_blocks: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed * 100_003 + epoch)
    return torch.randperm(n_blocks, generator=generator)


def optimizers(
    model: AttentionOnlyTransformer, config: TrainConfig
) -> list[torch.optim.Optimizer]:
    """Muon for the attention matrices (none in a 0-layer model), AdamW for everything else."""
    inward, outward = [model.W_Q, model.W_K, model.W_V], [model.W_O]
    rest = [p for p in model.parameters() if not any(p is q for q in inward + outward)]
    adam = torch.optim.AdamW(
        rest, lr=config.adam_lr, betas=(0.9, 0.98), weight_decay=0.0, fused=True
    )
    if model.config.n_layers == 0:
        return [adam]
    groups = [
        {"params": inward, "layout": HEADS_AS_COLUMNS},
        {"params": outward, "layout": HEADS_AS_ROWS},
    ]
    return [Muon(groups, lr=config.muon_lr), adam]


class Run:
    """One training run and its folder: run.json, log.jsonl, last.safetensors, snapshots/."""

    def __init__(
        self, folder: Path, config: TrainConfig, data: TokenData, device: str = "cpu"
    ) -> None:
        self.folder, self.config, self.data, self.device = folder, config, data, device
        self.model = AttentionOnlyTransformer(config.model, seed=config.seed).to(device)
        self.optimizers = optimizers(self.model, config)
        self.full_rates = [[g["lr"] for g in o.param_groups] for o in self.optimizers]
        self.step, self.loss_sum, self.loss_count = 0, 0.0, 0
        self.n_blocks = len(data.train) // config.model.n_ctx
        heldout_blocks = len(data.heldout) // config.model.n_ctx
        if self.n_blocks < config.batch or heldout_blocks < 1:
            raise RunError(
                f"{config.data!r} has {self.n_blocks} training and {heldout_blocks} held-out "
                f"sequences of n_ctx={config.model.n_ctx} tokens; a run needs at least "
                f"{config.batch} and 1: use more text or a shorter context"
            )
        picks = np.linspace(0, heldout_blocks - 1, min(config.heldout_blocks, heldout_blocks))
        self.heldout = blocks(data.heldout, config.model.n_ctx, picks.astype(int).tolist())

    def start(self, resume: bool) -> None:
        """Set the folder up, or load its last checkpoint; RunError if it holds something else."""
        about, last = self.folder / "run.json", self.folder / "last.safetensors"
        mine = {"config": self.config.to_dict(), "corpus_fingerprint": self.data.fingerprint}
        if not about.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            _write(about, json.dumps({**mine, **machine(self.device)}, indent=1))
            return
        if not resume:
            raise RunError(
                f"{self.folder} already holds a run: pass --resume to go on with it, or choose "
                "another folder with --out"
            )
        theirs = json.loads(about.read_text())
        changed = [key for key in mine if theirs.get(key) != mine[key]]
        if changed:
            old, new = theirs[changed[0]], mine[changed[0]]
            raise RunError(
                f"{self.folder} was started with another {changed[0]} ({old} there, {new} now): "
                "resume with the same settings and data, or choose another folder with --out"
            )
        if last.exists():
            self._load(last)
            kept = [line for line in _lines(self.folder) if line["step"] <= self.step]
            _write(self.folder / "log.jsonl", "".join(json.dumps(r) + "\n" for r in kept))

    def train(self, progress: bool = True) -> None:
        """Train to the last step; measure, snapshot and save on the way."""
        config, tokens = self.config, self.config.batch * self.config.model.n_ctx
        due = record_steps(config)
        bar = tqdm(
            total=config.steps * tokens,
            initial=self.step * tokens,
            unit="tok",
            unit_scale=True,
            disable=not progress,
        )
        if self.step == 0 and not _lines(self.folder):
            self.record()
        while self.step < config.steps:
            loss = self._one_step()
            self.loss_sum, self.loss_count = self.loss_sum + loss, self.loss_count + 1
            bar.update(tokens)
            bar.set_postfix(loss=f"{loss:.3f}", refresh=False)
            if self.step in due:
                self.record()
            if self.step % config.save_every == 0 or self.step == config.steps:
                self._save()
        bar.close()

    def _one_step(self) -> float:
        picks = batch_indices(self.step, self.n_blocks, self.config)
        x, y = blocks(self.data.train, self.config.model.n_ctx, picks)
        factor = learning_rate_factor(self.step, self.config)
        for optimizer, rates in zip(self.optimizers, self.full_rates):
            optimizer.zero_grad(set_to_none=True)
            for group, rate in zip(optimizer.param_groups, rates):
                group["lr"] = rate * factor
        with torch.autocast(self.device, torch.bfloat16, enabled=self.device == "cuda"):
            resid = self.model.final_residual(x.to(self.device)).flatten(0, 1)
            loss = mean_cross_entropy(
                resid, self.model.W_U, y.to(self.device).flatten(), self.config.rounded_loss
            )
        loss.backward()
        value = float(loss)
        if not np.isfinite(value):
            raise RunError(
                f"the loss became {value} at step {self.step}: resume from the last checkpoint "
                "with a lower learning rate (--muon-lr, --adam-lr)"
            )
        for optimizer in self.optimizers:
            optimizer.step()
        self.step += 1
        return value

    def record(self) -> None:
        """Append one line to the log and keep an fp16 snapshot."""
        line = {
            "step": self.step,
            "tokens": self.step * self.config.batch * self.config.model.n_ctx,
            "train_loss": self.loss_sum / self.loss_count if self.loss_count else None,
            **training_record(self.model, *self.heldout),
        }
        self.loss_sum, self.loss_count = 0.0, 0
        with open(self.folder / "log.jsonl", "a") as log:
            log.write(json.dumps(line) + "\n")
        half = {k: v.detach().half().cpu().contiguous() for k, v in self.model.named_parameters()}
        save_atomically(half, self.folder / "snapshots" / f"step-{self.step:06d}.safetensors")

    def _state(self) -> dict[str, Tensor]:
        tensors = {f"model.{k}": v.detach() for k, v in self.model.named_parameters()}
        names = {p: k for k, p in self.model.named_parameters()}
        for optimizer in self.optimizers:
            for parameter, state in optimizer.state.items():
                for key, value in state.items():
                    tensors[f"{type(optimizer).__name__}.{names[parameter]}.{key}"] = value
        return {k: v.cpu().contiguous() for k, v in tensors.items() if v.numel()}

    def _save(self) -> None:
        progress = {"step": self.step, "loss_sum": self.loss_sum, "loss_count": self.loss_count}
        metadata = {"progress": json.dumps(progress)}
        save_atomically(self._state(), self.folder / "last.safetensors", metadata)

    def _load(self, path: Path) -> None:
        parameters = dict(self.model.named_parameters())
        owners = {type(o).__name__: o for o in self.optimizers}
        with safe_open(path, "pt", device=self.device) as file, torch.no_grad():
            for name in file.keys():
                owner, parameter, *key = name.split(".")
                value = file.get_tensor(name)
                if owner == "model":
                    parameters[parameter].copy_(value)
                else:
                    value = value.cpu() if key == ["step"] else value
                    owners[owner].state[parameters[parameter]][key[0]] = value
            progress = json.loads(file.metadata()["progress"])
        self.step, self.loss_sum = progress["step"], progress["loss_sum"]
        self.loss_count = progress["loss_count"]


def save_atomically(
    tensors: dict[str, Tensor], path: Path, metadata: dict[str, str] | None = None
) -> None:
    """Write safetensors under a temporary name, then move: a file is whole or not there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    save_file(tensors, temporary, metadata)
    os.replace(temporary, path)


def machine(device: str) -> dict:
    """What a reader needs to judge speed and reproduce numbers: versions, processor, commit."""
    here = Path(__file__).parent
    git = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=here, capture_output=True, text=True, check=False
    )
    return {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": torch.cuda.get_device_name() if device == "cuda" else platform.machine(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "commit": git.stdout.strip() or None,
    }


def keep_freed_memory() -> None:
    """Tell glibc to keep large freed blocks: a training step then runs up to twice as fast.

    By default each tensor above 32 MB goes back to the system when freed, and the next one pays
    for fresh pages. No effect on other systems.
    """
    if sys.platform == "linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
        if mallopt is not None:
            trim_threshold, mmap_max = -1, -4  # names from malloc.h
            mallopt(mmap_max, 0)
            mallopt(trim_threshold, 2**31 - 1)


def _write(path: Path, text: str) -> None:
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(text)
    os.replace(temporary, path)


def _lines(folder: Path) -> list[dict]:
    log = folder / "log.jsonl"
    if not log.exists():
        return []
    whole = [line for line in log.read_text().splitlines(keepends=True) if line.endswith("\n")]
    return [json.loads(line) for line in whole]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m pathsum.train", description=__doc__)
    parser.add_argument("preset", choices=PRESETS)
    parser.add_argument("--out", type=Path, help="run folder (default: runs/PRESET-Nl-seedS)")
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint")
    parser.add_argument("--device", default="auto", help="auto (CUDA if there is one), cpu, mps")
    parser.add_argument("--layers", type=int, help="number of attention layers")
    parser.add_argument("--norm", choices=["pre"], help="add LayerNorm at every read")
    for name in ("steps", "batch", "seed", "save-every"):
        parser.add_argument(f"--{name}", type=int)
    for name in ("muon-lr", "adam-lr"):
        parser.add_argument(f"--{name}", type=float)
    parser.add_argument("--data", help="corpus name, file:PATH or hf:NAME")
    options = parser.parse_args(arguments)

    config = PRESETS[options.preset]
    sizes = {"n_layers": options.layers, "norm": options.norm}
    given = {k: v for k, v in sizes.items() if v is not None}
    names = ("steps", "batch", "seed", "save_every", "muon_lr", "adam_lr", "data")
    chosen = {k: getattr(options, k) for k in names if getattr(options, k) is not None}
    config = replace(config, model=replace(config.model, **given), **chosen)
    layers, norm = config.model.n_layers, "-ln" if config.model.norm else ""
    out = options.out or Path("runs") / f"{options.preset}-{layers}l{norm}-seed{config.seed}"
    device = options.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    keep_freed_memory()
    try:
        run = Run(out, config, encoded(config.data), device)
        run.start(options.resume)
        run.train()
    except (RunError, RuntimeError, ValueError) as error:
        sys.exit(f"pathsum.train: {error}")
    print(f"{out}: step {run.step}, last held-out loss {_lines(out)[-1]['heldout_loss']:.3f} nats")


if __name__ == "__main__":
    main()
