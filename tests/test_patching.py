"""Ablations remove exactly what they name, and nothing else."""

import pytest
import torch
from torch.testing import assert_close

from pathsum.evaluate import token_losses
from pathsum.model import AttentionOnlyTransformer, Config, cache
from pathsum.patching import ablated_losses, ablation_hook, both, frozen_hook
from pathsum.paths import path_terms, patterns_of

TOY = Config(n_layers=2, n_heads=3, d_model=12, d_head=5, d_vocab=17, n_ctx=7)


def toy():
    model = AttentionOnlyTransformer(TOY, seed=0).requires_grad_(False)
    for W in (model.W_Q, model.W_K, model.W_V, model.W_O):
        W.mul_(3)
    return model


def tokens(batch=4):
    return torch.randint(17, (batch, 7), generator=torch.Generator().manual_seed(0))


def test_zero_ablation_is_the_model_without_that_heads_output():
    model, without = toy(), toy()
    without.W_O[0, 1] = 0
    without.W_O[1, 2] = 0
    hook = ablation_hook([(0, 1), (1, 2)])
    assert_close(model(tokens(), hook), without(tokens()), rtol=1e-4, atol=1e-4)


def test_with_frozen_patterns_exactly_the_paths_through_the_head_are_lost():
    model, x = toy(), tokens()
    hook = both(frozen_hook(patterns_of(model, x)), ablation_hook([(0, 1)]))
    terms = path_terms(model, x)
    kept = [i for i, path in enumerate(terms.paths) if (0, 1) not in path]
    expected = terms.values[kept].sum(0)
    assert_close(model.final_residual(x, hook), expected, rtol=1e-4, atol=1e-5)
    unfrozen = model.final_residual(x, ablation_hook([(0, 1)]))
    assert (unfrozen - expected).abs().max() > 1e-2


def test_mean_ablation_writes_one_vector_everywhere():
    model, x = toy(), tokens()
    reference = cache(model, x)
    seen = {}
    hook = ablation_hook([(0, 1)], "mean", reference)
    model(x, both(hook, lambda site, value: seen.update({site: value})))
    mean = reference["L0.result"][:, 1].mean((0, 1))
    assert_close(seen["L0.result"][:, 1], mean.expand(4, 7, 12))
    assert_close(seen["L0.result"][:, [0, 2]], reference["L0.result"][:, [0, 2]])


def test_resampling_takes_whole_outputs_of_other_sequences():
    model, x = toy(), tokens()
    reference = cache(model, x)
    hook = ablation_hook([(0, 1)], "resample", reference, torch.Generator().manual_seed(3))
    replaced = hook("L0.result", reference["L0.result"])
    originals = reference["L0.result"][:, 1]
    sources = [
        [i for i in range(4) if torch.equal(replaced[row, 1], originals[i])] for row in range(4)
    ]
    assert all(len(found) == 1 for found in sources)
    assert sources != [[0], [1], [2], [3]]


def test_ablating_nothing_changes_no_loss():
    model, x = toy(), tokens(19)
    for freeze in (False, True):
        losses = ablated_losses(model, x, x.roll(1, 1), [], freeze_patterns=freeze)
        assert_close(losses, token_losses(model, x, x.roll(1, 1)), rtol=1e-4, atol=1e-4)


def test_losses_are_those_of_the_ablated_model_over_several_batches():
    model, without, x = toy(), toy(), tokens(19)
    without.W_O[0, 1] = 0
    expected = token_losses(without, x, x.roll(1, 1))
    assert_close(ablated_losses(model, x, x.roll(1, 1), [(0, 1)]), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("head", [(2, 0), (0, 3), (-1, 0)])
def test_a_head_that_does_not_exist_is_refused(head):
    with pytest.raises(IndexError, match=r"layer in 0\.\.1 and head in 0\.\.2"):
        ablated_losses(toy(), tokens(), tokens(), [head])


def test_wrong_kinds_and_missing_references_are_refused():
    with pytest.raises(ValueError, match="got 'median'"):
        ablation_hook([(0, 0)], "median")
    with pytest.raises(ValueError, match="needs a reference"):
        ablation_hook([(0, 0)], "mean")
