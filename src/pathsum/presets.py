"""What decides the numbers of a training run: sizes, data, budget, rates, and the schedule."""

from dataclasses import asdict, dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from pathsum.model import Config
from pathsum.standard import StandardConfig, config_of


@dataclass(frozen=True)
class TrainConfig:
    """Everything that decides the numbers of a run, beside the machine."""

    model: Config
    data: str  # a corpus name that `pathsum.corpus` knows
    steps: int  # optimiser steps
    batch: int = 16  # sequences of n_ctx tokens a step, over all processes
    muon_lr: float = 0.015  # matrices of attention and MLPs
    adam_lr: float = 4e-3  # W_E, W_U, LayerNorm, and learned positions and biases
    warmup: int = 50  # steps of linear rise
    decay: float = 0.4  # last part of the run in which the rate falls linearly ...
    final_lr: float = 0.02  # ... to this fraction
    seed: int = 0  # initial weights and order of the data
    records: int = 60  # log-spaced measurements; each also keeps an fp16 snapshot
    heldout_blocks: int = 64  # sequences of held-out text in a measurement
    save_every: int = 200  # steps between checkpoints that a run resumes from
    rounded_loss: bool = True  # logits products may use bf16 factors where hardware has them

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "records", "heldout_blocks", "save_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be 1 or more, got {getattr(self, name)}")
        for name in ("muon_lr", "adam_lr"):
            if not 0 < getattr(self, name) < 10:
                raise ValueError(f"{name} must lie between 0 and 10, got {getattr(self, name)}")
        if self.warmup < 0 or not 0 <= self.decay <= 1 or not 0 <= self.final_lr <= 1:
            raise ValueError(
                "warmup must be 0 or more steps, decay and final_lr shares from 0 to 1, got "
                f"{self.warmup}, {self.decay} and {self.final_lr}"
            )

    def to_dict(self) -> dict:
        return asdict(self)

    @classmethod
    def from_dict(cls, settings: dict) -> "TrainConfig":
        """The config of `to_dict`; TypeError for a field that there is not."""
        return cls(**{**settings, "model": config_of(settings["model"])})


BOOK = TrainConfig(model=Config(n_layers=2), data="wiki-code", steps=6000)
PRESETS = {
    "quick": TrainConfig(
        model=Config(n_layers=2, n_heads=4, d_model=128, n_ctx=128),
        data="sample",
        steps=800,
        records=12,
    ),
    "book": BOOK,
    "standard": TrainConfig(  # MLPs, LayerNorm, learned positions: the model of chapter 14
        model=StandardConfig(n_layers=2, n_heads=6, d_model=192, d_mlp=768),
        data="wiki-code",
        steps=2600,
        records=20,
    ),
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
