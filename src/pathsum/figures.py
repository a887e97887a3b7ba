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
from jaxtyping import Float, Inexact
from matplotlib import rc_params_from_file
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

STYLE = "book.mplstyle"
MARKERS = "osD^vPX"


def styled(draw: Callable) -> Callable:
    """Decorator: draw in the book's style, whatever style is in use."""

    @wraps(draw)
    def drawn(*args: object, **kwargs: object) -> tuple[Figure, Axes | np.ndarray]:
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
    fig, ax = plt.subplots(
        figsize=(side, side + 0.6)
    )  # the bar below leaves the width to the tokens
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


@styled
def pair_panels(
    panels: Mapping[str, Float[Tensor, "earlier later"]], row_axis: str, column_axis: str, unit: str
) -> tuple[Figure, np.ndarray]:
    """Signed values for all pairs of heads, several matrices side by side on one scale around 0."""
    values = {name: plain(panel) for name, panel in panels.items()}
    limit = max(float(np.abs(panel).max()) for panel in values.values()) or 1.0
    fig, axes = plt.subplots(1, len(values), figsize=(6.4, 2.4), sharey=True, squeeze=False)
    for ax, (name, panel) in zip(axes[0], values.items()):
        image = ax.imshow(panel, cmap="PuOr", vmin=-limit, vmax=limit)
        ax.set_yticks(range(panel.shape[0]), [f"H{head}" for head in range(panel.shape[0])])
        ax.set_xticks(range(panel.shape[1]), [f"H{head}" for head in range(panel.shape[1])])
        ax.tick_params(length=0, labelsize=7)
        ax.set(title=name)
    fig.supxlabel(column_axis, fontsize=9)
    axes[0, 0].set_ylabel(row_axis)
    fig.colorbar(image, ax=axes[0].tolist(), label=unit, shrink=0.75)
    return fig, axes[0]


@styled
def strips(
    rows: Mapping[str, Float[Tensor, "..."]],
    x_axis: str,
    line: tuple[float, str],
    hollow: Sequence[str] = (),
) -> tuple[Figure, Axes]:
    """One row of points per name, and a vertical line with its label; rows in `hollow` are rings."""
    fig, ax = plt.subplots(figsize=(5.2, 0.9 + 0.38 * len(rows)))
    ax.axvline(line[0], color="0.3", linestyle="--", linewidth=1, zorder=0)
    for height, (name, values) in enumerate(rows.items()):
        x = plain(values).flatten()
        fill = "none" if name in hollow else "C0"
        ax.plot(
            x, np.full_like(x, height), linestyle="", marker="o", color="C0" if fill == "C0" else "C1",
            markerfacecolor=fill, alpha=0.7,
        )  # fmt: skip
    ax.set_yticks(range(len(rows)), list(rows))
    ax.set(xlabel=x_axis, ylim=(len(rows) - 0.5, -0.9))
    ax.annotate(
        line[1], (line[0], -0.85), (4, -2), textcoords="offset points", va="top", fontsize=8
    )
    return fig, ax


@styled
def composition_lines(
    panels: Mapping[str, Mapping[str, Float[Tensor, "earlier later"]]], least: float
) -> tuple[Figure, np.ndarray]:
    """Heads of two layers as dots, joined by a line per pair: the thicker, the larger the value.

    Each panel maps a kind ("Q", "K", "V") to values from 0 to 1; pairs below `least` have no line.
    Kinds differ in colour and dash.
    """
    fig, axes = plt.subplots(1, len(panels), figsize=(6.4, 2.8), squeeze=False)
    dashes = ["-", (0, (5, 2)), (0, (1, 1))]
    for ax, (title, kinds) in zip(axes[0], panels.items()):
        for number, (kind, values) in enumerate(kinds.items()):
            values, color = plain(values), f"C{number}"
            ax.plot([], [], color=color, linestyle=dashes[number], label=kind)
            for (first, second), value in np.ndenumerate(values):
                if value >= least:
                    ax.plot(
                        [first, second], [0, 1], color=color, linestyle=dashes[number],
                        linewidth=0.3 + 4 * value, zorder=1, solid_capstyle="round",
                    )  # fmt: skip
            for layer, heads in enumerate(values.shape):
                ax.plot(range(heads), [layer] * heads, "o", color="0.25", zorder=2, markersize=4)
                for head in range(heads):
                    ax.annotate(
                        f"H{head}", (head, layer), (0, 6 if layer else -13),
                        textcoords="offset points", ha="center", fontsize=7,
                    )  # fmt: skip
        ax.set(title=title, ylim=(-0.25, 1.25), xticks=[], yticks=[0, 1])
        ax.set_yticklabels(["L0", "L1"])
        ax.tick_params(length=0)
        for side in ax.spines.values():
            side.set_visible(False)
    handles, names = axes[0, 0].get_legend_handles_labels()
    fig.legend(handles, names, loc="outside lower center", ncols=len(names))
    return fig, axes[0]


@styled
def pattern_panels(
    panels: Mapping[str, Float[Tensor, "dest src"]],
    unit: str,
    lines_at: Sequence[float] = (),
    top: float | None = 1.0,
) -> tuple[Figure, np.ndarray]:
    """Patterns of several heads side by side, by position; thin lines at `lines_at` on both axes.

    `top` is the value of the brightest colour, or None for the largest value of all panels.
    """
    values = {name: plain(panel) for name, panel in panels.items()}
    top = max(float(panel.max()) for panel in values.values()) if top is None else top
    columns = min(len(values), 2)
    rows = -(-len(values) // columns)
    fig, axes = plt.subplots(
        rows, columns, figsize=(6.0, 0.4 + 2.7 * rows), sharex=True, sharey=True, squeeze=False
    )
    for ax, (name, panel) in zip(axes.flatten(), values.items()):
        image = ax.imshow(panel, cmap="viridis", vmin=0, vmax=top)
        for place in lines_at:
            ax.axhline(place, color="white", linewidth=0.5, linestyle=":")
            ax.axvline(place, color="white", linewidth=0.5, linestyle=":")
        ax.set(title=name)
    for ax in axes.flatten()[len(values) :]:
        ax.set_visible(False)
    for ax in axes[:, 0]:
        ax.set_ylabel("destination")
    for ax in axes[-1]:
        ax.set_xlabel("source")
    fig.colorbar(image, ax=axes.flatten().tolist(), label=unit, shrink=0.7)
    return fig, axes.flatten()


@styled
def eigenvalue_planes(
    panels: Mapping[str, Inexact[Tensor, " n"]], linear: float = 1.0, columns: int = 3
) -> tuple[Figure, np.ndarray]:
    """Complex eigenvalues, one panel per name, on one scale; the distance from 0 is logarithmic.

    A value z is drawn in its own direction at distance log10(1 + |z| / linear); dashed circles mark
    powers of ten times `linear`. Real parts above 0 are filled, others hollow. ValueError if not finite.
    """
    if not all(bool(values.isfinite().all()) for values in panels.values()):
        raise ValueError("eigenvalues must be finite, got NaN or infinity")
    rows = -(-len(panels) // columns)
    fig, axes = plt.subplots(
        rows, columns, figsize=(6.2, 0.4 + 2.1 * rows), sharex=True, sharey=True, squeeze=False
    )
    reach = np.log10(1 + max(float(values.abs().max()) for values in panels.values()) / linear)
    turn = np.linspace(0, 2 * np.pi, 121)
    for ax, (name, values) in zip(axes.flat, panels.items()):
        sizes = values.abs().clamp_min(1e-300)
        placed = values / sizes * torch.log10(1 + sizes / linear)
        x, y = plain(placed.real), plain(placed.imag)
        for power in range(int(np.ceil(reach))):
            radius = np.log10(1 + 10.0**power)
            ax.plot(radius * np.cos(turn), radius * np.sin(turn), "--", color="0.8", linewidth=0.7)
        ax.axhline(0, color="0.6", linewidth=0.7, linestyle="-", zorder=0)
        ax.axvline(0, color="0.6", linewidth=0.7, linestyle="-", zorder=0)
        right = x > 0
        ax.plot(x[right], y[right], linestyle="", marker="o", markersize=3.5, color="C0")
        ax.plot(
            x[~right],
            y[~right],
            linestyle="",
            marker="o",
            markersize=3.5,
            color="C1",
            fillstyle="none",
        )
        ax.set_title(name, fontsize=9)
        ax.set(
            xlim=(-1.08 * reach, 1.08 * reach), ylim=(-1.08 * reach, 1.08 * reach), aspect="equal"
        )
        ax.set(xticks=[], yticks=[])
    for ax in axes.flat[len(panels) :]:
        ax.set_axis_off()
    fig.supxlabel("real part", fontsize=9)
    fig.supylabel("imaginary part", fontsize=9)
    return fig, axes


@styled
def score_histogram(
    groups: Mapping[str, Float[Tensor, " n"]],
    x_axis: str,
    limits: tuple[float, float] = (-1.0, 1.0),
    bins: int = 20,
) -> tuple[Figure, np.ndarray]:
    """How many items of each group fall into each bin of a score, one above the other.

    Groups differ in colour and hatching. ValueError if a value lies outside the limits.
    """
    fig, axes = plt.subplots(
        len(groups), figsize=(5.2, 0.6 + 1.4 * len(groups)), sharex=True, squeeze=False
    )
    for number, (ax, (name, values)) in enumerate(zip(axes[:, 0], groups.items())):
        heights = plain(values)
        if not ((heights >= limits[0]) & (heights <= limits[1])).all():
            raise ValueError(
                f"{name}: values must lie in {limits}, got {heights.min()} to {heights.max()}"
            )
        ax.hist(
            heights, bins=bins, range=limits, color=f"C{number}", alpha=0.7, edgecolor="black",
            linewidth=0.6, hatch=("", "//", "..", "xx")[number % 4],
        )  # fmt: skip
        ax.axvline(0, color="0.4", linewidth=0.8, linestyle="--")
        ax.set(ylabel="heads", title=name)
        ax.yaxis.get_major_locator().set_params(integer=True)
    axes[-1, 0].set_xlabel(x_axis)
    return fig, axes[:, 0]


@styled
def distributions(
    series: Mapping[str, Float[Tensor, " n"]],
    x_axis: str,
    mark: tuple[float, str] | None = None,
    bins: int = 60,
    title: str = "",
) -> tuple[Figure, Axes]:
    """Outlines of histograms on common bins, each as a share of its own values; `mark` is a line.

    ValueError for an empty series or values that are not finite.
    """
    values = {name: plain(x).ravel() for name, x in series.items()}
    if not all(x.size and np.isfinite(x).all() for x in values.values()):
        raise ValueError("every series needs finite values, got an empty one, NaN or infinity")
    edges = np.histogram_bin_edges(np.concatenate(list(values.values())), bins)
    fig, ax = plt.subplots()
    dashes = ("-", "--", ":", "-.")
    for number, (name, x) in enumerate(values.items()):
        shares = np.histogram(x, edges)[0] / x.size
        style = {"color": f"C{number}", "linestyle": dashes[number % 4], "linewidth": 1.8}
        ax.stairs(shares, edges, label=f"{name} ({x.size:,})", **style)
    if mark:
        ax.axvline(mark[0], color="0.4", linewidth=1, linestyle="-", label=mark[1])
    ax.set(xlabel=x_axis, ylabel="share", title=title)
    ax.legend()
    return fig, ax
