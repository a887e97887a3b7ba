"""Byte-level BPE over 4,096 tokens, and the one start token.

The rule of the start token: `<start>` (id 0) stands once, at the beginning of what a model reads,
put there by `encode(..., start=True)` or by the block builder of `pathsum.dataset`; it never
comes out of text. Text that spells `<start>` is encoded as the ordinary characters it is.

A tokenizer.json of GPT-2 (50,257 tokens) is read as well: its `<|endoftext|>` (id 50,256) is then
the start token, under the same rule.
"""

import argparse
import difflib
import json
from collections.abc import Iterable
from importlib import resources
from pathlib import Path

import tokenizers
import torch
from jaxtyping import Int
from tokenizers import decoders, models, pre_tokenizers, trainers
from torch import Tensor

from pathsum import corpus
from pathsum.files import write_atomically

D_VOCAB = 4096
START = "<start>"
GPT2_START = "<|endoftext|>"


def _byte_of_symbol() -> dict[str, int]:
    """The byte behind each of the 256 printable symbols that byte-level BPE writes bytes with.

    Printable Latin-1 bytes stand for themselves, the others are shifted past 255 in order (GPT-2).
    """
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [byte for byte in range(256) if byte not in printable]
    symbols = {chr(byte): byte for byte in printable}
    return symbols | {chr(256 + place): byte for place, byte in enumerate(rest)}


_BYTE = _byte_of_symbol()
_SYMBOL = {byte: symbol for symbol, byte in _BYTE.items()}
_VISIBLE = str.maketrans({" ": "·", "\n": "↵", "\t": "⇥", "\r": "␍"})


class Tokenizer:
    """Text to token ids and back; wraps a trained `tokenizers.Tokenizer`."""

    def __init__(self, inner: tokenizers.Tokenizer, file_text: str = ""):
        vocabulary = inner.get_vocab()
        starts = [name for name in (START, GPT2_START) if name in vocabulary]
        if not starts:
            raise ValueError(
                f"a tokenizer needs a start token, {START!r} or GPT-2's {GPT2_START!r}, and this "
                "one has neither: train one with python -m pathsum.tokenizer train NAME"
            )
        self.inner, self.start = inner, starts[0]
        inner.encode_special_tokens = True  # the start token's name in text is ordinary text
        self.file_text = file_text or inner.to_str()  # what a fingerprint of the ids hashes
        self.start_id = vocabulary.pop(self.start)
        self.d_vocab = inner.get_vocab_size()
        self.token_bytes = [b""] * self.d_vocab
        try:
            for token, place in vocabulary.items():
                self.token_bytes[place] = bytes(_BYTE[symbol] for symbol in token)
        except (KeyError, IndexError):
            raise ValueError(
                f"token {token!r} (id {place}) is no string of byte symbols with an id below the "
                f"{self.d_vocab} tokens: only byte-level BPE without gaps is read"
            ) from None

    def encode_many(self, texts: list[str]) -> list[list[int]]:
        """Ids of each text, without start tokens; uses all cores."""
        return [e.ids for e in self.inner.encode_batch_fast(texts, add_special_tokens=False)]

    def encode(self, text: str, start: bool = True) -> Int[Tensor, " pos"]:
        """Ids of a text, shape (pos,), int64; the start token first unless `start=False`."""
        ids = self.encode_many([text])[0]
        return torch.tensor([self.start_id] * start + ids, dtype=torch.long)

    def _ids(self, ids: Int[Tensor, "..."] | Iterable[int]) -> list[int]:
        plain = [int(i) for i in (ids.flatten().tolist() if isinstance(ids, Tensor) else ids)]
        wrong = [i for i in plain if not 0 <= i < self.d_vocab]
        if wrong:
            raise ValueError(f"token ids must lie in 0..{self.d_vocab - 1}, got {wrong[0]}")
        return plain

    def decode(self, ids: Int[Tensor, "..."] | Iterable[int]) -> str:
        """The text of ids; start tokens give nothing, bytes that are no UTF-8 give U+FFFD."""
        return b"".join(self.token_bytes[i] for i in self._ids(ids)).decode("utf-8", "replace")

    def token_strings(self, ids: Int[Tensor, "..."] | Iterable[int]) -> list[str]:
        """Printable form of each token.

        Space `·`, newline `↵`, tab `⇥`; bytes that are no whole character `0xNN`; the start token.
        """
        return [self._visible(i) for i in self._ids(ids)]

    def _visible(self, token: int) -> str:
        if token == self.start_id:
            return self.start
        raw = self.token_bytes[token]
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError:
            return "".join(chr(b) if 32 < b < 127 else f"0x{b:02X}" for b in raw)
        shown = text.translate(_VISIBLE)
        return "".join(c if c.isprintable() else "".join(f"0x{b:02X}" for b in c.encode())
                       for c in shown)  # fmt: skip

    def id_of(self, token_text: str) -> int:
        """The id of the token that spells exactly `token_text`; KeyError with near ones if none."""
        if token_text == self.start:
            return self.start_id
        symbols = "".join(_SYMBOL[b] for b in token_text.encode())
        found = self.inner.token_to_id(symbols)
        if found is None:
            texts = [t.decode("utf-8", "replace") for t in self.token_bytes]
            near = difflib.get_close_matches(token_text, texts, 3) or ["(none is near)"]
            split = " ".join(self.token_strings(self.encode(token_text, start=False)))
            raise KeyError(
                f"{token_text!r} is not one token but {split!r}; near ones: "
                f"{', '.join(map(repr, near))}. Mind the leading space."
            )
        return found


def load_tokenizer(path: Path | None = None) -> Tokenizer:
    """The shipped tokenizer, or the one in the file `path`; ValueError if it is no tokenizer."""
    file = Path(path) if path else resources.files("pathsum") / "data" / "tokenizer.json"
    text = file.read_text(encoding="utf-8")
    try:
        inner = tokenizers.Tokenizer.from_str(text)
    except Exception as error:
        raise ValueError(f"{file} is not a tokenizers file ({error}): train one anew") from error
    return Tokenizer(inner, text.strip())


def _byte_level(model: models.BPE) -> tokenizers.Tokenizer:
    inner = tokenizers.Tokenizer(model)
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    inner.decoder = decoders.ByteLevel()
    return inner


def train_tokenizer(texts: Iterable[str], d_vocab: int = D_VOCAB) -> Tokenizer:
    """A byte-level BPE tokenizer of `d_vocab` tokens learnt from texts; ids 1 to 256 are bytes."""
    inner = _byte_level(models.BPE())
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=d_vocab, special_tokens=[START], initial_alphabet=alphabet, show_progress=True
    )
    inner.train_from_iterator(texts, trainer)
    learnt = json.loads(inner.to_str())["model"]
    merges = [tuple(pair) for pair in learnt["merges"]]
    # A fresh model without added tokens: START is then a row of the table, not a pattern in text.
    return Tokenizer(_byte_level(models.BPE(vocab=learnt["vocab"], merges=merges)))


def save_tokenizer(tokenizer: Tokenizer, path: Path) -> None:
    """Write the tokenizer file, whole or not at all."""
    write_atomically(path, tokenizer.file_text + "\n")


def main(arguments: list[str] | None = None) -> None:
    """`python -m pathsum.tokenizer train NAME [--out FILE]`: learn a tokenizer from a corpus."""
    parser = argparse.ArgumentParser(prog="python -m pathsum.tokenizer", description=main.__doc__)
    parser.add_argument("action", choices=["train"])
    parser.add_argument("name")
    parser.add_argument("--out", type=Path, default=Path("tokenizer.json"))
    parser.add_argument("--d-vocab", type=int, default=D_VOCAB)
    given = parser.parse_args(arguments)
    train, _ = corpus.split(given.name)
    save_tokenizer(train_tokenizer((piece for _, piece in train), given.d_vocab), given.out)
    print(given.out)


if __name__ == "__main__":
    main()
