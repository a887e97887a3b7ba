"""Checks for the exercises of the chapter on one-layer models."""

from typing import Any

import torch
from torch import Tensor

from pathsum.exercises.core import (
    ExerciseFailed,
    agree,
    call,
    check,
    described,
    random_pattern,
    sizes,
    tensor,
    whole_numbers,
)
from pathsum.exercises.progress import generator


def _generator() -> torch.Generator:
    return generator(23)


@check("Exercise 4.1")
def check_expand(answer: Any) -> None:
    """expand(x, A, W_OV, W_U) -> (1 + n_heads, pos, d_vocab): direct path first."""
    g = _generator()
    for _ in range(3):
        n_heads, pos, width, d_vocab = sizes(4, g)
        x = torch.randn(pos, width, generator=g)
        A = random_pattern(n_heads, pos, pos, generator=g)
        W_OV = torch.randn(n_heads, width, width, generator=g) / width**0.5
        W_U = torch.randn(width, d_vocab, generator=g)
        shape = (1 + n_heads, pos, d_vocab)
        given = call(answer, x, A, W_OV, W_U)
        if isinstance(given, Tensor) and tuple(given.shape) == (n_heads, pos, d_vocab):
            raise ExerciseFailed(
                f"expected {1 + n_heads} terms, given {n_heads}: the direct path is missing"
            )
        given = tensor(given, shape, "(term, pos, d_vocab)")
        expected = torch.zeros(shape)
        expected[0] = x @ W_U
        for head in range(n_heads):  # slow and obvious: every destination, every source
            for dest in range(pos):
                for src in range(pos):
                    moved = x[src] @ W_OV[head] @ W_U
                    expected[1 + head, dest] += A[head, dest, src] * moved
        turned = torch.stack([x @ W_U, *(a.mT @ x @ W @ W_U for a, W in zip(A, W_OV))])
        wrong_side = torch.stack([x @ W_U, *(a @ x @ W.mT @ W_U for a, W in zip(A, W_OV))])
        chained, stream = [x @ W_U], x
        for a, W in zip(A, W_OV):
            written = a @ stream @ W
            chained.append(written @ W_U)
            stream = stream + written
        mistakes = {
            "the patterns are used from destination to source; it is A @ x": turned,
            "W_OV acts from the wrong side; rows are vectors, so it is x @ W_OV": wrong_side,
            "heads read what earlier heads wrote; heads of one layer all read x": torch.stack(chained),
            "each head's term still holds the stream itself; that is the direct path's term": (
                expected + torch.cat([torch.zeros_like(expected[:1]), expected[:1].expand(n_heads, -1, -1)])
            ),
            "the terms are in another order; the direct path comes first": expected.roll(-1, 0),
        }  # fmt: skip
        agree(given, expected, "the expansion", mistakes)


@check("Exercise 4.2")
def check_qk_row(answer: Any) -> None:
    """qk_row(dest, W_E, W_Q, W_K) -> (d_vocab,): one row of the full QK table, in nats of score."""
    g = _generator()
    for _ in range(3):
        d_vocab, width, d_head = sizes(3, g, low=4)
        W_E = torch.randn(d_vocab, width, generator=g)
        W_Q, W_K = (torch.randn(width, d_head, generator=g) for _ in range(2))
        dest = int(torch.randint(d_vocab, (1,), generator=g))
        given = tensor(call(answer, dest, W_E, W_Q, W_K), (d_vocab,), "(source)")
        scores = torch.zeros(d_vocab)
        for source in range(d_vocab):  # slow and obvious: the score of each pair of tokens
            query, key = W_E[dest] @ W_Q, W_E[source] @ W_K
            scores[source] = (query * key).sum() / d_head**0.5
        keys_first = (W_E @ W_Q) @ (W_E[dest] @ W_K) / d_head**0.5
        mistakes = {
            "it is not divided by sqrt(d_head), so these are not the scores of the softmax": (
                scores * d_head**0.5
            ),
            "it is divided by d_head; it should be its square root": scores / d_head**0.5,
            "it is divided by sqrt(d_model); it should be sqrt(d_head)": (
                scores * (d_head / width) ** 0.5
            ),
            "this is the column of the token, as a source; its row is asked for, as a destination": (
                keys_first
            ),
            "this is the row after a softmax over the vocabulary; scores are asked for": scores.softmax(0),
        }  # fmt: skip
        agree(given, scores, "the row", mistakes)


@check("Exercise 4.3")
def check_by_offset(answer: Any) -> None:
    """by_offset(scores (pos, pos)) -> (pos,): mean score at offset dest - src = 0, 1, ..."""
    g = _generator()
    for _ in range(3):
        (pos,) = sizes(1, g, low=4)
        scores = torch.randn(pos, pos, generator=g)
        given = tensor(call(answer, scores), (pos,), "(offset)")
        means, sums, ahead = torch.zeros(pos), torch.zeros(pos), torch.zeros(pos)
        for offset in range(pos):  # slow and obvious: every destination by itself
            values = [float(scores[dest, dest - offset]) for dest in range(offset, pos)]
            means[offset], sums[offset] = sum(values) / len(values), sum(values)
            ahead[offset] = sum(float(scores[s, s + offset]) for s in range(pos - offset)) / len(values)
        mistakes = {
            "these are sums; large offsets have fewer destinations, so take the mean": sums,
            "these are means over all positions; an offset k has only pos - k destinations": sums / pos,
            "these are sources ahead of their destination; a head looks back, dest - src >= 0": ahead,
            "the offsets are in falling order; 0 comes first": means.flip(0),
        }  # fmt: skip
        agree(given, means, "the profile", mistakes)


@check("Exercise 4.4")
def check_comparable(answer: Any) -> None:
    """comparable(table (dest, src)) -> (dest, src): rows freed from what the softmax ignores."""
    g = _generator()
    for _ in range(3):
        n_dest, n_src = sizes(2, g, low=4)
        table = 2 * torch.randn(n_dest, n_src, generator=g)
        constant = 5 * torch.randn(n_dest, 1, generator=g)
        given, shifted = (
            tensor(call(answer, t), (n_dest, n_src), "(dest, src)") for t in (table, table + constant)
        )
        if not torch.allclose(given.softmax(-1), table.double().softmax(-1), atol=1e-5):
            axis = "columns" if torch.allclose(given.mean(0), torch.zeros_like(given[0]), atol=1e-5) else ""
            raise ExerciseFailed(
                "the attention that follows from the table has changed"
                + (": columns were centred, and rows belong to one softmax" if axis else
                   ": only a constant may be taken from each row, and nothing be scaled")
            )  # fmt: skip
        if not torch.allclose(given, shifted, atol=1e-4):
            raise ExerciseFailed(
                "a constant added to a row of the table still shows in the result: take from each row "
                "something that grows with it, such as its mean"
            )
        expected = table.double() - table.double().mean(-1, keepdim=True)
        mistakes = {
            "each row is compared with its largest entry; compare it with its mean": (
                table - table.amax(-1, keepdim=True)
            ),
            "each row is compared with its log-sum-exp; compare it with its mean": table.log_softmax(-1),
        }
        agree(given, expected, "the table", mistakes)


def lookup(tokens: list[int]) -> int | None:
    """The token after the last earlier copy of the last token: what an induction head would say."""
    for place in range(len(tokens) - 2, -1, -1):
        if tokens[place] == tokens[-1]:
            return tokens[place + 1]
    return None


@check("Exercise 4.5")
def check_confused(answer: Any) -> None:
    """confused(tokens) -> tokens: another text that one layer without positions can't tell apart."""
    g = _generator()
    d_vocab, width = 30, 11
    W_E, W_OV = torch.randn(d_vocab, width, generator=g), torch.randn(width, width, generator=g)
    W_QK, W_U = torch.randn(width, width, generator=g), torch.randn(width, d_vocab, generator=g)

    def last_logits(ids: list[int]) -> Tensor:
        x = W_E[torch.tensor(ids)].double()
        pattern = (x[-1] @ W_QK.double() @ x.mT).softmax(-1)
        return (x[-1] + pattern @ x @ W_OV.double()) @ W_U.double()

    for length in (5, 8, 9):
        chosen = 1 + torch.randperm(d_vocab - 1, generator=g)[:length]
        text = [*chosen.tolist(), int(chosen[1])]  # x A B ... A: the copy is followed by B
        given = call(answer, torch.tensor(text))
        if not isinstance(given, Tensor) or given.shape != (len(text),) or given.is_floating_point():
            raise ExerciseFailed(
                f"expected a tensor of {len(text)} token ids, given {described(given)}"
            )
        other = whole_numbers(given, f"a tensor of {len(text)} token ids")
        if other[-1] != text[-1]:
            raise ExerciseFailed(
                "the last token is another one, so the direct path and the query differ; keep it"
            )
        if sorted(other) != sorted(text):
            raise ExerciseFailed(
                "the texts hold different tokens, and a head that attends to those can tell; use the "
                "same tokens in another order"
            )
        if other == text:
            raise ExerciseFailed("this is the same text; change something")
        if lookup(other) == lookup(text):
            raise ExerciseFailed(
                "an induction head would say the same in both texts: what follows the earlier copy of "
                f"the last token must change (it is token {lookup(text)} in both)"
            )
        if lookup(other) == other[-1]:
            raise ExerciseFailed(
                "the earlier copy now stands right before the last token, so nothing is known to "
                "follow it; leave another token in between"
            )
        difference = float((last_logits(other) - last_logits(text)).abs().max())
        if difference > 1e-9:
            raise ExerciseFailed(f"the head's logits differ by {difference:.2g}")
