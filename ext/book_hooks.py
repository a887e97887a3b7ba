"""Small repairs to what Jupyter Book puts on a page.

- The lines `### BEGIN SOLUTION` and `### END SOLUTION` steer the notebook builder; a page shows
  the solution whole, so the markers are dropped before the page is parsed.
- The Colab button must open the generated notebook, not the text source.
- The live-kernel scripts (Thebe) are added twice by their extension, which stops every script
  after them; the book has no live kernel, so they are removed.
- Citations are set as (Author, year), with round brackets.
- A few elements of the theme have names that a screen reader cannot use; they get better ones.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from sphinx.application import Sphinx
from sphinxcontrib.bibtex.plugin import register_plugin
from sphinxcontrib.bibtex.style.referencing import BracketStyle
from sphinxcontrib.bibtex.style.referencing.author_year import AuthorYearReferenceStyle

MARKERS = ("### BEGIN SOLUTION", "### END SOLUTION")

# What the theme writes -> what is written instead, in every page.
NAMES = (
    # The search button reads "Search Ctrl+K"; its label must not say less than that.
    (r'(search-button-field[^>]*?) title="Search" aria-label="Search"', r"\1"),
    # The icons inside the labelled theme button are pictures of its state, not further names.
    (r'(class="theme-switch [^>]*?)\s+title="[^"]*"', r'\1 aria-hidden="true"'),
    # A fold is called what it says ("Show a solution").
    (r'<summary aria-label="Toggle hidden content">', "<summary>"),
    # A list role needs list items; citations have a role of their own.
    (r'<div role="list" class="citation-list">', '<div class="citation-list">'),
)


def round_brackets() -> BracketStyle:
    return BracketStyle(left="(", right=")")


@dataclass
class RoundAuthorYear(AuthorYearReferenceStyle):
    """(Author, year), the form that the notebooks use too."""

    bracket_parenthetical: BracketStyle = field(default_factory=round_brackets)
    bracket_textual: BracketStyle = field(default_factory=round_brackets)
    bracket_author: BracketStyle = field(default_factory=round_brackets)
    bracket_label: BracketStyle = field(default_factory=round_brackets)
    bracket_year: BracketStyle = field(default_factory=round_brackets)


def drop_solution_markers(app: Sphinx, docname: str, source: list[str]) -> None:
    """Remove the marker lines from the page's source, in place."""
    if any(marker in source[0] for marker in MARKERS):
        lines = source[0].splitlines(keepends=True)
        source[0] = "".join(line for line in lines if line.strip() not in MARKERS)


def point_colab_at_notebook(context: dict[str, Any], pagename: str) -> None:
    """Rewrite the Colab button of one page to its generated notebook."""
    name = PurePosixPath(pagename).name
    for group in context.get("header_buttons", []):
        for button in group.get("buttons", []):
            if button.get("text") == "Colab":
                base = button["url"].split("/blob/")[0]
                branch = button["url"].split("/blob/")[1].split("/")[0]
                button["url"] = f"{base}/blob/{branch}/notebooks/{name}.ipynb"


def without_thebe(files: list[Any]) -> list[Any]:
    """The page's script or style entries, less those of the live-kernel extension."""

    def text(entry: Any) -> str:
        attributes = getattr(entry, "attributes", {})
        return f"{getattr(entry, 'filename', entry)} {attributes}"

    return [f for f in files if "THEBE_JS_URL" not in text(f) and "sphinx-thebe" not in text(f)]


def finish_page(app: Sphinx, pagename: str, templatename: str, context: dict, doctree: Any) -> None:
    """Apply the page-level repairs after the theme has built its buttons."""
    for key in ("script_files", "css_files"):
        if key in context:
            context[key] = without_thebe(context[key])
    point_colab_at_notebook(context, pagename)


def name_elements(app: Sphinx, exception: Exception | None) -> None:
    """Rewrite NAMES in the finished pages."""
    if exception is None and app.builder.format == "html":
        for path in Path(app.outdir).rglob("*.html"):
            old = new = path.read_text(encoding="utf-8")
            for pattern, better in NAMES:
                new = re.sub(pattern, better, new)
            if new != old:
                path.write_text(new, encoding="utf-8")


def setup(app: Sphinx) -> dict[str, Any]:
    register_plugin(
        "sphinxcontrib.bibtex.style.referencing", "author_year_round", RoundAuthorYear
    )
    app.connect("source-read", drop_solution_markers)
    app.connect("html-page-context", finish_page, priority=900)
    app.connect("build-finished", name_elements)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
