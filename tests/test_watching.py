"""A watched run is the same run, with one figure that is drawn again."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from pathsum import watching
from pathsum.dataset import TokenData
from pathsum.model import Config
from pathsum.presets import TrainConfig
from pathsum.runs import Run, log_lines
from pathsum.watching import WatchedRun

TRAIN = TrainConfig(
    model=Config(n_layers=2, n_heads=3, d_model=12, d_head=5, d_vocab=17, n_ctx=16),
    data="none",
    steps=4,
    batch=2,
    records=3,
)


class Place:
    """Stands in for a notebook's display: keeps what it was given."""

    def __init__(self):
        self.figures = []

    def update(self, figure):
        self.figures.append(figure)


@pytest.fixture
def data() -> TokenData:
    tokens = np.random.default_rng(0).integers(1, 17, 3000).astype(np.uint16)
    return TokenData(tokens[:2000], tokens[2000:], "random", {})


@pytest.fixture
def places(monkeypatch) -> list[Place]:
    made: list[Place] = []

    def display(figure, display_id):
        assert display_id is True
        made.append(Place())
        made[-1].update(figure)
        return made[-1]

    monkeypatch.setattr(watching, "display", display)
    return made


def test_one_place_holds_a_figure_for_every_record(data, places, tmp_path):
    run = WatchedRun(tmp_path, TRAIN, data)
    run.start(resume=True)
    run.train(progress=False)
    lines = log_lines(tmp_path)
    (place,) = places
    assert len(place.figures) == len(lines) > 2
    loss, score = place.figures[-1].axes
    assert loss.lines[0].get_ydata() == pytest.approx([r["heldout_loss"] for r in lines])
    best = [max(r["prefix_matching"][-1]) for r in lines]
    assert score.lines[0].get_ydata() == pytest.approx(best)
    assert loss.lines[0].get_xdata()[-1] == pytest.approx(lines[-1]["tokens"] / 1e6)


def test_it_learns_what_an_unwatched_run_learns_and_goes_on_where_it_stopped(
    data, places, tmp_path
):
    plain = Run(tmp_path / "plain", TRAIN, data)
    plain.start(resume=False)
    plain.train(progress=False)
    watched = WatchedRun(tmp_path / "watched", TRAIN, data)
    watched.start(resume=False)
    watched.train(progress=False)
    torch.testing.assert_close(watched.model.W_E, plain.model.W_E, atol=0, rtol=0)
    again = WatchedRun(tmp_path / "watched", TRAIN, data)
    again.start(resume=True)
    assert again.step == TRAIN.steps


def test_a_model_without_layers_has_its_loss_alone(data, places, tmp_path):
    flat = replace(TRAIN, model=replace(TRAIN.model, n_layers=0))
    run = WatchedRun(tmp_path, flat, data)
    run.start(resume=False)
    run.record()
    assert len(places[0].figures[0].axes) == 1
