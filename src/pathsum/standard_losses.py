"""What classes of paths of a standard model are worth to the loss, and what freezing them costs."""

from collections.abc import Iterable, Mapping

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pathsum.evaluate import token_losses
from pathsum.loss import cross_entropy_rows
from pathsum.model import Hook
from pathsum.standard import StandardTransformer
from pathsum.standard_paths import (
    CLASSES,
    FrozenStandard,
    class_terms,
    frozen_hook,
    frozen_standard,
    of_another_text,
)

AT_A_TIME = 8  # sequences: all routes of a batch are held at once
Means = dict[str, Float[Tensor, " d_model"]]


def class_means(model: StandardTransformer, tokens: Int[Tensor, "batch pos"]) -> Means:
    """Each class's mean over all places of a text, as W_U reads it."""
    totals = dict.fromkeys(CLASSES, torch.zeros(model.config.d_model, dtype=torch.float64))
    for part in tokens.split(AT_A_TIME):
        for kind, value in class_terms(model, part).items():
            totals[kind] = totals[kind] + value.double().sum((0, 1))
    return {kind: (total / tokens.numel()).float() for kind, total in totals.items()}


@torch.no_grad()
def losses_of(
    model: StandardTransformer,
    inputs: Int[Tensor, "batch pos"],
    targets: Int[Tensor, "batch pos"],
    wanted: Mapping[str, Iterable[str]],
    means: Means | None = None,
) -> dict[str, Float[Tensor, "batch pos"]]:
    """Each token's loss in nats when only some classes of terms reach W_U; everything is frozen.

    `wanted` names sets of classes. What is left out is replaced by nothing, or with `means` by its
    mean over another text, so that a constant which the other terms count on stays. All CLASSES give
    the model's own losses. KeyError for a class that there is not.
    """
    sets = {name: set(kinds) for name, kinds in wanted.items()}
    for name, kinds in sets.items():
        if not kinds <= set(CLASSES):
            raise KeyError(f"{name}: classes are {', '.join(CLASSES)}, got {sorted(kinds)}")
    parts: dict[str, list[Tensor]] = {name: [] for name in sets}
    for x, y in zip(inputs.split(AT_A_TIME), targets.split(AT_A_TIME)):
        terms = class_terms(model, x)
        for name, kinds in sets.items():
            read = torch.zeros_like(terms["direct"])
            for kind, value in terms.items():
                if kind in kinds:
                    read = read + value
                elif means is not None:
                    read = read + means[kind]
            losses = cross_entropy_rows(read.flatten(0, 1), model.W_U.detach(), y.flatten())
            parts[name].append(losses.reshape(y.shape))
    return {name: torch.cat(found) for name, found in parts.items()}


def ladder() -> dict[str, tuple[str, ...]]:
    """Sets of classes, one more each time, in the order of CLASSES: "biases", "+ positions", ..."""
    return {
        f"{'+ ' if n else ''}{kind}": CLASSES[: n + 1] for n, kind in enumerate(CLASSES)
    }


def all_but() -> dict[str, tuple[str, ...]]:
    """For each class all the others."""
    return {kind: tuple(k for k in CLASSES if k != kind) for kind in CLASSES}


@torch.no_grad()
def loss_with(
    model: StandardTransformer,
    inputs: Int[Tensor, "batch pos"],
    targets: Int[Tensor, "batch pos"],
    fields: Iterable[str],
) -> float:
    """Mean loss when some frozen fields come from the next text of the batch, the others its own.

    Batches of AT_A_TIME, the last text's neighbour being the first. ValueError for a batch of one.
    """
    total, fields = 0.0, list(fields)
    for x, y in zip(inputs.split(AT_A_TIME), targets.split(AT_A_TIME)):
        if len(x) < 2:
            raise ValueError(
                f"another text is needed, got a batch of one: pass a number of texts that leaves "
                f"no single one over batches of {AT_A_TIME}"
            )
        frozen = frozen_standard(model, x)
        for field in fields:
            frozen = of_another_text(frozen, field)
        total += float(token_losses(model, x, y, frozen_hook(frozen)).double().sum())
    return total / targets.numel()


@torch.no_grad()
def mean_gates(
    model: StandardTransformer, tokens: Int[Tensor, "batch pos"]
) -> list[Float[Tensor, " d_mlp"]]:
    """How far each neuron is open on average over a text, per layer."""
    totals = [torch.zeros(model.config.d_mlp, dtype=torch.float64) for _ in model.W_in]
    for part in tokens.split(AT_A_TIME):
        for total, gate in zip(totals, frozen_standard(model, part).gates):
            total += gate.double().sum((0, 1))
    return [(total / tokens.numel()).float() for total in totals]


@torch.no_grad()
def loss_with_gates(
    model: StandardTransformer,
    inputs: Int[Tensor, "batch pos"],
    targets: Int[Tensor, "batch pos"],
    gates: list[Float[Tensor, " d_mlp"]],
) -> float:
    """Mean loss when every neuron's gate is fixed for all places; patterns and scales are the run's own."""
    total = 0.0
    for x, y in zip(inputs.split(AT_A_TIME), targets.split(AT_A_TIME)):
        own = frozen_standard(model, x)
        fixed = [gate.expand_as(value) for gate, value in zip(gates, own.gates)]
        held = FrozenStandard(own.patterns, own.scales, own.mlp_scales, fixed)
        total += float(token_losses(model, x, y, frozen_hook(held)).double().sum())
    return total / targets.numel()


def mlp_ablation_hook(layers: Iterable[int], means: dict[int, Tensor] | None = None) -> Hook:
    """A hook that replaces what some layers' MLPs write by nothing, or by `means` (d_model) of a layer.

    Nothing is frozen: what comes later sees the change.
    """
    chosen = {f"L{layer}.mlp": layer for layer in layers}

    def hook(site: str, value: Tensor) -> Tensor | None:
        if site not in chosen:
            return None
        zero = torch.zeros_like(value)
        return zero if means is None else zero + means[chosen[site]]

    return hook
