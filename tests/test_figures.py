"""Figures draw what they are given, exactly, and refuse what does not fit."""

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib import pyplot as plt

from pathsum import figures
from pathsum.exercises.core import random_pattern

matplotlib.use("Agg")
WORDS = ["<start>", "$x$", "·a_b", "↵", "0xC3"]


@pytest.fixture(autouse=True)
def closed_figures():
    yield
    plt.close("all")


@pytest.fixture
def pattern() -> torch.Tensor:
    return random_pattern(5, 5, generator=torch.Generator().manual_seed(0))


def labels(axis) -> list[str]:
    return [text.get_text() for text in axis.get_ticklabels()]


def test_a_pattern_is_drawn_from_0_to_1_with_destinations_down(pattern):
    fig, ax = figures.attention_pattern(pattern, WORDS, "L1H4")
    (image,) = ax.images
    np.testing.assert_allclose(np.asarray(image.get_array()), pattern.numpy())
    assert image.get_clim() == (0, 1) and image.get_cmap().name == "viridis"
    assert ax.yaxis_inverted() and "destination" in ax.get_ylabel() and "source" in ax.get_xlabel()
    assert labels(ax.xaxis) == labels(ax.yaxis) == WORDS
    fig.canvas.draw()


def test_dollar_signs_in_tokens_are_no_mathematics(pattern):
    fig, ax = figures.attention_pattern(pattern, ["$", "$$", "$\\frac$", "^", "_"])
    fig.canvas.draw()
    assert labels(ax.yaxis)[2] == "$\\frac$"


def test_signed_values_have_equal_limits_around_zero():
    values = torch.tensor([[1.0, -3.0, 0.5], [0.0, 0.2, 0.1]])
    fig, ax = figures.signed_matrix(values, ["a", "b"], ["c", "d", "e"], "rows", "columns", "nats")
    (image,) = ax.images
    assert image.get_clim() == (-3, 3) and image.get_cmap().name == "PuOr"
    assert fig.axes[1].get_ylabel() == "nats"


def test_a_matrix_of_zeros_can_be_drawn():
    fig, _ = figures.signed_matrix(torch.zeros(2, 2), ["a", "b"], ["a", "b"], "r", "c", "nats")
    fig.canvas.draw()


def test_lines_differ_in_colour_and_in_dash():
    x = torch.arange(4.0)
    _, ax = figures.lines({name: (x, x + i) for i, name in enumerate("abcdefg")}, "x", "y")
    assert len({line.get_color() for line in ax.lines}) == 7
    assert len({str(line._dash_pattern) for line in ax.lines}) == 7
    assert [text.get_text() for text in ax.get_legend().get_texts()] == list("abcdefg")


def test_groups_of_points_differ_in_colour_and_in_marker():
    x = torch.tensor([0.0, 1.0])
    _, ax = figures.named_points({"a": (x, x, ["p", "q"]), "b": (x, -x, ["r", ""])}, "x", "y")
    points = [line for line in ax.lines if line.get_label() in "ab"]
    assert len({line.get_marker() for line in points}) == 2
    assert len({line.get_color() for line in points}) == 2
    assert [t.get_text() for t in ax.texts if t.get_text()] == ["p", "q", "r"]


def test_scores_stand_in_the_cells():
    _, ax = figures.head_scores(torch.tensor([[0.123, 1.0], [0.5, 0.0]]), "score")
    assert [text.get_text() for text in ax.texts] == ["0.12", "1.00", "0.50", "0.00"]


def test_values_are_drawn_over_their_tokens():
    fig, ax = figures.token_values(torch.arange(5.0), WORDS, "loss (nats)", shade=(1, 2))
    np.testing.assert_allclose(ax.lines[-1].get_ydata(), np.arange(5.0))
    assert labels(ax.xaxis) == WORDS
    fig.canvas.draw()


def test_eigenvalues_keep_their_direction_and_the_side_is_marked_twice():
    values = torch.tensor([3 + 4j, -1 + 0j], dtype=torch.complex128)
    _, axes = figures.eigenvalue_planes({"H0": values, "H1": values}, linear=0.5)
    right, left = axes.flat[0].lines[-2:]
    (x,), (y,) = right.get_xdata(), right.get_ydata()
    assert y / x == pytest.approx(4 / 3) and (x**2 + y**2) ** 0.5 == pytest.approx(np.log10(11))
    assert left.get_xdata()[0] == pytest.approx(-np.log10(3))
    assert left.get_fillstyle() == "none" != right.get_fillstyle()
    assert not axes.flat[2].axison


def test_a_histogram_counts_every_head_once():
    groups = {"a": torch.tensor([-0.9, 0.1, 0.9, 1.0]), "b": torch.zeros(5)}
    _, axes = figures.score_histogram(groups, "score")
    assert [sum(bar.get_height() for bar in ax.patches) for ax in axes] == [4, 5]
    assert axes[0].patches[0].get_hatch() != axes[1].patches[0].get_hatch()


@pytest.mark.parametrize(
    ("draw", "words"),
    [
        pytest.param(
            lambda: figures.attention_pattern(torch.eye(4), WORDS),
            r"\(5, 5\), got \(4, 4\)",
            id="size",
        ),
        pytest.param(
            lambda: figures.attention_pattern(3 * torch.eye(5), WORDS),
            "after the softmax",
            id="scores",
        ),
        pytest.param(
            lambda: figures.attention_pattern(torch.full((5, 5), float("nan")), WORDS),
            "between 0 and 1",
            id="NaN",
        ),
        pytest.param(
            lambda: figures.signed_matrix(
                torch.tensor([[float("inf")]]), ["a"], ["b"], "r", "c", "nats"
            ),
            "finite",
            id="infinity",
        ),
        pytest.param(
            lambda: figures.token_values(torch.ones(3), WORDS, "loss"),
            "one value per token",
            id="tokens",
        ),
        pytest.param(
            lambda: figures.named_points({"a": (torch.ones(2), torch.ones(2), ["x"])}, "x", "y"),
            "1 names",
            id="names",
        ),
        pytest.param(
            lambda: figures.eigenvalue_planes({"a": torch.tensor([float("nan") + 0j])}),
            "finite",
            id="eigenvalue",
        ),
        pytest.param(
            lambda: figures.score_histogram({"a": torch.tensor([1.5])}, "score"),
            "must lie in",
            id="score",
        ),
    ],
)
def test_what_does_not_fit_is_refused(draw, words):
    with pytest.raises(ValueError, match=words):
        draw()


def test_the_style_is_part_of_the_package():
    with plt.style.context("pathsum.book"):
        assert plt.rcParams["figure.facecolor"] == "white"


def test_drawing_leaves_the_readers_settings_alone():
    before = dict(plt.rcParams)
    fig, _ = figures.head_scores(torch.rand(2, 3), "score")
    assert dict(plt.rcParams) == before
    assert fig.get_facecolor() == (1, 1, 1, 1) and fig.dpi == 144


def test_tensors_with_a_graph_or_in_half_precision_are_drawn(pattern):
    figures.attention_pattern(pattern.requires_grad_(), WORDS)
    figures.lines({"a": (torch.arange(3).half(), torch.rand(3).double())}, "x", "y")
