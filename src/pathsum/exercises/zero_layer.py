"""Checks for the exercises of the chapter on zero-layer transformers."""

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pathsum.exercises.core import ExerciseFailed, agree, call, check, number, sizes, tensor
from pathsum.exercises.progress import generator
from pathsum.model import AttentionOnlyTransformer, Config


def _generator() -> torch.Generator:
    return generator(11)


def _factors(g: torch.Generator, d_model: int, d_vocab: int) -> tuple[Tensor, Tensor]:
    W_E = torch.randn(d_vocab, d_model, generator=g)
    return W_E, torch.randn(d_model, d_vocab, generator=g) / d_model**0.5


@check("Exercise 3.1")
def check_next_token_probabilities(answer: Any) -> None:
    """next_token_probabilities(W_E (d_vocab, d_model), W_U, token) -> (d_vocab,)."""
    g = _generator()
    for _ in range(3):
        d_model, d_vocab = sorted(sizes(2, g))
        W_E, W_U = _factors(g, d_model, d_vocab)
        token = int(torch.randint(d_vocab, (), generator=g))
        given = tensor(call(answer, W_E, W_U, token), (d_vocab,), "(next token,)")
        logits = torch.zeros(d_vocab)
        for after in range(d_vocab):
            for m in range(d_model):
                logits[after] += W_E[token, m] * W_U[m, after]
        table = W_E @ W_U
        mistakes = {
            "these are logits; a softmax turns them into probabilities": logits,
            "these are log-probabilities; take the softmax without the logarithm": logits.log_softmax(
                0
            ),
            "this is what the token is preceded by in the table (its column): rows are the token "
            "that is read, so begin with W_E[token]": table[:, token].softmax(0),
            "the softmax runs over the tokens that are read; it should run over the next "
            "tokens": table.softmax(0)[token],
            "this is the row of logits, and the softmax that follows is applied twice": logits.softmax(
                0
            ).softmax(0),
        }
        agree(given, logits.softmax(0), "the row", mistakes)


@check("Exercise 3.2")
def check_logits_of_counts(answer: Any) -> None:
    """logits_of_counts(counts (first, second), all above 0) -> logits, each row with mean 0."""
    g = _generator()
    for _ in range(3):
        first, second = sizes(2, g)
        counts = torch.randint(1, 60, (first, second), generator=g).float()
        given = tensor(call(answer, counts), (first, second), "(first, second)")
        shares = counts / counts.sum(1, keepdim=True)
        logs = counts.log()
        mistakes = {
            "rows are not moved to mean 0; subtract each row's mean": logs,
            "rows are not moved to mean 0 (these are log-probabilities, whose exponentials sum to "
            "1); subtract each row's mean": shares.log(),
            "columns have mean 0; it is rows that should": logs - logs.mean(0),
            "the whole table has mean 0; every single row should": logs - logs.mean(),
            "these are counts or shares less their mean; the logarithm is missing": counts
            - counts.mean(1, keepdim=True),
        }
        agree(given, logs - logs.mean(1, keepdim=True), "the table of logits", mistakes)
        agree(given.softmax(1), shares.double(), "the softmax of your logits")


class _LargestTensor(TorchDispatchMode):
    """Notes the number of entries of the largest tensor that any operation returns."""

    entries = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self.entries = max(self.entries, leaf.numel())
        return result


@check("Exercise 3.3")
def check_low_rank_table(answer: Any) -> None:
    """low_rank_table(W_E, W_U, rank) -> factors (d_vocab, rank) and (rank, d_vocab)."""
    g = _generator()
    for _ in range(3):
        rank, d_model, d_vocab = sorted(sizes(3, g))
        d_vocab += d_model  # so that d_vocab x d_vocab is the largest array of all
        W_E, W_U = _factors(g, d_model, d_vocab)
        with _LargestTensor() as largest:
            pair = call(answer, W_E, W_U, rank)
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise ExerciseFailed(
                "expected two tensors, the factors (d_vocab, rank) and (rank, d_vocab)"
            )
        left = tensor(pair[0], (d_vocab, rank), "the first factor (d_vocab, rank)")
        right = tensor(pair[1], (rank, d_vocab), "the second factor (rank, d_vocab)")
        u, s, vh = torch.linalg.svd(W_E @ W_U, full_matrices=False)
        mistakes = {
            "the singular values are missing": u[:, :rank] @ vh[:rank],
            "the singular values are in both factors": (u[:, :rank] * s[:rank] ** 2) @ vh[:rank],
            "the first columns of W_E and rows of W_U are not the table's largest part: use the "
            "singular vectors of the product": W_E[:, :rank] @ W_U[:rank],
            "these are the smallest singular values; keep the largest": (
                u[:, d_model - rank : d_model] * s[d_model - rank : d_model]
            )
            @ vh[d_model - rank : d_model],
        }
        best = (u[:, :rank] * s[:rank]) @ vh[:rank]
        agree(left @ right, best, "the product of your factors", mistakes, tolerance=1e-3)
        if largest.entries >= d_vocab * d_vocab:
            raise ExerciseFailed(
                "the product is right, but an array of d_vocab x d_vocab entries was made on the "
                "way: take the QR of W_E and of W_U.mT and work on the small matrix in between"
            )


@check("Exercise 3.4")
def check_loss_over_pairs(answer: Any) -> None:
    """loss_over_pairs(log_probs (first, second), counts (first, second)) -> nats per token."""
    g = _generator()
    for _ in range(3):
        first, second = sizes(2, g)
        log_probs = torch.randn(first, second, generator=g).log_softmax(1)
        counts = torch.randint(0, 5, (first, second), generator=g) ** 2
        text = [
            (a, b) for a in range(first) for b in range(second) for _ in range(int(counts[a, b]))
        ]
        expected = -sum(float(log_probs[a, b]) for a, b in text) / len(text)
        given = number(call(answer, log_probs, counts))
        seen = counts > 0
        rows = -(log_probs * counts).sum(1) / counts.sum(1).clamp(min=1)
        mistakes = {
            "every different pair counts once; a pair seen 16 times should weigh 16": -float(
                log_probs[seen].mean()
            ),
            "every row counts the same; a frequent token should weigh more": float(rows.mean()),
            "the sum is not divided by the number of pairs of the text": expected * len(text),
            "the sum is divided by the number of different pairs, not by the number of pairs of "
            "the text": expected * len(text) / int(seen.sum()),
            "the sign is wrong: a loss is positive": -expected,
        }
        if abs(given - expected) <= 1e-4 * max(1.0, abs(expected)):
            continue
        for words, wrong in mistakes.items():
            if abs(given - wrong) <= 1e-4 * max(1.0, abs(wrong)):
                raise ExerciseFailed(f"the loss is not right: {words}")
        raise ExerciseFailed(f"the loss is not right: expected {expected:.4f}, given {given:.4f}")


@check("Exercise 3.5")
def check_crossing_excess(answer: Any) -> None:
    """crossing_excess(log_probs (first, second), a, b): ln p(b|a) p(a|b) less ln p(a|a) p(b|b)."""
    g = _generator()
    for _ in range(4):
        d_model, d_vocab = sorted(sizes(2, g))
        a, b = torch.randperm(d_vocab, generator=g)[:2].tolist()
        W_E, W_U = _factors(g, d_model, d_vocab)
        logits = W_E @ W_U
        log_probs = logits.log_softmax(1)
        given = number(call(answer, log_probs, a, b))
        expected = float(logits[a, b] + logits[b, a] - logits[a, a] - logits[b, b])
        if abs(given - expected) > 1e-3:
            if abs(given + expected) <= 1e-3:
                raise ExerciseFailed("the sign is turned round: crossing minus staying")
            if abs(given - float(log_probs[a, b] - log_probs[b, a])) <= 1e-3:
                raise ExerciseFailed("the two crossings should be added, not subtracted")
            raise ExerciseFailed(
                f"for a={a}, b={b} of a random table: expected {expected:.4f}, given {given:.4f}"
            )
        tied = number(call(answer, (W_E @ W_E.mT).log_softmax(1), a, b))
        distance = float((W_E[a] - W_E[b]).square().sum())
        if abs(tied + distance) > 1e-3 * max(1.0, distance):
            raise ExerciseFailed(
                "for a tied table it should be minus the squared distance of the two embeddings: "
                f"expected {-distance:.4f}, given {tied:.4f}"
            )


@check("Exercise 3.6")
def check_direct_path_logits(answer: Any) -> None:
    """direct_path_logits(model, tokens (batch, pos)) -> logits (batch, pos, d_vocab)."""
    g = _generator()
    config = Config(n_layers=2, n_heads=3, d_model=12, d_head=5, d_vocab=17, n_ctx=7)
    model = AttentionOnlyTransformer(config, seed=3).requires_grad_(False)
    model.W_O.mul_(20)  # so that attention matters
    tokens = torch.randint(17, (2, 6), generator=g)
    silent = AttentionOnlyTransformer(config, seed=3).requires_grad_(False)
    silent.W_O.zero_()
    given = tensor(call(answer, model, tokens), (2, 6, 17), "(batch, pos, d_vocab)")
    mistakes = {
        "this is the whole model; leave the attention layers out": model(tokens),
        "this is what attention adds; the direct path is the rest": model(tokens) - silent(tokens),
        "these are log-probabilities; return logits": silent(tokens).log_softmax(-1),
        "these are probabilities; return logits": silent(tokens).softmax(-1),
    }
    agree(given, silent(tokens), "the direct path", mistakes)
    if not torch.equal(model.W_O, AttentionOnlyTransformer(config, seed=3).W_O.detach() * 20):
        raise ExerciseFailed("your function changed the model's weights: compute, don't overwrite")
