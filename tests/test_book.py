"""The built book in a real browser: complete, drawn, quiet, readable by everyone, self-sufficient."""

import functools
import http.server
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml

from pathsum.notebooks import Chapter, toc_pages

ROOT = Path(__file__).resolve().parent.parent
TOC = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
PAGES = [file for file, _ in toc_pages(TOC)]
PROMISED = {f"book/{name}" for name in (
    "index", "models", "playground", "notation", "transformer-overview", "zero-layer", "one-layer", "skip-trigrams",
    "summarising", "composition", "induction-heads", "term-importance", "technical-details", "training", "causal-methods", "standard-models", "synthetic-models",
    "claims", "benchmarks", "teaching", "bibliography",
    "atlas", "atlas-1l", "atlas-2l-layer-0", "atlas-2l-layer-1",
)}  # fmt: skip
THEMES = ("light", "dark")

# Chromium's remarks about drawing without a graphics card say nothing about the page.
HARMLESS = re.compile(r"GPU stall|GroupMarkerNotSet|WebGL|Canvas2D: Multiple readback")

pytestmark = [pytest.mark.browser, pytest.mark.slow]


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="session")
def address(built_book: Path) -> Iterator[str]:
    """The book, served on this machine."""
    handler = functools.partial(QuietHandler, directory=str(built_book))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


class Visit:
    """A page in a fresh browser profile, with everything it complained of or asked others for."""

    def __init__(self, browser, address: str, theme: str = "light", width: int = 1280):
        self.address = address
        self.context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=theme
        )
        self.context.set_default_timeout(60_000)
        self.trouble: list[str] = []
        self.outside: list[str] = []
        self.context.route("**/*", self.only_here)
        self.page = self.context.new_page()
        self.page.on("pageerror", lambda error: self.trouble.append(str(error)))
        self.page.on("console", self.heard)
        self.page.on("response", self.answered)

    def only_here(self, route) -> None:
        url = route.request.url
        if url.startswith((self.address, "data:", "blob:")):
            route.continue_()
        else:
            self.outside.append(url)
            route.abort()

    def heard(self, message) -> None:
        if message.type in ("error", "warning") and not HARMLESS.search(message.text):
            self.trouble.append(f"{message.type}: {message.text}")

    def answered(self, response) -> None:
        if response.status >= 400:
            self.trouble.append(f"{response.status} {response.url}")

    def open(self, file: str):
        """The page, with its maths set and its late figures drawn."""
        self.page.goto(f"{self.address}/{file}.html", wait_until="load")
        self.page.evaluate("async () => { await window.MathJax?.startup?.promise; await document.fonts.ready; }")
        for view in self.page.query_selector_all(".cv-view"):
            view.scroll_into_view_if_needed()
            self.page.wait_for_function("view => view.dataset.state === 'drawn'", arg=view)
        return self.page


@pytest.fixture
def visit(chromium, address: str) -> Iterator[object]:
    """Opens pages; at the end of the test, none may have complained or left this machine."""
    visits: list[Visit] = []

    def start(file: str, **settings):
        visits.append(Visit(chromium, address, **settings))
        return visits[-1].open(file)

    yield start
    for one in visits:
        one.context.close()
        assert one.outside == [], "requests to other hosts"
        assert one.trouble == [], "errors or warnings in the page"


def test_the_book_has_the_promised_pages():
    assert PROMISED <= set(PAGES)


@pytest.mark.parametrize("file", PAGES)
def test_a_page_opens_with_its_title_figures_and_maths(visit, file: str):
    page = visit(file)
    source = (ROOT / f"{file}.md").read_text(encoding="utf-8")
    title = Chapter(ROOT / f"{file}.md", "").title()
    heading = page.locator("article h1").inner_text().replace("#", "").strip()
    assert re.sub(r"^[\d.]+\s+", "", heading) == re.sub(r"[*`]", "", title)
    images = page.eval_on_selector_all(
        "article img", "all => all.map(i => [i.src, i.naturalWidth, i.getAttribute('alt') ?? ''])"
    )
    assert all(width > 0 for _, width, _ in images), images
    assert len(images) >= source.count("    caption:"), "a figure with a caption is not in the page"
    formulas = page.locator("article .math").count()
    assert page.locator("article .math mjx-container").count() >= formulas
    assert page.locator("mjx-merror, [data-mjx-error]").count() == 0
    assert page.locator(".problematic, .system-message, .cell_output .traceback").count() == 0


@pytest.mark.parametrize("file", PAGES)
def test_a_captioned_figure_says_in_words_what_it_shows(visit, file: str):
    page = visit(file)
    for alt in page.eval_on_selector_all("figure img", "all => all.map(i => i.alt)"):
        assert len(alt) > 30 and not alt.endswith(".png"), f"alt text: {alt!r}"


@pytest.mark.parametrize("file", PAGES)
@pytest.mark.parametrize("width", [320, 375])
def test_a_page_fits_a_phone(visit, file: str, width: int):
    page = visit(file, width=width)
    wide = page.evaluate(
        """() => [...document.querySelectorAll('article *')].filter(e =>
            e.getBoundingClientRect().right > innerWidth + 1 &&
            !e.closest('pre, .math, .cell_output, .pst-scrollable-table-container, mjx-assistive-mml')
        ).map(e => e.outerHTML.slice(0, 120))"""
    )
    assert wide == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("file", PAGES)
def test_a_page_has_no_serious_barrier(visit, built_book: Path, file: str, theme: str):
    page = visit(file, theme=theme)
    assert page.evaluate("document.documentElement.dataset.theme") == theme
    # not by clicks: what stands in for a live figure is hidden as soon as the figure runs
    page.evaluate("document.querySelectorAll('details').forEach(box => { box.open = true; })")
    page.wait_for_timeout(1000)  # opened boxes fade in, and half faded they lack contrast
    page.evaluate((ROOT / "_vendor/tests/axe.min.js").read_text(encoding="utf-8"))
    result = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    serious = [
        {"rule": v["id"], "help": v["help"], "where": [n["html"][:160] for n in v["nodes"]][:5]}
        for v in result["violations"]
        if v["impact"] in ("serious", "critical")
    ]
    assert serious == [], json.dumps(serious, indent=1)


def test_the_theme_button_goes_through_light_and_dark(visit):
    page = visit("book/index")
    seen = []
    for _ in range(3):
        page.locator("button.theme-switch-button:visible").click()
        background = page.evaluate("getComputedStyle(document.body).backgroundColor")
        seen.append((page.evaluate("document.documentElement.dataset.theme"), background))
    assert {theme for theme, _ in seen} == set(THEMES)
    assert len({background for _, background in seen}) == 2


def test_search_finds_a_word_of_a_page(visit):
    page = visit("book/index")
    page.goto(page.url.replace("book/index.html", "search.html?q=transformer"))
    page.wait_for_selector("#search-results li a")
    links = page.eval_on_selector_all("#search-results li a", "all => all.map(a => a.href)")
    assert any("book/" in urlsplit(link).path for link in links)


@pytest.mark.parametrize("file", PAGES)
def test_a_solution_is_folded_until_asked_for(visit, file: str):
    page = visit(file)
    exercises = (ROOT / f"{file}.md").read_text(encoding="utf-8").count("### BEGIN SOLUTION")
    folds = page.locator("details:has(summary:has-text('Show a solution'))")
    assert folds.count() == exercises
    for i in range(exercises):
        code = folds.nth(i).locator("pre")
        assert not code.is_visible()
        folds.nth(i).locator("summary").click()
        assert code.is_visible()
        assert "SOLUTION" not in code.inner_text()


@pytest.mark.parametrize("file", PAGES)
def test_the_colab_button_opens_the_generated_notebook(visit, file: str):
    page = visit(file)
    hrefs = page.eval_on_selector_all("a[href*='colab']", "all => all.map(a => a.href)")
    if "{code-cell}" in (ROOT / f"{file}.md").read_text(encoding="utf-8"):
        assert hrefs, "an executed page has no Colab button"
    repository = yaml.safe_load((ROOT / "_config.yml").read_text())["repository"]
    notebook = f"notebooks/{Path(file).name}.ipynb"
    wanted = f"{repository['url'].split('.com/')[1]}/blob/{repository['branch']}/{notebook}"
    assert all(href.endswith(wanted) for href in hrefs), hrefs
    assert (ROOT / notebook).is_file()


def test_attention_views_share_one_script_draw_and_obey_the_keyboard(visit):
    drawn = 0
    for file in PAGES:
        if "attention_view(" not in (ROOT / f"{file}.md").read_text(encoding="utf-8"):
            continue
        page = visit(file)
        views = page.locator(".cv-view")
        assert views.count() > 0
        assert page.locator("script[src*='circuitsvis']").count() == 1
        for i in range(views.count()):
            view = views.nth(i)
            heads = view.locator("[role=button]")
            assert heads.count() == view.locator("canvas").count() - 1
            for chosen in (heads.last, heads.first):
                chosen.focus()
                page.keyboard.press("Enter")
                name = chosen.locator("h4").inner_text()
                large = view.locator(f"canvas[aria-label*='head {name}:']")
                large.wait_for()
                size = large.bounding_box()
                assert size["width"] > 100
            for head in heads.all():
                head.hover()
            assert view.locator("canvas").last.bounding_box()["width"] == size["width"]
            drawn += 1
    assert drawn, "no chapter has an attention view"


def test_a_saved_attention_view_draws_from_its_file_alone(chromium, tmp_path: Path):
    import torch
    from pathsum.viewers import pattern_view

    tokens = ["<start>", "</script>", "·cat"]
    path = pattern_view(tokens, torch.eye(3).expand(2, 3, 3)).save(tmp_path / "view.html")
    context = chromium.new_context()
    context.route("**/*", lambda r: r.continue_() if r.request.url == path.as_uri() else r.abort())
    page, trouble = context.new_page(), []
    page.on("pageerror", lambda error: trouble.append(str(error)))
    page.goto(path.as_uri())
    page.wait_for_selector("canvas", timeout=60_000)
    assert page.locator("canvas").count() == 3, "two heads and the enlarged one"
    assert page.locator("canvas").last.bounding_box()["width"] > 100
    assert "cat" not in page.inner_text("body"), "a token ended the script and spilled into the page"
    assert trouble == []
    context.close()


def test_links_between_pages_lead_somewhere(built_book: Path):
    for path in built_book.rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        for href in re.findall(r'<a [^>]*href="([^"]+)"', text):
            target, _, anchor = href.partition("#")
            if urlsplit(href).scheme or target.startswith("//"):
                continue
            goal = (path.parent / target.split("?")[0]).resolve() if target else path
            assert goal.is_file(), f"{path.name} links to {href}"
            if anchor and goal.suffix == ".html":
                assert f'id="{anchor}"' in goal.read_text(encoding="utf-8"), f"{path.name}: {href}"
