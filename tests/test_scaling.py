"""What the methods cost: counts against lists, first order against the sum of its edges, the result file."""

import json

import pytest
import torch
from torch.testing import assert_close
from toys import lively

from pathsum import scaling
from pathsum.contrasts import induction_contrast
from pathsum.edges import edge_attributions, graph_of, head_attributions


def test_counts_are_the_lengths_of_the_lists():
    model = lively(2)
    c = model.config
    n = scaling.counts(c.n_layers, c.n_heads, 5)
    heads = [(layer, head) for layer in range(c.n_layers) for head in range(c.n_heads)]
    assert n["heads"] == len(heads) and n["patches"] == 5 * len(heads)
    assert n["pairs"] == sum(a[0] < b[0] for a in heads for b in heads)
    assert n["edges"] == len(graph_of(model).edges())
    assert n["paths"] == 1 + len(heads) + n["pairs"]  # direct, through one, through two


def test_sizes_that_are_none_are_refused():
    with pytest.raises(ValueError, match="n_layers >= 0"):
        scaling.counts(-1)
    with pytest.raises(ValueError, match="there is no method 'guessing'"):
        scaling.work_of("guessing", 3)


def test_first_order_of_a_head_is_the_sum_over_its_edges():
    model = lively(2)
    contrast = induction_contrast(model.config.d_vocab, batch=3, period=4)
    edges = edge_attributions(model, contrast)[1:].sum(1)
    assert_close(head_attributions(model, contrast).flatten(), edges)
    assert edges.abs().max() > 1e-3


def test_one_method_in_one_process_gives_seconds_and_memory(capsys):
    threads = torch.get_num_threads()
    try:
        scaling.main(["one", "one run", "2"])
    finally:
        torch.set_num_threads(threads)
    assert set(json.loads(capsys.readouterr().out)) == {"seconds", "extra_mib"}


def test_the_file_has_every_method_at_every_size():
    stored = scaling.results()
    assert list(stored) == list(scaling.METHODS)
    for rows in stored.values():
        assert list(rows) == [*map(str, scaling.LAYERS), "trained"]
        assert all(row["seconds"] > 0 and row["extra_mib"] >= 0 for row in rows.values())


def test_exact_patching_grows_faster_than_first_order():
    stored = scaling.results()
    exact = scaling.growth(stored["patching of all heads by position"])
    assert exact > scaling.growth(stored["attribution of all heads"]) + 0.5
    predicted = scaling.predicted(stored["one run"], "one run", 60)
    assert predicted == pytest.approx(2 * stored["one run"]["30"]["seconds"])
