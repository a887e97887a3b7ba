"""The claims on LayerNorm, biases and convolution can fail: a fold that forgets, a layer too many."""

from copy import deepcopy

import torch

from pathsum import stream
from pathsum.claims_details import (
    convolution_of_heads,
    measure_convolution,
    measure_norm_and_biases,
)
from pathsum.model import AttentionOnlyTransformer, Config

SIZES = {"n_heads": 3, "d_model": 12, "d_head": 5, "d_vocab": 17, "n_ctx": 7}


def toy(n_layers, norm=None):
    model = AttentionOnlyTransformer(Config(n_layers, norm=norm, **SIZES), seed=1)
    model.requires_grad_(False)
    for W in (model.W_Q, model.W_K, model.W_V, model.W_O, model.W_U):
        W.mul_(4)
    if norm:
        generator = torch.Generator().manual_seed(1)
        model.norm_gain.normal_(1, 0.5, generator=generator)
        model.norm_bias.normal_(0, 0.5, generator=generator)
    return model


def tokens():
    return torch.randint(17, (4, 7), generator=torch.Generator().manual_seed(0))


def forgets_the_gain(model):
    other, constants = stream.folded(model)
    other.W_U.copy_(model.W_U)
    return other, constants


def forgets_the_biases(model):
    return stream.folded(model)[0], None


def test_a_right_fold_and_one_layer_are_exact():
    found = measure_norm_and_biases(toy(1), toy(2, "pre"), tokens())
    assert found.verdict == "exact", found.detail
    assert found.number < 1e-4


def test_a_fold_that_forgets_something_is_noticed():
    for fold in (forgets_the_gain, forgets_the_biases):
        found = measure_norm_and_biases(toy(1), toy(2, "pre"), tokens(), fold)
        assert found.verdict == "not seen"
        assert found.number > 1e-2


def test_in_two_layers_a_bias_on_values_is_no_constant():
    assert measure_norm_and_biases(toy(2), toy(2, "pre"), tokens()).verdict == "not seen"


def test_without_query_key_products_there_is_no_contrast_to_show():
    model = deepcopy(toy(1))
    model.W_K.zero_()
    assert measure_norm_and_biases(model, toy(2, "pre"), tokens()).verdict == "not seen"


def test_a_convolution_is_heads_and_a_reversed_kernel_is_noticed():
    assert measure_convolution().verdict == "exact"
    assert measure_convolution(lambda x, k: convolution_of_heads(x, k.flip(-1))).verdict == (
        "not seen"
    )
    assert measure_convolution(lambda x, k: convolution_of_heads(x, k[..., 1:])).verdict == (
        "not seen"
    )
