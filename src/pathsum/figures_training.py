"""Figures of the chapter on training: curves against tokens seen, and the curve of a run under way."""

from collections.abc import Mapping, Sequence
from itertools import cycle

import matplotlib.pyplot as plt
import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from pathsum.figures import MARKERS, plain, styled

Curve = tuple[Float[Tensor, " n"], Float[Tensor, " n"]]


@styled
def over_training(
    panels: Mapping[str, Mapping[str, Sequence[Curve]]],
    shade: tuple[float, float] | None = None,
    columns: int = 2,
    since: float | None = 1e5,
) -> tuple[Figure, np.ndarray]:
    """One panel per quantity against millions of tokens seen; the curves of a name share a style.

    The axis is logarithmic and begins at `since` tokens, or is linear from 0 with None. `shade` is a
    range of tokens put on grey in all panels.
    """
    rows = -(-len(panels) // columns)
    size = (2.9 * columns, 0.7 + 1.6 * rows) if columns > 1 else (5.2, 0.7 + 2.4 * rows)
    fig, axes = plt.subplots(rows, columns, figsize=size, sharex=True, squeeze=False)
    names = list(dict.fromkeys(name for series in panels.values() for name in series))
    styles = dict(zip(names, cycle(plt.rcParams["axes.prop_cycle"])))
    handles = {}
    for ax, (title, series) in zip(axes.flat, panels.items()):
        for name, curves in series.items():
            for x, y in curves:
                x, y = plain(x) / 1e6, plain(y)
                keep = x >= (since or 0) / 1e6
                width = 1.0 if len(curves) > 1 else 1.5
                (handles[name],) = ax.plot(x[keep], y[keep], linewidth=width, **styles[name])
        if shade:
            ax.axvspan(shade[0] / 1e6, shade[1] / 1e6, color="0.9", zorder=0)
        ax.set_title(title, fontsize=9)
        if since:
            ax.set_xscale("log")
            ax.xaxis.set_major_formatter("{x:g}")
    for ax in axes.flat[len(panels) :]:
        ax.set_visible(False)
    fig.supxlabel("tokens seen (millions)", fontsize=9)
    if len(names) > 1:
        fig.legend(
            [handles[n] for n in names], names, loc="outside upper left", ncols=min(columns + 1, 3)
        )
    return fig, axes


@styled
def by_position(
    moments: Mapping[str, Float[Tensor, " pos"]], y_axis: str, smooth: int = 16
) -> tuple[Figure, Axes]:
    """A quantity by position at several moments, from dark to bright, each named at its right end.

    Means over `smooth` positions side by side, which have to divide the context.
    """
    fig, ax = plt.subplots(figsize=(5.2, 3.4))
    ramp = plt.get_cmap("viridis")
    for number, (name, losses) in enumerate(moments.items()):
        values = plain(losses).reshape(-1, smooth).mean(1)
        place = smooth * (np.arange(len(values)) + 0.5)
        colour = ramp(0.9 * number / max(1, len(moments) - 1))
        ax.plot(
            place, values, color=colour, linestyle="-", marker=MARKERS[number % 7], markersize=4
        )
        ax.annotate(
            name, (place[-1], values[-1]), (6, 0), textcoords="offset points", va="center",
            fontsize=8,
        )  # fmt: skip
    ax.set(xlabel="position in the context", ylabel=y_axis)
    ax.set_xlim(0, 1.2 * place[-1])
    return fig, ax
