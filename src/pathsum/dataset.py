"""Token ids on disk, and the blocks that models train on.

A block is `n_ctx` tokens; the model reads the start token and the block's first n_ctx - 1 tokens
and predicts the block. This is the only place besides `Tokenizer.encode` that puts a start token.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int, UInt16
from torch import Tensor
from tqdm import tqdm

from pathsum import corpus
from pathsum.store import file_sha256
from pathsum.tokenizer import Tokenizer, load_tokenizer


@dataclass(frozen=True)
class TokenData:
    """A corpus as token ids, without start tokens."""

    train: UInt16[np.ndarray, " train"]  # in shuffled pieces of about 20,000 characters
    heldout: UInt16[np.ndarray, " heldout"]  # whole documents that `train` holds nothing of
    fingerprint: str  # of text, cleaning, split and tokenizer
    counts: dict[str, dict[str, int]]  # part -> {"train": tokens, "heldout": tokens}
    start_id: int = 0  # what a model reads before a block


def _encode(
    tokenizer: Tokenizer, items: list[tuple[str, str]], label: str
) -> tuple[UInt16[np.ndarray, " tokens"], Counter[str]]:
    counts: Counter[str] = Counter()
    chunks = []
    with tqdm(total=len(items), desc=f"encoding {label}", unit=" pieces") as bar:
        for start in range(0, len(items), 256):
            batch = items[start : start + 256]
            ids = tokenizer.encode_many([text for _, text in batch])
            for (part, _), piece in zip(batch, ids, strict=True):
                counts[part] += len(piece)
                chunks.append(np.array(piece, dtype=np.uint16))
            bar.update(len(batch))
    return np.concatenate(chunks) if chunks else np.empty(0, np.uint16), counts


def fingerprint(name: str, cache: Path | None = None, tokenizer: Tokenizer | None = None) -> str:
    """A hash of everything that decides the ids: the text, how it was cleaned, cut and encoded."""
    tokenizer = tokenizer or load_tokenizer()
    ingredients = [
        corpus.text_fingerprint(name, cache),
        f"{corpus.PIECE} {corpus.HELD_OUT} {corpus.SPLIT_SEED}",
        tokenizer.file_text,
    ]
    return hashlib.sha256("\n".join(ingredients).encode()).hexdigest()


def encoded(
    name: str, cache: Path | None = None, tokenizer: Tokenizer | None = None
) -> TokenData:
    """The corpus as token ids: encoded once, kept in the cache folder, read through memory maps.

    By the shipped tokenizer unless another is given (at most 65,536 tokens: ids are uint16).

    CorpusError if the text cannot be had. Files are compared with the sizes and hashes of their
    record; a folder cut short or changed is not read but made again.
    """
    tokenizer = tokenizer or load_tokenizer()
    mark = fingerprint(name, cache, tokenizer)
    base = corpus.cache_folder(cache) / "tokens"
    folder = base / f"{re.sub(r'[^A-Za-z0-9._-]+', '_', name)[-60:]}-{mark[:16]}"
    if not _whole(folder):
        train, held = corpus.split(name, cache)
        train_ids, train_counts = _encode(tokenizer, train, "train")
        held_ids, held_counts = _encode(tokenizer, [(p, t) for p, _, t in held], "held-out")
        counts = {p: {"train": train_counts[p], "heldout": held_counts[p]} for p in train_counts}
        with corpus.disk_full_explained(base):
            base.mkdir(parents=True, exist_ok=True)
            temporary = Path(tempfile.mkdtemp(dir=base, prefix=".writing-"))
            try:
                train_ids.tofile(temporary / "train.u16")
                held_ids.tofile(temporary / "heldout.u16")
                record = {"name": name, "fingerprint": mark, "counts": counts}
                for side in ("train", "heldout"):
                    file = temporary / f"{side}.u16"
                    record[side] = {"bytes": file.stat().st_size, "sha256": file_sha256(file)}
                (temporary / "record.json").write_text(json.dumps(record, indent=1))
                if not _whole(folder):  # unless another process was faster
                    shutil.rmtree(folder, ignore_errors=True)
                    os.replace(temporary, folder)
            finally:
                shutil.rmtree(temporary, ignore_errors=True)
    record = json.loads((folder / "record.json").read_text())
    train, heldout = (_map(folder / f"{side}.u16") for side in ("train", "heldout"))
    return TokenData(train, heldout, mark, record["counts"], tokenizer.start_id)


def _whole(folder: Path) -> bool:
    try:
        record = json.loads((folder / "record.json").read_text())
        return all(
            (folder / f"{side}.u16").stat().st_size == record[side]["bytes"]
            and file_sha256(folder / f"{side}.u16") == record[side]["sha256"]
            for side in ("train", "heldout")
        )
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _map(path: Path) -> UInt16[np.ndarray, " tokens"]:
    if path.stat().st_size == 0:
        return np.empty(0, np.uint16)
    return np.memmap(path, dtype=np.uint16, mode="r")


def blocks(
    tokens: UInt16[np.ndarray, " tokens"],
    n_ctx: int,
    indices: Int[np.ndarray, " batch"] | Int[Tensor, " batch"] | list[int],
    start_id: int = 0,
) -> tuple[Int[Tensor, "batch n_ctx"], Int[Tensor, "batch n_ctx"]]:
    """Inputs and targets of the blocks numbered `indices`, both (batch, n_ctx), int64.

    Block i is tokens[i * n_ctx : (i + 1) * n_ctx]; targets are the block, inputs the start token
    and all of the block but its last token. IndexError if there is no such block.
    """
    indices = np.asarray(indices)
    n_blocks = len(tokens) // n_ctx
    if indices.size and not (0 <= indices.min() and indices.max() < n_blocks):
        raise IndexError(
            f"block numbers must lie in 0..{n_blocks - 1} ({len(tokens)} tokens in blocks of "
            f"{n_ctx}), got {indices.min()}..{indices.max()}"
        )
    rows = indices.reshape(-1, 1) * n_ctx + np.arange(n_ctx)
    targets = torch.from_numpy(np.asarray(tokens[rows]).astype(np.int64))
    inputs = torch.cat([torch.full_like(targets[:, :1], start_id), targets[:, :-1]], dim=1)
    return inputs, targets


def shipped_choice(
    held: list[tuple[str, str, str]], share: float = 0.48
) -> list[tuple[str, str, str]]:
    """The held-out documents to ship: of each part, in order, about `share` of its characters."""
    total: Counter[str] = Counter()
    for part, _, text in held:
        total[part] += len(text)
    taken: Counter[str] = Counter()
    chosen = []
    for part, title, text in held:
        if taken[part] + len(text) <= share * total[part] or not taken[part]:
            taken[part] += len(text)
            chosen.append((part, title, text))
    return chosen


def heldout_documents() -> list[tuple[str, str, str]]:
    """`(part, title, text)` of the held-out documents of `wiki-code` that the package ships."""
    file = resources.files("pathsum") / "data" / "heldout.jsonl"
    return [tuple(json.loads(line)) for line in file.read_text(encoding="utf-8").splitlines()]


def heldout_sample(
    n_ctx: int = 256,
) -> tuple[Int[Tensor, "blocks n_ctx"], Int[Tensor, "blocks n_ctx"]]:
    """All whole blocks of the shipped held-out text as (inputs, targets), each (blocks, n_ctx)."""
    tokenizer = load_tokenizer()
    ids = tokenizer.encode_many([text for _, _, text in heldout_documents()])
    tokens = np.concatenate([np.array(document, dtype=np.uint16) for document in ids])
    return blocks(tokens, n_ctx, np.arange(len(tokens) // n_ctx), tokenizer.start_id)


def main(arguments: list[str] | None = None) -> None:
    """Encode a corpus into the cache (`encode NAME`) or print the held-out text that ships
    (`heldout`, JSON lines of part, title and text)."""
    parser = argparse.ArgumentParser(prog="python -m pathsum.dataset", description=main.__doc__)
    parser.add_argument("action", choices=["encode", "heldout"])
    parser.add_argument("name", nargs="?", default="wiki-code")
    parser.add_argument("--cache", type=Path, help="folder for text and ids (default: user cache)")
    given = parser.parse_args(arguments)
    try:
        if given.action == "heldout":
            for document in shipped_choice(corpus.split(given.name, given.cache)[1]):
                print(json.dumps(document, ensure_ascii=False))
            return
        data = encoded(given.name, given.cache)
    except corpus.CorpusError as error:
        sys.exit(f"error: {error}")
    print(f"{data.train.size:,} tokens to train on, {data.heldout.size:,} held out")
    for part, count in data.counts.items():
        print(f"  {part:<14} {count['train']:>12,} {count['heldout']:>10,}")


if __name__ == "__main__":
    main()
