"""The book's figures: each function takes tensors and labels and returns `(fig, ax)`.

They compute no result, load nothing and show nothing. Patterns are `viridis` from 0 to 1, signed
values `PuOr` with equal limits around 0; destinations go down, sources across. All are drawn in the
style `pathsum.book`, which `plt.style.use("pathsum.book")` also sets for figures of your own.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from importlib import resources

import matplotlib.pyplot as plt
import numpy as np
import torch
from jaxtyping import Float
from matplotlib import rc_params_from_file
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

STYLE = "book.mplstyle"
MARKERS = "osD^vPX"


def styled(draw: Callable) -> Callable:
    """Decorator: draw in the book's style, whatever style is in use."""

    @wraps(draw)
    def drawn(*args: object, **kwargs: object) -> tuple[Figure, Axes]:
        # Not plt.style.context: that would also undo what a notebook's backend sets on first use.
        style = rc_params_from_file(resources.files("pathsum") / STYLE, use_default_template=False)
        before = {key: plt.rcParams[key] for key in style}
        plt.rcParams.update(style)
        try:
            return draw(*args, **kwargs)
        finally:
            plt.rcParams.update(before)

    return drawn


@styled
def attention_pattern(
    pattern: Float[Tensor, "dest src"], tokens: Sequence[str], title: str = ""
) -> tuple[Figure, Axes]:
    """One head's attention: row = destination, column = source, each row sums to 1.

    ValueError unless there is one token per row and column, or if a weight is outside 0 to 1.
    """
    values = plain(pattern)
    _labels_fit(values, tokens, tokens)
    if not bool(((values >= -1e-5) & (values <= 1 + 1e-5)).all()):
        raise ValueError(
            f"attention weights lie between 0 and 1, got {float(values.min()):.3g} to "
            f"{float(values.max()):.3g}: pass the pattern, after the softmax, not the scores"
        )
    side = min(max(3.4, 1.1 + 0.13 * len(tokens)), 5.6)
    fig, ax = plt.subplots(figsize=(side, side + 0.6))  # the bar below leaves the width to the tokens
    image = ax.imshow(values, cmap="viridis", vmin=0, vmax=1)
    bar = {"location": "bottom", "shrink": 0.7, "aspect": 35}
    fig.colorbar(image, ax=ax, label="attention (each row sums to 1)", **bar)
    token_axes(ax, tokens, tokens)
    ax.set(xlabel="source: read from", ylabel="destination: written to", title=title)
    return fig, ax


@styled
def signed_matrix(
    values: Float[Tensor, "rows columns"],
    rows: Sequence[str],
    columns: Sequence[str],
    row_axis: str,
    column_axis: str,
    unit: str,
    title: str = "",
) -> tuple[Figure, Axes]:
    """A matrix of signed values: purple above 0, orange below, white at 0.

    ValueError unless there is one label per row and per column, or if a value is not finite.
    """
    values = plain(values)
    _labels_fit(values, rows, columns)
    if not np.isfinite(values).all():
        raise ValueError("values must be finite, got NaN or infinity")
    limit = float(np.abs(values).max()) or 1.0
    width = min(max(3.4, 1.9 + 0.18 * len(columns)), 6.4)
    height = min(max(2.4, 1.2 + 0.18 * len(rows)), 6.4)
    fig, ax = plt.subplots(figsize=(width, height))
    image = ax.imshow(values, cmap="PuOr", vmin=-limit, vmax=limit, aspect="auto")
    fig.colorbar(image, ax=ax, label=unit)
    token_axes(ax, rows, columns)
    ax.set(xlabel=column_axis, ylabel=row_axis, title=title)
    return fig, ax


@styled
def head_scores(
    scores: Float[Tensor, "n_layers n_heads"], label: str, title: str = ""
) -> tuple[Figure, Axes]:
    """A score between 0 and 1 for every head, one row per layer, with the number in each cell."""
    values = plain(scores)
    n_layers, n_heads = values.shape
    fig, ax = plt.subplots(figsize=(5.2, 1.2 + 0.6 * n_layers))
    image = ax.imshow(values, cmap="viridis", vmin=0, vmax=1, aspect="auto")
    fig.colorbar(image, ax=ax, label=label)
    for layer in range(n_layers):
        for head in range(n_heads):
            value = float(values[layer, head])
            ink = "black" if value > 0.6 else "white"
            ax.text(head, layer, f"{value:.2f}", ha="center", va="center", color=ink, fontsize=8)
    ax.set_yticks(range(n_layers), [f"L{layer}" for layer in range(n_layers)])
    ax.set_xticks(range(n_heads), [f"H{head}" for head in range(n_heads)])
    ax.set(title=title)
    return fig, ax


@styled
def lines(
    series: Mapping[str, tuple[Float[Tensor, " n"], Float[Tensor, " n"]]],
    x_axis: str,
    y_axis: str,
    title: str = "",
    log_x: bool = False,
    log_y: bool = False,
) -> tuple[Figure, Axes]:
    """Named curves (x, y), told apart by colour and dash."""
    fig, ax = plt.subplots()
    for name, (x, y) in series.items():
        ax.plot(plain(x), plain(y), label=name)
    ax.set(xlabel=x_axis, ylabel=y_axis, title=title)
    ax.set_xscale("log" if log_x else "linear")
    ax.set_yscale("log" if log_y else "linear")
    if len(series) > 1:
        ax.legend()
    return fig, ax


@styled
def named_points(
    groups: Mapping[str, tuple[Float[Tensor, " n"], Float[Tensor, " n"], Sequence[str]]],
    x_axis: str,
    y_axis: str,
    title: str = "",
) -> tuple[Figure, Axes]:
    """Groups of points (x, y, a name or "" per point); groups differ in colour and marker."""
    fig, ax = plt.subplots()
    if any(plain(y).min() < 0 < plain(y).max() for _, y, _ in groups.values()):
        ax.axhline(0, color="0.6", linewidth=0.8, linestyle="-", zorder=0)
    for (group, (x, y, names)), marker in zip(groups.items(), MARKERS):
        x, y = plain(x), plain(y)
        if not len(x) == len(y) == len(names):
            raise ValueError(
                f"{group}: {len(x)} x, {len(y)} y and {len(names)} names must be equal"
            )
        ax.plot(x, y, linestyle="", marker=marker, label=group)
        for a, b, name in zip(x.tolist(), y.tolist(), names):
            ax.annotate(
                name, (a, b), (4, 3), textcoords="offset points", fontsize=8, parse_math=False
            )
    ax.set(xlabel=x_axis, ylabel=y_axis, title=title)
    if len(groups) > 1:
        ax.legend()
    return fig, ax


@styled
def token_values(
    values: Float[Tensor, " n"],
    tokens: Sequence[str],
    y_axis: str,
    shade: tuple[int, int] | None = None,
    title: str = "",
) -> tuple[Figure, Axes]:
    """One value per token, from left to right; tokens `shade[0]` to `shade[1]` on grey."""
    heights = plain(values)
    if heights.shape != (len(tokens),):
        raise ValueError(f"needs one value per token, got {heights.shape} for {len(tokens)} tokens")
    fig, ax = plt.subplots()
    if shade:
        ax.axvspan(shade[0] - 0.5, shade[1] + 0.5, color="0.9", zorder=0)
    ax.plot(heights, linestyle="-", linewidth=0.8, color="0.6")
    ax.plot(heights, linestyle="", marker="o", color="C0")
    size = max(5.5, min(9.0, 290 / max(len(tokens), 1)))
    ax.set_xticks(range(len(tokens)), list(tokens), parse_math=False, fontsize=size, rotation=90)
    ax.set(ylabel=y_axis, title=title)
    ax.margins(x=0.02)
    return fig, ax


def token_axes(ax: Axes, rows: Sequence[str], columns: Sequence[str]) -> None:
    """Write a label at every row and column, exactly as it is ("$" is no mathematics)."""
    width, height = ax.get_position().size * ax.figure.get_size_inches() * 72  # in points
    fit = 0.9 * min(height / max(len(rows), 1), width / max(len(columns), 1))
    size = max(5.5, min(9.0, fit))
    ax.set_yticks(range(len(rows)), list(rows), parse_math=False, fontsize=size)
    ax.set_xticks(range(len(columns)), list(columns), parse_math=False, fontsize=size, rotation=90)
    ax.tick_params(length=0)


def plain(values: Tensor) -> np.ndarray:
    """The numbers to draw: on the CPU, without a graph, as float32."""
    return torch.as_tensor(values).detach().to("cpu", torch.float32).numpy()


def _labels_fit(values: np.ndarray, rows: Sequence[str], columns: Sequence[str]) -> None:
    if tuple(values.shape) != (len(rows), len(columns)):
        raise ValueError(
            f"values must have one row per row label and one column per column label, "
            f"({len(rows)}, {len(columns)}), got {tuple(values.shape)}"
        )


@styled
def probability_tables(
    tables: Mapping[str, Float[Tensor, "rows columns"]],
    rows: Sequence[str],
    columns: Sequence[str],
    row_axis: str,
    column_axis: str,
) -> tuple[Figure, np.ndarray]:
    """Tables of probabilities one above the other on one scale, each cell with its per cent.

    ValueError unless there is one label per row and per column.
    """
    height = (0.55 + 0.27 * len(rows)) * len(tables) + 0.7
    fig, axes = plt.subplots(len(tables), figsize=(5.2, height), sharex=True, squeeze=False)
    top = max(float(plain(values).max()) for values in tables.values())
    for ax, (name, values) in zip(axes[:, 0], tables.items()):
        values = plain(values)
        _labels_fit(values, rows, columns)
        image = ax.imshow(values, cmap="viridis", vmin=0, vmax=top, aspect="auto")
        for (row, column), value in np.ndenumerate(values):
            ink = "black" if value > 0.6 * top else "white"
            text = f"{100 * value:.0f}" if value >= 0.005 else "·"
            ax.text(column, row, text, ha="center", va="center", color=ink, fontsize=8)
        token_axes(ax, rows, columns)
        ax.set(title=name, ylabel=row_axis)
    axes[-1, 0].set_xlabel(column_axis)
    fig.colorbar(image, ax=axes[:, 0].tolist(), label="probability", shrink=0.7)
    return fig, axes[:, 0]


@styled
def density(
    x: Float[Tensor, " n"],
    y: Float[Tensor, " n"],
    weights: Float[Tensor, " n"],
    x_axis: str,
    y_axis: str,
    weight_axis: str,
    title: str = "",
) -> tuple[Figure, Axes]:
    """Weighted points (x, y) as a two-dimensional histogram, with the line on which both are equal."""
    x, y, weights = plain(x), plain(y), plain(weights)
    low, high = float(min(x.min(), y.min())), float(max(x.max(), y.max()))
    fig, ax = plt.subplots(figsize=(5.2, 4.2))
    *_, image = ax.hist2d(
        x, y, bins=90, range=[(low, high)] * 2, weights=weights, norm="log", cmap="viridis"
    )
    ax.plot([low, high], [low, high], color="black", linestyle="--", linewidth=1, label="equal")
    fig.colorbar(image, ax=ax, label=weight_axis)
    ax.set(xlabel=x_axis, ylabel=y_axis, title=title, aspect="equal")
    ax.legend(loc="upper left")
    return fig, ax


@styled
def paired_dots(
    groups: Mapping[str, Float[Tensor, " rows"]], rows: Sequence[str], x_axis: str, title: str = ""
) -> tuple[Figure, Axes]:
    """One line per row with a dot per group, so that the distance between the dots is what is read.

    ValueError unless every group has one value per row.
    """
    fig, ax = plt.subplots(figsize=(5.2, 1.3 + 0.4 * len(rows)))
    for (group, values), marker in zip(groups.items(), MARKERS):
        if len(values) != len(rows):
            raise ValueError(f"{group}: needs one value per row, {len(rows)}, got {len(values)}")
        ax.plot(plain(values), range(len(rows)), linestyle="", marker=marker, label=group)
    for row in range(len(rows)):
        ends = [float(values[row]) for values in groups.values()]
        ax.plot(
            [min(ends), max(ends)], [row, row], color="0.7", linewidth=1, linestyle="-", zorder=0
        )
    ax.set_yticks(range(len(rows)), list(rows), parse_math=False)
    ax.set(xlabel=x_axis, title=title, ylim=(len(rows) - 0.5, -0.5))
    ax.margins(x=0.1)
    fig.legend(loc="outside upper left", ncols=len(groups))
    return fig, ax
