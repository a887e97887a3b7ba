"""What a published site needs besides its pages: descriptions, a picture, a map and a page for lost links.

Pages link to each other by relative addresses and work under any path. Only three things need to know
where the site stands: `sitemap.xml`, the picture that other sites show, and `404.html`, which is served
for addresses of any depth. They take SITE_URL from the environment (the publishing workflow sets it), else
the address that GitHub Pages gives to the repository of `_config.yml`.
"""

import html
import os
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml
from docutils import nodes
from sphinx.application import Sphinx

PICTURE = "_static/social.png"
LONGEST = 160  # characters of a description that search engines show
LOST = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="robots" content="noindex">
<title>Not here · {title}</title>
<style>
body {{ font: 1.1rem/1.6 system-ui, sans-serif; max-width: 36rem; margin: 15vh auto; padding: 0 1rem;
  background: #fff; color: #222; }}
a {{ color: #005a9e; }}
@media (prefers-color-scheme: dark) {{ body {{ background: #14181e; color: #ddd; }} a {{ color: #8cc4ff; }} }}
</style>
</head>
<body>
<main>
<h1>This page is not here</h1>
<p>It may have been renamed. Nothing of the book is hidden: all pages are in
<a href="{site}book/index.html">the contents</a>, and <a href="{site}search.html">the search</a> finds words.</p>
</main>
</body>
</html>
"""


def site_url(root: Path) -> str:
    """Where the site stands, with a slash at the end."""
    if found := os.environ.get("SITE_URL", "").strip():
        return found.rstrip("/") + "/"
    config = yaml.safe_load((root / "_config.yml").read_text(encoding="utf-8"))
    owner, name = urlsplit(config["repository"]["url"]).path.strip("/").split("/")
    return f"https://{owner.lower()}.github.io/{name}/"


def description(doctree: nodes.document) -> str:
    """The first sentences of a page, as plain text, at most LONGEST characters."""
    for paragraph in doctree.findall(nodes.paragraph):
        text = re.sub(r"\s+", " ", paragraph.astext()).strip()
        if len(text) > 30:
            return text if len(text) <= LONGEST else text[: LONGEST - 1].rsplit(" ", 1)[0] + "…"
    return ""


def describe_page(
    app: Sphinx, pagename: str, templatename: str, context: dict, doctree: Any
) -> None:
    """Title, description and picture for search engines and for links shown elsewhere."""
    if doctree is None:
        return
    site, title = site_url(Path(app.srcdir)), re.sub(r"<[^>]*>", "", context.get("title", ""))
    about = {
        "og:type": "article",
        "og:site_name": app.config.html_title or app.config.project,
        "og:title": html.unescape(title),
        "og:description": description(doctree),
        "og:url": f"{site}{pagename}.html",
        "og:image": f"{site}{PICTURE}",
        "og:image:alt": "An attention pattern with an induction stripe, and the title of the book.",
        "twitter:card": "summary_large_image",
    }
    lines = [f'<meta name="description" content="{html.escape(about["og:description"])}">']
    lines += [
        f'<meta property="{key}" content="{html.escape(text)}">'
        for key, text in about.items()
        if text
    ]
    context["metatags"] = context.get("metatags", "") + "\n".join(lines)


def write_site_files(app: Sphinx, exception: Exception | None) -> None:
    """`sitemap.xml`, `robots.txt` and `404.html`."""
    if exception is not None or app.builder.format != "html":
        return
    site, out = site_url(Path(app.srcdir)), Path(app.outdir)
    pages = sorted(app.env.found_docs)
    listed = "\n".join(
        f"<url><loc>{html.escape(f'{site}{page}.html')}</loc></url>" for page in pages
    )
    head = '<?xml version="1.0" encoding="UTF-8"?>\n<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">'
    (out / "sitemap.xml").write_text(f"{head}\n{listed}\n</urlset>\n", encoding="utf-8")
    (out / "robots.txt").write_text(
        f"User-agent: *\nAllow: /\nSitemap: {site}sitemap.xml\n", encoding="utf-8"
    )
    title = html.escape(app.config.html_title or app.config.project)
    (out / "404.html").write_text(LOST.format(title=title, site=site), encoding="utf-8")


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("html-page-context", describe_page, priority=800)
    app.connect("build-finished", write_site_files)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
