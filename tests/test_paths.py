"""Paths sum to the model's logits and scores; orders telescope to its loss."""

import pytest
import torch
from torch.testing import assert_close

from pathsum.evaluate import token_losses
from pathsum.model import AttentionOnlyTransformer, Config, cache
from pathsum.paths import (
    layer_table,
    loss_by_order,
    order_terms,
    path_terms,
    patterns_of,
    score_terms,
    virtual_pattern,
)


def toy(n_layers, norm=None):
    config = Config(n_layers, n_heads=3, d_model=12, d_head=5, d_vocab=17, n_ctx=7, norm=norm)
    model = AttentionOnlyTransformer(config, seed=n_layers).requires_grad_(False)
    for W in (model.W_Q, model.W_K, model.W_V, model.W_O):
        W.mul_(3)
    return model


def tokens(batch=4):
    return torch.randint(17, (batch, 7), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(("n_layers", "count"), [(0, 1), (1, 4), (2, 16)])
def test_path_terms_sum_to_the_logits(n_layers, count):
    model = toy(n_layers)
    terms = path_terms(model, tokens())
    assert len(terms.paths) == len(set(terms.paths)) == len(terms.values) == count
    assert_close(terms.values.sum(0) @ model.W_U, model(tokens()), rtol=1e-4, atol=1e-4)


def test_each_term_is_the_product_it_is_named_for():
    model = toy(2)
    terms, (A0, A1) = path_terms(model, tokens()), patterns_of(model, tokens())
    embed = model.W_E[tokens()]
    OV = [[model.W_V[layer, h] @ model.W_O[layer, h] for h in range(3)] for layer in range(2)]
    expected = A1[:, 2] @ (A0[:, 1] @ embed @ OV[0][1]) @ OV[1][2] @ model.W_U
    assert_close(terms.logits(model, ((0, 1), (1, 2))), expected, rtol=1e-4, atol=1e-5)
    assert_close(terms.logits(model, ((1, 2),)), A1[:, 2] @ embed @ OV[1][2] @ model.W_U)
    assert_close(terms.logits(model, ()), embed @ model.W_U)
    with pytest.raises(KeyError, match="no path"):
        terms.logits(model, ((1, 2), (0, 1)))


@pytest.mark.parametrize("n_layers", [1, 2, 3, 4])
def test_orders_sum_to_the_logits_at_any_depth(n_layers):
    model = toy(n_layers)
    orders = order_terms(model, tokens())
    assert len(orders) == n_layers + 1
    assert_close(orders.sum(0) @ model.W_U, model(tokens()), rtol=1e-4, atol=1e-4)


def test_orders_gather_the_paths_of_that_length():
    model = toy(2)
    terms, orders = path_terms(model, tokens()), order_terms(model, tokens())
    for order in range(3):
        chosen = [i for i, path in enumerate(terms.paths) if len(path) == order]
        assert_close(terms.values[chosen].sum(0), orders[order], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("n_layers", [0, 2, 3])
def test_the_last_order_gives_the_models_own_loss(n_layers):
    model, x = toy(n_layers), tokens(19)
    losses = loss_by_order(model, x, x.roll(1, 1))
    assert losses.shape == (n_layers + 1,)
    assert_close(losses[-1], token_losses(model, x, x.roll(1, 1)).mean(), rtol=1e-4, atol=1e-4)


def test_leaving_out_a_layers_heads_leaves_the_others_terms():
    model, x = toy(2), tokens()
    kept = torch.tensor([[0.0] * 3, [1.0] * 3])
    terms = path_terms(model, x)
    chosen = [i for i, path in enumerate(terms.paths) if all(layer == 1 for layer, _ in path)]
    total = order_terms(model, x, kept=kept).sum(0)
    assert_close(total, terms.values[chosen].sum(0), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("head", [0, 2])
def test_score_terms_sum_to_the_scores_before_the_mask(head):
    model = toy(2)
    terms = score_terms(model, tokens(), head)
    assert terms.shape == (4, 4, 4, 7, 7)
    assert_close(
        terms.sum((0, 1)), cache(model, tokens())["L1.scores"][:, head], rtol=1e-4, atol=1e-4
    )


def test_cutting_a_layer_0_head_removes_exactly_its_row_and_column():
    model = toy(2)
    before = score_terms(model, tokens(), 1)
    model.W_O[0, 2] = 0
    after = score_terms(model, tokens(), 1)
    assert after[3].abs().max() == 0 and after[:, 3].abs().max() == 0
    assert_close(after[:3, :3], before[:3, :3])


def test_frozen_patterns_make_the_model_linear_in_what_is_embedded():
    model, x, other = toy(2), tokens(), (tokens() + 3) % 17
    frozen = patterns_of(model, x)
    mixed = order_terms(model, x, frozen).sum(0) + 2 * order_terms(model, other, frozen).sum(0)
    both = model.W_E[x] + 2 * model.W_E[other]

    def set_embedding(site, value):
        if site == "embed":
            return both
        return frozen[int(site[1])] if site.endswith("pattern") else None

    assert_close(model.final_residual(x, hook=set_embedding), mixed, rtol=1e-4, atol=1e-4)


def test_a_virtual_pattern_is_a_pattern():
    frozen = patterns_of(toy(2), tokens())
    pattern = virtual_pattern(frozen, (0, 1), (1, 2))
    assert_close(pattern.sum(-1), torch.ones(4, 7))
    assert pattern.triu(1).abs().max() == 0
    with pytest.raises(ValueError, match="earlier layer"):
        virtual_pattern(frozen, (1, 2), (0, 1))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: path_terms(toy(3), tokens()), "up to 2 layers, got 3"),
        (lambda: path_terms(toy(1, "pre"), tokens()), "LayerNorm"),
        (lambda: order_terms(toy(2, "pre"), tokens()), "LayerNorm"),
        (lambda: score_terms(toy(1), tokens(), 0), "two layers, got 1"),
    ],
    ids=["3 layers", "norm, terms", "norm, orders", "1 layer, scores"],
)
def test_models_without_such_terms_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_a_head_that_does_not_exist_is_refused():
    with pytest.raises(IndexError, match=r"0\.\.2, got 3"):
        score_terms(toy(2), tokens(), 3)


def test_the_layer_table_equals_losses_of_chosen_terms():
    model, x = toy(2), tokens(19)
    y, terms = x.roll(1, 1), path_terms(model, x)

    def loss(*layers):
        chosen = [
            i for i, path in enumerate(terms.paths)
            if not path or (len(path) == 1 and path[0][0] in layers)
        ]  # fmt: skip
        logits = terms.values[chosen].sum(0) @ model.W_U
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten())

    expected = [[loss() - loss(0), loss(1) - loss(0, 1)], [loss() - loss(1), loss(0) - loss(0, 1)]]
    assert_close(layer_table(model, x, y), torch.tensor(expected), rtol=1e-3, atol=1e-4)
