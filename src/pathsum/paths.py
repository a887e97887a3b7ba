"""Path expansion: a model with frozen patterns (and LayerNorm scales) as a sum of terms."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pathsum.model import AttentionOnlyTransformer, cache
from pathsum.standard import refuse_mlps

Patterns = list[Tensor]  # one (batch, head, dest, src) tensor a layer
Path = tuple[tuple[int, int], ...] | str  # heads passed, earliest first; () is the direct path
BIASES = "biases"  # the term that LayerNorm's biases make, whatever the tokens


@dataclass(frozen=True)
class Frozen:
    """What a run is held to, so that what is left of the model is linear in its embeddings."""

    patterns: Patterns
    scales: list[Tensor]  # LayerNorm's (batch, pos, 1) per layer and before W_U; [] without it


@dataclass(frozen=True)
class PathTerms:
    """Named terms of what W_U reads; `values.sum(0) @ W_U` are the model's logits."""

    paths: list[Path]  # with LayerNorm the last one is BIASES
    values: Float[Tensor, "terms batch pos d_model"]

    def logits(
        self, model: AttentionOnlyTransformer, path: Path
    ) -> Float[Tensor, "batch pos d_vocab"]:
        """One path's contribution to the logits. KeyError if there is no such path."""
        if path not in self.paths:
            raise KeyError(
                f"no path {path}: () is the direct one, ((0, 3),) one head, ((0, 3), (1, 4)) two, "
                f"and {BIASES!r} what LayerNorm's biases add"
            )
        return self.values[self.paths.index(path)] @ model.W_U.detach()


def frozen_run(model: AttentionOnlyTransformer, tokens: Int[Tensor, "batch pos"]) -> Frozen:
    """The patterns and scales of a run, to be held fixed in others."""
    values, n_layers = cache(model, tokens), model.config.n_layers
    scales = [values[f"L{i}.scale"] for i in range(n_layers + 1)] if model.config.norm else []
    return Frozen([values[f"L{layer}.pattern"] for layer in range(n_layers)], scales)


def patterns_of(model: AttentionOnlyTransformer, tokens: Int[Tensor, "batch pos"]) -> Patterns:
    """The attention patterns of a run."""
    return frozen_run(model, tokens).patterns


def linear_read(
    model: AttentionOnlyTransformer,
    frozen: Frozen,
    layer: int,
    stream: Float[Tensor, "*terms batch pos d_model"],
) -> Float[Tensor, "*terms batch pos d_model"]:
    """What layer `layer` reads of a stream, or W_U for n_layers, LayerNorm's bias left out.

    The stream itself; with LayerNorm (stream - its mean over coordinates) * frozen scale * gain.
    """
    if model.config.norm is None:
        return stream
    centred = stream - stream.mean(-1, keepdim=True)
    return centred * frozen.scales[layer] * model.norm_gain[layer].detach()


def head_outputs(
    model: AttentionOnlyTransformer,
    layer: int,
    pattern: Float[Tensor, "batch head dest src"],
    read: Float[Tensor, "*terms batch src d_model"],
) -> Float[Tensor, "*terms batch head dest d_model"]:
    """A @ read @ W_OV of each head: linear in what is read, the pattern being given."""
    values = read.unsqueeze(-3) @ model.W_V[layer].detach()
    return pattern @ values @ model.W_O[layer].detach()


def bias_term(
    model: AttentionOnlyTransformer,
    frozen: Frozen,
    layer: int,
    like: Float[Tensor, "*terms batch pos d_model"],
) -> Float[Tensor, "*terms batch pos d_model"]:
    """What LayerNorm's biases alone bring to the read of `layer`: a frozen run on an empty stream.

    The stream has the shape of `like`. The model must have LayerNorm.
    """
    stream = torch.zeros_like(like)
    bias = model.norm_bias.detach()
    for earlier in range(layer):
        read = linear_read(model, frozen, earlier, stream) + bias[earlier]
        stream = stream + head_outputs(model, earlier, frozen.patterns[earlier], read).sum(-3)
    return linear_read(model, frozen, layer, stream) + bias[layer]


def path_terms(model: AttentionOnlyTransformer, tokens: Int[Tensor, "batch pos"]) -> PathTerms:
    """Every term of the path expansion: direct, single heads, and chains of heads, layer by layer.

    1 + H terms for one layer, 1 + 2H + H^2 for two. With LayerNorm each read is centred, scaled as
    in this run and multiplied by the gain, and one more term, BIASES, gathers what the biases add by
    all routes: it is there whatever the embeddings. Positions enter patterns only, so no term holds
    them. ValueError for more than two layers (use `order_terms` there) and for a model with MLPs.
    Source: Elhage et al. 2021, The Path Expansion Trick; Path Expansion of Logits; Technical Details.
    """
    refuse_mlps(model, "path_terms")
    if model.config.n_layers > 2:
        raise ValueError(
            f"all terms are listed for up to 2 layers, got {model.config.n_layers}: "
            "order_terms sums them by order for any depth"
        )
    frozen, paths = frozen_run(model, tokens), [()]
    values = model.W_E.detach()[tokens][None]
    for layer, pattern in enumerate(frozen.patterns):
        read = linear_read(model, frozen, layer, values)
        written = head_outputs(model, layer, pattern, read)  # (terms, batch, head, pos, d_model)
        heads = range(model.config.n_heads)
        paths += [(*path, (layer, head)) for path in paths for head in heads]
        new = written.movedim(2, 1).flatten(0, 1)  # terms outer, heads inner, as `paths`
        values = torch.cat([values, new])
    return PathTerms(paths + [BIASES] * bool(model.config.norm), final_read(model, frozen, values))


def order_terms(
    model: AttentionOnlyTransformer,
    tokens: Int[Tensor, "batch pos"],
    frozen: Frozen | None = None,
    kept: Float[Tensor, "n_layers n_heads"] | None = None,
) -> Float[Tensor, "orders batch pos d_model"]:
    """What W_U reads, split by how many heads a path passes: n_layers + 1 orders, any depth.

    Each layer moves what order k holds to order k + 1 through its heads, so no path is listed.
    With LayerNorm one more row, the last, holds what the biases add, as in `path_terms`. `frozen` is
    the run's own unless given; `kept` (0 or 1 per head) leaves heads out.
    Source: Elhage et al. 2021, Term Importance Analysis.
    """
    refuse_mlps(model, "order_terms")
    frozen = frozen_run(model, tokens) if frozen is None else frozen
    if kept is not None:
        patterns = [A * kept[layer][:, None, None] for layer, A in enumerate(frozen.patterns)]
        frozen = Frozen(patterns, frozen.scales)
    embed = model.W_E.detach()[tokens]
    orders = torch.zeros(model.config.n_layers + 1, *embed.shape)
    orders[0] = embed
    for layer, pattern in enumerate(frozen.patterns):
        read = linear_read(model, frozen, layer, orders[: layer + 1])
        orders[1 : layer + 2] += head_outputs(model, layer, pattern, read).sum(-3)
    return final_read(model, frozen, orders)


def virtual_pattern(
    patterns: Patterns, first: tuple[int, int], second: tuple[int, int]
) -> Float[Tensor, "batch dest src"]:
    """The pattern of two heads in a row, A_second @ A_first; rows sum to 1 and are causal.

    ValueError unless `first` lies in an earlier layer. Source: Elhage et al. 2021, Virtual Heads.
    """
    if first[0] >= second[0]:
        raise ValueError(f"the first head must be in an earlier layer, got {first} and {second}")
    return patterns[second[0]][:, second[1]] @ patterns[first[0]][:, first[1]]


def final_read(
    model: AttentionOnlyTransformer,
    frozen: Frozen,
    terms: Float[Tensor, "terms batch pos d_model"],
) -> Float[Tensor, "more batch pos d_model"]:
    """Terms of the last stream as W_U reads them, and with LayerNorm what its biases add."""
    last = model.config.n_layers
    read = linear_read(model, frozen, last, terms)
    if model.config.norm is None:
        return read
    return torch.cat([read, bias_term(model, frozen, last, terms[:1])])
