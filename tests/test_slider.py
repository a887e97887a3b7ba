"""The slider over training: right data, refused mistakes, and a view that obeys in a browser."""

import base64
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from pathsum.slider import MAX_TOKENS, training_slider

HOSTILE = ["<start>", "</script>", "<!--<script>", "@NAME@", "·cat"]


def patterns(moments: int, pos: int) -> torch.Tensor:
    scores = torch.randn(moments, pos, pos, generator=torch.Generator().manual_seed(0))
    hidden = torch.ones(pos, pos).triu(1).bool()
    return scores.masked_fill(hidden, -torch.inf).softmax(-1)


@pytest.fixture
def view():
    heads = {"L0H1": patterns(3, 5), "L1H2": patterns(3, 5).flip(0)}
    scores = {
        "L0H1": ("to the previous token", torch.tensor([0.1, 0.2, 0.3])),
        "L1H2": ("to what followed", torch.tensor([0.0, 0.456, 0.9])),
    }
    return training_slider(HOSTILE, ["1 million", "2 million", "3 million"], heads, scores)


def test_the_piece_of_html_carries_the_data_and_asks_for_nothing(view):
    html = view._repr_html_()
    inside = re.search(r'<script type="application/json"[^>]*>(.*?)</script>', html, re.DOTALL)[1]
    assert html.count("<script") == html.count("</script") == 2, "a token ends a script too early"
    assert "http" not in html and " src=" not in html
    data = json.loads(inside)
    assert data["tokens"] == HOSTILE
    levels = np.frombuffer(base64.b64decode(data["panels"][0]["levels"]), np.uint8)
    drawn = torch.from_numpy(levels.reshape(3, 5, 5) / 255)
    torch.testing.assert_close(drawn, patterns(3, 5).double(), atol=0.5 / 255 + 1e-6, rtol=0)
    assert data["panels"][1]["scores"] == [0.0, 0.46, 0.9]


def test_two_sliders_of_one_page_have_places_of_their_own():
    made = [
        training_slider(["a", "b"], ["m"], {"h": patterns(1, 2)}, {"h": ("s", torch.ones(1))})
        for _ in range(2)
    ]
    names = {re.search(r'<div id="(ts-\w+)"', one.html)[1] for one in made}
    assert len(names) == 2


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tokens": ["a"] * (MAX_TOKENS + 1)}, "shorten it"),
        ({"tokens": ["a", "b", "c"]}, r"expected patterns \(2, 3, 3\)"),
        ({"moments": ["one"]}, r"expected patterns \(1, 2, 2\)"),
        ({"heads": {"h": 3 * patterns(2, 2)}}, "after the softmax"),
        ({"scores": {"other": ("s", torch.ones(2))}}, "every head needs a score"),
        ({"scores": {"h": ("s", torch.ones(3))}}, "and 3"),
    ],
)
def test_what_cannot_be_drawn_is_refused_in_words(change, words):
    right = {
        "tokens": ["a", "b"],
        "moments": ["one", "two"],
        "heads": {"h": patterns(2, 2)},
        "scores": {"h": ("s", torch.ones(2))},
    }
    training_slider(**right)
    with pytest.raises(ValueError, match=words):
        training_slider(**{**right, **change})


@pytest.fixture
def opened(view, chromium, tmp_path: Path):
    """Opens the view in a page of its own; at the end, nothing may have been asked for or failed."""
    trouble: list[str] = []
    contexts = []

    def start(width: int = 1000, scripts: bool = True):
        file = tmp_path / "view.html"
        page_html = '<!doctype html><meta charset="utf-8"><title>x</title><body>' + view.html
        file.write_text(page_html, encoding="utf-8")
        context = chromium.new_context(
            viewport={"width": width, "height": 900}, java_script_enabled=scripts
        )
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: trouble.append(str(error)))
        page.on("request", lambda r: trouble.append(r.url) if r.url != file.as_uri() else None)
        page.goto(file.as_uri())
        return page

    yield start
    for context in contexts:
        context.close()
    assert trouble == []


def colours(page) -> list[list[int]]:
    """The pixel in the middle of cell (4, 1) of both pictures."""
    return page.evaluate(
        """() => [...document.querySelectorAll('canvas')].map((c) => {
            const scale = c.width / 310, cell = (310 - 58) / 5;
            const at = (k) => Math.round((58 + (k + 0.5) * cell) * scale);
            return [...c.getContext('2d').getImageData(at(1), at(4), 1, 1).data];
        })"""
    )


@pytest.mark.browser
def test_the_keyboard_moves_it_and_nothing_shifts(opened):
    page = opened()
    slider = page.get_by_label("Tokens seen in training")
    assert slider.get_attribute("aria-valuetext") == "3 million"
    box, last = page.locator(".training-slider").bounding_box(), colours(page)
    slider.focus()
    page.keyboard.press("Home")
    assert (
        slider.get_attribute("aria-valuetext") == page.locator("output").inner_text() == "1 million"
    )
    first = colours(page)
    assert first != last
    assert page.get_by_text("to the previous token: 0.10").is_visible()
    label = page.locator("canvas").nth(1).get_attribute("aria-label")
    assert label == "L1H2 after 1 million. to what followed: 0.00"
    page.keyboard.press("ArrowRight")
    assert page.locator("output").inner_text() == "2 million"
    page.keyboard.press("End")
    assert colours(page) == last
    assert page.locator(".training-slider").bounding_box() == box


@pytest.mark.browser
def test_pointing_at_a_cell_reads_it(opened):
    page = opened()
    canvas = page.locator("canvas").first.bounding_box()
    cell = (310 - 58) / 5
    page.mouse.move(canvas["x"] + 58 + 1.5 * cell, canvas["y"] + 58 + 4.5 * cell)
    weight = f"{patterns(3, 5)[2, 4, 1]:.2f}"
    assert page.get_by_text(f"L0H1: ·cat (4) reads </script> (1) with {weight}").is_visible()
    page.mouse.move(canvas["x"] + 58 + 4.5 * cell, canvas["y"] + 58 + 1.5 * cell)
    assert page.get_by_text("Point at a cell").is_visible()


@pytest.mark.browser
def test_it_fits_a_telephone(opened):
    page = opened(width=320)
    assert page.evaluate("document.documentElement.scrollWidth") <= 320
    size = page.locator("canvas").first.bounding_box()
    assert size["width"] == pytest.approx(size["height"], abs=1) and size["width"] > 200


@pytest.mark.browser
def test_without_scripts_it_says_so(opened):
    assert opened(scripts=False).get_by_text("This view needs JavaScript.").is_visible()
