"""A standard transformer layer: attention and an MLP, LayerNorm before each, positions in the stream."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import gelu, layer_norm

from pathsum.model import AttentionOnlyTransformer, Config, Hook, visited


@dataclass(frozen=True)
class StandardConfig(Config):
    """Sizes of a model with MLPs; LayerNorm before every read is part of it."""

    norm: str | None = "pre"  # always: LayerNorm at every read of the residual stream
    position_amplitude: float = 0.14  # height of the sinusoids that learned positions start as
    d_mlp: int = 1024  # neurons of each layer's MLP

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.d_mlp, int) or self.d_mlp < 1:
            raise ValueError(f"d_mlp must be a whole number above 0, got {self.d_mlp!r}")
        if self.norm != "pre" or self.smear:
            raise ValueError(
                'a standard model has norm="pre" and no smeared keys, got '
                f"norm={self.norm!r} and smear={self.smear!r}: leave both out"
            )


class StandardTransformer(AttentionOnlyTransformer):
    """Token and position embedding, then per layer attention and an MLP, each behind a LayerNorm.

    The stream starts as W_E[token] + W_pos[pos], both learned (W_pos starts as sinusoids). Layer l
    adds the attention of `AttentionOnlyTransformer`, which here finds positions in what it reads,
    then gelu(LayerNorm(resid) @ W_in + b_in) @ W_out + b_out. The exact GELU, x * Phi(x). A last
    LayerNorm stands before W_U. Attention has no biases.
    Source: Radford et al. 2019 (GPT-2), whose layers these are but for attention's biases.
    """

    def __init__(self, config: StandardConfig, seed: int = 0) -> None:
        super().__init__(config, seed)
        c, generator = config, torch.Generator().manual_seed(seed + 1_000_003)

        def normal(*shape: int, sd: float) -> nn.Parameter:
            return nn.Parameter(sd * torch.randn(*shape, generator=generator))

        start = self.W_pos
        del self.W_pos  # a buffer there, learned here
        self.W_pos = nn.Parameter(start.clone())
        self.mlp_norm_gain = nn.Parameter(torch.ones(c.n_layers, c.d_model))
        self.mlp_norm_bias = nn.Parameter(torch.zeros(c.n_layers, c.d_model))
        self.W_in = normal(c.n_layers, c.d_model, c.d_mlp, sd=0.5 / c.d_model**0.5)
        self.b_in = nn.Parameter(torch.zeros(c.n_layers, c.d_mlp))
        self.W_out = normal(c.n_layers, c.d_mlp, c.d_model, sd=0.3 / c.d_mlp**0.5)
        self.b_out = nn.Parameter(torch.zeros(c.n_layers, c.d_model))

    def _embedded(
        self, tokens: Int[Tensor, "batch pos"], hook: Hook | None
    ) -> Float[Tensor, "batch pos d_model"]:
        token = super()._embedded(tokens, hook)
        return token + visited(hook, "pos_embed", self.W_pos[: tokens.shape[1]].expand_as(token))

    def _placed(self, x: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "batch pos d_model"]:
        return x  # the stream holds positions already

    def _after_layer(
        self, layer: int, resid: Float[Tensor, "batch pos d_model"], hook: Hook | None
    ) -> Float[Tensor, "batch pos d_model"]:
        middle = visited(hook, f"L{layer}.mid", super()._after_layer(layer, resid, hook))
        return middle + self._mlp(layer, middle, hook)

    def _mlp(
        self, layer: int, middle: Float[Tensor, "batch pos d_model"], hook: Hook | None
    ) -> Float[Tensor, "batch pos d_model"]:
        """What the layer's MLP adds to a stream that its attention has written to."""
        gain, bias = self.mlp_norm_gain[layer], self.mlp_norm_bias[layer]
        if hook is None:
            x = layer_norm(middle, middle.shape[-1:], gain, bias, 1e-5)
        else:
            centred = middle - middle.mean(-1, keepdim=True)
            scale = (centred.square().mean(-1, keepdim=True) + 1e-5).rsqrt()
            x = centred * visited(hook, f"L{layer}.mlp_scale", scale) * gain + bias
        pre = visited(hook, f"L{layer}.pre", x @ self.W_in[layer] + self.b_in[layer])
        post = visited(hook, f"L{layer}.post", gelu(pre))
        return visited(hook, f"L{layer}.mlp", post @ self.W_out[layer] + self.b_out[layer])


def standard_sites(config: StandardConfig) -> list[str]:
    """Names of the values a hook sees, in the order in which they are computed.

    Those of `pathsum.model.sites`, and `pos_embed` (batch, pos, d_model) after `embed`; per layer l,
    after its attention, `Ll.mid` (batch, pos, d_model) the stream that the MLP reads, `Ll.mlp_scale`
    (batch, pos, 1) its LayerNorm's, `Ll.pre` and `Ll.post` (batch, pos, d_mlp) each neuron before and
    after GELU, and `Ll.mlp` (batch, pos, d_model) what the MLP writes.
    """
    names = "resid scale q k v scores pattern z result mid mlp_scale pre post mlp".split()
    layers = [f"L{layer}.{name}" for layer in range(config.n_layers) for name in names]
    return ["embed", "pos_embed", *layers, f"L{config.n_layers}.scale", "resid_final", "logits"]


def config_of(settings: dict) -> Config:
    """The config of a `to_dict`: a standard model's if it says how many neurons an MLP has.

    TypeError for a field that there is not.
    """
    return (StandardConfig if "d_mlp" in settings else Config)(**settings)


def refuse_mlps(model: AttentionOnlyTransformer, what: str) -> None:
    """ValueError if `what`, which knows of attention alone, is asked of a model with MLPs."""
    if isinstance(model, StandardTransformer):
        raise ValueError(
            f"{what} takes an attention-only model, got one with MLPs of {model.config.d_mlp} "
            "neurons a layer, which it would leave out: pathsum.standard_paths has the terms of those"
        )


def transformer(config: Config, seed: int = 0) -> AttentionOnlyTransformer:
    """A fresh model of the config's kind."""
    if isinstance(config, StandardConfig):
        return StandardTransformer(config, seed)
    return AttentionOnlyTransformer(config, seed)
