"""One training run as a folder: settings, a log of measurements, snapshots, a checkpoint."""

import json
import platform
import subprocess
import time
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from tqdm.auto import tqdm

from pathsum.dataset import TokenData, blocks
from pathsum.engine import ON_CPU, Engine, RunError
from pathsum.evaluate import training_record
from pathsum.files import moved_into_place, write_atomically
from pathsum.loss import mean_cross_entropy
from pathsum.model import AttentionOnlyTransformer
from pathsum.muon import HEADS_AS_COLUMNS, HEADS_AS_ROWS, STACKED, Muon
from pathsum.presets import TrainConfig, batch_indices, learning_rate_factor, record_steps
from pathsum.standard import StandardTransformer, transformer


def optimizers(model: AttentionOnlyTransformer, config: TrainConfig) -> list[torch.optim.Optimizer]:
    """Muon for matrices of attention and MLPs (none in a 0-layer model), AdamW for everything else."""
    inward, outward = [model.W_Q, model.W_K, model.W_V], [model.W_O]
    mlps = [model.W_in, model.W_out] if isinstance(model, StandardTransformer) else []
    rest = [p for p in model.parameters() if not any(p is q for q in inward + outward + mlps)]
    adam = torch.optim.AdamW(
        rest, lr=config.adam_lr, betas=(0.9, 0.98), weight_decay=0.0, fused=True
    )
    if model.config.n_layers == 0:
        return [adam]
    groups = [
        {"params": inward, "layout": HEADS_AS_COLUMNS},
        {"params": outward, "layout": HEADS_AS_ROWS},
    ]
    if mlps:
        groups.append({"params": mlps, "layout": STACKED})
    return [Muon(groups, lr=config.muon_lr), adam]


class Run:
    """One training run and its folder: run.json, log.jsonl, last.safetensors, snapshots/.

    With several processes each has a Run of the same settings; the first alone measures and writes.
    """

    def __init__(
        self, folder: Path, config: TrainConfig, data: TokenData, engine: Engine = ON_CPU
    ) -> None:
        self.folder, self.config, self.data, self.engine = folder, config, data, engine
        self.model = transformer(config.model, seed=config.seed).to(engine.device)
        residual = self.model.final_residual
        backend = engine.compile
        self.residual = torch.compile(residual, backend=backend) if backend else residual
        engine.pieces(list(range(config.batch)))  # refuses what can't be split
        self.optimizers = optimizers(self.model, config)
        self.full_rates = [[g["lr"] for g in o.param_groups] for o in self.optimizers]
        self.step, self.loss_sum, self.loss_count, self.seconds = 0, 0.0, 0, 0.0
        self.n_blocks = len(data.train) // config.model.n_ctx
        heldout_blocks = len(data.heldout) // config.model.n_ctx
        if self.n_blocks < config.batch or heldout_blocks < 1:
            raise RunError(
                f"{config.data!r} has {self.n_blocks} training and {heldout_blocks} held-out "
                f"sequences of n_ctx={config.model.n_ctx} tokens; a run needs at least "
                f"{config.batch} and 1: use more text or a shorter context"
            )
        picks = np.linspace(0, heldout_blocks - 1, min(config.heldout_blocks, heldout_blocks))
        self.heldout = self._blocks(data.heldout, picks.astype(int).tolist())

    def start(self, resume: bool) -> None:
        """Set the folder up, or load its last checkpoint; RunError if it holds something else."""
        about, last = self.folder / "run.json", self.folder / "last.safetensors"
        mine = {"config": self.config.to_dict(), "corpus_fingerprint": self.data.fingerprint}
        theirs = json.loads(about.read_text()) if about.exists() else None
        if theirs is not None:
            self._join(theirs, mine, last, resume)
        place = torch.tensor(float(self.step), device=self.engine.device)
        self.engine.average([place])  # all have looked into the folder before the first writes
        if place.item() != self.step:
            raise RunError(
                f"the processes stand at different steps (this one at {self.step}, all on average "
                f"at {place.item():g}): {self.folder} must be one folder that all of them see"
            )
        if not self.engine.writes:
            return
        now = {**machine(), **self.engine.facts()}
        if theirs is None:
            write_atomically(about, json.dumps({**mine, **now}, indent=1))
        else:
            theirs.setdefault("resumed", []).append({"step": self.step, **now})
            write_atomically(about, json.dumps(theirs, indent=1))
            kept = [line for line in log_lines(self.folder) if line["step"] <= self.step]
            write_atomically(self.folder / "log.jsonl", "".join(json.dumps(r) + "\n" for r in kept))

    def _join(self, theirs: dict, mine: dict, last: Path, resume: bool) -> None:
        """Go on where the run that the folder holds stopped, if it is this one."""
        if not resume:
            raise RunError(
                f"{self.folder} already holds a run: pass --resume to go on with it, or choose "
                "another folder with --out"
            )
        theirs = {**theirs, "config": with_defaults(theirs.get("config"))}
        changed = [key for key in mine if theirs.get(key) != mine[key]]
        if changed:
            old, new = theirs.get(changed[0]), mine[changed[0]]
            raise RunError(
                f"{self.folder} was started with another {changed[0]} ({old} there, {new} now): "
                "resume with the same settings and data, or choose another folder with --out"
            )
        if last.exists():
            self._load(last)

    def train(self, progress: bool = True) -> None:
        """Train to the last step; measure, snapshot and save on the way."""
        config, tokens = self.config, self.config.batch * self.config.model.n_ctx
        due = record_steps(config)
        bar = tqdm(
            total=config.steps * tokens,
            initial=self.step * tokens,
            unit="tok",
            unit_scale=True,
            disable=not (progress and self.engine.writes),
        )
        if self.engine.writes and self.step == 0 and not log_lines(self.folder):
            self.record()
        while self.step < config.steps:
            began = time.perf_counter()
            loss = self._one_step()
            self.seconds += time.perf_counter() - began
            self.loss_sum, self.loss_count = self.loss_sum + loss, self.loss_count + 1
            bar.update(tokens)
            bar.set_postfix(loss=f"{loss:.3f}", refresh=False)
            if self.engine.writes and self.step in due:
                self.record()
            if self.engine.writes and (
                self.step % config.save_every == 0 or self.step == config.steps
            ):
                self._save()
        bar.close()

    def _one_step(self) -> float:
        factor = learning_rate_factor(self.step, self.config)
        for optimizer, rates in zip(self.optimizers, self.full_rates):
            optimizer.zero_grad(set_to_none=True)
            for group, rate in zip(optimizer.param_groups, rates):
                group["lr"] = rate * factor
        mean = torch.zeros((), device=self.engine.device)
        batch = batch_indices(self.step, self.n_blocks, self.config)
        pieces = self.engine.pieces(batch)
        for piece in pieces:
            loss = self._loss(piece) / len(pieces)
            loss.backward()
            mean += loss.detach()
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        self.engine.average([mean, *gradients])
        value = mean.item()
        if not np.isfinite(value):
            raise RunError(
                f"the loss became {value} at step {self.step}: resume from the last checkpoint "
                "with a lower learning rate (--muon-lr, --adam-lr)"
            )
        for optimizer in self.optimizers:
            optimizer.step()
        self.step += 1
        return value

    def _blocks(self, tokens: np.ndarray, picks: list[int]) -> tuple[Tensor, Tensor]:
        return blocks(tokens, self.config.model.n_ctx, picks, self.data.start_id)

    def _loss(self, picks: list[int]) -> Tensor:
        x, y = self._blocks(self.data.train, picks)
        device, W_U = self.engine.device, self.model.W_U
        with self.engine.autocast():
            resid = self.residual(x.to(device)).flatten(0, 1)
            return mean_cross_entropy(resid, W_U, y.to(device).flatten(), self.config.rounded_loss)

    def record(self) -> None:
        """Append one line to the log and keep an fp16 snapshot."""
        line = {
            "step": self.step,
            "tokens": self.step * self.config.batch * self.config.model.n_ctx,
            "seconds": self.seconds,  # of training steps alone
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
        progress = {k: getattr(self, k) for k in ("step", "loss_sum", "loss_count", "seconds")}
        metadata = {"progress": json.dumps(progress)}
        save_atomically(self._state(), self.folder / "last.safetensors", metadata)

    def _load(self, path: Path) -> None:
        parameters = dict(self.model.named_parameters())
        owners = {type(o).__name__: o for o in self.optimizers}
        with safe_open(path, "pt") as file, torch.no_grad():
            for name in file.keys():
                owner, parameter, *key = name.split(".")
                value = file.get_tensor(name)
                if owner == "model":
                    parameters[parameter].copy_(value)
                else:
                    state = owners[owner].state[parameters[parameter]]
                    state[key[0]] = value.to(self.engine.device)  # fused AdamW's step too
            progress = json.loads(file.metadata()["progress"])
        for name, value in progress.items():
            setattr(self, name, value)


def save_atomically(
    tensors: dict[str, Tensor], path: Path, metadata: dict[str, str] | None = None
) -> None:
    """Write a safetensors file, whole or not at all."""
    with moved_into_place(path) as temporary:
        save_file(tensors, temporary, metadata)


def with_defaults(config: dict | None) -> dict | None:
    """The settings of an older run, with today's defaults for fields that came later."""
    try:
        return TrainConfig.from_dict(config).to_dict()
    except (KeyError, TypeError):  # not the settings of a run
        return config


def machine() -> dict:
    """What a reader needs to judge speed and reproduce numbers: versions, processor, commit."""
    here = Path(__file__).parent
    git = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=here, capture_output=True, text=True, check=False
    )
    return {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "commit": git.stdout.strip() or None,
    }


def log_lines(folder: Path) -> list[dict]:
    log = folder / "log.jsonl"
    if not log.exists():
        return []
    whole = [line for line in log.read_text().splitlines(keepends=True) if line.endswith("\n")]
    return [json.loads(line) for line in whole]
