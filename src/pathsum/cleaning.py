"""Clean text out of downloaded package files: encyclopedia prose, Python code, API descriptions.

Each extractor takes the path of one package file and yields `(document name, text)`, always in the
same order. `CLEANING` counts the rules' versions: a cache made by other rules is built again.
"""

from __future__ import annotations

import gzip
import hashlib
import html
import json
import re
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

CLEANING = 1

Document = tuple[str, str]

_PAGE = re.compile(r"<title>([^<]*)</title>.*?<text[^>]*>(.*?)</text>", re.DOTALL)
_NAMESPACE = re.compile(
    r"(wikipedia|category|template|image|user|talk|mediawiki|portal|help)( talk)?:", re.IGNORECASE
)
_HIDDEN = re.compile(
    r"<!--.*?-->|<ref[^>]*/>|<(ref|math|gallery|timeline|table|pre|div|center|hiero)\b.*?</\1>",
    re.DOTALL | re.IGNORECASE,
)
_TEMPLATE = re.compile(r"\{\{[^{}]*\}\}")
_TABLE = re.compile(r"\{\|(?:(?!\{\|).)*?\|\}", re.DOTALL)
_LINK = re.compile(r"\[\[([^\[\]]*)\]\]")
_NOT_PROSE = re.compile(
    r"(image|file|media|category|template|wiktionary|wikisource|simple|[a-z]{2,3}(-[a-z-]+)?)\s*:",
    re.IGNORECASE,
)
_WEB_LABELLED = re.compile(r"\[(?:https?|ftp)://[^\s\]]+\s+([^\]]*)\]")
_WEB = re.compile(r"\[?(?:https?|ftp)://[^\s\]]+\]?")
_TAG = re.compile(r"<[a-zA-Z/][^<>]{0,200}>")
_HEADING = re.compile(r"\s*(=+)\s*(.*?)\s*=+\s*$")
_BACK_MATTER = re.compile(
    r"(see also|external links?|references?|bibliography|further reading|notes|sources|"
    r"footnotes|discography|filmography)$",
    re.IGNORECASE,
)
_EMPTY_BRACKETS = re.compile(r" ?\([\s,;:]*\)")
_SPACE_BEFORE_STOP = re.compile(r" +([,.;:])(?=\s|$)")
_SHORTEST_LINE, _SHORTEST_LIST_LINE, _SHORTEST_ARTICLE = 20, 60, 200


def _link_text(match: re.Match[str]) -> str:
    body = match.group(1)
    return "" if _NOT_PROSE.match(body) else body.rsplit("|", 1)[-1]


def article_prose(wikitext: str) -> str:
    """The prose of one article's wikitext: no markup, headings, tables, notes or list stubs.

    Source: MediaWiki's own markup rules, as articles of 2006 use them.
    """
    text = _HIDDEN.sub("", html.unescape(wikitext))
    for pattern in (_TEMPLATE, _TABLE):  # innermost first, until nothing is nested any more
        found = 1
        while found:
            text, found = pattern.subn("", text)
    for _ in range(3):  # a picture's caption holds links: those first, then the picture
        text = _LINK.sub(_link_text, text)
    text = _WEB.sub("", _WEB_LABELLED.sub(r"\1", text))
    text = html.unescape(_TAG.sub("", re.sub(r"'{2,}", "", text)))
    lines, skipping = [], False
    for line in text.replace("\u00a0", " ").splitlines():
        heading = _HEADING.match(line)
        if heading:
            skipping = bool(_BACK_MATTER.match(heading.group(2)))
            continue
        is_list = line[:1] in "*#:;" if line else False
        line = _EMPTY_BRACKETS.sub("", line.lstrip("*#:; ").strip())
        line = _SPACE_BEFORE_STOP.sub(r"\1", re.sub(r"[ \t]+", " ", line))
        shortest = _SHORTEST_LIST_LINE if is_list else _SHORTEST_LINE
        if not skipping and len(line) >= shortest and line[0] not in "|!{}<" and "[[" not in line:
            lines.append(line)
    return "\n\n".join(lines)


def wikipedia_articles(path: Path, member: str) -> Iterator[Document]:
    """Articles of a gzipped MediaWiki export inside a tar file: title, a blank line, prose."""
    with tarfile.open(path) as archive:
        packed = archive.extractfile(member)
        if packed is None:
            raise KeyError(f"{member} is not a file in {path.name}")
        export = gzip.decompress(packed.read()).decode("utf-8", errors="replace")
    for page in _PAGE.finditer(export):
        title, wikitext = html.unescape(page.group(1)), page.group(2)
        if _NAMESPACE.match(title) or wikitext.lstrip()[:9].lower() == "#redirect":
            continue
        prose = article_prose(html.unescape(wikitext))
        if len(prose) >= _SHORTEST_ARTICLE:
            yield title, f"{title}\n\n{prose}\n"


def _order(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()


_NOT_SOURCE = re.compile(r"(^|/)(tests?|testing|locale|migrations|_vendor)/|(^|/)(test_|conftest)")
_GENERATED = re.compile(
    r"generated (by|from|using|with|on)|auto-?generated|do not (edit|modify)|don't edit",
    re.IGNORECASE,
)


def is_ordinary_code(source: str) -> bool:
    """Whether a source file was plausibly written by hand: no tables, generator or long lines."""
    if not 400 <= len(source) <= 120_000 or _GENERATED.search(source[:1500]):
        return False
    if max(map(len, source.splitlines())) > 160:
        return False
    digits = sum(source.count(digit) for digit in "0123456789")
    return digits < 0.06 * len(source)


def python_sources(path: Path, limit: int) -> Iterator[Document]:
    """Hand-written Python files of a wheel, at most `limit` bytes, in an order drawn by hashing."""
    seen, total = set(), 0
    with zipfile.ZipFile(path) as wheel:
        names = [n for n in wheel.namelist() if n.endswith(".py") and not _NOT_SOURCE.search(n)]
        for name in sorted(names, key=_order):
            try:
                source = wheel.read(name).decode("utf-8")
            except UnicodeDecodeError:
                continue
            source = source.replace("\r\n", "\n").strip("\n") + "\n"
            if source in seen or not is_ordinary_code(source):
                continue
            total += len(source.encode())
            if total > limit:
                return
            seen.add(source)
            yield name, source


_BLOCK_TAG = re.compile(
    r"</?(p|li|ul|ol|dl|dt|dd|br|note|important|h\d|div|table|tr|pre)\b[^>]*>", re.IGNORECASE
)


def _documentation(node: object) -> Iterator[str]:
    if isinstance(node, dict):
        for key, value in node.items():
            if key == "documentation" and isinstance(value, str):
                yield value
            else:
                yield from _documentation(value)
    elif isinstance(node, list):
        for value in node:
            yield from _documentation(value)


def description_lines(markup: str) -> list[str]:
    """The lines of one HTML description, tags stripped, at least 30 characters each."""
    text = html.unescape(re.sub(r"<[^<>]*>", "", _BLOCK_TAG.sub("\n", markup)))
    lines = (re.sub(r"\s+", " ", line).strip() for line in text.splitlines())
    return [line for line in lines if len(line) >= 30]


def api_descriptions(path: Path, limit: int) -> Iterator[Document]:
    """One document per service of botocore: its descriptions, no line twice, to `limit` bytes."""
    seen: set[str] = set()
    total = 0
    with zipfile.ZipFile(path) as wheel:
        latest: dict[str, str] = {}
        for name in sorted(wheel.namelist()):
            match = re.fullmatch(r"botocore/data/([^/]+)/[^/]+/service-2\.json\.gz", name)
            if match:
                latest[match.group(1)] = name
        for service in sorted(latest, key=_order):
            model = json.loads(gzip.decompress(wheel.read(latest[service])))
            lines = []
            for markup in _documentation(model):
                for line in description_lines(markup):
                    if line not in seen:
                        seen.add(line)
                        lines.append(line)
            text = "\n".join(lines) + "\n"
            if len(text) < 400:
                continue
            total += len(text.encode())
            if total > limit:
                return
            yield service, text
