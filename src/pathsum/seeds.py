"""The trained models that a measurement is repeated on: their kind, their seed, where they lie."""

import json
import re
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

from pathsum.checkpoints import (
    load_model,
    load_run,
    model_card,
    model_names,
    shipped_names,
    training_log,
)
from pathsum.model import AttentionOnlyTransformer, Config
from pathsum.runs import log_lines
from pathsum.standard import StandardConfig, config_of

DEPTHS = ("zero", "one", "two", "three", "four")
COUNTED = (
    r"attn-only-\d+l(-ln|-smear)?(-seed\d+)?"  # shipped models that differ in kind or seed only
)


@dataclass(frozen=True)
class Checkpoint:
    """One trained model: shipped by name, or a run of one's own by its folder."""

    source: str  # name of a shipped model, or a folder that `load_run` reads
    config: Config
    seed: int  # of its training

    @property
    def kind(self) -> str:
        """Its depth in words, and what is special: "two", "two_normed", "one_smeared", "two_standard"."""
        if isinstance(self.config, StandardConfig):
            return DEPTHS[self.config.n_layers] + "_standard"
        special = "_normed" * (self.config.norm is not None) + "_smeared" * self.config.smear
        return DEPTHS[self.config.n_layers] + special

    @cached_property
    def model(self) -> AttentionOnlyTransformer:
        """The model, loaded once, on the CPU."""
        shipped = self.source in shipped_names()
        return load_model(self.source) if shipped else load_run(self.source)

    @cached_property
    def log(self) -> list[dict]:
        """The records of its training, first step to last."""
        shipped = self.source in shipped_names()
        return training_log(self.source) if shipped else log_lines(Path(self.source))


def checkpoint(source: str) -> Checkpoint:
    """The checkpoint of a shipped name or of a run's folder. CheckpointError if there is neither."""
    file = Path(source) / "run.json"
    if source in shipped_names() or not file.exists():
        return _shipped(source)
    config = json.loads(file.read_text(encoding="utf-8"))["config"]
    return Checkpoint(source, config_of(config["model"]), config["seed"])


@lru_cache
def _shipped(name: str) -> Checkpoint:
    """Kept, so that what is derived from its model can be kept too."""
    card = model_card(name)
    return Checkpoint(name, config_of(card["config"]), card["training"]["seed"])


def by_kind(sources: list[str] | None = None) -> dict[str, dict[int, Checkpoint]]:
    """Checkpoints by kind and then by seed, smallest seed first; the shipped ones without names.

    ValueError if two of them have one kind and one seed.
    """
    if sources is None:
        sources = [name for name in model_names() if re.fullmatch(COUNTED, name)]
    found: dict[str, dict[int, Checkpoint]] = {}
    for one in sorted(map(checkpoint, sources), key=lambda c: c.seed):
        seeds = found.setdefault(one.kind, {})
        if one.seed in seeds:
            raise ValueError(
                f"{seeds[one.seed].source} and {one.source} are both of kind {one.kind!r} and seed "
                f"{one.seed}: name one of them"
            )
        seeds[one.seed] = one
    return found
