"""Models to and from TransformerLens: weights by its names, and models that give the same logits.

TransformerLens 3 calls positions that only queries and keys read "shortformer" and computes just what
ours do. TransformerLens 4 has no such positions; there a model without LayerNorm is the same function
with a residual stream of twice the width, whose second half holds nothing but positions.
"""

import re
from collections.abc import Mapping
from difflib import get_close_matches
from importlib.metadata import version
from types import ModuleType

import torch
from torch import Tensor

from pathsum.model import AttentionOnlyTransformer, Config
from pathsum.standard import refuse_mlps

POSITIONS = ("shortformer", "standard")
BUFFERS = re.compile(
    r"blocks\.\d+\.attn\.(mask|IGNORE)"
)  # no weights: the causal mask, minus infinity


def transformer_lens_weights(
    model: AttentionOnlyTransformer, positions: str = "shortformer"
) -> dict[str, Tensor]:
    """The model's weights by TransformerLens's names and in its shapes, biases as zeros.

    Both sides use row vectors and one matrix per head, so nothing is transposed. With
    `positions="standard"` positions are added to the stream, in d_model coordinates of their own:
    W_E, W_V, W_O and W_U know nothing of these, W_Q and W_K read both halves alike. ValueError for
    a model with smeared keys, and for "standard" with LayerNorm, which would mix the halves.
    """
    refuse_mlps(model, "TransformerLens's copy")
    c = model.config
    if positions not in POSITIONS:
        raise ValueError(f"positions must be one of {POSITIONS}, got {positions!r}")
    if c.smear:
        raise ValueError(
            "TransformerLens has no smeared keys: only models without them can go there"
        )
    if c.norm and positions == "standard":
        raise ValueError(
            'positions in the stream would enter LayerNorm: take positions="shortformer" '
            "(TransformerLens 3), or a model without LayerNorm"
        )
    ours = {name: value.detach().clone() for name, value in model.state_dict().items()}
    ours["W_pos"] = model.W_pos.clone()
    if positions == "standard":
        for name, axis in (("W_E", -1), ("W_V", -2), ("W_O", -1), ("W_U", -2)):
            ours[name] = torch.cat([ours[name], torch.zeros_like(ours[name])], axis)
        ours["W_pos"] = torch.cat([torch.zeros_like(ours["W_pos"]), ours["W_pos"]], -1)
        for name in ("W_Q", "W_K"):
            ours[name] = torch.cat([ours[name]] * 2, -2)
    weights = {
        theirs: ours[name] if layer is None else ours[name][layer]
        for theirs, (name, layer) in _names(c.n_layers, c.norm is not None).items()
    }
    shapes = {"b_U": (c.d_vocab,), "b_O": (ours["W_E"].shape[1],)}
    weights |= {
        name: torch.zeros(shapes.get(name.split(".")[-1], (c.n_heads, c.d_head)))
        for name in _biases(c.n_layers)
    }
    return weights


def from_transformer_lens(
    source: torch.nn.Module | Mapping[str, Tensor],
) -> AttentionOnlyTransformer:
    """Our model from a HookedTransformer, or from the state dict of one with shortformer positions.

    Sizes are read off the weights, LayerNorm off their names; a state dict does not say of which kind
    its positions are: that they are shortformer is the caller's word. Theirs is any matrix, ours a
    formula: it takes the place of `W_pos` and then belongs to the state dict, so that a file without
    it does not load. ValueError, with names, for a weight that is missing, unknown (or misspelt), of
    another shape, for a bias that is not zero, and for a model of another kind.
    """
    if isinstance(source, torch.nn.Module):
        _check_kind(source)
    weights = dict(source.state_dict() if isinstance(source, torch.nn.Module) else source)
    weights = {name: value for name, value in weights.items() if not BUFFERS.fullmatch(name)}
    numbers = [int(found[1]) for name in weights if (found := re.match(r"blocks\.(\d+)\.", name))]
    n_layers = max(numbers, default=-1) + 1
    norm = any(name.startswith("ln_final.") or ".ln1." in name for name in weights)
    names, biases = _names(n_layers, norm), _biases(n_layers)
    _check_names(weights, set(names), set(biases))
    config = _config(weights, n_layers, norm)
    for name in biases & weights.keys():
        if weights[name].count_nonzero():
            raise ValueError(
                f"{name} must be zero, since the models here have no biases; its largest entry is "
                f"{float(weights[name].abs().max()):.3g}: train without biases, or keep this model in "
                "TransformerLens"
            )
    model = AttentionOnlyTransformer(config)
    with torch.no_grad():
        for theirs, (name, layer) in names.items():
            goal = getattr(model, name) if layer is None else getattr(model, name)[layer]
            if weights[theirs].shape != goal.shape:
                raise ValueError(
                    f"{theirs} must be {tuple(goal.shape)}, as other weights have it, got "
                    f"{tuple(weights[theirs].shape)}"
                )
            if name != "W_pos":
                goal.copy_(weights[theirs])
    W_pos = weights["pos_embed.W_pos"].detach().to(model.W_pos)
    if not torch.equal(W_pos, model.W_pos):
        model.register_buffer("W_pos", W_pos.clone(), persistent=True)
    return model


def to_transformer_lens(
    model: AttentionOnlyTransformer, positions: str = "shortformer"
) -> torch.nn.Module:
    """The same model in the TransformerLens that is installed; logits are equal up to rounding.

    A HookedTransformer with TransformerLens 3, without a tokenizer: it takes ids. With TransformerLens
    4 a TransformerBridge, for `positions="standard"` alone. ValueError as
    `transformer_lens_weights`; ImportError if TransformerLens is missing or cannot hold the model.
    """
    weights = transformer_lens_weights(model, positions)
    library, release = _transformer_lens()
    c = model.config
    sizes = {
        "n_layers": c.n_layers,
        "n_heads": c.n_heads,
        "d_model": weights["embed.W_E"].shape[1],
        "d_head": c.d_head,
        "d_vocab": c.d_vocab,
        "n_ctx": c.n_ctx,
        "attn_only": True,
        "normalization_type": "LN" if c.norm else None,
        "positional_embedding_type": positions,
        "init_weights": False,
    }
    if int(release.split(".")[0]) < 4:
        theirs = library.HookedTransformer(library.HookedTransformerConfig(**sizes, device="cpu"))
    elif positions == "standard":
        from transformer_lens.utilities.tl_checkpoint_conversion import convert_tl_checkpoint

        config = library.TransformerBridgeConfig(**sizes, architecture="TransformerLensNative")
        theirs = library.TransformerBridge.boot_native(config)
        weights = convert_tl_checkpoint(weights, config)
    else:
        raise ImportError(
            f"TransformerLens {release} has no shortformer positions: install "
            '"transformer-lens>=3.9,<4", or take positions="standard" (twice the width, no LayerNorm)'
        )
    missing, unknown = theirs.load_state_dict(weights, strict=False)
    missing = [name for name in missing if not BUFFERS.fullmatch(name)]
    if missing or unknown:
        raise ImportError(
            f"TransformerLens {release} wants other weights than 3.9 and 4.3 did: {missing} not "
            f"given, {unknown} not taken"
        )
    return theirs


def _names(n_layers: int, norm: bool) -> dict[str, tuple[str, int | None]]:
    """TransformerLens's name of each weight: our name, and the layer where ours are stacked."""
    names: dict[str, tuple[str, int | None]] = {
        "embed.W_E": ("W_E", None),
        "pos_embed.W_pos": ("W_pos", None),
        "unembed.W_U": ("W_U", None),
    }
    for layer in range(n_layers):
        names |= {f"blocks.{layer}.attn.{W}": (W, layer) for W in ("W_Q", "W_K", "W_V", "W_O")}
    if norm:
        for layer, place in enumerate([*(f"blocks.{i}.ln1" for i in range(n_layers)), "ln_final"]):
            names |= {f"{place}.w": ("norm_gain", layer), f"{place}.b": ("norm_bias", layer)}
    return names


def _biases(n_layers: int) -> set[str]:
    """Names of the biases that TransformerLens has and our models do not."""
    layers = [f"blocks.{layer}.attn.b_{W}" for layer in range(n_layers) for W in "QKVO"]
    return {"unembed.b_U", *layers}


def _config(weights: Mapping[str, Tensor], n_layers: int, norm: bool) -> Config:
    """Sizes from three weights' shapes; ValueError if these have another number of axes."""
    axes = {"embed.W_E": 2, "pos_embed.W_pos": 2} | ({"blocks.0.attn.W_Q": 3} if n_layers else {})
    for name, number in axes.items():
        if weights[name].ndim != number:
            raise ValueError(f"{name} must have {number} axes, got {tuple(weights[name].shape)}")
    d_vocab, d_model = weights["embed.W_E"].shape
    n_heads, _, d_head = weights["blocks.0.attn.W_Q"].shape if n_layers else (1, d_model, 1)
    return Config(
        n_layers=n_layers,
        n_heads=n_heads,
        d_model=d_model,
        d_head=d_head,
        d_vocab=d_vocab,
        n_ctx=len(weights["pos_embed.W_pos"]),
        norm="pre" if norm else None,
    )


def _check_names(weights: Mapping[str, Tensor], needed: set[str], allowed: set[str]) -> None:
    missing = sorted(needed - weights.keys())
    unknown = sorted(weights.keys() - needed - allowed)
    if not (missing or unknown):
        return
    close = {name: get_close_matches(name, unknown, 1) for name in missing}
    hints = [f"{match[0]} for {name}" for name, match in close.items() if match]
    raise ValueError(
        f"the state dict must hold an attention-only model in TransformerLens's names: "
        f"missing {missing}, unknown {unknown}" + f"; misspelt perhaps: {hints}" * bool(hints)
    )


def _check_kind(theirs: torch.nn.Module) -> None:
    """ValueError unless a HookedTransformer's configuration is that of our models."""
    cfg = getattr(theirs, "cfg", None)
    wanted = {
        "attn_only": (True,),
        "positional_embedding_type": ("shortformer",),
        "normalization_type": (None, "LN"),
        "attention_dir": ("causal",),
        "use_attn_scale": (True,),
        "scale_attn_by_inverse_layer_idx": (False,),
        "eps": (1e-5,),
    }
    for field, values in wanted.items():
        got = getattr(cfg, field, "no such field")
        if got not in values:
            raise ValueError(
                f"a HookedTransformer must have {field} = {' or '.join(map(repr, values))} to be a "
                f"model of the kind here, got {got!r}"
            )


def _transformer_lens() -> tuple[ModuleType, str]:
    """The library and its version; imported here, since it is large and not a dependency."""
    try:
        import transformer_lens
    except ImportError as error:
        raise ImportError(
            'TransformerLens is not installed, or does not import: pip install "pathsum[interop]"'
        ) from error
    return transformer_lens, version("transformer-lens")
