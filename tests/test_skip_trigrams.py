"""Skip-trigram tables, lifts and bugs: laws on a toy model, planted answers, and slow references."""

import math
from dataclasses import replace

import pytest
import torch

from pathsum import figures
from pathsum.bigrams import count_bigrams
from pathsum.bugs import bug_cost, contribution, find_closures, followed, trigrams_at_work
from pathsum.evaluate import token_losses
from pathsum.lifts import (
    gather_evidence,
    measure_lifts,
    removal_effects,
    removal_table,
    seen_earlier,
    shuffled_pairs,
)
from pathsum.model import AttentionOnlyTransformer, Config, cache
from pathsum.skip_trigrams import (
    SkipTrigramTable,
    centred_ov,
    centred_qk,
    check_head,
    look_up,
    split_token_scores,
    split_tokens,
    strongest_sources,
    table_rows,
)
from pathsum.tokenizer import load_tokenizer

TOY = Config(n_layers=1, n_heads=3, d_model=12, d_head=5, d_vocab=17, n_ctx=7)


@pytest.fixture(scope="module")
def toy():
    return AttentionOnlyTransformer(TOY, seed=0).requires_grad_(False)


@pytest.fixture(scope="module")
def lively():
    """A toy whose heads do something: what they read and write scaled up."""
    model = AttentionOnlyTransformer(TOY, seed=1).requires_grad_(False)
    model.W_E.mul_(10)
    model.W_O.mul_(10)
    model.W_U.mul_(50)
    return model


def text(rows=9, seed=0):
    g = torch.Generator().manual_seed(seed)
    inputs = torch.randint(1, 17, (rows, 7), generator=g)
    inputs[:, 0] = 0
    return inputs, torch.randint(1, 17, (rows, 7), generator=g)


def everything():
    among = torch.ones(17, dtype=torch.bool)
    among[0] = False
    return among


# tables


def test_the_ov_table_is_the_circuit_less_its_means_over_sources_and_outputs(lively):
    dense = lively.W_E @ lively.W_V[0, 1] @ lively.W_O[0, 1] @ lively.W_U
    expected = dense - dense.mean(0) - dense.mean(1, keepdim=True) + dense.mean()
    table = centred_ov(lively, (0, 1))
    torch.testing.assert_close(table.dense(), expected)
    assert table.rank == TOY.d_head


def test_what_a_head_adds_wherever_it_looks_is_not_in_its_table(lively):
    model = AttentionOnlyTransformer(TOY, seed=1).requires_grad_(False)
    model.load_state_dict(lively.state_dict())
    model.W_E.add_(torch.randn(12, generator=torch.Generator().manual_seed(3)))
    torch.testing.assert_close(
        centred_ov(model, (0, 2)).dense(), centred_ov(lively, (0, 2)).dense(), rtol=0, atol=1e-3
    )


def test_the_qk_table_gives_the_same_softmax_as_the_circuit(lively):
    raw = lively.W_E @ lively.W_Q[0, 2] @ lively.W_K[0, 2].mT @ lively.W_E.mT / math.sqrt(5)
    table = centred_qk(lively, (0, 2)).dense()
    torch.testing.assert_close(table.softmax(-1), raw.softmax(-1))
    torch.testing.assert_close(table.mean(-1), torch.zeros(17), rtol=0, atol=1e-4)


def test_rows_name_the_largest_entries_and_their_values(lively):
    (row,) = table_rows(lively, (0, 0), torch.tensor([5]), k=3)
    entries = centred_ov(lively, (0, 0)).dense()[5]
    scores = centred_qk(lively, (0, 0)).dense()[:, 5]
    assert row.outputs.tolist() == entries.argsort(descending=True)[:3].tolist()
    assert row.destinations.tolist() == scores.argsort(descending=True)[:3].tolist()
    torch.testing.assert_close(row.raises, entries[row.outputs])
    torch.testing.assert_close(row.wants, scores[row.destinations])


def test_nine_entries_of_a_row_are_three_pairs(lively):
    (row,) = table_rows(lively, (0, 0), torch.tensor([5]), k=3)
    assert len(set(row.triples)) == 9
    assert {(s, o) for s, _, o in row.triples} == set(row.pairs)
    assert len(set(row.pairs)) == 3


def test_columns_hold_only_tokens_that_are_allowed(lively):
    among = torch.zeros(17, dtype=torch.bool)
    among[[2, 9, 11]] = True
    (row,) = table_rows(lively, (0, 0), torch.tensor([5]), k=3, among=among)
    assert set(row.outputs.tolist()) == set(row.destinations.tolist()) == {2, 9, 11}
    with pytest.raises(ValueError, match=r"1\.\.3.*got 4"):
        table_rows(lively, (0, 0), torch.tensor([5]), k=4, among=among)


def test_the_strongest_sources_have_the_largest_entries(lively):
    largest = centred_ov(lively, (0, 1)).dense()[1:, 1:].amax(-1)
    expected = (largest.argsort(descending=True)[:4] + 1).tolist()
    assert strongest_sources(lively, (0, 1), everything(), 4).tolist() == expected
    with pytest.raises(ValueError, match=r"1\.\.16.*got 17"):
        strongest_sources(lively, (0, 1), everything(), 17)


@pytest.mark.parametrize("head", [(0, 3), (1, 0), (0, -1), (-1, 0)])
def test_a_head_that_is_not_there_is_refused(toy, head):
    with pytest.raises(IndexError, match=r"layer in 0\.\.0 and head in 0\.\.2.*got"):
        check_head(toy, head)
    for table in (centred_ov, centred_qk):
        with pytest.raises(IndexError, match="L0H7 is"):
            table(toy, head)


def test_a_model_without_heads_says_so():
    model = AttentionOnlyTransformer(Config(0, 3, 12, 5, 17, 7))
    with pytest.raises(IndexError, match="no attention layers"):
        centred_ov(model, (0, 0))


def test_a_source_that_is_no_id_is_refused(toy):
    with pytest.raises(IndexError, match=r"0\.\.16, got 3\.\.17"):
        table_rows(toy, (0, 0), torch.tensor([3, 17]))


@pytest.fixture(scope="module")
def wide():
    """A toy with the book's vocabulary, so that texts can be looked up."""
    return AttentionOnlyTransformer(Config(1, 3, 12, 5, 4096, 7), seed=0).requires_grad_(False)


def test_a_table_is_looked_up_by_text_and_shown_with_its_tokens(wide):
    tokenizer = load_tokenizer()
    table = look_up(wide, tokenizer, (0, 2), " the", " of", k=4)
    assert isinstance(table, SkipTrigramTable)
    assert [row.source for row in table.rows] == [tokenizer.id_of(" the"), tokenizer.id_of(" of")]
    html = table._repr_html_()
    assert html.count("<tr>") == 3 and html.count("<code>") == 2 * (1 + 4 + 4)
    assert "<code>·the</code>" in html and "L0H2" in html
    first = repr(table).split("\n")[0]
    assert first.startswith("L0H2  ·the ... [") and "] -> " in first


def test_markup_in_a_token_is_shown_not_obeyed(wide):
    tokenizer = load_tokenizer()
    html = look_up(wide, tokenizer, (0, 0), "<")._repr_html_()
    assert "<code>&lt;</code>" in html


def test_an_unknown_token_is_refused_with_its_neighbours(wide):
    with pytest.raises(KeyError, match="is not one token.*near ones"):
        look_up(wide, load_tokenizer(), (0, 0), " Elizabeth")


def test_split_tokens_are_words_that_the_tokenizer_splits_without_their_space():
    tokenizer = load_tokenizer()
    triples = split_tokens(tokenizer)
    assert len(triples) > 100
    for whole, first, rest in triples[::37]:
        word = tokenizer.decode([whole])
        assert word[0] == " " and tokenizer.decode([first, rest]) == word[1:]
        assert tokenizer.encode(word[1:], start=False).tolist() == [first, rest]


def test_split_scores_are_z_scores_among_sources(lively):
    triples = [(4, 2, 9), (5, 3, 1)]
    raises, wants = split_token_scores(lively, (0, 1), triples)
    ov, qk = centred_ov(lively, (0, 1)).dense(), centred_qk(lively, (0, 1)).dense()
    for n, (whole, first, rest) in enumerate(triples):
        column, row = ov[:, rest], qk[first]
        assert math.isclose(raises[n], (column[whole] - column.mean()) / column.std(), rel_tol=1e-3)
        assert math.isclose(wants[n], (row[whole] - row.mean()) / row.std(), rel_tol=1e-3)
    with pytest.raises(ValueError, match="no split tokens"):
        split_token_scores(lively, (0, 1), [])


# lifts


def test_a_source_is_seen_only_after_its_first_position():
    tokens = torch.tensor([[0, 3, 3, 5, 3], [3, 0, 5, 0, 0]])
    seen = seen_earlier(tokens, torch.tensor([3, 5]))
    assert seen[..., 0].int().tolist() == [[0, 0, 1, 1, 1], [0, 1, 1, 1, 1]]
    assert seen[..., 1].int().tolist() == [[0, 0, 0, 0, 1], [0, 0, 0, 1, 1]]


def test_lifts_equal_a_slow_count(lively):
    inputs, _ = text(rows=37)  # three batches, the last one short
    sources, outs = torch.tensor([3, 8, 12]), torch.tensor([1, 6])
    found = measure_lifts(lively, inputs, sources, outs)
    log_probs = lively(inputs).log_softmax(-1)
    direct = (lively.W_E[inputs] @ lively.W_U).log_softmax(-1)
    for source in sources.tolist():
        for out in outs.tolist():
            gains = {True: [], False: []}
            for b in range(len(inputs)):
                for pos in range(7):
                    seen = source in inputs[b, :pos].tolist()
                    gains[seen].append(float(log_probs[b, pos, out] - direct[b, pos, out]))
            expected = sum(gains[True]) / len(gains[True]) - sum(gains[False]) / len(gains[False])
            assert math.isclose(found.of([(source, out)])[0], expected, abs_tol=1e-4)
            assert int(found.present[sources.tolist().index(source)]) == len(gains[True])


def test_without_heads_nothing_is_lifted_and_a_missing_source_has_no_lift(toy):
    model = AttentionOnlyTransformer(TOY, seed=0).requires_grad_(False)
    model.W_O.zero_()
    inputs, _ = text()
    inputs[inputs == 16] = 15
    found = measure_lifts(model, inputs, torch.tensor([3, 16]), torch.tensor([1, 2]))
    torch.testing.assert_close(found.values[0], torch.zeros(2), rtol=0, atol=1e-5)
    assert found.values[1].isnan().all()
    with pytest.raises(KeyError, match="was not measured"):
        found.of([(3, 5)])


def test_shuffled_pairs_keep_sources_and_outs_and_leave_the_pairs_out():
    pairs = [(1, 2), (3, 4), (5, 6), (7, 8)]
    drawn = shuffled_pairs(pairs, torch.Generator().manual_seed(0), times=50)
    assert not set(drawn) & set(pairs)
    assert {s for s, _ in drawn} == {1, 3, 5, 7} and {o for _, o in drawn} == {2, 4, 6, 8}
    assert len(set(drawn)) == 12


def planted(out_of: dict[int, int], strength: float = 8.0) -> AttentionOnlyTransformer:
    """A model whose head 0 attends evenly, and where each source raises its out."""
    c = Config(n_layers=1, n_heads=2, d_model=34, d_head=17, d_vocab=17, n_ctx=7)
    model = AttentionOnlyTransformer(c, seed=0).requires_grad_(False)
    for p in model.parameters():
        p.zero_()
    model.W_E[:, :17] = torch.eye(17)
    model.W_U[17:] = torch.eye(17)
    model.W_V[0, 0, :17] = torch.eye(17)
    for source, out in out_of.items():
        model.W_O[0, 0, source, 17 + out] = strength
    return model


def test_planted_pairs_survive_and_others_do_not():
    outs = {3: 9, 4: 11, 5: 2}
    inputs, _ = text(rows=64)
    found = gather_evidence(planted(outs), inputs, everything(), 3, k=2, at_least=20)
    surviving = {p for p, good in zip(found.pairs, found.survives.tolist()) if good}
    assert surviving == set(outs.items())
    assert found.per_head(2)[0, 1] == 3 and found.per_head(2)[1, 1] == 0


def test_a_rare_source_is_counted_as_untested_and_deep_models_are_refused():
    inputs, _ = text(rows=64)
    inputs[inputs == 4] = 6
    found = gather_evidence(planted({3: 9, 4: 11, 5: 2}), inputs, everything(), 3, k=1, at_least=20)
    assert 4 not in {s for s, _ in found.pairs} and found.untested >= 1
    with pytest.raises(ValueError, match="no source stands"):
        gather_evidence(planted({3: 9}), inputs[:2], everything(), 3, k=1, at_least=200)
    two = AttentionOnlyTransformer(Config(2, 3, 12, 5, 17, 7)).requires_grad_(False)
    with pytest.raises(ValueError, match="one layer only, got 2"):
        gather_evidence(two, inputs, everything(), 3)


def test_removing_a_planted_source_takes_its_out_away_and_no_other():
    g = torch.Generator().manual_seed(0)
    inputs, _ = text(rows=64)
    right, wrong, at_start = removal_effects(
        planted({3: 9}), inputs, [(3, 9), (5, 9), (0, 9)], g, sequences=32
    )
    assert right > 0.5
    assert abs(wrong) < 0.4 < right
    assert at_start.isfinite()  # the start token is a source like others
    inputs[inputs == 5] = 6
    assert removal_effects(planted({3: 9}), inputs, [(5, 9)], g).isnan().all()
    table = removal_table(planted({3: 9}), inputs, 3, [8, 5], [9, 10], g)
    assert table[0, 0] > 0.5 and table[0, 1] < 0.1 and table[1].isnan().all()


# bugs


def test_the_contribution_of_a_head_is_a_product(lively):
    dests, outs = torch.tensor([2, 7]), torch.tensor([4, 5, 6])
    table = contribution(lively, (0, 1), 3, dests, outs)
    assert torch.linalg.matrix_rank(table) == 1
    score = centred_qk(lively, (0, 1)).dense()[dests, 3]
    expected = torch.outer(score.exp(), centred_ov(lively, (0, 1)).dense()[3, outs])
    torch.testing.assert_close(table, expected)


def test_trigrams_at_work_equal_a_slow_search(lively):
    inputs, targets = text(rows=19, seed=2)
    inputs[1], targets[1] = inputs[0], targets[0]  # the same trigrams in two sequences
    pattern = cache(lively, inputs)["L0.pattern"][:, 1]
    ov = centred_ov(lively, (0, 1)).dense()
    expected: dict[tuple, list[tuple[int, float]]] = {}
    for b in range(19):
        for d in range(7):
            for s in set(inputs[b, :d].tolist()) - {0}:
                places = [p for p in range(d) if int(inputs[b, p]) == s]
                added = sum(float(pattern[b, d, p] * ov[s, targets[b, d]]) for p in places)
                if added >= 0.5:
                    trigram = (s, int(inputs[b, d]), int(targets[b, d]))
                    expected.setdefault(trigram, []).append((b, added))
    found = trigrams_at_work(lively, (0, 1), inputs, targets, at_least=0.5)
    assert found.keys() == expected.keys() and len(found) > 10
    for key, (n, mean) in found.items():
        assert n == len({b for b, _ in expected[key]})
        logits = [added for _, added in expected[key]]
        assert math.isclose(mean, sum(logits) / len(logits), rel_tol=1e-4)
    with pytest.raises(IndexError, match="head in"):
        trigrams_at_work(lively, (0, 3), inputs, targets)


def test_two_trigrams_close_only_if_their_crossed_ones_never_stood():
    model = planted({3: 9})
    trigrams = {
        (3, 7, 9): (2, 1.0),
        (3, 8, 10): (2, 1.0),
        (3, 5, 11): (1, 1.0),
        (4, 6, 2): (9, 1.0),
    }
    seen = torch.zeros(17, 17, dtype=torch.bool)
    (closure,) = find_closures(model, (0, 0), trigrams, seen)
    assert (closure.source, closure.destinations, closure.outputs) == (3, (7, 8), (9, 10))
    torch.testing.assert_close(
        closure.logits, contribution(model, (0, 0), 3, torch.tensor([7, 8]), torch.tensor([9, 10]))
    )
    torch.testing.assert_close(closure.crossed, closure.logits.flatten()[1:3])
    seen[8, 9] = True
    assert find_closures(model, (0, 0), trigrams, seen) == []


def test_interaction_is_zero_for_products_and_not_for_others(lively):
    seen = torch.zeros(17, 17, dtype=torch.bool)
    dests, outs = torch.tensor([2, 7]), centred_ov(lively, (0, 1)).dense()[3].topk(2).indices
    trigrams = {(3, int(d), int(o)): (2, 1.0) for d, o in zip(dests, outs)}
    (closure,) = find_closures(lively, (0, 1), trigrams, seen)
    assert abs(closure.interaction) < 1e-5
    better = replace(closure, logits=closure.logits * torch.tensor([[1.0, 0.5], [0.5, 1.0]]))
    assert math.isclose(better.interaction, math.log(4), abs_tol=1e-5)


def test_followed_holds_each_counted_pair_once():
    first, second = torch.tensor([0, 4, 4, 16]), torch.tensor([3, 1, 1, 16])
    seen = followed(count_bigrams(first, second, 17))
    assert {tuple(p) for p in seen.nonzero().tolist()} == {(0, 3), (4, 1), (16, 16)}


def test_bug_cost_agrees_with_the_model_and_with_gated_logits(lively):
    inputs, targets = text(rows=5)
    seen = torch.rand(17, 17, generator=torch.Generator().manual_seed(1)) < 0.6
    cost = bug_cost(lively, inputs, targets, seen, gates=(0.0, 0.5), lowerings=(0.0, 0.7))
    losses = token_losses(lively, inputs, targets)
    assert math.isclose(cost.fit[0, 0], losses[::2].mean(), rel_tol=1e-4)
    assert math.isclose(cost.test[0, 0], losses[1::2].mean(), rel_tol=1e-4)
    never = ~seen[inputs]
    logits = lively(inputs)
    heads = logits - lively.W_E[inputs] @ lively.W_U
    wrong = (heads - heads.mean(-1, keepdim=True)).clamp_min(0) * never
    changed = (logits - 0.5 * wrong - 0.7 * never).log_softmax(-1)
    expected = -changed.gather(-1, targets[..., None])[..., 0]
    assert math.isclose(cost.test[1, 1], expected[1::2].mean(), rel_tol=1e-4)
    assert math.isclose(cost.mass, (logits.softmax(-1) * never).sum(-1).mean(), rel_tol=1e-4)
    assert math.isclose(
        cost.unseen, never.gather(-1, targets[..., None]).float().mean(), rel_tol=1e-4
    )


def test_the_best_strengths_are_chosen_on_one_half_and_judged_on_the_other(lively):
    inputs, targets = text(rows=4)
    seen = torch.ones(17, 17, dtype=torch.bool)
    cost = bug_cost(lively, inputs, targets, seen, gates=(0.5, 0.0), lowerings=(0.0, 1.0))
    fit = torch.tensor([[3.0, 1.0], [2.0, 2.5]])
    test = torch.tensor([[5.0, 6.0], [7.0, 8.0]])
    cost = replace(cost, fit=fit, test=test)
    assert cost.best(with_gate=True) == (0.5, 1.0, 6.0)
    assert cost.best(with_gate=False) == (0.0, 0.0, 7.0)
    with pytest.raises(ValueError, match="two sequences and the gate 0.0"):
        bug_cost(lively, inputs, targets, seen, gates=(0.5,))
    with pytest.raises(ValueError, match="two sequences"):
        bug_cost(lively, inputs[:1], targets[:1], seen)


def test_distributions_are_shares_on_common_bins():
    series = {"a": torch.tensor([0.0, 1.0, 1.0, 2.0]), "b": torch.tensor([2.0, 4.0])}
    _, ax = figures.distributions(series, "nats", mark=(1.5, "bar"), bins=4)
    steps = [patch.get_data() for patch in ax.patches]
    for step in steps:
        assert math.isclose(step.values.sum(), 1.0)
        assert step.edges.tolist() == [0, 1, 2, 3, 4]
    assert steps[0].values.tolist() == [0.25, 0.5, 0.25, 0]
    assert [t.get_text() for t in ax.get_legend().get_texts()] == ["a (4)", "b (2)", "bar"]
    with pytest.raises(ValueError, match="finite"):
        figures.distributions({"a": torch.tensor([math.nan])}, "nats")
