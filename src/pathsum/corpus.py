"""Real text to train and test on: the sample in the package, and mixtures fetched when asked for.

Names: `"sample"` (in the package, public domain), a mixture such as `"wiki-code"`, a text file
(`"file:PATH"`), a Hugging Face data set (`"hf:NAME[@CONFIG][:COLUMN][#MILLIONS]"`, 200 million
characters unless another number is given). Only `fetch` uses the network. `split` holds documents out before anything is cut or shuffled.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import sys
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

from pathsum.fetching import fetch
from pathsum.mixtures import CORPORA, describe, mixture
from pathsum.store import CorpusError, cache_folder, disk_full_explained, part_record, read_part

__all__ = [
    "CORPORA", "CorpusError", "cache_folder", "describe", "disk_full_explained", "documents",
    "fetch", "named_documents", "pieces", "split", "text_fingerprint",
]  # fmt: skip

PIECE = 20_000  # characters: long documents are cut near this length before shuffling
HELD_OUT = 0.015  # share of each part's characters that no model trains on
SPLIT_SEED = 20_000


def _sample_bytes() -> bytes:
    return (resources.files("pathsum") / "data" / "sample.txt").read_bytes()


def _sample_documents() -> Iterator[tuple[str, str, str]]:
    """Documents of data/sample.txt: each begins with a form feed and a line `part: title`."""
    for document in _sample_bytes().decode("utf-8").split("\f")[1:]:
        head, text = document.split("\n", 1)
        part, title = head.split(": ", 1)
        yield part, title, text


def _file_bytes(name: str) -> bytes:
    path = Path(name.removeprefix("file:")).expanduser()
    try:
        return path.read_bytes()
    except OSError as error:
        what = "a folder" if path.is_dir() else error.strerror
        raise CorpusError(
            f"{str(path)!r} cannot be read ({what}): expected a text file in UTF-8. Check the "
            f"path; a relative one starts at {str(Path.cwd())!r}."
        ) from error


def _file_text(name: str) -> str:
    content = _file_bytes(name)
    try:
        text = content.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise CorpusError(
            f"{name!r} is not UTF-8: byte 0x{content[error.start]:02X} at offset {error.start} "
            "cannot stand there. Save the file as UTF-8 (for example: iconv -f LATIN1 -t UTF-8)."
        ) from error
    if not text.strip():
        raise CorpusError(
            f"{name!r} is empty ({len(content)} bytes, no visible character): expected text, a "
            "megabyte or more if a model is to learn from it. Check that it is the right file."
        )
    return text


def named_documents(name: str, cache: Path | None = None) -> Iterator[tuple[str, str, str]]:
    """`(part, document name, text)` of every document of a corpus, in a fixed order."""
    if name == "sample":
        yield from _sample_documents()
    elif name.startswith("file:"):
        yield "file", name.removeprefix("file:"), _file_text(name)
    else:
        folder = fetch(name, cache)
        for part in _part_names(name):
            for title, text in read_part(folder, part):
                yield part, title, text


def _part_names(name: str) -> list[str]:
    return ["text"] if name.startswith("hf:") else [part.name for part in mixture(name).parts]


def documents(name: str, cache: Path | None = None) -> Iterator[tuple[str, str]]:
    """`(part, text)` of every document of a corpus, in a fixed order; names as above."""
    for part, _, text in named_documents(name, cache):
        yield part, text


def text_fingerprint(name: str, cache: Path | None = None) -> str:
    """A hash of the corpus's cleaned text (fetched first if it is not in the cache)."""
    if name == "sample":
        return hashlib.sha256(_sample_bytes()).hexdigest()
    if name.startswith("file:"):
        return hashlib.sha256(_file_text(name).encode()).hexdigest()
    folder = fetch(name, cache)
    records = (part_record(folder, part) for part in _part_names(name))
    return hashlib.sha256("".join(r["sha256"] for r in records if r).encode()).hexdigest()


def pieces(text: str, length: int = PIECE) -> Iterator[str]:
    """The text cut after line ends into pieces of about `length` characters; joined, it is whole.

    No piece is longer than twice `length`: a line that is, is cut in the middle.
    """
    start = 0
    while start < len(text):
        end = len(text) if len(text) - start <= length * 1.5 else start + length
        newline = text.find("\n", end)
        if end < len(text) and 0 <= newline < end + length:
            end = newline + 1
        yield text[start:end]
        start = end


def split(
    name: str, cache: Path | None = None
) -> tuple[list[tuple[str, str]], list[tuple[str, str, str]]]:
    """Shuffled `(part, piece)` to train on, and held-out `(part, title, text)` documents.

    Whole documents are held out: of each part, shuffled, documents from the end until 1.5% of its
    characters are reached, passing over any that would exceed 2% (if all would, the shortest is
    taken). A part that is one single document is cut into pieces first.
    """
    by_part: dict[str, list[tuple[str, str]]] = {}
    for part, title, text in named_documents(name, cache):
        by_part.setdefault(part, []).append((title, text))
    train, held = [], []
    for part, whole in by_part.items():
        if len(whole) == 1:
            title, text = whole[0]
            length = min(PIECE, max(200, len(text) // 100))
            whole = [(title, piece) for piece in pieces(text, length)]
        random.Random(SPLIT_SEED).shuffle(whole)
        chosen = _held_out([len(text) for _, text in whole])
        for number, (title, text) in reversed(list(enumerate(whole))):
            if number in chosen:
                held.append((part, title, text))
            else:
                train += [(part, piece) for piece in pieces(text)]
    random.Random(SPLIT_SEED).shuffle(train)
    random.Random(SPLIT_SEED).shuffle(held)
    return train, held


def _held_out(lengths: list[int]) -> set[int]:
    total, taken, chosen = sum(lengths), 0, set()
    for number in reversed(range(len(lengths))):
        if taken < HELD_OUT * total and taken + lengths[number] <= 0.02 * total:
            taken += lengths[number]
            chosen.add(number)
    if not chosen and len(lengths) > 1:
        chosen = {min(range(len(lengths)), key=lengths.__getitem__)}
    return chosen


def main(arguments: list[str] | None = None) -> None:
    """Fetch a corpus into the cache (`fetch NAME`) or list mixtures with licences (`list`)."""
    parser = argparse.ArgumentParser(prog="python -m pathsum.corpus", description=main.__doc__)
    parser.add_argument("action", choices=["fetch", "list"])
    parser.add_argument("name", nargs="?")
    parser.add_argument("--cache", type=Path, help="folder for the text (default: user cache)")
    given = parser.parse_args(arguments)
    if given.action == "list":
        print("\n".join(describe(name) for name in CORPORA))
    elif given.name is None:
        parser.error(f"fetch needs a NAME, one of {', '.join(CORPORA)}, or hf:NAME")
    else:
        try:
            if given.name == "sample" or given.name.startswith("file:"):
                count = sum(1 for _ in named_documents(given.name))
                print(f"{given.name} is here already: {count} documents, nothing to fetch")
            else:
                print(fetch(given.name, given.cache))
        except CorpusError as error:
            sys.exit(f"error: {error}")
        except KeyboardInterrupt:
            sys.exit("error: interrupted; finished parts are kept, run the same command to go on")


if __name__ == "__main__":
    main()
