"""The CircuitsVis wrapper: right data, no network, tokens that cannot break out of the page."""

import json
import re
import socket

import pytest
import torch

from pathsum import viewers
from pathsum.checkpoints import load_model
from pathsum.heads import value_weighted
from pathsum.model import AttentionOnlyTransformer, Config, cache
from pathsum.tokenizer import load_tokenizer
from pathsum.viewers import attention_view, pattern_view

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
    html = pattern_view(HOSTILE, patterns)._repr_html_()
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
    html = pattern_view(HOSTILE, causal(3, 5))._repr_html_()
    assert html.count("</script") == 1, "a token or the bundle ends the script too early"
    assert 1_200_000 < len(html) < 1_500_000
    assert not re.search(r"<script[^>]*\bsrc=", html) and "unpkg" not in html


def test_two_views_of_one_notebook_draw_into_different_places(elsewhere: None):
    view = pattern_view(["a", "b"], causal(1, 2))
    names = {re.search(r'<div id="(cv-\w+)"', view._repr_html_())[1] for _ in range(2)}
    assert len(names) == 2


def test_save_writes_a_page_and_leaves_nothing_else_behind(elsewhere: None, tmp_path):
    path = pattern_view(["é", "b"], causal(1, 2)).save(tmp_path / "view.html")
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
        pytest.param(["a"], torch.zeros(0, 1, 1), "at least one head", id="no heads"),
        pytest.param(["a"], torch.full((1, 1, 1), 3.5), "after the softmax", id="scores"),
    ],
)
def test_what_cannot_be_drawn_is_refused_in_words(tokens, patterns, words):
    with pytest.raises(ValueError, match=words):
        pattern_view(tokens, patterns)


def test_head_names_must_be_one_per_head():
    with pytest.raises(ValueError, match="3 heads need 3 names, got 1"):
        pattern_view(["a", "b"], causal(3, 2), head_names=["L0H0"])


def test_without_circuitsvis_the_error_names_the_install(elsewhere: None, monkeypatch):
    monkeypatch.setattr(viewers, "find_spec", lambda _: None)
    viewers.bundle.cache_clear()
    with pytest.raises(ModuleNotFoundError, match=r"pathsum\[viewers\]"):
        pattern_view(["a", "b"], causal(1, 2))._repr_html_()


TEXT = "</script> & the cat, the cat"


@pytest.fixture(scope="module")
def two() -> AttentionOnlyTransformer:
    return load_model("attn-only-2l")


def test_a_model_and_a_text_give_every_heads_pattern(two: AttentionOnlyTransformer):
    tokens = load_tokenizer().encode(TEXT)[None]
    values = cache(two, tokens)
    props = attention_view(two, TEXT).props
    wanted = torch.cat([values["L0.pattern"][0], values["L1.pattern"][0]])
    torch.testing.assert_close(torch.tensor(props["attention"]), wanted, atol=1e-4, rtol=0)
    assert props["tokens"] == load_tokenizer().token_strings(tokens[0])
    assert props["attentionHeadNames"][9] == "L1H1"
    moved = value_weighted(values["L1.pattern"], values["L1.v"])[0]
    got = torch.tensor(attention_view(two, TEXT, layer=1, weighted=True).props["attention"])
    torch.testing.assert_close(got, moved / moved.max(), atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        pytest.param({"text": ""}, ValueError, "at least one character", id="empty"),
        pytest.param({"text": "a b " * 400}, ValueError, "up to 256 tokens", id="past the context"),
        pytest.param({"text": "a b " * 80}, ValueError, "1 to 128 tokens", id="past the view"),
        pytest.param({"text": ["a", "b"]}, TypeError, "pattern_view", id="tokens"),
        pytest.param({"text": "a", "layer": 2}, IndexError, r"0\.\.1, got 2", id="layer"),
    ],
)
def test_a_text_or_layer_that_cannot_be_shown_is_refused(two, call: dict, error, words: str):
    with pytest.raises(error, match=words):
        attention_view(two, **call)


def test_tokens_and_patterns_in_place_of_a_model_are_sent_to_the_other_function():
    with pytest.raises(TypeError, match=r"got list.*pattern_view\(tokens, patterns\)"):
        attention_view(["a"], torch.ones(1, 1, 1))


def test_a_model_without_heads_or_with_broken_weights_is_refused():
    with pytest.raises(ValueError, match="0 layers"):
        attention_view(load_model("attn-only-0l"), "a")
    broken = AttentionOnlyTransformer(Config(n_layers=1, n_heads=2, d_model=16, d_head=4))
    broken.W_Q.data[:] = torch.nan
    with pytest.raises(ValueError, match="finite"):
        attention_view(broken, "a cat")


FRAMES = """<!doctype html><title>frames</title><body>
<iframe sandbox="allow-scripts" srcdoc="{0}" style="width:100%;height:700px"></iframe></body>"""


def test_a_view_draws_in_a_frame_of_its_own_and_two_share_one_page(chromium, tmp_path):
    """Colab puts each output into a frame that may not reach its page; Jupyter all into one page."""
    import html

    one, two = (pattern_view(HOSTILE, causal(n, 5)).self_contained() for n in (2, 3))
    path = tmp_path / "page.html"
    context = chromium.new_context(color_scheme="dark")
    context.route("**/*", lambda r: r.continue_() if r.request.url == path.as_uri() else r.abort())
    page, trouble = context.new_page(), []
    page.on("pageerror", lambda error: trouble.append(str(error)))
    for text, count in ((FRAMES.format(html.escape(one)), 3), (f"<!doctype html>{one}{two}", 7)):
        path.write_text(text, encoding="utf-8")
        page.goto(path.as_uri())
        place = page.frames[-1]
        place.wait_for_function("n => document.querySelectorAll('canvas').length === n", arg=count)
        card = place.locator(".cv-view").first
        colours = card.evaluate("e => [getComputedStyle(e).backgroundColor, getComputedStyle(e).color]")
        assert colours == ["rgb(255, 255, 255)", "rgb(34, 34, 34)"], "unreadable in a dark page"
    assert trouble == []
    context.close()
