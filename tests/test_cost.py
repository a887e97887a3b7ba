"""What training costs: counts against independent ones, and the measured growth against the counts."""

import json
from dataclasses import replace
from importlib import resources

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from pathsum import cost
from pathsum.dataset import TokenData
from pathsum.loss import mean_cross_entropy
from pathsum.model import AttentionOnlyTransformer, Config
from pathsum.muon import orthogonalised
from pathsum.presets import BOOK, PRESETS, TrainConfig
from pathsum.runs import Run

TOY = Config(n_layers=2, n_heads=3, d_model=12, d_head=5, d_vocab=17, n_ctx=7)
TRAIN = TrainConfig(model=TOY, data="none", steps=3, batch=4)


def test_operations_are_three_times_those_that_torch_counts_forward():
    tokens = torch.zeros(4, TOY.n_ctx, dtype=torch.long)
    counter = FlopCounterMode(display=False)
    with counter:
        AttentionOnlyTransformer(TOY)(tokens, hook=lambda site, value: None)
    assert cost.flops_per_token(TOY) * tokens.numel() == 3 * counter.get_total_flops()


@pytest.mark.parametrize("heads", [3, 2])  # wider and narrower than the stream
def test_operations_of_muon_are_those_that_torch_counts(heads):
    c = replace(TOY, n_heads=heads)
    counter = FlopCounterMode(display=False)
    with counter:
        for shape in [(c.d_model, heads * c.d_head)] * 3 + [(heads * c.d_head, c.d_model)]:
            orthogonalised(torch.randn(c.n_layers, *shape))
    assert cost.flops_of_muon(c) == counter.get_total_flops()


def test_stored_numbers_are_weights_gradients_and_states(tmp_path):
    data = TokenData(np.ones(4096, np.uint16), np.ones(1024, np.uint16), "x", {})
    run = Run(tmp_path, TRAIN, data)
    run._one_step()
    found = sum(2 * p.numel() for p in run.model.parameters())
    for optimizer in run.optimizers:
        for state in optimizer.state.values():
            found += sum(v.numel() for k, v in state.items() if k != "step")
    assert cost.stored_numbers(TRAIN) == found


def test_the_count_of_what_is_kept_is_a_lower_bound_and_not_far():
    model = AttentionOnlyTransformer(TOY)
    kept: dict[int, int] = {}
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own and tensor.is_floating_point():
            kept[storage.data_ptr()] = storage.nbytes() // tensor.element_size()
        return tensor

    tokens = torch.zeros(4, TOY.n_ctx, dtype=torch.long)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        resid = model.final_residual(tokens).flatten(0, 1)
        loss = mean_cross_entropy(resid, model.W_U, tokens.flatten())
    counted = cost.kept_numbers(TRAIN)
    assert counted <= sum(kept.values()) <= 4 * counted
    loss.backward()


def test_counts_grow_as_they_must():
    wide = replace(BOOK, model=replace(BOOK.model, d_model=512, n_heads=16))
    long = replace(BOOK, model=replace(BOOK.model, n_ctx=1024), batch=4)
    assert cost.flops_per_token(wide.model) > 2 * cost.flops_per_token(BOOK.model)
    assert cost.attention_parameters(wide.model) == 4 * cost.attention_parameters(BOOK.model)
    assert cost.kept_numbers(long) == cost.kept_numbers(BOOK), "the same tokens in longer rows"
    assert cost.memory_bytes(BOOK, 2) < cost.memory_bytes(BOOK, 4)
    assert cost.intensity(PRESETS["paper"], 2) > cost.intensity(BOOK, 2)
    assert cost.hours(BOOK, cost.A100, 0.2) == pytest.approx(2 * cost.hours(BOOK, cost.A100, 0.4))
    rate = cost.A100.flops / cost.flops_per_token(BOOK.model)
    assert cost.utilisation(rate / 2, BOOK.model, cost.A100.flops) == pytest.approx(0.5)


def test_the_growth_file_has_every_group_with_the_books_own_size_in_it():
    growth = json.loads((resources.files("pathsum") / "data/growth.json").read_text())
    own = {"width": 256, "layers": 2, "context": 256, "vocabulary": 4096}
    rows = growth["rows"]
    assert {row["grows"] for row in rows} == set(own)
    books = [row for row in rows if row["value"] == own[row["grows"]]]
    assert len(books) == 4 and len({row["tokens_per_second"] for row in books}) == 1
    assert books[0]["flops_per_token"] == cost.flops_per_token(BOOK.model)
    for row in rows:
        assert 0.1 < row["utilisation"] < 1.1, row
        assert row["peak_bytes"] > row["counted_bytes"], row
    rate = {(row["grows"], row["value"]): row["tokens_per_second"] for row in rows}
    for grows in own:
        values = [rate[key] for key in sorted(rate) if key[0] == grows]
        assert values == sorted(values, reverse=True), f"more {grows} should cost more"
