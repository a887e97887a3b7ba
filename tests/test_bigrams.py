"""Bigram counts and the smoothed table: against slow loops, a table worked by hand, and laws."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from pathsum import bigrams
from pathsum.bigrams import KneserNey, count_bigrams, shipped_counts, training_counts
from pathsum.dataset import TokenData, heldout_sample
from pathsum.model import Config
from pathsum.presets import PRESETS, TrainConfig, batch_indices

D_VOCAB = 17


@pytest.fixture(scope="module")
def pairs():
    """Pairs from a skewed distribution: some frequent, many never seen, token 16 never first."""
    generator = torch.Generator().manual_seed(0)
    first = (torch.rand(400, generator=generator) ** 2 * 16).long()
    second = (torch.rand(400, generator=generator) ** 3 * D_VOCAB).long()
    return first, second


@pytest.fixture(scope="module")
def table(pairs):
    return KneserNey(count_bigrams(*pairs, D_VOCAB))


def slow_counts(first, second, d_vocab):
    dense = torch.zeros(d_vocab, d_vocab)
    for a, b in zip(first.tolist(), second.tolist(), strict=True):
        dense[a, b] += 1
    return dense


def slow_kneser_ney(dense):
    """The formula of the docstring, one pair at a time."""
    d_vocab = len(dense)
    once = sum(int(dense[a, b] == 1) for a in range(d_vocab) for b in range(d_vocab))
    twice = sum(int(dense[a, b] == 2) for a in range(d_vocab) for b in range(d_vocab))
    discount = once / (once + 2 * twice) if once else 0.5
    contexts = [sum(float(dense[a, b] > 0) for a in range(d_vocab)) + 0.01 for b in range(d_vocab)]
    q = [c / sum(contexts) for c in contexts]
    result = torch.zeros(d_vocab, d_vocab)
    for a in range(d_vocab):
        total, kinds = float(dense[a].sum()), float((dense[a] > 0).sum())
        for b in range(d_vocab):
            if total == 0:
                result[a, b] = q[b]
            else:
                seen = max(float(dense[a, b]) - discount, 0.0) / total
                result[a, b] = seen + discount * kinds / total * q[b]
    return result


def test_counts_equal_a_slow_loop(pairs):
    counts = count_bigrams(*pairs, D_VOCAB)
    dense = slow_counts(*pairs, D_VOCAB)
    for token in range(D_VOCAB):
        assert_close(counts.row(token), dense[token])
    assert_close(counts.totals(), dense.sum(1))
    assert counts.d_vocab == D_VOCAB
    assert int(counts.counts.min()) >= 1


def test_counting_the_reversed_pairs_gives_the_transposed_table(pairs):
    first, second = pairs
    forward, backward = (count_bigrams(*p, D_VOCAB) for p in ((first, second), (second, first)))
    rows = torch.stack([forward.row(t) for t in range(D_VOCAB)])
    assert_close(torch.stack([backward.row(t) for t in range(D_VOCAB)]), rows.T)
    assert not torch.equal(rows, rows.T)


@pytest.mark.parametrize("token", [-1, D_VOCAB])
def test_a_row_that_does_not_exist_is_refused(pairs, token):
    with pytest.raises(IndexError, match=f"0..{D_VOCAB - 1}, got {token}"):
        count_bigrams(*pairs, D_VOCAB).row(token)


def test_kneser_ney_of_a_table_worked_by_hand():
    # a a b a c: pairs aa, ab, ba, ac, each once. D = 4 / (4 + 0) = 1, so all mass is shared out.
    counts = count_bigrams(torch.tensor([0, 0, 1, 0]), torch.tensor([0, 1, 0, 2]), d_vocab=3)
    table = KneserNey(counts)
    assert table.discount == 1
    q = torch.tensor([2.01, 1.01, 1.01]) / 4.03
    assert_close(table.row(0), q)
    assert_close(table.row(2), q)  # never seen as a first token
    # With one pair seen twice: D = 3 / (3 + 2) = 0.6.
    counts = count_bigrams(torch.tensor([0, 0, 0, 1, 0]), torch.tensor([0, 0, 1, 0, 2]), 3)
    table = KneserNey(counts)
    assert table.discount == pytest.approx(0.6)
    expected = torch.tensor([1.4, 0.4, 0.4]) / 4 + 0.6 * 3 / 4 * q
    assert_close(table.row(0), expected)


def test_kneser_ney_equals_the_formula_pair_by_pair(pairs, table):
    expected = slow_kneser_ney(slow_counts(*pairs, D_VOCAB))
    for token in range(D_VOCAB):
        assert_close(table.row(token), expected[token])


def test_every_smoothed_row_sums_to_one_and_nothing_is_impossible(table):
    for token in range(D_VOCAB):
        assert_close(table.row(token).sum(), torch.tensor(1.0))
        assert float(table.row(token).min()) > 0


def test_losses_equal_a_slow_loop(table):
    generator = torch.Generator().manual_seed(1)
    first, second = (torch.randint(D_VOCAB, (3, 7), generator=generator) for _ in range(2))
    losses = table.losses(first, second)
    for i in range(3):
        for j in range(7):
            p = float(table.row(int(first[i, j]))[second[i, j]])
            assert float(losses[i, j]) == pytest.approx(-math.log(p), rel=1e-5)


def test_training_counts_are_of_exactly_the_blocks_that_a_run_reads(monkeypatch):
    tokens = np.random.default_rng(0).integers(1, D_VOCAB, 7 * 23 + 4).astype(np.uint16)
    data = TokenData(tokens, tokens[:7], "none", {})
    monkeypatch.setattr(bigrams, "encoded", lambda name: data)
    model = Config(n_layers=0, n_heads=3, d_model=12, d_head=5, d_vocab=D_VOCAB, n_ctx=7)
    config = TrainConfig(model=model, data="toy", steps=9, batch=4)  # 36 of 23 blocks: 2 epochs
    dense = torch.zeros(D_VOCAB, D_VOCAB)
    for step in range(config.steps):
        for block in batch_indices(step, 23, config):
            before = 0
            for after in tokens[block * 7 : block * 7 + 7].tolist():
                dense[before, after] += 1
                before = after
    counts = training_counts(config)
    for token in range(D_VOCAB):
        assert_close(counts.row(token), dense[token])
    other = training_counts(replace(config, seed=1))
    assert any(not torch.equal(other.row(t), dense[t]) for t in range(D_VOCAB))


def test_the_shipped_counts_are_of_the_whole_budget():
    counts, book = shipped_counts(), PRESETS["book"]
    blocks = book.steps * book.batch
    assert int(counts.counts.sum()) == blocks * book.model.n_ctx == 24_576_000
    assert int(counts.row(0).sum()) == blocks == 96_000  # the start token begins every block
    assert counts.d_vocab == book.model.d_vocab
    assert not (counts.following == 0).any()  # and never comes again
    assert len(counts.starts) == counts.d_vocab + 1 and int(counts.starts[-1]) == len(counts.counts)


def test_smoothing_helps_on_text_that_was_not_counted():
    counts = shipped_counts()
    table = KneserNey(counts)
    inputs, targets = (t[::40] for t in heldout_sample())
    unseen = torch.zeros(counts.d_vocab, counts.d_vocab, dtype=torch.bool)
    rows = torch.repeat_interleave(torch.arange(counts.d_vocab), counts.starts.diff().long())
    unseen[rows, counts.following.long()] = True
    assert not unseen[inputs, targets].all()  # raw counts give some held-out pairs probability 0
    losses = table.losses(inputs, targets)
    assert losses.isfinite().all() and 4 < float(losses.mean()) < 5.5
    uniform = math.log(counts.d_vocab)
    assert float(losses.mean()) < uniform - 2
