"""Bigram counts of the text that the shipped models were trained on, and a smoothed table."""

import argparse
import zlib
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int, Integer
from safetensors.torch import load, save
from torch import Tensor
from tqdm.auto import tqdm

from pathsum.dataset import blocks, encoded
from pathsum.files import moved_into_place
from pathsum.presets import PRESETS, TrainConfig, batch_indices

SHIPPED = resources.files("pathsum") / "data" / "bigrams.safetensors.z"  # compressed


@dataclass(frozen=True)
class BigramCounts:
    """How often each token followed each other one, as compressed rows."""

    starts: Int[Tensor, " rows_plus_1"]  # row a is entries starts[a] : starts[a + 1]
    following: Int[Tensor, " entries"]  # the second token of each pair seen
    counts: Int[Tensor, " entries"]  # how often it was seen, at least 1

    @property
    def d_vocab(self) -> int:
        return len(self.starts) - 1

    def row(self, token: int) -> Float[Tensor, " d_vocab"]:
        """Counts of every next token after `token`, dense. IndexError if there is no such id."""
        if not 0 <= token < self.d_vocab:
            raise IndexError(f"token ids lie in 0..{self.d_vocab - 1}, got {token}")
        dense = torch.zeros(self.d_vocab)
        part = slice(int(self.starts[token]), int(self.starts[token + 1]))
        dense[self.following[part].long()] = self.counts[part].float()
        return dense

    def totals(self) -> Float[Tensor, " d_vocab"]:
        """How often each token was followed by anything."""
        running = torch.cat([torch.zeros(1), self.counts.double().cumsum(0)])
        return (running[self.starts[1:].long()] - running[self.starts[:-1].long()]).float()


def count_bigrams(
    first: Integer[Tensor, " pairs"], second: Integer[Tensor, " pairs"], d_vocab: int
) -> BigramCounts:
    """Counts of the pairs (first[i], second[i])."""
    keys, counts = torch.unique(first.long() * d_vocab + second.long(), return_counts=True)
    starts = torch.searchsorted(keys, torch.arange(d_vocab + 1) * d_vocab)
    return BigramCounts(starts, keys % d_vocab, counts)


class KneserNey:
    """Interpolated Kneser-Ney probabilities of the next token, from bigram counts.

    p(b | a) = max(c(a, b) - D, 0) / c(a) + D t(a) / c(a) * q(b): t(a) is the number of different
    tokens seen after a, q(b) the share of different tokens seen before b (plus 0.01, so that no
    token is impossible), D = n1 / (n1 + 2 n2) from the numbers of pairs seen once and twice.
    Source: Ney, Essen and Kneser 1994; Chen and Goodman 1999, section 2.7.
    """

    def __init__(self, bigrams: BigramCounts) -> None:
        self.bigrams = bigrams
        once, twice = ((bigrams.counts == n).sum().item() for n in (1, 2))
        self.discount = once / (once + 2 * twice) if once else 0.5
        contexts = torch.bincount(bigrams.following.long(), minlength=bigrams.d_vocab) + 0.01
        self.continuation = contexts / contexts.sum()
        self.totals = bigrams.totals()
        self.kinds = bigrams.starts.diff().float()

    def row(self, token: int) -> Float[Tensor, " d_vocab"]:
        """p(. | token), summing to 1; the continuation shares after a token never seen."""
        total = self.totals[token]
        if total == 0:
            return self.continuation
        kept = (self.bigrams.row(token) - self.discount).clamp(min=0) / total
        return kept + self.discount * self.kinds[token] / total * self.continuation

    def losses(
        self, first: Int[Tensor, "batch pos"], second: Int[Tensor, "batch pos"]
    ) -> Float[Tensor, "batch pos"]:
        """-ln p(second | first) in nats, row by row of the table: no d_vocab x d_vocab array."""
        result = torch.empty(first.shape)
        for token in first.unique().tolist():
            here = first == token
            result[here] = -self.row(token)[second[here]].log()
        return result


def shipped_counts() -> BigramCounts:
    """Pairs that the `book` models were trained to predict, start token included."""
    tensors = load(zlib.decompress(SHIPPED.read_bytes()))
    return BigramCounts(tensors["starts"], tensors["following"].int(), tensors["counts"])


def training_counts(config: TrainConfig) -> BigramCounts:
    """Count the very blocks that a run with `config` reads (fetches the corpus if need be)."""
    data = encoded(config.data)
    n_ctx, n_blocks = config.model.n_ctx, len(data.train) // config.model.n_ctx
    firsts, seconds = [], []
    for step in tqdm(range(config.steps), desc="counting", unit=" steps"):
        x, y = blocks(data.train, n_ctx, batch_indices(step, n_blocks, config), data.start_id)
        firsts.append(x.flatten().to(torch.uint16))
        seconds.append(y.flatten().to(torch.uint16))
    return count_bigrams(torch.cat(firsts), torch.cat(seconds), config.model.d_vocab)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m pathsum.bigrams", description="Count the training text of a preset."
    )
    parser.add_argument("preset", choices=PRESETS)
    parser.add_argument("--out", type=Path, default=Path(str(SHIPPED)))
    options = parser.parse_args(arguments)
    counts = training_counts(PRESETS[options.preset])
    tensors = {
        "starts": counts.starts.int(),
        "following": torch.from_numpy(counts.following.numpy().astype(np.uint16)),
        "counts": counts.counts.int(),
    }
    with moved_into_place(options.out) as temporary:
        temporary.write_bytes(zlib.compress(save(tensors), level=9))
    print(f"{options.out}: {len(counts.counts):,} different pairs")


if __name__ == "__main__":
    main()
