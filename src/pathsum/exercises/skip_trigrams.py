"""Checks for the exercises of the chapter on skip-trigrams."""

from typing import Any

import torch
from torch import Tensor

from pathsum.exercises.core import (
    ExerciseFailed,
    agree,
    call,
    check,
    described,
    number,
    sizes,
    tensor,
)
from pathsum.exercises.progress import generator


def _generator() -> torch.Generator:
    return generator(4)


@check("Exercise 5.1")
def check_centred(answer: Any) -> None:
    """centred(ov (source, output)) -> the same table with mean 0 along both axes."""
    g = _generator()
    for _ in range(2):
        rows, columns = sizes(2, g)
        base = torch.randn(rows, 1, generator=g) + torch.randn(columns, generator=g)
        ov = torch.randn(rows, columns, generator=g) + 3 * base + 1
        given = tensor(call(answer, ov), (rows, columns), "(source, output)")
        expected = ov.clone().double()
        for row in expected:
            row -= sum(row.tolist()) / columns
        for column in expected.mT:
            column -= sum(column.tolist()) / rows
        over_sources = ov - ov.mean(0)
        mistakes = {
            "what the head adds wherever it looks is still in: subtract the mean over sources": (
                ov - ov.mean(1, keepdim=True)
            ),
            "a constant that softmax ignores is still in: subtract the mean over outputs": over_sources,
            "the mean of the whole table is one number; each row and each column has its own": (
                ov - ov.mean()
            ),
            "the mean of the whole table is taken away twice; centre one axis, then the result along "
            "the other": ov - ov.mean(0) - ov.mean(1, keepdim=True),
            "only the mean is asked for, the scale should stay": expected / expected.std(),
        }
        agree(given, expected, "the centred table", mistakes)


@check("Exercise 5.2")
def check_distinct_pairs(answer: Any) -> None:
    """distinct_pairs(triples) -> number of different (source, out) among (source, dest, out)."""
    g = _generator()
    for _ in range(3):
        triples = [tuple(t) for t in torch.randint(0, 4, (30, 3), generator=g).tolist()]
        given = number(call(answer, list(triples)))
        found: list[tuple[int, int]] = []
        for source, _, out in triples:
            if (source, out) not in found:
                found.append((source, out))
        if given == len(found):
            continue
        counted = {
            len(triples): "every entry is counted; a pair counts once",
            len(set(triples)): "a pair is counted again for each destination; leave that out",
            len({(d, o) for _, d, o in triples}): "(destination, out) is a bigram; source and out",
            len(
                {(s, d) for s, d, _ in triples}
            ): "(source, destination) has no output; source and out",
        }
        expected = f"expected {len(found)} of {len(triples)}, given {given:g}"
        raise ExerciseFailed(f"{counted.get(int(given), 'the number is not right')}: {expected}")


def _seen(tokens: Tensor, source: int, own: bool = False) -> Tensor:
    seen = torch.zeros(tokens.shape, dtype=torch.bool)
    for b in range(tokens.shape[0]):
        for pos in range(tokens.shape[1]):
            before = tokens[b, : pos + own].tolist()
            seen[b, pos] = source in before
    return seen


def _between(gain: Tensor, seen: Tensor) -> float:
    with_source = [x for x, s in zip(gain.flatten().tolist(), seen.flatten()) if s]
    without = [x for x, s in zip(gain.flatten().tolist(), seen.flatten()) if not s]
    return sum(with_source) / len(with_source) - sum(without) / len(without)


@check("Exercise 5.3")
def check_lift(answer: Any) -> None:
    """lift(gain (batch, pos), tokens (batch, pos), source) -> nats."""
    g = _generator()
    for source in (1, 3):
        batch, pos = sizes(2, g, low=5)
        tokens = torch.randint(0, 6, (batch, pos), generator=g)
        tokens[0], tokens[1, 0], tokens[2, pos // 2] = 0, source, source
        gain = torch.randn(batch, pos, generator=g) + 3 * _seen(tokens, source)
        given = number(call(answer, gain, tokens, source))
        seen = _seen(tokens, source)
        anywhere = (tokens == source).any(1)[:, None].expand(batch, pos)
        following = torch.zeros_like(seen)
        following[:, 1:] = tokens[:, :-1] == source
        mistakes = {
            "the position itself counts as earlier; then it would hold a bigram too": _between(
                gain, _seen(tokens, source, own=True)
            ),
            "sequences with the source anywhere are counted, later positions included": _between(
                gain, anywhere
            ),
            "only the position right after the source is counted, any distance should be": _between(
                gain, following
            ),
            "the mean over positions without the source is not subtracted": float(
                gain[seen].mean()
            ),
            "the mean over all positions is subtracted; take those without the source": float(
                gain[seen].mean() - gain.mean()
            ),
            "it has the wrong sign": -_between(gain, seen),
        }
        expected = _between(gain, seen)
        if abs(given - expected) < 1e-4:
            continue
        for words, value in mistakes.items():
            if abs(given - value) < 1e-4:
                raise ExerciseFailed(f"{words}: expected {expected:.4f}, given {given:.4f}")
        raise ExerciseFailed(f"the lift is not right: expected {expected:.4f}, given {given:.4f}")


@check("Exercise 5.4")
def check_fourth_entry(answer: Any) -> None:
    """fourth_entry(true_1, true_2, crossed) -> the other crossed contribution, logits."""
    for source in ((0.7, 1.3), (2.0, 0.4)):
        wants, raises = torch.tensor([[3.0, 0.5], source])
        table = torch.outer(wants, raises)
        true_1, true_2, crossed = (float(table[i, j]) for i, j in ((0, 0), (1, 1), (0, 1)))
        given = number(call(answer, true_1, true_2, crossed))
        expected = float(table[1, 0])
        if abs(given - expected) < 1e-4 * max(1.0, abs(expected)):
            continue
        counted = {
            true_1 + true_2 - crossed: "contributions multiply, only their logarithms add",
            true_1 * crossed / true_2: "the true ones belong on one side, the crossed on the other",
            true_2 * crossed / true_1: "the true ones belong on one side, the crossed on the other",
            crossed / (true_1 * true_2): "it is upside down",
            (true_1 * true_2) ** 0.5: "that is the mean of both crossed ones on a log scale",
        }
        for value, words in counted.items():
            if abs(given - value) < 1e-4:
                raise ExerciseFailed(f"{words}: expected {expected:.4f}, given {given:.4f}")
        raise ExerciseFailed(f"the entry is not right: expected {expected:.4f}, given {given:.4f}")


VOCABULARIES = (
    [
        " Ralph",
        "R",
        "alph",
        "Ral",
        "ph",
        " Lee",
        "Lee",
        "L",
        "ee",
        "x",
        " x",
        " Q",
        " Quito",
        "Quit",
    ],
    [" open", "op", "en", "o", "pen", "open", " to", "t", "o", "tono", " tono", "to", "no", " a b"],
    [" cat", "ca", "t", "cat ", "c", "at", "xcat", " cats", "cats", "", " "],
)


@check("Exercise 5.5")
def check_split_words(answer: Any) -> None:
    """split_words(vocabulary) -> list of (whole, first, rest), strings, in any order."""
    for vocabulary in VOCABULARIES:
        given = call(answer, list(vocabulary))
        if not isinstance(given, list | set | tuple):
            raise ExerciseFailed(f"expected a list of triples, given {described(given)}")
        for triple in given:
            texts = isinstance(triple, tuple) and all(type(part) is str for part in triple)
            if not texts or len(triple) != 3:
                raise ExerciseFailed(f"expected triples of texts, given {described(triple)}")
        found = set(given)
        expected = {
            (whole, first, rest)
            for whole in vocabulary
            for first in vocabulary
            for rest in vocabulary
            if first and rest and whole == " " + first + rest and first + rest not in vocabulary
        }
        if len(given) != len(found):
            raise ExerciseFailed("a triple comes twice")
        for triple in sorted(found - expected, key=str):
            whole, first, rest = triple
            if not first or not rest:
                raise ExerciseFailed(f"{triple} has an empty part")
            if whole != " " + first + rest:
                raise ExerciseFailed(f"{triple}: a space and both parts should spell {whole!r}")
            if first + rest in vocabulary:
                raise ExerciseFailed(
                    f"{triple}: {first + rest!r} is a token too, so the word is not split without "
                    "the space"
                )
            raise ExerciseFailed(f"{triple}: not all three are in the vocabulary")
        missing = sorted(expected - found)
        if missing:
            raise ExerciseFailed(f"{missing[0]} is missing; {len(missing)} are in all")
