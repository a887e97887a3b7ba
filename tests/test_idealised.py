"""Exact patterns by slow loops, substitution against the model itself, cut composition by hand."""

import pytest
import torch

from pathsum.evaluate import token_losses
from pathsum.idealised import (
    exact_induction_pattern,
    exact_previous_pattern,
    recovered,
    substituted_losses,
    uncomposed_hook,
)
from pathsum.model import AttentionOnlyTransformer, Config, cache


@pytest.fixture(scope="module")
def toy():
    config = Config(n_layers=2, n_heads=3, d_model=12, d_head=5, d_vocab=17, n_ctx=9)
    model = AttentionOnlyTransformer(config, seed=1).requires_grad_(False)
    model.W_E.mul_(10)
    model.W_O.mul_(5)
    return model


def slow_induction(tokens, context, least):
    """One row at a time, by comparing the text before both places."""
    n = len(tokens)
    rows = torch.zeros(n, n)
    for dest in range(n):
        agreement = {}
        for copy in range(dest):
            length = 0
            while (
                length < context
                and copy >= length
                and tokens[copy - length] == tokens[dest - length]
            ):
                length += 1
            agreement[copy] = length
        longest = max(agreement.values(), default=0)
        if longest < least:
            rows[dest, 0] = 1
            continue
        best = [copy for copy, length in agreement.items() if length == longest]
        for copy in best:
            rows[dest, copy + 1] = 1 / len(best)
    return rows


@pytest.mark.parametrize(("context", "least"), [(1, 1), (2, 1), (3, 1), (2, 2), (4, 3)])
def test_the_exact_induction_pattern_is_the_slow_one(context, least):
    generator = torch.Generator().manual_seed(context)
    tokens = torch.randint(4, (5, 23), generator=generator)
    expected = torch.stack([slow_induction(row.tolist(), context, least) for row in tokens])
    torch.testing.assert_close(exact_induction_pattern(tokens, context, least), expected)


def test_the_exact_previous_pattern_looks_one_back():
    pattern = exact_previous_pattern(4)
    assert pattern.argmax(1).tolist() == [0, 0, 1, 2]
    torch.testing.assert_close(pattern.sum(1), torch.ones(4))
    assert exact_previous_pattern(1).tolist() == [[1.0]]


def test_substituting_for_no_head_changes_nothing_and_for_one_head_only_that_head(toy):
    tokens = torch.randint(17, (20, 8), generator=torch.Generator().manual_seed(0))
    x, y = tokens[:, :-1], tokens[:, 1:]
    torch.testing.assert_close(substituted_losses(toy, x, y), token_losses(toy, x, y))
    expected = token_losses(toy, x, y, _replace(exact_previous_pattern(7)))
    torch.testing.assert_close(substituted_losses(toy, x, y, previous=[(1, 2)]), expected)
    changed = substituted_losses(toy, x, y, induction=[(1, 2)])
    assert (changed - expected).abs().max() > 1e-3


def _replace(pattern):
    def hook(site, value):
        if site != "L1.pattern":
            return None
        value = value.clone()
        value[:, 2] = pattern
        return value

    return hook


def test_cutting_all_composition_leaves_heads_side_by_side(toy):
    tokens = torch.randint(17, (2, 8), generator=torch.Generator().manual_seed(3))
    embed = toy.W_E[tokens]
    logits = toy(tokens, hook=uncomposed_hook(toy))
    alone = cache(toy, tokens)["L0.result"].sum(1)
    placed = embed + toy.W_pos[:8]
    future = torch.ones(8, 8, dtype=torch.bool).triu(1)
    for head in range(3):
        q, k = placed @ toy.W_Q[1, head], placed @ toy.W_K[1, head]
        pattern = (q @ k.mT / 5**0.5).masked_fill(future, float("-inf")).softmax(-1)
        alone = alone + pattern @ embed @ toy.W_V[1, head] @ toy.W_O[1, head]
    torch.testing.assert_close(logits, (embed + alone) @ toy.W_U, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("kind", "changed"), [("Q", "L1.q"), ("K", "L1.k"), ("V", "L1.v")])
def test_cutting_one_kind_changes_that_reading_only(toy, kind, changed):
    tokens = torch.randint(17, (2, 8), generator=torch.Generator().manual_seed(3))
    seen, whole = {}, cache(toy, tokens)
    cut = uncomposed_hook(toy, kind)

    def hook(site, value):
        new = cut(site, value)
        seen[site] = value if new is None else new
        return new

    toy(tokens, hook=hook)
    for site in ("L0.q", "L0.k", "L0.v", "L0.pattern", "L1.q", "L1.k", "L1.v"):
        assert torch.equal(seen[site], whole[site]) == (site != changed), site


def test_recovered_is_one_for_the_whole_and_none_for_the_ablation():
    assert recovered(2.0, 3.0, 2.0) == 1
    assert recovered(2.0, 3.0, 3.0) == 0
    with pytest.raises(ValueError, match="ablating must cost something"):
        recovered(2.0, 1.9, 2.0)


def test_bad_input_is_refused(toy):
    tokens = torch.zeros(1, 4, dtype=torch.int64)
    with pytest.raises(ValueError, match="1 <= least <= context"):
        exact_induction_pattern(tokens, context=1, least=2)
    with pytest.raises(ValueError, match="at least 1 position"):
        exact_previous_pattern(0)
    with pytest.raises(IndexError, match=r"got \(2, 0\)"):
        substituted_losses(toy, tokens, tokens, previous=[(2, 0)])
    with pytest.raises(ValueError, match="letters of Q, K and V"):
        uncomposed_hook(toy, "QX")
    normed = AttentionOnlyTransformer(Config(n_layers=2, norm="pre"))
    with pytest.raises(ValueError, match="without LayerNorm"):
        uncomposed_hook(normed)
