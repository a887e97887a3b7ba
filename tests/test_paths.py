"""Paths sum to the model's logits and scores; orders telescope to its loss."""

import pytest
import torch
from torch.testing import assert_close

from pathsum.evaluate import token_losses
from pathsum.model import AttentionOnlyTransformer, Config, cache
from pathsum.paths import (
    BIASES,
    frozen_run,
    order_terms,
    path_terms,
    patterns_of,
    virtual_pattern,
)
from pathsum.score_paths import score_terms
from pathsum.term_losses import layer_table, loss_by_order


NORMS = pytest.mark.parametrize("norm", [None, "pre"], ids=["no norm", "pre-LN"])


def toy(n_layers, norm=None, **more):
    """Random weights, large enough for patterns that vary; with LayerNorm random gains and biases."""
    sizes = {"n_heads": 3, "d_model": 12, "d_head": 5, "d_vocab": 17, "n_ctx": 7}
    model = AttentionOnlyTransformer(Config(n_layers, norm=norm, **sizes, **more), seed=n_layers)
    model.requires_grad_(False)
    for W in (model.W_Q, model.W_K, model.W_V, model.W_O):
        W.mul_(3)
    if norm:
        generator = torch.Generator().manual_seed(n_layers)
        model.norm_gain.normal_(1, 0.5, generator=generator)
        model.norm_bias.normal_(0, 0.5, generator=generator)
    return model


def tokens(batch=4):
    return torch.randint(17, (batch, 7), generator=torch.Generator().manual_seed(0))


@NORMS
@pytest.mark.parametrize(("n_layers", "count"), [(0, 1), (1, 4), (2, 16)])
def test_path_terms_sum_to_the_logits(n_layers, count, norm):
    model = toy(n_layers, norm)
    terms = path_terms(model, tokens())
    count += norm is not None  # the biases
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


@NORMS
@pytest.mark.parametrize("n_layers", [1, 2, 3, 4])
def test_orders_sum_to_the_logits_at_any_depth(n_layers, norm):
    model = toy(n_layers, norm)
    orders = order_terms(model, tokens())
    assert len(orders) == n_layers + 1 + (norm is not None)
    assert_close(orders.sum(0) @ model.W_U, model(tokens()), rtol=1e-4, atol=1e-4)


@NORMS
def test_orders_gather_the_paths_of_that_length(norm):
    model = toy(2, norm)
    terms, orders = path_terms(model, tokens()), order_terms(model, tokens())
    for order in range(3):
        chosen = [i for i, path in enumerate(terms.paths) if path != BIASES and len(path) == order]
        assert_close(terms.values[chosen].sum(0), orders[order], rtol=1e-4, atol=1e-5)


@NORMS
@pytest.mark.parametrize("n_layers", [0, 2, 3])
def test_the_last_order_gives_the_models_own_loss(n_layers, norm):
    model, x = toy(n_layers, norm), tokens(19)
    losses = loss_by_order(model, x, x.roll(1, 1))
    assert losses.shape == (n_layers + 1,)
    assert_close(losses[-1], token_losses(model, x, x.roll(1, 1)).mean(), rtol=1e-4, atol=1e-4)


def test_with_layer_norm_a_term_is_the_product_of_the_folded_weights_and_scales():
    model, x = toy(2, "pre"), tokens()
    terms, frozen = path_terms(model, x), frozen_run(model, x)
    centre = torch.eye(12) - 1 / 12  # subtracts the mean over coordinates
    folded = [centre * gain for gain in model.norm_gain]
    read = frozen.scales[0] * (model.W_E[x] @ folded[0])
    first = frozen.patterns[0][:, 1] @ read @ model.W_V[0, 1] @ model.W_O[0, 1]
    read = frozen.scales[1] * (first @ folded[1])
    second = frozen.patterns[1][:, 2] @ read @ model.W_V[1, 2] @ model.W_O[1, 2]
    expected = frozen.scales[2] * (second @ folded[2]) @ model.W_U
    assert_close(terms.logits(model, ((0, 1), (1, 2))), expected, rtol=1e-4, atol=1e-5)


def test_the_bias_term_is_all_that_is_left_without_embeddings():
    model, x = toy(3, "pre"), tokens()
    frozen, biases = frozen_run(model, x), order_terms(model, x)[-1]

    def nothing_embedded(site, value):
        if site == "embed":
            return torch.zeros_like(value)
        if site.endswith("scale"):
            return frozen.scales[int(site[1])]
        return frozen.patterns[int(site[1])] if site.endswith("pattern") else None

    left = model.final_residual(x, hook=nothing_embedded)
    assert biases.abs().max() > 0.1
    assert_close(biases, left, rtol=1e-4, atol=1e-5)
    model.norm_bias.zero_()
    assert order_terms(model, x, frozen)[-1].abs().max() == 0


def test_leaving_out_a_layers_heads_leaves_the_others_terms():
    model, x = toy(2), tokens()
    kept = torch.tensor([[0.0] * 3, [1.0] * 3])
    terms = path_terms(model, x)
    chosen = [i for i, path in enumerate(terms.paths) if all(layer == 1 for layer, _ in path)]
    total = order_terms(model, x, kept=kept).sum(0)
    assert_close(total, terms.values[chosen].sum(0), rtol=1e-4, atol=1e-5)


@NORMS
@pytest.mark.parametrize("n_layers", [1, 2, 3])
def test_score_terms_sum_to_the_scores_before_the_mask(n_layers, norm):
    model = toy(n_layers, norm)
    seen = cache(model, tokens())
    for layer in range(n_layers):
        parts = 1 + 3 * layer + (norm is not None)
        terms = score_terms(model, tokens(), 2, layer)
        assert terms.shape == (parts, parts, 4, 7, 7)
        expected = seen[f"L{layer}.scores"][:, 2]
        assert_close(terms.sum((0, 1)), expected, rtol=1e-4, atol=1e-4)


def test_smeared_keys_are_refused_only_where_w_qk_is_no_longer_the_score():
    model = toy(2, smear=True)
    with pytest.raises(ValueError, match="smear=True"):
        score_terms(model, tokens(), 0)
    total = path_terms(model, tokens()).values.sum(0) @ model.W_U
    assert_close(total, model(tokens()), rtol=1e-4, atol=1e-4)


def test_cutting_a_layer_0_head_removes_exactly_its_row_and_column():
    model = toy(2)
    before = score_terms(model, tokens(), 1)
    model.W_O[0, 2] = 0
    after = score_terms(model, tokens(), 1)
    assert after[3].abs().max() == 0 and after[:, 3].abs().max() == 0
    assert_close(after[:3, :3], before[:3, :3])


def test_frozen_patterns_make_the_model_linear_in_what_is_embedded():
    model, x, other = toy(2), tokens(), (tokens() + 3) % 17
    frozen = frozen_run(model, x)
    mixed = order_terms(model, x, frozen).sum(0) + 2 * order_terms(model, other, frozen).sum(0)
    both = model.W_E[x] + 2 * model.W_E[other]

    def set_embedding(site, value):
        if site == "embed":
            return both
        return frozen.patterns[int(site[1])] if site.endswith("pattern") else None

    assert_close(model.final_residual(x, hook=set_embedding), mixed, rtol=1e-4, atol=1e-4)


def test_a_virtual_pattern_is_a_pattern():
    frozen = patterns_of(toy(2), tokens())
    pattern = virtual_pattern(frozen, (0, 1), (1, 2))
    assert_close(pattern.sum(-1), torch.ones(4, 7))
    assert pattern.triu(1).abs().max() == 0
    with pytest.raises(ValueError, match="earlier layer"):
        virtual_pattern(frozen, (1, 2), (0, 1))


def test_more_terms_than_can_be_listed_are_refused():
    with pytest.raises(ValueError, match="up to 2 layers, got 3"):
        path_terms(toy(3), tokens())


@pytest.mark.parametrize(("head", "layer"), [(3, 1), (0, 2), (0, -1)])
def test_a_head_that_does_not_exist_is_refused(head, layer):
    with pytest.raises(IndexError, match=r"layers are 0\.\.1, heads 0\.\.2"):
        score_terms(toy(2), tokens(), head, layer)


@NORMS
def test_the_layer_table_equals_losses_of_chosen_terms(norm):
    model, x = toy(2, norm), tokens(19)
    y, terms = x.roll(1, 1), path_terms(model, x)

    def loss(*layers):
        chosen = [
            i for i, path in enumerate(terms.paths)
            if not path or path == BIASES or (len(path) == 1 and path[0][0] in layers)
        ]  # fmt: skip
        logits = terms.values[chosen].sum(0) @ model.W_U
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten())

    expected = [[loss() - loss(0), loss(1) - loss(0, 1)], [loss() - loss(1), loss(0) - loss(0, 1)]]
    assert_close(layer_table(model, x, y), torch.tensor(expected), rtol=1e-3, atol=1e-4)
