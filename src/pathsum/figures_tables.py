"""Tables of tokens shaded by a value: skip-trigrams as the paper prints them, in one picture."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor

from pathsum.figures import plain, styled, token_axes

Group = tuple[Sequence[Sequence[str]], Float[Tensor, "rows cells"], str]  # texts, values, unit


@styled
def shaded_table(
    rows: Sequence[str], groups: Mapping[str, Group], row_axis: str
) -> tuple[Figure, np.ndarray]:
    """One row per label and one panel per group; each cell holds a text and is shaded by its value.

    Purple above 0, orange below, each group on its own scale, with its unit under it. ValueError
    unless every group has one line of texts and of values per row.
    """
    for name, (texts, values, _) in groups.items():
        if len(texts) != len(rows) or tuple(values.shape) != (len(rows), len(texts[0])):
            raise ValueError(
                f"{name}: needs texts and values of shape (rows, cells) with {len(rows)} rows, got "
                f"{len(texts)} lines of texts and values {tuple(values.shape)}"
            )
    widths = [max(1.6, 0.8 * values.shape[1]) for _, values, _ in groups.values()]
    fig, axes = plt.subplots(
        1, len(groups), figsize=(min(6.4, 1.2 + sum(widths)), 1.6 + 0.27 * len(rows)),
        sharey=True, squeeze=False, width_ratios=widths,
    )  # fmt: skip
    for ax, (name, (texts, values, unit)) in zip(axes[0], groups.items()):
        values = plain(values)
        limit = float(np.abs(values).max()) or 1.0
        image = ax.imshow(values, cmap="PuOr", vmin=-limit, vmax=limit, aspect="auto")
        for (row, cell), value in np.ndenumerate(values):
            ink = "white" if abs(value) > 0.6 * limit else "black"
            place = {"ha": "center", "va": "center", "fontsize": 7.5, "parse_math": False}
            ax.text(cell, row, texts[row][cell], color=ink, **place)
        token_axes(ax, rows, [])
        ax.set_title(name, fontsize=9)
        fig.colorbar(image, ax=ax, label=unit, location="bottom", aspect=25)
    axes[0, 0].set_ylabel(row_axis)
    return fig, axes[0]
