"""Shaded tables hold the texts and the values that they are given."""

import matplotlib.pyplot as plt
import pytest
import torch

from pathsum.figures_tables import shaded_table


def test_a_shaded_table_writes_every_text_and_scales_each_group_around_0():
    values = torch.tensor([[1.0, -4.0], [0.5, 2.0]])
    wanted = ([["$a", "b"], ["c", "d"]], values, "nats")
    groups = {"wanted by": wanted, "raises": ([["e"], ["f"]], values[:, :1], "logits")}
    fig, axes = shaded_table(["one", "two"], groups, "source")
    fig.canvas.draw()
    assert [t.get_text() for t in axes[0].texts] == ["$a", "b", "c", "d"]
    assert [ax.get_title("left") for ax in axes] == list(groups)
    assert [ax.images[0].get_clim() for ax in axes] == [(-4.0, 4.0), (-1.0, 1.0)]
    assert [t.get_text() for t in axes[0].get_yticklabels()] == ["one", "two"]
    assert [ax.get_xlabel() for ax in fig.axes if ax not in axes] == ["nats", "logits"]
    plt.close(fig)


def test_texts_and_values_of_unequal_shape_are_refused():
    with pytest.raises(ValueError, match="raises: needs texts and values"):
        shaded_table(["one"], {"raises": ([["e", "f"]], torch.ones(1, 1), "logits")}, "source")
