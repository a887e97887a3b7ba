"""Files that are whole or not there: written under a temporary name beside their place, then moved."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def moved_into_place(path: Path) -> Iterator[Path]:
    """A name beside `path` to write to; what stands there afterwards becomes `path`.

    After an error nothing is left of it, and `path` is as it was. Missing folders are made.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_atomically(path: Path, text: str) -> None:
    """Write a text file in UTF-8 with `\\n` line ends, whole or not at all."""
    with moved_into_place(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")
