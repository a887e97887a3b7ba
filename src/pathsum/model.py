"""The attention-only transformer of the paper, with every intermediate value in reach."""

from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch
from einops import einsum, rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import embedding, layer_norm, scaled_dot_product_attention

Hook = Callable[[str, Tensor], Tensor | None]


@dataclass(frozen=True)
class Config:
    """Sizes and choices of one model; the names are the axis words of all annotations."""

    n_layers: int  # attention layers, 0 to 100
    n_heads: int = 8  # heads per layer
    d_model: int = 256  # width of the residual stream
    d_head: int = 32  # width of queries, keys and values of one head
    d_vocab: int = 4096  # tokens, start token included
    n_ctx: int = 256  # longest sequence, start token included
    norm: str | None = None  # None, or "pre": LayerNorm at every read of the residual stream
    position_amplitude: float = 2.0  # height of the sinusoids that queries and keys read
    position_base: float = 1000.0  # longest wavelength / 2 pi, in tokens
    smear: bool = False  # each key mixed with the one before it, by a learnt share per head

    def __post_init__(self) -> None:
        for field in ("n_heads", "d_model", "d_head", "d_vocab", "n_ctx"):
            value = getattr(self, field)
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{field} must be a whole number above 0, got {value!r}")
        if self.n_layers not in range(101):
            raise ValueError(f"n_layers must be 0 to 100, got {self.n_layers!r}")
        if self.norm not in (None, "pre"):
            raise ValueError(f'norm must be None or "pre", got {self.norm!r}')
        if self.smear not in (True, False):
            raise ValueError(f"smear must be True or False, got {self.smear!r}")

    def to_dict(self) -> dict:
        return asdict(self)


def sinusoidal_positions(
    n_ctx: int, d_model: int, amplitude: float = 1.0, base: float = 10000.0
) -> Float[Tensor, "n_ctx d_model"]:
    """Sine and cosine of each position at geometrically spaced frequencies, side by side.

    Columns 2i and 2i + 1 hold amplitude * sin and cos of pos / base^(2i / d_model). A shift by k
    tokens turns each such pair by a fixed angle, so one W_QK can pick out any relative offset.
    Source: Vaswani et al. 2017, section 3.5.
    """
    position = torch.arange(n_ctx, dtype=torch.float64)[:, None]
    column = torch.arange(d_model)
    angle = position / base ** (2 * (column // 2) / d_model)
    values = torch.where(column % 2 == 0, angle.sin(), angle.cos())
    return (amplitude * values).float()


class AttentionOnlyTransformer(nn.Module):
    """Token embedding, attention layers that add to the residual stream, unembedding.

    No MLPs, no biases, untied W_E and W_U; positions are added to what W_Q and W_K read and to
    nothing else, so the stream holds no positions. Scores are divided by sqrt(d_head).
    Row vectors throughout: `resid @ W`. Source: Elhage et al. 2021, High-Level Architecture and
    Technical Details; with `norm="pre"` also LayerNorm (gain and bias) before each layer and
    before W_U, as in the paper's own trained models. With `smear`, keys as in Olsson et al. 2022
    (see `smeared`), which lets a single layer do induction.
    """

    def __init__(self, config: Config, seed: int = 0) -> None:
        super().__init__()
        self.config = c = config
        generator = torch.Generator().manual_seed(seed)

        def normal(*shape: int, sd: float) -> nn.Parameter:
            return nn.Parameter(sd * torch.randn(*shape, generator=generator))

        per_head = (c.n_layers, c.n_heads)
        read, write = 0.5 / c.d_model**0.5, 0.3 / c.d_model**0.5
        self.W_E = normal(c.d_vocab, c.d_model, sd=0.1)
        self.W_Q = normal(*per_head, c.d_model, c.d_head, sd=read)
        self.W_K = normal(*per_head, c.d_model, c.d_head, sd=read)
        self.W_V = normal(*per_head, c.d_model, c.d_head, sd=read)
        self.W_O = normal(*per_head, c.d_head, c.d_model, sd=write)
        self.W_U = normal(c.d_model, c.d_vocab, sd=0.02)
        if c.norm == "pre":  # row l belongs to layer l, the last one to the unembedding
            self.norm_gain = nn.Parameter(torch.ones(c.n_layers + 1, c.d_model))
            self.norm_bias = nn.Parameter(torch.zeros(c.n_layers + 1, c.d_model))
        if c.smear:  # sigmoid of it is the share of its own key; 0 is half and half
            self.smear_logit = nn.Parameter(torch.zeros(c.n_layers, c.n_heads))
        positions = sinusoidal_positions(c.n_ctx, c.d_model, c.position_amplitude, c.position_base)
        self.register_buffer("W_pos", positions, persistent=False)
        self.W_pos: Tensor

    def forward(
        self, tokens: Int[Tensor, "batch pos"], hook: Hook | None = None
    ) -> Float[Tensor, "batch pos d_vocab"]:
        """Logits for the token after each position.

        `hook(site, value)` is called at every site of `sites(config)`; what it returns, if not
        None, takes the value's place. Without a hook attention runs fused and nothing is kept.
        ValueError for tokens of a wrong type, shape, length or id.
        """
        resid = self.final_residual(tokens, hook)
        return visited(hook, "logits", resid @ self.W_U)

    def final_residual(
        self, tokens: Int[Tensor, "batch pos"], hook: Hook | None = None
    ) -> Float[Tensor, "batch pos d_model"]:
        """What W_U reads: the residual stream after the last layer (and the last LayerNorm)."""
        check_tokens(tokens, self.config)
        if tokens.device != self.W_E.device or tokens.device.type == "meta":
            raise ValueError(
                "tokens and model must lie on one device that holds numbers, got "
                f"{str(tokens.device)!r} and {str(self.W_E.device)!r}: move one with .to(...)"
            )
        return self.from_layer(self._embedded(tokens, hook), 0, hook)

    def from_layer(
        self, resid: Float[Tensor, "batch pos d_model"], layer: int, hook: Hook | None = None
    ) -> Float[Tensor, "batch pos d_model"]:
        """What W_U reads when the stream before `layer` is `resid`: the rest of a run.

        `layer` may be n_layers, after the last one. IndexError for another layer outside the model.
        """
        if not 0 <= layer <= self.config.n_layers:
            raise IndexError(f"layer must be 0..{self.config.n_layers}, got {layer}")
        for later in range(layer, self.config.n_layers):
            resid = self._after_layer(later, visited(hook, f"L{later}.resid", resid), hook)
        return visited(hook, "resid_final", self._read(self.config.n_layers, resid, hook))

    def _embedded(
        self, tokens: Int[Tensor, "batch pos"], hook: Hook | None
    ) -> Float[Tensor, "batch pos d_model"]:
        """What the first layer finds in the stream."""
        # embedding(), not W_E[tokens]: the gradient of indexing adds in any order on several threads
        return visited(hook, "embed", embedding(tokens, self.W_E))

    def _placed(self, x: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "batch pos d_model"]:
        """What queries and keys read: the layer's read, and positions."""
        return x + self.W_pos[: x.shape[1]]

    def _after_layer(
        self, layer: int, resid: Float[Tensor, "batch pos d_model"], hook: Hook | None
    ) -> Float[Tensor, "batch pos d_model"]:
        """The stream after one layer, given the stream before it."""
        attention = self._fused_attention if hook is None else self._explicit_attention
        return resid + attention(layer, resid, hook)

    def _read(
        self, layer: int, resid: Float[Tensor, "batch pos d_model"], hook: Hook | None
    ) -> Float[Tensor, "batch pos d_model"]:
        """The stream as layer `layer` sees it: itself, or its LayerNorm."""
        if self.config.norm is None:
            return resid
        gain, bias = self.norm_gain[layer], self.norm_bias[layer]
        if hook is None:
            return layer_norm(resid, resid.shape[-1:], gain, bias, 1e-5)
        centred = resid - resid.mean(-1, keepdim=True)
        scale = (centred.square().mean(-1, keepdim=True) + 1e-5).rsqrt()
        return centred * visited(hook, f"L{layer}.scale", scale) * gain + bias

    def _explicit_attention(
        self, layer: int, resid: Float[Tensor, "batch pos d_model"], hook: Hook | None
    ) -> Float[Tensor, "batch pos d_model"]:
        """Sum over heads of pattern @ value @ W_O, each step a site."""
        x = self._read(layer, resid, hook)
        placed = self._placed(x)

        def project(source: Tensor, W: Tensor, name: str) -> Tensor:
            axes = "batch pos d_model, head d_model d_head -> batch head pos d_head"
            value = einsum(source, W[layer], axes)
            if name == "k" and self.config.smear:
                value = smeared(value, self.smear_logit[layer])
            return visited(hook, f"L{layer}.{name}", value)

        q = project(placed, self.W_Q, "q")
        k = project(placed, self.W_K, "k")
        v = project(x, self.W_V, "v")
        scores = visited(hook, f"L{layer}.scores", q @ k.mT / self.config.d_head**0.5)
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=x.device).triu(1)
        pattern = scores.masked_fill(future, float("-inf")).softmax(dim=-1)
        pattern = visited(hook, f"L{layer}.pattern", pattern)
        z = visited(hook, f"L{layer}.z", pattern @ v)
        axes = "batch head pos d_head, head d_head d_model -> batch head pos d_model"
        result = visited(hook, f"L{layer}.result", einsum(z, self.W_O[layer], axes))
        return result.sum(dim=1)

    def _fused_attention(
        self, layer: int, resid: Float[Tensor, "batch pos d_model"], hook: None = None
    ) -> Float[Tensor, "batch pos d_model"]:
        """The same sum without intermediate values: one matmul each for QK, V and O."""
        x = self._read(layer, resid, hook)
        n_heads = self.config.n_heads

        def columns(W: Tensor) -> Tensor:  # all heads' columns side by side
            return rearrange(W[layer], "head d_model d_head -> d_model (head d_head)")

        qk = self._placed(x) @ torch.cat([columns(self.W_Q), columns(self.W_K)], 1)
        split = "batch pos (n head d_head) -> n batch head pos d_head"
        q, k = rearrange(qk, split, n=2, head=n_heads)
        if self.config.smear:
            k = smeared(k, self.smear_logit[layer])
        (v,) = rearrange(x @ columns(self.W_V), split, n=1, head=n_heads)
        z = scaled_dot_product_attention(q, k, v, is_causal=True)
        z = rearrange(z, "batch head pos d_head -> batch pos (head d_head)")
        return z @ rearrange(self.W_O[layer], "head d_head d_model -> (head d_head) d_model")


def smeared(
    k: Float[Tensor, "batch head pos d_head"], smear_logit: Float[Tensor, " head"]
) -> Float[Tensor, "batch head pos d_head"]:
    """Keys mixed with those one token earlier: share * k[pos] + (1 - share) * k[pos - 1].

    share = sigmoid(smear_logit), one per head; the first key stays as it is. A query that matches a
    token then also finds the token after it. Source: Olsson et al. 2022, the smeared-key models.
    """
    share = smear_logit.sigmoid()[:, None, None]
    before = torch.cat([k[..., :1, :], k[..., :-1, :]], dim=-2)
    return share * k + (1 - share) * before


def sites(config: Config) -> list[str]:
    """Names of the values a hook sees, in the order in which they are computed.

    Per layer l: `Ll.resid` (batch, pos, d_model); `Ll.q`, `Ll.k`, `Ll.v`, `Ll.z` (batch, head, pos,
    d_head; `k` after smearing); `Ll.scores` before the mask and `Ll.pattern` (batch, head, dest, src); `Ll.result`
    (batch, head, pos, d_model). With LayerNorm also `Ll.scale` (batch, pos, 1), one more than layers.
    """
    scale = ["scale"] if config.norm else []
    names = ["resid", *scale, "q", "k", "v", "scores", "pattern", "z", "result"]
    layers = [f"L{layer}.{name}" for layer in range(config.n_layers) for name in names]
    final = [f"L{config.n_layers}.{name}" for name in scale]
    return ["embed", *layers, *final, "resid_final", "logits"]


def cache(
    model: AttentionOnlyTransformer, tokens: Int[Tensor, "batch pos"], hook: Hook | None = None
) -> dict[str, Tensor]:
    """Every site's value in one run, by name, as `hook` leaves it; detached, so no graph is kept."""
    values: dict[str, Tensor] = {}

    def keep(site: str, value: Tensor) -> Tensor | None:
        changed = hook(site, value) if hook else None
        values[site] = (value if changed is None else changed).detach()
        return changed

    with torch.no_grad():
        model(tokens, keep)
    return values


def check_tokens(tokens: Tensor, config: Config) -> None:
    """ValueError unless `tokens` is (batch, pos) of ids the model has, no longer than n_ctx."""
    if tokens.dtype not in (torch.int64, torch.int32):
        raise ValueError(
            f"tokens must be whole numbers (torch.int64), got {tokens.dtype}: pass token ids, "
            "for example from load_tokenizer().encode(text)"
        )
    if tokens.ndim != 2 or not 1 <= tokens.shape[1] <= config.n_ctx or tokens.shape[0] < 1:
        raise ValueError(
            f"tokens must be (batch, pos) with 1 <= pos <= n_ctx={config.n_ctx}, got "
            f"{tuple(tokens.shape)}: add a batch axis with tokens[None], or shorten the prompt"
        )
    if tokens.device.type == "cpu":  # elsewhere the check would stall the device at every step
        low, high = int(tokens.min()), int(tokens.max())
        if low < 0 or high >= config.d_vocab:
            raise ValueError(
                f"token ids must lie in 0..{config.d_vocab - 1}, got {low}..{high}: "
                "was the text encoded with this model's tokenizer?"
            )


def check_numbers(values: Tensor, what: str) -> None:
    """ValueError if a tensor is on the device "meta", which has no numbers, or holds NaN or infinity."""
    if values.device.type == "meta":
        raise ValueError(
            f"{what} must hold numbers, got a tensor on the device 'meta', which has a shape only: "
            "load it on another one, such as 'cpu'"
        )
    if not bool(values.isfinite().all()):
        raise ValueError(
            f"{what} must be finite, got NaN or infinity: were the weights loaded and trained properly?"
        )


def visited(hook: Hook | None, site: str, value: Tensor) -> Tensor:
    """The value, or what the hook puts in its place; ValueError for one of another shape."""
    if hook is None:
        return value
    replacement = hook(site, value)
    if replacement is None:
        return value
    if not isinstance(replacement, Tensor) or replacement.shape != value.shape:
        got = tuple(replacement.shape) if isinstance(replacement, Tensor) else replacement
        raise ValueError(
            f"the hook's replacement at {site!r} must be a tensor of shape {tuple(value.shape)}, "
            f"got {got}: return None to leave the value as it is"
        )
    return replacement
