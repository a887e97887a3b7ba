"""Induction heads written by hand: the weights of both algorithms, and the gain that they need."""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pathsum.model import AttentionOnlyTransformer, Config, Hook, sinusoidal_positions

N_PLACES = 16  # coordinates that hold the position
BASE = 100.0  # of their wavelengths: neighbours differ, and 100 positions apart nothing repeats
Built = tuple[AttentionOnlyTransformer, Hook | None]


def shift_matrix(offset: int, n_places: int = N_PLACES, base: float = BASE) -> Tensor:
    """M with places[i] @ M == places[i + offset]: each sine-cosine pair is turned by its angle.

    Shape (n_places, n_places), orthogonal. Source: Elhage et al. 2021, footnote on sinusoids.
    """
    M = torch.zeros(n_places, n_places, dtype=torch.float64)
    for i in range(0, n_places, 2):
        angle = torch.tensor(offset * base ** (-i / n_places), dtype=torch.float64)
        M[i, i] = M[i + 1, i + 1] = angle.cos()
        M[i, i + 1], M[i + 1, i] = -angle.sin(), angle.sin()
    return M.float()


def _empty(
    d_vocab: int, n_ctx: int, blocks: dict[str, int]
) -> tuple[AttentionOnlyTransformer, dict]:
    """A model of zeros whose stream is cut into named blocks of coordinates, and where they are."""
    d_model, at = sum(blocks.values()), {}
    for name, size in blocks.items():
        first = sum(len(range(*s.indices(d_model))) for s in at.values())
        at[name] = slice(first, first + size)
    config = Config(
        n_layers=2,
        n_heads=1,
        d_model=d_model,
        d_head=d_vocab + N_PLACES,
        d_vocab=d_vocab,
        n_ctx=n_ctx,
    )
    model = AttentionOnlyTransformer(config).requires_grad_(False)
    for parameter in (*model.parameters(), model.W_pos):
        parameter.zero_()
    model.W_E[:, at["token"]] = torch.eye(d_vocab)
    model.W_U[at["answer"]] = torch.eye(d_vocab)
    for layer, target in enumerate(("kept", "answer")):
        source = "token" if blocks[target] == d_vocab else "place"
        size = blocks[target]
        model.W_V[layer, 0, at[source], :size] = torch.eye(size)
        model.W_O[layer, 0, :size, at[target]] = torch.eye(size)
    return model, at


def by_composition(d_vocab: int, n_ctx: int, gain: float) -> Built:
    """The paper's induction head: a previous-token head, and a second head whose keys read it.

    Head 1 looks one back by position and copies that token into the block `kept`. Head 2's query is
    the present token and its key the block `kept`: K-composition. `gain` is the score of a perfect
    match in nats, in both heads. Source: Elhage et al. 2021, Induction Heads; exercises 3.
    """
    blocks = {"token": d_vocab, "kept": d_vocab, "answer": d_vocab, "place": N_PLACES}
    model, at = _empty(d_vocab, n_ctx, blocks)
    model.W_pos[:, at["place"]] = sinusoidal_positions(n_ctx, N_PLACES, base=BASE)
    scale = gain * model.config.d_head**0.5
    turn = shift_matrix(-1) * 2 / N_PLACES  # a place has length sqrt(N_PLACES / 2)
    model.W_Q[0, 0, at["place"], :N_PLACES] = scale * turn
    model.W_K[0, 0, at["place"], :N_PLACES] = torch.eye(N_PLACES)
    model.W_Q[1, 0, at["token"], :d_vocab] = scale * torch.eye(d_vocab)
    model.W_K[1, 0, at["kept"], :d_vocab] = torch.eye(d_vocab)
    return model, None


def by_pointer(d_vocab: int, n_ctx: int, gain: float) -> Built:
    """The other induction head: find the earlier copy, fetch its position, look one further.

    Head 1 matches tokens, less its own position, and copies the position found into `kept`. Head 2's
    query is that position moved on by one: Q-composition. It needs positions in the residual stream,
    which models of this book do not have: the hook returned adds them. Source: Elhage et al. 2021,
    Pointer Arithmetic; exercises 2.
    """
    blocks = {"token": d_vocab, "kept": N_PLACES, "answer": d_vocab, "place": N_PLACES}
    model, at = _empty(d_vocab, n_ctx, blocks)
    places = torch.zeros(n_ctx, model.config.d_model)
    places[:, at["place"]] = sinusoidal_positions(n_ctx, N_PLACES, base=BASE)
    scale, unit = gain * model.config.d_head**0.5, 2 / N_PLACES
    model.W_Q[0, 0, at["token"], :d_vocab] = scale * torch.eye(d_vocab)
    model.W_K[0, 0, at["token"], :d_vocab] = torch.eye(d_vocab)
    model.W_Q[0, 0, at["place"], d_vocab:] = -scale * unit * torch.eye(N_PLACES)
    model.W_K[0, 0, at["place"], d_vocab:] = torch.eye(N_PLACES)
    model.W_Q[1, 0, at["kept"], :N_PLACES] = scale * unit * shift_matrix(1)
    model.W_K[1, 0, at["place"], :N_PLACES] = torch.eye(N_PLACES)

    def hook(site: str, value: Tensor) -> Tensor | None:
        return value + places[: value.shape[1]] if site == "embed" else None

    return model, hook


def distinct_repeats(
    batch: int, period: int, d_vocab: int, generator: torch.Generator
) -> Int[Tensor, "batch pos"]:
    """The start token (id 0), then `period` different random tokens, twice; one row each.

    ValueError if there are fewer tokens than that.
    """
    if not 1 <= period < d_vocab:
        raise ValueError(f"needs 1 <= period < d_vocab={d_vocab}, got {period}")
    once = torch.stack(
        [torch.randperm(d_vocab - 1, generator=generator)[:period] + 1 for _ in range(batch)]
    )
    return torch.cat([torch.zeros(batch, 1, dtype=torch.int64), once, once], dim=1)


def repeat_accuracy(built: Built, tokens: Int[Tensor, "batch pos"]) -> float:
    """Share of the second copy's tokens, its first left out, that get the highest logit, 0 to 1."""
    model, hook = built
    period = (tokens.shape[1] - 1) // 2
    guesses = model(tokens, hook=hook)[:, 1 + period : -1].argmax(-1)
    return float((guesses == tokens[:, 2 + period :]).float().mean())


def smallest_gain(
    build: Callable[[float], Built], tokens: Int[Tensor, "batch pos"], limit: float = 4096.0
) -> float:
    """The smallest gain, to within 1%, from which every repeated token is predicted.

    By doubling from 1, then bisection. ValueError if even `limit` is not enough.
    """
    low, high = 0.0, 1.0
    while repeat_accuracy(build(high), tokens) < 1:
        low, high = high, 2 * high
        if high > limit:
            raise ValueError(
                f"accuracy stays below 1 up to a gain of {limit:g}: is the head right?"
            )
    while high - low > 0.01 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if repeat_accuracy(build(middle), tokens) == 1 else (middle, high)
    return high


def accuracy_curve(
    build: Callable[[float], Built], tokens: Int[Tensor, "batch pos"], gains: Float[Tensor, " n"]
) -> Float[Tensor, " n"]:
    """`repeat_accuracy` at each gain."""
    return torch.tensor([repeat_accuracy(build(float(gain)), tokens) for gain in gains])
