"""Triples on text: lifts as a slow loop has them, and random triples that are matched and others."""

import pytest
import torch

from pathsum.lifts import direct_log_probs
from pathsum.model import AttentionOnlyTransformer, Config
from pathsum.skip_trigrams import TableRow
from pathsum.triples import TripleEvidence, cell_lifts, triple_evidence

TOY = Config(n_layers=1, n_heads=3, d_model=12, d_head=5, d_vocab=17, n_ctx=20)


@pytest.fixture(scope="module")
def model():
    model = AttentionOnlyTransformer(TOY, seed=0).requires_grad_(False)
    for weights in (model.W_E, model.W_V, model.W_O, model.W_U):
        weights *= 4
    return model


@pytest.fixture(scope="module")
def inputs():
    return torch.randint(17, (40, 20), generator=torch.Generator().manual_seed(0))


def row(head: int, source: int, destinations: list, outputs: list, raised=1.0) -> TableRow:
    """One row of a table; each output is raised alike."""
    size = len(outputs)
    columns = torch.tensor(destinations), torch.zeros(size), torch.tensor(outputs)
    return TableRow((0, head), source, *columns, torch.full((size,), raised))


def test_cells_are_the_means_of_a_slow_loop(model, inputs):
    cells, outputs = [(3, 5), (3, 9), (8, 5)], torch.tensor([2, 11])
    values, counts = cell_lifts(model, inputs, cells, outputs)
    direct = direct_log_probs(model, torch.arange(17))
    log_probs = model(inputs).log_softmax(-1)
    for i, (source, destination) in enumerate(cells):
        kinds = {True: [], False: []}
        for sequence, p in zip(inputs.tolist(), log_probs):
            for place, token in enumerate(sequence):
                if token == destination:
                    kinds[source in sequence[:place]].append(p[place] - direct[token])
        assert counts[i].tolist() == [len(kinds[True]), len(kinds[False])]
        expected = torch.stack(kinds[True]).mean(0) - torch.stack(kinds[False]).mean(0)
        torch.testing.assert_close(values[i], expected[outputs], rtol=1e-4, atol=1e-4)


def test_a_pair_is_the_mean_over_its_destinations_by_positions(model, inputs):
    rows = [row(0, 3, [5, 9], [2, 11]), row(2, 8, [5, 6], [11, 4])]
    found = triple_evidence(model, inputs, rows, at_least=1)
    assert (found.named, found.different) == (8, 4)
    assert found.pairs == [(3, 2), (3, 11), (8, 4), (8, 11)]
    assert found.heads.tolist() == [0, 0, 2, 2]
    values, counts = cell_lifts(model, inputs, [(3, 5), (3, 9)], torch.tensor([11]))
    weight = counts[:, 0] / counts[:, 0].sum()
    expected = float((weight * values[:, 0]).sum())
    assert float(found.lifts[1]) == pytest.approx(expected, abs=1e-5)


def test_random_triples_keep_source_and_destination_and_take_an_output_of_another_source(
    model, inputs
):
    rows = [row(0, 3, [5], [2]), row(1, 8, [9], [11])]
    found = triple_evidence(model, inputs, rows, at_least=1, times=9)
    other = {
        float(cell_lifts(model, inputs, [cell], torch.tensor([out]))[0])
        for cell, out in (((3, 5), 11), ((8, 9), 2))
    }
    assert {round(float(value), 4) for value in found.null} == {round(v, 4) for v in other}


def test_a_pair_named_by_two_heads_counts_once_for_the_one_that_raises_it_most(model, inputs):
    for raised, owner in ((0.5, 1), (2.0, 2)):
        rows = [row(1, 3, [5], [2]), row(2, 3, [9], [2], raised), row(2, 8, [5], [4])]
        found = triple_evidence(model, inputs, rows, at_least=1)
        assert found.pairs == [(3, 2), (8, 4)] and found.heads.tolist() == [owner, 2]


def test_rare_cells_are_left_out_and_a_text_without_any_is_refused(model, inputs):
    rows = [row(0, 3, [5], [2]), row(1, 8, [9], [11])]
    with pytest.raises(ValueError, match="1000 times with and without its source: take more text"):
        triple_evidence(model, inputs, rows, at_least=1000)


def test_a_planted_triple_survives_and_those_of_noise_do_not(inputs):
    planted = AttentionOnlyTransformer(TOY, seed=0).requires_grad_(False)
    planted.W_E[:, 0] = 0.0
    planted.W_E[3, 0] = 3.0  # only the source writes here
    planted.W_V[0, 0, 0, 0], planted.W_O[0, 0, 0, 1] = 3.0, 3.0
    planted.W_U[1, 2] = 3.0
    rows = [row(0, 3, [5, 9], [2, 11])]
    rows += [row(1, s, [5, 9], [s + 1, s - 3]) for s in (4, 6, 7, 8, 10, 12)]
    found = triple_evidence(planted, inputs, rows, at_least=3)
    survivors = [p for p, good in zip(found.pairs, found.survives.tolist()) if good]
    assert (3, 2) in survivors and found.per_head(2)[0] == 1
    assert found.lifts.argmax() == found.pairs.index((3, 2))


def test_a_negative_lift_does_not_survive_a_low_bar():
    null = torch.linspace(-2, -1, 11)
    found = TripleEvidence(
        2, 2, [(1, 2), (3, 4)], torch.tensor([0, 0]), torch.tensor([-0.5, 0.5]), null
    )
    assert found.survives.tolist() == [False, True]
