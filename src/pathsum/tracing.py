"""Where in a prompt the answer is known: states and heads of one run put into another, place by place.

Everything is given as a share: how far the mean score moves from the run that is patched (0) to the run
that the patch comes from (1). "restore" patches the corrupted run with clean values: what is enough? "corrupt"
patches the clean run with corrupted values: what is needed? Sources: Meng et al. 2022 (causal tracing); Wang et al.
2022 (patching of heads by position).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from jaxtyping import Float
from torch import Tensor
from tqdm.auto import tqdm

from pathsum.contrasts import Contrast
from pathsum.model import AttentionOnlyTransformer

DIRECTIONS = ("restore", "corrupt")
BATCH = 256  # prompts at a time


@contextmanager
def fitting_memory(batch: int) -> Iterator[None]:
    """Turns running out of memory into a message that says what to change."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if "memory" not in str(error).lower() and not isinstance(error, MemoryError):
            raise
        raise MemoryError(
            f"{batch} prompts at a time do not fit in memory: pass a smaller batch, such as "
            f"batch={max(1, batch // 4)}"
        ) from error


@torch.no_grad()
def patched_states(
    model: AttentionOnlyTransformer,
    contrast: Contrast,
    direction: str = "restore",
    window: int = 1,
    batch: int = BATCH,
) -> Float[Tensor, "state pos"]:
    """The share moved by patching the residual stream, before each layer and at the end, at each place.

    With a window of w the states at a position and at the w - 1 after it are patched together. Row l is
    the stream before layer l; the last row what the unembedding reads. ValueError for a window below 1.
    """
    if window < 1:
        raise ValueError(f"a window has at least 1 position, got {window}")
    into, given = _runs(model, contrast, direction)
    share = _share_moved(model, contrast, into, given, batch)
    n = contrast.clean.shape[1]
    shares = torch.zeros(model.config.n_layers + 1, n)
    for layer, (old, new) in enumerate(zip(_streams(into), _streams(given))):
        for place in range(n):
            patch = new[:, place : place + window]
            shares[layer, place] = share(layer, old, place, patch)
    return shares


@torch.no_grad()
def patched_heads(
    model: AttentionOnlyTransformer,
    contrast: Contrast,
    direction: str = "restore",
    batch: int = BATCH,
    progress: bool = True,
) -> Float[Tensor, "n_layers n_heads pos"]:
    """The share moved by patching what one head writes at one position."""
    into, given = _runs(model, contrast, direction)
    share = _share_moved(model, contrast, into, given, batch)
    c, n = model.config, contrast.clean.shape[1]
    shares, streams = torch.zeros(c.n_layers, c.n_heads, n), _streams(into)
    heads = [(layer, head) for layer in range(c.n_layers) for head in range(c.n_heads)]
    for layer, head in tqdm(heads, desc="heads", disable=not progress, leave=False):
        site, after = f"L{layer}.result", streams[layer + 1]
        patched = after + given[site][:, head] - into[site][:, head]
        for place in range(n):
            patch = patched[:, place : place + 1]
            shares[layer, head, place] = share(layer + 1, after, place, patch)
    return shares


def _runs(
    model: AttentionOnlyTransformer, contrast: Contrast, direction: str
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """(the run that is patched, the run that the patches come from)."""
    if direction not in DIRECTIONS:
        raise ValueError(f"direction must be one of {DIRECTIONS}, got {direction!r}")
    clean, corrupted = contrast.runs(model)
    return (corrupted, clean) if direction == "restore" else (clean, corrupted)


def _streams(run: dict[str, Tensor]) -> list[Float[Tensor, "batch pos d_model"]]:
    """The residual stream before each layer and after the last one."""
    streams = [run["embed"]]
    while (site := f"L{len(streams) - 1}.result") in run:
        streams.append(streams[-1] + run[site].sum(1))
    return streams


def _share_moved(
    model: AttentionOnlyTransformer,
    contrast: Contrast,
    into: dict[str, Tensor],
    given: dict[str, Tensor],
    batch: int,
) -> Callable[[int, Tensor, int, Tensor], float]:
    """A function (layer, stream, place, patch) -> the share moved.

    `stream` is the one before `layer`, (batch, pos, d_model), and has `patch` from `place` on.
    """
    scored = contrast.scorer(model)
    before, after = (scored(run["resid_final"][:, -1]).mean() for run in (into, given))

    def share(layer: int, stream: Tensor, place: int, patch: Tensor) -> float:
        with fitting_memory(batch):
            parts = []
            for old, new in zip(stream.split(batch), patch.split(batch)):
                changed = old.clone()
                changed[:, place : place + new.shape[1]] = new
                parts.append(model.from_layer(changed, layer)[:, -1])
            score = scored(torch.cat(parts)).mean()
        return float((score - before) / (after - before))

    return share
