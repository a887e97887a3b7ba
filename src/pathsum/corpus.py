"""Real text to train and test on: the sample in the package, and mixtures fetched when asked for.

`documents(name)` yields the documents of `"sample"` (in the package), of a mixture such as
`"wiki-code"`, of a text file (`"file:PATH"`) or of a Hugging Face data set (`"hf:NAME[:column]"`).
Only `fetch` uses the network: it asks pip for pinned files, compares their hashes, cleans them and
keeps the text in the user's cache folder, one file per part, written under a temporary name first.
"""

from __future__ import annotations

import argparse
import difflib
import errno
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import platformdirs
from tqdm import tqdm

from pathsum.cleaning import (
    CLEANING,
    Document,
    api_descriptions,
    python_sources,
    wikipedia_articles,
)

PIECE = 20_000  # characters: long documents are cut near this length before shuffling
HELD_OUT = 0.015  # share of each part's characters that no model trains on
SPLIT_SEED = 20_000


class CorpusError(RuntimeError):
    """Text could not be had; the message says what came, what was expected and what to do."""


@dataclass(frozen=True)
class Part:
    """One pinned file of the package index and how its text is taken out."""

    package: str
    version: str
    file: str  # the file's exact name
    sha256: str
    size: int  # bytes to download
    kind: str  # "prose", "code" or "documentation"
    licence: str
    holder: str  # whom the licence asks to be named
    extract: Callable[[Path], Iterable[Document]]


@dataclass(frozen=True)
class Corpus:
    """A named mixture of parts."""

    about: str
    parts: tuple[Part, ...]


def _code(package: str, version: str, sha256: str, size: int, licence: str, holder: str,
          limit: int = 10**9) -> Part:
    return Part(package, version, f"{package}-{version}-py3-none-any.whl", sha256, size, "code",
                licence, holder, lambda path: python_sources(path, limit))


WIKI_CODE = Corpus(
    "encyclopedia prose (61%), Python code (28%) and API descriptions (11%), about 106 MB",
    (
        Part(
            "mingru-pytorch", "0.2.1", "mingru_pytorch-0.2.1.tar.gz",
            "fc9b278b4e04db930a5cd4cdab36e2713b1d6e14084269b161d4f133819e758d", 36_568_913,
            "prose", "CC BY-SA 3.0 and GFDL (text); MIT (package)",
            "Wikipedia contributors, March 2006 (the first 10^8 bytes: enwik8)",
            lambda path: wikipedia_articles(path, "mingru_pytorch-0.2.1/data/enwik8.gz"),
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
            "botocore", "1.44.8", "botocore-1.44.8-py3-none-any.whl",
            "76342a76c338701db80dcb8afe1c9bd079283d6fffbb9d881442abb02a215043", 16_884_815,
            "documentation", "Apache-2.0", "Amazon.com, Inc. or its affiliates",
            lambda path: api_descriptions(path, 12_000_000),
        ),
    ),
)  # fmt: skip

CORPORA: dict[str, Corpus] = {"wiki-code": WIKI_CODE}


def cache_folder(cache: Path | None = None) -> Path:
    """Where fetched text lies: `cache`, or the user's cache folder for this package."""
    return Path(cache) if cache is not None else Path(platformdirs.user_cache_dir("pathsum"))


@contextmanager
def disk_full_explained(folder: Path) -> Iterator[None]:
    """Turn the system's "no space left" into a CorpusError that names the folder."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        raise CorpusError(
            f"The disk that holds {folder} is full: what was being written is not kept. Free about "
            "500 MB, or give another folder with --cache or cache=, and try again."
        ) from error


def _pip_download(part: Part, folder: Path) -> None:
    """Let pip put the part's file into `folder`; CorpusError with pip's last words if it cannot."""
    wheel = part.file.endswith(".whl")
    kind = ["--only-binary", ":all:", "--platform", "any", "--implementation", "py", "--abi",
            "none", "--python-version", "3.11"] if wheel else ["--no-binary", part.package]  # fmt: skip
    command = [sys.executable, "-m", "pip", "download", "--no-deps",
               "--disable-pip-version-check", *kind, "--dest", str(folder),
               f"{part.package}=={part.version}"]  # fmt: skip
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        words = " ".join(done.stderr.split())[-400:]
        missing = "No module named pip" in done.stderr
        raise CorpusError(
            f"{part.package}=={part.version} could not be downloaded: pip ended with status "
            f"{done.returncode} ({words}). "
            + (
                f"Give this Python a pip ('{sys.executable} -m ensurepip') and run fetch again."
                if missing
                else "Check the network (or the package index that pip is set to) and run fetch "
                "again: parts already fetched are kept. Offline, use the corpus 'sample'."
            )
        )


def _file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write_part(folder: Path, name: str, source: str, documents: Iterable[Document]) -> None:
    """Write one part's documents as JSON lines and, last of all, the record that vouches for them."""
    folder.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=folder, prefix=f".{name}-", suffix=".tmp")
    try:
        count = characters = 0
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            for document in tqdm(documents, desc=f"cleaning {name}", unit=" documents"):
                file.write(json.dumps(document, ensure_ascii=False) + "\n")
                count, characters = count + 1, characters + len(document[1])
        if not characters:
            raise CorpusError(
                f"Part {name!r} holds no text: expected at least one document with characters. "
                "Check the name (and the column), or choose another corpus."
            )
        record = {
            "source": source,
            "cleaning": CLEANING,
            "documents": count,
            "characters": characters,
            "bytes": os.path.getsize(temporary),
            "sha256": _file_sha256(Path(temporary)),
        }
        os.replace(temporary, folder / f"{name}.jsonl")
        note = Path(temporary).with_suffix(".json")
        note.write_text(json.dumps(record, indent=1), encoding="utf-8")
        os.replace(note, folder / f"{name}.json")
    finally:
        Path(temporary).unlink(missing_ok=True)
        Path(temporary).with_suffix(".json").unlink(missing_ok=True)


def _record(folder: Path, name: str, source: str | None = None) -> dict | None:
    """The record of a complete part made from `source` by today's rules, else None."""
    try:
        record = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
        whole = (folder / f"{name}.jsonl").stat().st_size == record["bytes"]
    except (OSError, ValueError, KeyError):
        return None
    fits = record.get("cleaning") == CLEANING and source in (None, record.get("source"))
    return record if whole and fits else None


def fetch(
    name: str,
    cache: Path | None = None,
    download: Callable[[Part, Path], None] = _pip_download,
) -> Path:
    """The folder with the mixture's cleaned text, downloaded part by part if it is not there yet.

    Prints sizes and licences before anything is downloaded. `download(part, folder)` puts the
    part's file into `folder`. CorpusError: unknown name, no network, wrong hash, full disk.
    """
    corpus = _corpus(name)
    folder = cache_folder(cache) / "corpora" / name
    missing = [p for p in corpus.parts if _record(folder, p.package, p.sha256) is None]
    if missing:
        print(describe(name), file=sys.stderr)
        total = sum(part.size for part in missing)
        print(f"{len(missing)} files to download, {total / 1e6:.1f} MB", file=sys.stderr)
    for part in missing:
        with tempfile.TemporaryDirectory(prefix="pathsum-") as scratch:
            download(part, Path(scratch))
            file = Path(scratch) / part.file
            if not file.exists():
                came = sorted(p.name for p in Path(scratch).iterdir())
                raise CorpusError(
                    f"{part.package}=={part.version}: expected the file {part.file}, came {came}. "
                    "The package index may offer other files: run fetch again with pip's usual one."
                )
            given = _file_sha256(file)
            if given != part.sha256:
                raise CorpusError(
                    f"{part.file} has the sha256 {given} ({file.stat().st_size} bytes), expected "
                    f"{part.sha256} ({part.size} bytes): the download was cut short or the file is "
                    "another one, so it was thrown away. Run fetch again."
                )
            with disk_full_explained(folder):
                _write_part(folder, part.package, part.sha256, part.extract(file))
    return folder


def _corpus(name: str) -> Corpus:
    if name not in CORPORA:
        names = [*CORPORA, "sample", "file:PATH", "hf:NAME"]
        near = difflib.get_close_matches(name, names, 1)
        hint = f"Did you mean {near[0]!r}? " if near else ""
        raise CorpusError(f"No corpus is called {name!r}. {hint}There are: {', '.join(names)}.")
    return CORPORA[name]


def describe(name: str) -> str:
    """A table of the mixture's parts: package, kind, megabytes to download, licence, holder."""
    corpus = _corpus(name)
    rows = [f"{name}: {corpus.about}"]
    for p in corpus.parts:
        rows.append(f"  {p.package + '==' + p.version:<23} {p.kind:<14} {p.size / 1e6:5.1f} MB  "
                    f"{p.licence}, {p.holder}")  # fmt: skip
    return "\n".join(rows)


def _read_part(folder: Path, part: str, name: str) -> Iterator[Document]:
    path, record = folder / f"{part}.jsonl", _record(folder, part)
    if record is None or _file_sha256(path) != record["sha256"]:
        raise CorpusError(
            f"{path} is not the file that its record describes: it was changed or cut short. "
            f"Delete the folder {folder} and fetch {name!r} again."
        )
    with path.open(encoding="utf-8") as file:
        for line in file:
            yield tuple(json.loads(line))


def named_documents(name: str, cache: Path | None = None) -> Iterator[tuple[str, str, str]]:
    """`(part, document name, text)` of every document of a corpus, in a fixed order."""
    folder = fetch(name, cache)
    for part in _corpus(name).parts:
        for title, text in _read_part(folder, part.package, name):
            yield part.package, title, text


def documents(name: str, cache: Path | None = None) -> Iterator[tuple[str, str]]:
    """`(part, text)` of every document of a corpus, in a fixed order; see the module's first lines."""
    for part, _, text in named_documents(name, cache):
        yield part, text


def text_fingerprint(name: str, cache: Path | None = None) -> str:
    """A hash of the corpus's text as it lies in the cache (fetched first if it is not there)."""
    folder = fetch(name, cache)
    records = (_record(folder, part.package) for part in _corpus(name).parts)
    return hashlib.sha256("".join(r["sha256"] for r in records).encode()).hexdigest()


def pieces(text: str, length: int = PIECE) -> Iterator[str]:
    """The text cut after line ends into pieces of about `length` characters; joined, it is whole."""
    start = 0
    while start < len(text):
        end = len(text) if len(text) - start <= length * 1.5 else start + length
        newline = text.find("\n", end)
        end = end if end == len(text) else newline + 1 if 0 <= newline < end + length else end
        yield text[start:end]
        start = end


def split(
    name: str, cache: Path | None = None
) -> tuple[list[tuple[str, str]], list[tuple[str, str, str]]]:
    """Shuffled `(part, piece)` to train on, and held-out `(part, title, text)` documents.

    Whole documents are held out: of each part, shuffled, documents from the end until 1.5% of its
    characters are reached, leaving out any that would exceed 2%; of a one-document part, pieces.
    """
    by_part: dict[str, list[tuple[str, str]]] = {}
    for part, title, text in named_documents(name, cache):
        by_part.setdefault(part, []).append((title, text))
    train, held = [], []
    for part, whole in by_part.items():
        if len(whole) == 1:
            title, text = whole[0]
            whole = [(title, piece) for piece in pieces(text, min(PIECE, len(text) // 50 + 1))]
        random.Random(SPLIT_SEED).shuffle(whole)
        total, taken = sum(len(text) for _, text in whole), 0
        for title, text in reversed(whole):
            if taken < HELD_OUT * total and taken + len(text) <= 0.02 * total:
                taken += len(text)
                held.append((part, title, text))
            else:
                train += [(part, piece) for piece in pieces(text)]
    random.Random(SPLIT_SEED).shuffle(train)
    random.Random(SPLIT_SEED).shuffle(held)
    return train, held


def main(arguments: list[str] | None = None) -> None:
    """`python -m pathsum.corpus fetch NAME [--cache FOLDER]` and `... list`."""
    parser = argparse.ArgumentParser(prog="python -m pathsum.corpus", description=main.__doc__)
    parser.add_argument("action", choices=["fetch", "list"])
    parser.add_argument("name", nargs="?")
    parser.add_argument("--cache", type=Path, help="folder for the text (default: user cache)")
    given = parser.parse_args(arguments)
    if given.action == "list":
        print("\n".join(describe(name) for name in CORPORA))
    elif given.name is None:
        parser.error(f"fetch needs a NAME, one of {', '.join(CORPORA)}")
    else:
        try:
            print(fetch(given.name, given.cache))
        except CorpusError as error:
            sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
