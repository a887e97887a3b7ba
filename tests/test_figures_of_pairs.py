"""The figures of head pairs and of patterns by position draw what they are given."""

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib import pyplot as plt

from pathsum import figures

matplotlib.use("Agg")


@pytest.fixture(autouse=True)
def closed_figures():
    yield
    plt.close("all")


def test_panels_of_pairs_share_one_scale_around_zero():
    values = {"Q": torch.tensor([[0.1, -0.4, 0.2], [0.0, 0.1, 0.3]]), "K": torch.zeros(2, 3)}
    fig, axes = figures.pair_panels(values, "writes", "reads", "score")
    for ax, (name, panel) in zip(axes, values.items()):
        (image,) = ax.images
        np.testing.assert_allclose(np.asarray(image.get_array()), panel.numpy())
        assert image.get_clim() == pytest.approx((-0.4, 0.4)) and ax.get_title(loc="left") == name
    fig.canvas.draw()


def test_strips_have_a_row_per_name_and_rings_where_asked():
    rows = {"real": torch.tensor([[0.1, 0.2]]), "reversed": torch.tensor([0.3])}
    fig, ax = figures.strips(rows, "score", (0.15, "null"), hollow=["reversed"])
    null, real, reverse = ax.lines
    assert set(null.get_xdata()) == {0.15}
    np.testing.assert_allclose(real.get_xdata(), [0.1, 0.2], rtol=1e-6)
    assert set(real.get_ydata()) == {0} and set(reverse.get_ydata()) == {1}
    assert reverse.get_markerfacecolor() == "none" != real.get_markerfacecolor()
    assert [text.get_text() for text in ax.get_yticklabels()] == ["real", "reversed"]
    fig.canvas.draw()


def test_a_pair_has_a_line_from_the_least_value_on_thicker_for_more():
    K = torch.tensor([[0.05, 1.0], [0.5, 0.0], [0.0, 0.0]])
    panels = {"one": {"K": K, "V": torch.zeros(3, 2)}}
    fig, (ax,) = figures.composition_lines(panels, least=0.1)
    drawn = [line for line in ax.lines if list(line.get_ydata()) == [0, 1]]
    ends = {tuple(line.get_xdata()): line.get_linewidth() for line in drawn}
    assert set(ends) == {(0, 1), (1, 0)} and ends[0, 1] > ends[1, 0]
    names = [text.get_text() for text in ax.texts]
    assert names.count("H2") == 2 and names.count("H1") == 4  # three heads below, two above, twice
    fig.canvas.draw()


def test_pattern_panels_take_a_fixed_top_or_the_largest_value():
    values = {f"L1H{h}": torch.full((4, 4), 0.5 * (h + 1)) for h in range(3)}
    _, axes = figures.pattern_panels(values, "attention", lines_at=[1.5])
    assert {ax.images[0].get_clim() for ax in axes[:3]} == {(0, 1)}
    fig, axes = figures.pattern_panels(values, "attention times length", top=None)
    assert {ax.images[0].get_clim() for ax in axes[:3]} == {(0, 1.5)}
    fig.canvas.draw()


def test_three_panels_leave_no_empty_axes():
    values = {f"L1H{h}": torch.zeros(2, 2) for h in range(3)}
    _, axes = figures.pattern_panels(values, "attention")
    assert [ax.get_visible() for ax in axes] == [True, True, True, False]
