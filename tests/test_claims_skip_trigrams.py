"""The skip-trigram claims can fail, and hold where they were planted."""

from dataclasses import replace

import pytest
import torch

from pathsum.bigrams import count_bigrams
from pathsum.bugs import Closure
from pathsum.claims_skip_trigrams import (
    common_tokens,
    measure_bugs,
    measure_pairs,
    measure_split,
    shipped_evidence,
    strongest_by_source,
)
from pathsum.model import AttentionOnlyTransformer, Config
from pathsum.skip_trigrams import centred_ov, split_tokens
from pathsum.tokenizer import load_tokenizer
from pathsum.triples import TripleEvidence


def evidence(lifted: dict[int, int]) -> TripleEvidence:
    """`lifted[h]` surviving pairs for head h and one that does not, null from 0 to 1."""
    pairs, heads, lifts = [], [], []
    for head, number in lifted.items():
        for n in range(number + 1):
            pairs.append((100 * head + n, 7))
            heads.append(head)
            lifts.append(2.0 if n < number else 0.5)
    null = torch.linspace(0, 1, 101)
    return TripleEvidence(4, 3, pairs, torch.tensor(heads), torch.tensor(lifts), null)


@pytest.mark.parametrize(
    ("lifted", "verdict", "heads"),
    [
        ({0: 10, 1: 12, 2: 40}, "holds", 3),
        ({0: 10, 1: 12, 2: 9}, "weaker", 2),
        ({0: 9, 1: 9, 2: 9}, "not seen", 0),
        ({0: 0, 1: 0}, "not seen", 0),
    ],
)
def test_three_heads_need_ten_pairs_each(lifted, verdict, heads):
    found = measure_pairs(evidence(lifted), n_heads=4)
    assert (found.verdict, found.number) == (verdict, heads)
    assert f"; {sum(lifted.values())} exceed 0.95 nats" in found.detail
    assert found.detail.startswith("4 triples are 3 different (source, out) pairs")


def test_a_raised_bar_lets_fewer_pairs_survive():
    found = evidence({0: 10, 1: 12, 2: 40})
    strict = replace(found, null=found.null + 2)
    assert measure_pairs(strict, 4).verdict == "not seen"


def test_copies_are_counted_among_the_survivors():
    found = evidence({0: 1})
    copying = replace(found, pairs=[(7, 7), (8, 7)])
    assert "1 of these copy" in measure_pairs(copying, 4).detail
    assert "0 of these copy" in measure_pairs(found, 4).detail


def test_a_source_gives_one_closure_the_first():
    table = torch.ones(2, 2)
    closures = [Closure((0, 0), s, (1, n), (3, 4), table) for n, s in enumerate((5, 5, 6, 7))]
    assert strongest_by_source(closures, 2) == [closures[0], closures[2]]


def toy() -> AttentionOnlyTransformer:
    c = Config(n_layers=1, n_heads=3, d_model=12, d_head=5, d_vocab=17, n_ctx=7)
    return AttentionOnlyTransformer(c, seed=0).requires_grad_(False)


def test_bugs_are_exact_where_both_entries_are_positive_and_not_seen_otherwise():
    model = toy()
    inputs = torch.randint(1, 17, (9, 7), generator=torch.Generator().manual_seed(0))
    seen = torch.zeros(17, 17, dtype=torch.bool)
    order = centred_ov(model, (0, 1)).dense()[3].argsort(descending=True).tolist()
    good = {(3, 2, order[0]): (2, 1.0), (3, 7, order[1]): (2, 1.0)}
    bad = {(3, 2, order[0]): (2, 1.0), (3, 7, order[-1]): (2, 1.0)}
    found = measure_bugs(model, inputs, [{}, good, {}], seen)
    assert found.verdict == "exact" and found.number < 1e-4
    assert measure_bugs(model, inputs, [{}, bad, {}], seen).verdict == "not seen"
    assert measure_bugs(model, inputs, [{}, {}, {}], seen).verdict == "not seen"
    assert measure_bugs(model, inputs, [{}, good, {}], ~seen).verdict == "not seen"


def test_a_split_word_is_found_only_where_a_head_copies_it():
    tokenizer = load_tokenizer()
    c = Config(n_layers=1, n_heads=2, d_model=64, d_head=20, d_vocab=4096, n_ctx=7)
    model = AttentionOnlyTransformer(c, seed=0).requires_grad_(False)
    generator = torch.Generator().manual_seed(0)
    pairs = torch.randint(1, 4096, (2, 40000), generator=generator)
    triples = split_tokens(tokenizer)[:10]
    often = torch.tensor([t[0] for t in triples]).repeat(1500)
    counts = count_bigrams(torch.cat([pairs[0], often]), torch.cat([pairs[1], often]), 4096)
    assert measure_split(model, tokenizer, counts).verdict == "not seen"
    for n, (whole, _, rest) in enumerate(triples):
        model.W_E[whole], model.W_U[:, rest] = 0, 0
        model.W_E[whole, n], model.W_U[n, rest] = 5, 5
    model.W_V[0, 1], model.W_O[0, 1] = 0, 0
    model.W_V[0, 1, :20], model.W_O[0, 1, :, :20] = torch.eye(20), torch.eye(20)
    found = measure_split(model, tokenizer, counts)
    assert found.verdict == "holds" and "L0H1" in found.detail


def test_common_tokens_leave_out_the_rare_and_the_start():
    first = torch.tensor([0] * 9 + [4] * 5 + [6] * 4)
    common = common_tokens(count_bigrams(first, first, 17), at_least=5)
    assert common.nonzero().flatten().tolist() == [4]


@pytest.mark.slow
def test_the_summary_of_the_chapter_has_the_numbers_that_are_measured(root):
    found = shipped_evidence()
    entries = sum(len(row.triples) for row in found.rows)
    pairs, passed = len(found.pairs) + found.untested, int(found.survives.sum())
    chance = round(0.05 * len(found.pairs))
    summary = (
        (root / "book" / "skip-trigrams.md").read_text(encoding="utf-8").split("## Summary")[1]
    )
    words = f"{entries:,} entries were {pairs} different pairs, of which {passed} passed"
    assert words in summary and f"chance gives {chance}." in summary
