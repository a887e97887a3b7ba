"""Path expansion of a standard model: with patterns, LayerNorm scales and GELU gates frozen, a sum."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.special import ndtr

from pathsum.model import Hook, cache
from pathsum.paths import BIASES, Frozen, head_outputs, linear_read
from pathsum.standard import StandardTransformer

Route = tuple[str, tuple[str, ...]]  # what is carried, and what it passes: ("token", ("A0", "M1"))
Streams = dict[Route, Tensor]
CLASSES = (
    "biases", "positions", "direct", "one attention layer", "two attention layers",
    "MLP 0", "MLP 1", "both MLPs",
)  # fmt: skip
ATTENTION_ONLY = CLASSES[:5]  # what passes no MLP, and what no token decides
_BIASES: Route = (BIASES, ())


@dataclass(frozen=True)
class FrozenStandard(Frozen):
    """What a run is held to: patterns and scales of every read, and how far each neuron is open."""

    mlp_scales: list[Tensor]  # (batch, pos, 1) per layer
    gates: list[Tensor]  # Phi(pre), (batch, pos, d_mlp) per layer: GELU is pre * gate


def frozen_standard(
    model: StandardTransformer, tokens: Int[Tensor, "batch pos"]
) -> FrozenStandard:
    """The patterns, scales and gates of a run, to be held fixed in others."""
    values, layers = cache(model, tokens), range(model.config.n_layers)
    return FrozenStandard(
        [values[f"L{i}.pattern"] for i in layers],
        [values[f"L{i}.scale"] for i in range(len(layers) + 1)],
        [values[f"L{i}.mlp_scale"] for i in layers],
        [ndtr(values[f"L{i}.pre"]) for i in layers],
    )


def frozen_hook(frozen: FrozenStandard) -> Hook:
    """A hook that holds a run to `frozen`; with it the model is affine in every embedding."""
    held = {f"L{i}.pattern": value for i, value in enumerate(frozen.patterns)}
    held |= {f"L{i}.scale": value for i, value in enumerate(frozen.scales)}
    held |= {f"L{i}.mlp_scale": value for i, value in enumerate(frozen.mlp_scales)}
    gates = {f"L{i}.post": gate for i, gate in enumerate(frozen.gates)}
    before: list[Tensor] = []  # the last layer's neurons before their gates

    def hold(site: str, value: Tensor) -> Tensor | None:
        if site.endswith(".pre"):
            before[:] = [value]
        return before[0] * gates[site] if site in gates else held.get(site)

    return hold


def mlp_outputs(
    model: StandardTransformer,
    frozen: FrozenStandard,
    layer: int,
    stream: Float[Tensor, "batch pos d_model"],
    biases: bool = False,
) -> Float[Tensor, "batch pos d_model"]:
    """What a layer's MLP writes for one term of the stream, its gates being given.

    ((centred stream * scale * gain) @ W_in * gate) @ W_out: linear. With `biases` also what
    LayerNorm's bias, b_in and b_out add, which belongs to one term alone.
    """
    centred = stream - stream.mean(-1, keepdim=True)
    read = centred * frozen.mlp_scales[layer] * model.mlp_norm_gain[layer].detach()
    if not biases:
        return (read @ model.W_in[layer].detach() * frozen.gates[layer]) @ model.W_out[layer].detach()
    pre = (read + model.mlp_norm_bias[layer].detach()) @ model.W_in[layer].detach()
    post = (pre + model.b_in[layer].detach()) * frozen.gates[layer]
    return post @ model.W_out[layer].detach() + model.b_out[layer].detach()


@torch.no_grad()
def standard_terms(
    model: StandardTransformer,
    tokens: Int[Tensor, "batch pos"],
    frozen: FrozenStandard | None = None,
) -> dict[Route, Float[Tensor, "batch pos d_model"]]:
    """What W_U reads, by route: the values add up to `resid_final` of the frozen run.

    A route is what is carried ("token" or "position") and which of A0, M0, A1, M1, ... it passes,
    an attention layer with all its heads or an MLP; 2 * 4^n_layers routes, and one more, BIASES, for
    everything that LayerNorm's and the MLPs' biases add. `frozen` is the run's own unless given.
    """
    frozen = frozen_standard(model, tokens) if frozen is None else frozen
    token = model.W_E.detach()[tokens]
    place = model.W_pos.detach()[: tokens.shape[1]].expand_as(token)
    streams: Streams = {("token", ()): token, ("position", ()): place}
    streams[_BIASES] = torch.zeros_like(token)
    for layer in range(model.config.n_layers):
        pattern, bias = frozen.patterns[layer], model.norm_bias[layer].detach()

        def attend(route: Route, x: Tensor) -> Tensor:
            read = linear_read(model, frozen, layer, x) + (bias if route == _BIASES else 0)
            return head_outputs(model, layer, pattern, read).sum(-3)

        def think(route: Route, x: Tensor) -> Tensor:
            return mlp_outputs(model, frozen, layer, x, biases=route == _BIASES)

        for name, component in (f"A{layer}", attend), (f"M{layer}", think):
            written = {route: component(route, x) for route, x in streams.items()}
            for (source, passed), value in written.items():
                if source == BIASES:
                    streams[_BIASES] = streams[_BIASES] + value
                else:
                    streams[source, (*passed, name)] = value
    last = model.config.n_layers
    terms = {route: linear_read(model, frozen, last, x) for route, x in streams.items()}
    terms[_BIASES] = terms[_BIASES] + model.norm_bias[last].detach()
    return terms


def class_of(route: Route) -> str:
    """Which of CLASSES a route of a two-layer model belongs to."""
    source, passed = route
    if source != "token":
        return "biases" if source == BIASES else "positions"
    mlps = [name for name in passed if name.startswith("M")]
    if mlps:
        return "both MLPs" if len(mlps) > 1 else f"MLP {mlps[0][1:]}"
    return ("direct", "one attention layer", "two attention layers")[len(passed)]


def class_terms(
    model: StandardTransformer,
    tokens: Int[Tensor, "batch pos"],
    frozen: FrozenStandard | None = None,
) -> dict[str, Float[Tensor, "batch pos d_model"]]:
    """`standard_terms` added up by class, in the order of CLASSES. ValueError unless two layers."""
    if model.config.n_layers != 2:
        raise ValueError(
            f"classes are named for two layers, got {model.config.n_layers}: standard_terms lists "
            "the routes of any depth"
        )
    sums: dict[str, Tensor] = {}
    for route, value in standard_terms(model, tokens, frozen).items():
        kind = class_of(route)
        sums[kind] = sums[kind] + value if kind in sums else value
    return {kind: sums[kind] for kind in CLASSES}


def of_another_text(frozen: FrozenStandard, field: str) -> FrozenStandard:
    """The same, but one field (`patterns`, `scales`, `mlp_scales` or `gates`) of the next text.

    Each text of the batch gets that of the one before it, position by position.
    """
    return replace(frozen, **{field: [value.roll(1, 0) for value in getattr(frozen, field)]})
