"""Cleaned text on disk: one JSON-lines file per part, and a small record that vouches for it.

A part is written under a temporary name, moved, and only then gets its record; a file without a
fitting record is never read. Each line is `[document name, text]`.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import platformdirs
from tqdm import tqdm

from pathsum.cleaning import CLEANING, Document


class CorpusError(RuntimeError):
    """Text could not be had; the message says what came, what was expected and what to do."""


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


def file_sha256(path: Path) -> str:
    """The hexadecimal sha256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_part(folder: Path, name: str, source: str, documents: Iterable[Document]) -> None:
    """Write one part's documents and, last of all, the record that vouches for them.

    `source` says what the text was made from (a hash). CorpusError: no text, full disk.
    """
    with disk_full_explained(folder):
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
                    f"Part {name!r} holds no text: expected at least one document with "
                    "characters. Check the name (and the column), or choose another corpus."
                )
            record = {
                "source": source,
                "cleaning": CLEANING,
                "documents": count,
                "characters": characters,
                "bytes": os.path.getsize(temporary),
                "sha256": file_sha256(Path(temporary)),
            }
            (folder / f"{name}.json").unlink(missing_ok=True)
            os.replace(temporary, folder / f"{name}.jsonl")
            Path(temporary).write_text(json.dumps(record, indent=1), encoding="utf-8")
            os.replace(temporary, folder / f"{name}.json")
        finally:
            Path(temporary).unlink(missing_ok=True)


def part_record(folder: Path, name: str, source: str | None = None) -> dict | None:
    """The record of a complete part made from `source` by today's rules, else None."""
    try:
        record = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
        whole = (folder / f"{name}.jsonl").stat().st_size == record["bytes"]
        fits = record["cleaning"] == CLEANING and source in (None, record["source"])
        return record if whole and fits and len(record["sha256"]) == 64 else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def read_part(folder: Path, name: str) -> Iterator[Document]:
    """The documents of a complete part; CorpusError if the file is not the one that was written."""
    path, record = folder / f"{name}.jsonl", part_record(folder, name)
    if record is None or file_sha256(path) != record["sha256"]:
        raise CorpusError(
            f"{path} is not the file that its record describes: it was changed or cut short. "
            f"Delete the folder {folder} and fetch the corpus again."
        )
    with path.open(encoding="utf-8") as file:
        for line in file:
            title, text = json.loads(line)
            yield title, text
