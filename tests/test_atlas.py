"""The head atlas: its numbers are the package's, every head is there, tokens stay data, pages stay light."""

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch

from pathsum import load_model, load_tokenizer
from pathsum.atlas import LayerAtlas, main, overview, search_box
from pathsum.atlas_drawings import eigenvalue_planes, pattern
from pathsum.atlas_facts import LayerFacts, vocabulary
from pathsum.atlas_html import composition_table, head_html, signed
from pathsum.atlas_scores import (
    RULES,
    SAMPLES,
    SEQUENCES,
    SHARES,
    attention_shares,
    check_model,
    labels_of,
    layer_scores,
)
from pathsum.checkpoints import CheckpointError
from pathsum.composition import composition_scores
from pathsum.evaluate import token_losses
from pathsum.heads import copying_score, raised_share, value_weighted
from pathsum.induction import induction_scores
from pathsum.model import AttentionOnlyTransformer, Config, cache
from pathsum.patching import ablated_losses
from pathsum.samples import demo_tokens, spread_sample
from pathsum.tokenizer import Tokenizer

TOY = Config(n_layers=2, n_heads=3, d_model=12, d_head=5, d_vocab=17, n_ctx=7)
NASTY = '</script><marquee onclick="alert(1)">&amp;\'$x$ `'
BOUND = 300_000  # bytes of a built page


class Reader(HTMLParser):
    """Elements and attributes of a piece of HTML, and the text of each <code> and of each row."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.codes: list[str] = []
        self.rows: list[list[str]] = []
        self.inside: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes
        self.inside.append(tag)
        if tag == "code":
            self.codes.append("")
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th") and self.rows:
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        while self.inside and self.inside.pop() != tag:
            pass

    def handle_data(self, data):
        if "code" in self.inside:
            self.codes[-1] += data
        if {"td", "th"} & set(self.inside):
            self.rows[-1][-1] += data


@pytest.fixture(scope="module")
def model() -> AttentionOnlyTransformer:
    return load_model("attn-only-2l")


@pytest.fixture(scope="module")
def layer(model) -> LayerAtlas:
    """Layer 1 of the two-layer model, in which the chapters find two induction heads."""
    return LayerAtlas(model, 1, load_tokenizer())


def test_shares_of_attention_add_up_and_know_where_they_go():
    n, patterns = 12, []
    for offset in (0, 1, 5, 9):
        rows = torch.arange(n)
        back = torch.zeros(n, n)
        back[rows, (rows - offset).clamp_min(0)] = 1
        patterns.append(back)
    start = torch.zeros(n, n)
    start[:, 0] = 1
    shares = attention_shares(torch.stack([start, *patterns])[None])
    torch.testing.assert_close(shares.sum(-1), torch.ones(5))
    assert shares[0].tolist() == [1, 0, 0, 0, 0]
    assert shares[1].tolist() == [0, 1, 0, 0, 0], "itself"
    for row, (offset, place) in enumerate({1: 2, 5: 3, 9: 4}.items(), start=2):
        torch.testing.assert_close(shares[row, 0], torch.tensor(offset / (n - 1)))
        torch.testing.assert_close(shares[row, place], torch.tensor(1 - offset / (n - 1)))
    assert len(SHARES) == shares.shape[-1]


def test_the_scores_are_those_of_the_package(model, layer: LayerAtlas):
    scores, inputs_and_targets = layer.facts.scores, spread_sample(SEQUENCES)
    torch.testing.assert_close(scores["prefix matching"], induction_scores(model)[1])
    torch.testing.assert_close(scores["copying"], copying_score(model)[1])
    torch.testing.assert_close(scores["raised share"], raised_share(model, samples=SAMPLES)[1])
    before = token_losses(model, *inputs_and_targets)
    for head in (4, 5):
        after = ablated_losses(model, *inputs_and_targets, [(1, head)], "mean")
        torch.testing.assert_close(scores["cost"][head], (after - before).mean())
    values = cache(model, demo_tokens())
    facts = layer.facts[6]
    assert torch.equal(facts.pattern, values["L1.pattern"][0, 6])
    moved = value_weighted(values["L1.pattern"], values["L1.v"])
    assert torch.equal(facts.moved, moved[0, 6])
    for kind in "QKV":
        expected = composition_scores(model, kind)[:, 6].float()
        torch.testing.assert_close(facts.partners[kind], expected)


def test_the_tables_are_the_largest_entries_of_the_circuits_multiplied_out(model, layer):
    facts, (common, frequent) = layer.facts[2], vocabulary()
    ids = common.nonzero().flatten()
    head = model.W_V[1, 2] @ model.W_O[1, 2]
    ov = model.W_E @ head @ model.W_U
    ov = (ov - ov.mean(0) - ov.mean(1, keepdim=True) + ov.mean())[ids][:, ids]
    qk = model.W_E @ model.W_Q[1, 2] @ model.W_K[1, 2].T @ model.W_E.T / model.config.d_head**0.5
    qk = (qk - qk.mean(1, keepdim=True))[ids][:, ids]
    for pairs, table, largest in (
        (facts.raised, ov, True),
        (facts.lowered, ov, False),
        (facts.wanted, qk, True),
    ):
        best = table.flatten().topk(len(pairs), largest=largest)
        for (row, column, value), expected, place in zip(pairs, best.values, best.indices):
            assert value == pytest.approx(float(expected), rel=1e-4)
            assert (row, column) == (int(ids[place // len(ids)]), int(ids[place % len(ids)]))
    assert [row.source for row in facts.frequent] == frequent.tolist()
    assert bool(common[frequent].all())


def test_a_page_says_the_numbers_of_its_head(layer: LayerAtlas):
    facts, html = layer.facts[6], layer[6].html
    spell = layer.tokenizer.token_strings
    assert f"induction head <b>{facts.scores['prefix matching']:.2f}</b>" in html
    assert f"{facts.scores['cost']:+.3f} ± {facts.scores['cost, error']:.3f} nats" in html
    for name, share in zip(SHARES, facts.shares.tolist()):
        assert f"{name} {share:.2f}" in html
    reader = Reader(html)
    for pairs in (facts.raised, facts.lowered, facts.wanted):
        for a, b, value in pairs:
            assert [*spell([a, b]), f"{value:.1f}"] in reader.rows
    kinds = {row[0]: row[1:] for row in Reader(composition_table(facts, layer.nulls)).rows[1:]}
    for kind, scores in facts.partners.items():
        mean, sd, _ = layer.nulls[kind]
        assert [int(z) for z in kinds[kind]] == ((scores - mean) / sd).round().int().tolist()


def test_a_number_that_rounds_to_nothing_has_no_minus():
    assert [signed(-0.0004, 3), signed(-0.4, 0), signed(0.05, 2)] == ["+0.000", "+0", "+0.05"]


def test_a_pattern_keeps_its_values_for_the_readout(layer: LayerAtlas):
    facts = layer.facts[6]
    steps = re.search(r'class="atlas-pattern" data-v="(\d+)" data-top="1"', layer[6].html)[1]
    n = len(facts.tokens)
    assert len(steps) == n * (n + 1)  # two digits for each cell of the triangle
    kept = torch.tensor([int(steps[i : i + 2]) for i in range(0, len(steps), 2)]) / 99
    rows, columns = torch.tril_indices(n, n)
    torch.testing.assert_close(kept, facts.pattern[rows, columns], atol=0.51 / 99, rtol=0)


def test_labels_follow_the_rules_that_are_printed(layer: LayerAtlas):
    found = {h: [rule.label for rule in layer.facts[h].labels] for h in range(8)}
    assert [h for h, labels in found.items() if "induction head" in labels] == [6, 7]
    assert [h for h, labels in found.items() if "idle here" in labels] == [4]
    scores = dict.fromkeys(layer.facts[0].scores, 0.0) | {"cost": 1.0}
    assert labels_of(scores) == []
    for rule, raised in zip(RULES, (
        {"prefix matching": 0.4}, {"duplicate token": 0.4}, {"previous token": 0.4},
        {"present token": 0.4}, {"near": 0.5, "previous token": 0.3}, {"far": 0.5},
        {"start token": 0.4}, {"copying": 0.6, "copying, sd": 6}, {"copying": -0.6, "copying, sd": -6},
        {"cost": 0.001},
    ), strict=True):  # fmt: skip
        assert labels_of(scores | raised) == [rule]
        assert rule.score in scores


def test_tokens_that_look_like_markup_stay_tokens(layer: LayerAtlas):
    class Nasty(Tokenizer):
        def __init__(self) -> None:
            pass

        def token_strings(self, ids) -> list[str]:
            return [NASTY for _ in ids]

    kind = Reader(head_html(layer.facts[6], layer.tokenizer, layer.nulls))
    nasty = head_html(layer.facts[6], Nasty(), layer.nulls)
    reader = Reader(nasty)
    assert reader.tags == kind.tags, "a token made or ended an element"
    assert {name for name, _ in reader.attributes} == {name for name, _ in kind.attributes}
    assert set(reader.codes) == {NASTY}
    table = overview({("<b>", 1): layer.facts}, Nasty())
    words = [value for name, value in Reader(table.html).attributes if name == "data-words"]
    assert len(words) == 8 and "marquee" not in Reader(table.html).tags and NASTY in words[0]


def test_every_drawing_is_described(layer: LayerAtlas):
    for head in range(8):
        words = re.findall(r'role="img" aria-label="([^"]+)"', layer[head].html)
        assert len(words) == 5, "two spectra in one, profile, two patterns, the bar"
        assert all(len(text) > 30 for text in words)


@pytest.mark.parametrize(
    ("page", "model", "number"),
    [("atlas-1l", "attn-only-1l", 0), ("atlas-2l-layer-0", "attn-only-2l", 0),
     ("atlas-2l-layer-1", "attn-only-2l", 1)],
)  # fmt: skip
def test_every_head_has_its_place_in_the_book(root: Path, page: str, model: str, number: int):
    text = (root / f"book/{page}.md").read_text(encoding="utf-8")
    assert f'LayerAtlas(load_model("{model}"), {number}, ' in text
    found = re.findall(r"^## L(\d)H(\d)\n\n```.*?^heads\[(\d)\]$", text, re.MULTILINE | re.DOTALL)
    heads = load_model(model).config.n_heads
    assert found == [(str(number), str(h), str(h)) for h in range(heads)]


def test_a_layer_leaves_room_for_the_rest_of_a_page(layer: LayerAtlas):
    whole = sum(len(layer[head].html.encode()) for head in range(8)) + len(search_box().html)
    assert whole < BOUND - 50_000


@pytest.mark.slow
def test_built_pages_are_light(built_book: Path):
    pages = sorted((built_book / "book").glob("atlas*.html"))
    assert len(pages) == 4
    for page in pages:
        assert page.stat().st_size <= BOUND, page.name


def test_a_head_a_layer_or_a_model_that_is_not_there_is_refused(model, layer, tmp_path: Path):
    with pytest.raises(IndexError, match=r"head in 0\.\.7, got \(1, 8\)"):
        layer[8]
    with pytest.raises(IndexError, match=r"layer must lie in 0\.\.1, got 2"):
        LayerFacts(model, 2)
    with pytest.raises(CheckpointError, match="no model is called 'attn-only-9l'.*did you mean"):
        main(["attn-only-9l", "--out", str(tmp_path / "atlas.html")])
    assert not list(tmp_path.iterdir())


def test_models_that_cannot_be_read_off_their_weights_are_refused():
    with pytest.raises(ValueError, match="this model has no layers"):
        check_model(AttentionOnlyTransformer(replace(TOY, n_layers=0)))
    with pytest.raises(ValueError, match="without LayerNorm.*got norm='pre'.*folded"):
        check_model(AttentionOnlyTransformer(replace(TOY, norm="pre")))
    with pytest.raises(ValueError, match="smear=True"):
        check_model(AttentionOnlyTransformer(replace(TOY, smear=True)))
    broken = AttentionOnlyTransformer(TOY).requires_grad_(False)
    broken.W_K[1, 2, 0, 0] = float("nan")
    for refuses in (check_model, lambda m: layer_scores(m, 0), lambda m: LayerFacts(m, 0)):
        with pytest.raises(ValueError, match="W_K holds 1 entries that are NaN or infinite"):
            refuses(broken)


def test_drawings_refuse_what_they_cannot_draw():
    with pytest.raises(ValueError, match="finite, got NaN"):
        eigenvalue_planes({"L0H0": torch.tensor([complex("nan")])}, "words")
    with pytest.raises(ValueError, match="a token per row and column, got 2"):
        pattern(torch.zeros(3, 3), ["a", "b"], 1.0, "attention", "words")
    with pytest.raises(ValueError, match="top above 0, got top=0"):
        pattern(torch.zeros(2, 2), ["a", "b"], 0.0, "attention", "words")


@pytest.fixture(scope="module")
def page(layer: LayerAtlas, tmp_path_factory) -> Path:
    """Three heads, their overview and the search box as a page of their own."""
    heads = "".join(f"<section>{layer[head].html}</section>" for head in (0, 4, 6))
    path = tmp_path_factory.mktemp("atlas") / "page.html"
    table = overview({("attn-only-2l", 1): layer.facts}, layer.tokenizer).html
    path.write_text(
        f"<!doctype html><meta charset=utf-8>{search_box().html}{heads}{table}", "utf-8"
    )
    return path


@pytest.mark.browser
def test_the_search_box_and_the_patterns_obey_the_keyboard(chromium, page: Path):
    context = chromium.new_context()
    view, trouble = context.new_page(), []
    view.on("pageerror", lambda error: trouble.append(str(error)))
    view.goto(page.as_uri())
    rows = view.locator(".atlas-overview tbody tr")
    shown = view.locator("section:not([hidden]) > .atlas-head")

    view.keyboard.press("Tab")
    view.keyboard.type("induction rests")
    assert shown.evaluate_all("all => all.map(e => e.dataset.head)") == ["L1H6"]
    assert view.locator(".atlas-overview tbody tr:not([hidden])").count() == 2
    assert view.locator("[role=status]").inner_text() == "3 of 11 heads"
    view.keyboard.press("Escape")
    assert shown.count() == 3
    view.keyboard.type(" and")
    assert view.locator("code.atlas-hit").count() > 0
    hits = view.locator("code.atlas-hit").evaluate_all("all => all.map(e => e.textContent)")
    assert all("·and" in token.lower() for token in hits)
    view.keyboard.press("Escape")
    drawing = view.locator("svg.atlas-pattern").first
    drawing.focus()
    view.keyboard.press("ArrowUp")
    assert re.match(
        r"at ley \(32\), from <start> \(0\): \d\.\d\d$",
        view.locator(".atlas-read").first.inner_text(),
    )
    view.get_by_role("button", name="cost").focus()
    view.keyboard.press("Enter")
    costs = rows.evaluate_all("all => all.map(row => Number(row.cells[8].dataset.v))")
    assert costs == sorted(costs, reverse=True) and len(costs) == 8
    assert trouble == []
    context.close()


@pytest.mark.browser
def test_without_javascript_everything_is_shown(chromium, page: Path):
    context = chromium.new_context(java_script_enabled=False)
    view = context.new_page()
    view.goto(page.as_uri())
    assert view.locator(".atlas-search").is_hidden()
    assert [view.locator(".atlas-head").nth(i).is_visible() for i in range(3)] == [True] * 3
    assert view.locator(".atlas-overview tbody tr").count() == 8
    context.close()


def test_the_command_writes_a_page_that_needs_nothing_else(tmp_path: Path, capsys):
    main(["attn-only-1l", "--out", str(tmp_path / "atlas.html")])
    text = (tmp_path / "atlas.html").read_text(encoding="utf-8")
    assert re.findall(r'data-head="(L0H\d)"', text) == [f"L0H{h}" for h in range(8)]
    assert not re.search(r'(?:src|href)="(?!data:|#)', text)
    assert capsys.readouterr().out == f"{tmp_path / 'atlas.html'}\n"
