"""The CircuitsVis wrapper: right data, no network, tokens that cannot break out of the page."""

import json
import re
import socket

import pytest
import torch

from pathsum import viewers
from pathsum.viewers import attention_view

HOSTILE = ["<start>", "</script>", "<!--<script>", "&amp;", "·cat"]


def causal(n_heads: int, pos: int) -> torch.Tensor:
    scores = torch.randn(n_heads, pos, pos, generator=torch.Generator().manual_seed(0))
    hidden = torch.ones(pos, pos).triu(1).bool()
    return scores.masked_fill(hidden, -torch.inf).softmax(-1)


@pytest.fixture
def in_book(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CIRCUITS_BOOK", "1")


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CIRCUITS_BOOK", raising=False)

    def refuse(*_: object) -> None:
        raise AssertionError("a figure tried to reach the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)


def test_a_page_of_the_book_carries_the_data_and_no_bundle(in_book: None):
    patterns = causal(3, 5)
    html = attention_view(HOSTILE, patterns)._repr_html_()
    assert len(html) < 5_000
    inside = re.search(r'<script type="application/json">(.*?)</script>', html, re.DOTALL)[1]
    assert html.count("<script") == html.count("</script") == 1
    data = json.loads(inside)
    assert data["component"] == "AttentionHeads"
    assert data["props"]["tokens"] == HOSTILE
    assert data["props"]["attentionHeadNames"] == ["H0", "H1", "H2"]
    drawn = torch.tensor(data["props"]["attention"])
    torch.testing.assert_close(drawn, patterns, atol=1e-4, rtol=0)


def test_a_notebook_gets_one_self_contained_piece_without_asking_for_a_network(elsewhere: None):
    html = attention_view(HOSTILE, causal(3, 5))._repr_html_()
    assert html.count("</script") == 1, "a token or the bundle ends the script too early"
    assert 1_200_000 < len(html) < 1_500_000
    assert not re.search(r"<script[^>]*\bsrc=", html) and "unpkg" not in html


def test_two_views_of_one_notebook_draw_into_different_places(elsewhere: None):
    view = attention_view(["a", "b"], causal(1, 2))
    names = {re.search(r'<div id="(cv-\w+)"', view._repr_html_())[1] for _ in range(2)}
    assert len(names) == 2


def test_save_writes_a_page_and_leaves_nothing_else_behind(elsewhere: None, tmp_path):
    path = attention_view(["é", "b"], causal(1, 2)).save(tmp_path / "view.html")
    assert [p.name for p in tmp_path.iterdir()] == ["view.html"]
    assert path.read_text(encoding="utf-8").startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("tokens", "patterns", "words"),
    [
        pytest.param(["a", "b"], torch.eye(2), r"add a head axis with \[None\]", id="no head axis"),
        pytest.param(["a"], torch.eye(2)[None], "2 destinations and 2 sources but .* 1 tokens", id="tokens"),
        pytest.param(["a", "b"], torch.zeros(1, 2, 3), "3 sources", id="not square"),
        pytest.param([], torch.zeros(1, 0, 0), "got 0", id="no tokens"),
        pytest.param(["a"] * 129, torch.zeros(1, 129, 129), r"slice it", id="too long"),
        pytest.param(["a"], torch.full((1, 1, 1), torch.nan), "NaN", id="nan"),
        pytest.param(["a"], torch.full((1, 1, 1), 3.5), "after the softmax", id="scores"),
    ],
)
def test_what_cannot_be_drawn_is_refused_in_words(tokens, patterns, words):
    with pytest.raises(ValueError, match=words):
        attention_view(tokens, patterns)


def test_head_names_must_be_one_per_head():
    with pytest.raises(ValueError, match="3 heads need 3 names, got 1"):
        attention_view(["a", "b"], causal(3, 2), head_names=["L0H0"])


def test_without_circuitsvis_the_error_names_the_install(elsewhere: None, monkeypatch):
    monkeypatch.setattr(viewers, "find_spec", lambda _: None)
    viewers.bundle.cache_clear()
    with pytest.raises(ModuleNotFoundError, match=r"pathsum\[viewers\]"):
        attention_view(["a", "b"], causal(1, 2))._repr_html_()
