"""Ablation of heads through one hook: what is lost when a head's output is replaced."""

from collections.abc import Iterable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pathsum.circuits import check_head
from pathsum.evaluate import token_losses
from pathsum.model import AttentionOnlyTransformer, Hook, cache
from pathsum.paths import patterns_of

KINDS = ("zero", "mean", "resample")
Heads = Iterable[tuple[int, int]]


def ablation_hook(
    heads: Heads,
    kind: str = "zero",
    reference: dict[str, Tensor] | None = None,
    generator: torch.Generator | None = None,
) -> Hook:
    """A hook that replaces what the named heads write, as (layer, head) pairs.

    "zero": nothing; "mean": the head's mean output over the `reference` run (batch and positions);
    "resample": the head's output on another sequence of the reference run, drawn by `generator` for
    each sequence. `reference` is a cache of a run with the same number of positions (any batch for
    "mean"). ValueError for an unknown kind, a missing reference or one of other sizes; IndexError for
    a head that the model lacks, at the latest when a run is over.
    """
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {KINDS}, got {kind!r}")
    if kind != "zero" and reference is None:
        raise ValueError(f'"{kind}" needs a reference: pass cache(model, tokens) of other text')
    chosen: dict[str, list[int]] = {}
    for layer, head in heads:
        if min(layer, head) < 0:
            raise IndexError(f"layers and heads are counted from 0, got {(layer, head)}")
        chosen.setdefault(f"L{layer}.result", []).append(head)
    visited = set()

    def hook(site: str, value: Tensor) -> Tensor | None:
        visited.add(site)
        if site == "resid_final" and not chosen.keys() <= visited:
            raise IndexError(f"the model has no site {min(chosen.keys() - visited)!r} to ablate")
        if site not in chosen:
            return None
        if max(chosen[site]) >= value.shape[1]:
            heads_there = f"{site.partition('.')[0]} has heads 0..{value.shape[1] - 1}"
            raise IndexError(f"{heads_there}, got {max(chosen[site])}")
        if kind == "resample" and reference[site].shape[1:] != value.shape[1:]:
            raise ValueError(
                f"the reference must have the sizes of this run, {tuple(value.shape[1:])} after the "
                f"batch, got {tuple(reference[site].shape[1:])}: cache text of this length"
            )
        replaced = value.clone()
        for head in chosen[site]:
            if kind == "zero":
                replaced[:, head] = 0
            elif kind == "mean":
                replaced[:, head] = reference[site][:, head].mean((0, 1))
            else:
                rows = torch.randint(len(reference[site]), (len(value),), generator=generator)
                replaced[:, head] = reference[site][rows, head]
        return replaced

    return hook


def frozen_hook(patterns: list[Float[Tensor, "batch head dest src"]]) -> Hook:
    """A hook that forces every layer's attention pattern to those given.

    IndexError if the model has more layers than there are patterns.
    """

    def hook(site: str, value: Tensor) -> Tensor | None:
        if not site.endswith(".pattern"):
            return None
        layer = int(site[1])
        if layer >= len(patterns):
            raise IndexError(
                f"there are patterns for {len(patterns)} layers, none for layer {layer}: take them "
                "from a run of this model"
            )
        return patterns[layer]

    return hook


def both(first: Hook, second: Hook) -> Hook:
    """Two hooks in a row: the second sees what the first returned."""

    def hook(site: str, value: Tensor) -> Tensor | None:
        changed = first(site, value)
        last = second(site, value if changed is None else changed)
        return changed if last is None else last

    return hook


@torch.no_grad()
def ablated_losses(
    model: AttentionOnlyTransformer,
    inputs: Int[Tensor, "batch pos"],
    targets: Int[Tensor, "batch pos"],
    heads: Heads,
    kind: str = "zero",
    freeze_patterns: bool = False,
    seed: int = 0,
) -> Float[Tensor, "batch pos"]:
    """Each token's loss with the named heads ablated; IndexError for a head the model lacks.

    With `freeze_patterns` all attention patterns are those of the intact run, so that only what the
    heads write toward later values and the logits is lost, not what later heads attend to. Mean and
    resample take their outputs from the same text. Source: Olsson et al. 2022 (full and
    pattern-preserving ablation).
    """
    heads = list(heads)
    for head in heads:
        check_head(model, head)
    generator = torch.Generator().manual_seed(seed)
    parts = []
    for x, y in zip(inputs.split(16), targets.split(16)):
        reference = cache(model, x) if kind != "zero" else None
        hook = ablation_hook(heads, kind, reference, generator)
        if freeze_patterns:
            hook = both(frozen_hook(patterns_of(model, x)), hook)
        parts.append(token_losses(model, x, y, hook))
    return torch.cat(parts)
