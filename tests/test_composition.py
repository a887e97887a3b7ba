"""Composition scores equal dense loops; planted pairs stand out in the right kind only."""

import pytest
import torch
from torch.testing import assert_close

from pathsum import composition as module
from pathsum.composition import (
    composition_scores,
    null_score,
    ov_circuits,
    pair_scores,
    published_scores,
    qk_circuits,
    reverse_scores,
)
from pathsum.model import AttentionOnlyTransformer, Config

TOY = Config(n_layers=2, n_heads=3, d_model=12, d_head=5, d_vocab=17, n_ctx=7)


def toy(config=TOY, seed=0):
    return AttentionOnlyTransformer(config, seed=seed).requires_grad_(False)


def dense(model, layer, head):
    W_OV = (model.W_V[layer, head] @ model.W_O[layer, head]).double()
    W_QK = (model.W_Q[layer, head] @ model.W_K[layer, head].mT).double()
    return W_OV, W_QK


@pytest.mark.parametrize("kind", ["Q", "K", "V"])
def test_scores_equal_dense_loops_in_the_order_of_the_paper(kind):
    """In the paper's column vectors: Q: W_QK^T W_OV, K: W_QK W_OV, V: W_OV^2 W_OV^1."""
    model, norm = toy(), torch.linalg.matrix_norm
    for one in range(3):
        for two in range(3):
            ov1, _ = (m.mT for m in dense(model, 0, one))  # to columns
            ov2, qk2 = (m.mT for m in dense(model, 1, two))
            qk2 = qk2.mT  # x_dest^T W_QK x_src reads the same in both conventions
            product = {"Q": qk2.mT @ ov1, "K": qk2 @ ov1, "V": ov2 @ ov1}[kind]
            second = ov2 if kind == "V" else qk2
            expected = norm(product) / norm(second) / norm(ov1)
            assert_close(composition_scores(model, kind)[one, two], expected)


@pytest.mark.parametrize("kind", ["Q", "K", "V"])
def test_a_planted_pair_stands_out_in_its_kind_alone(kind):
    config = Config(n_layers=2, n_heads=3, d_model=64, d_head=5, d_vocab=17, n_ctx=7)
    model = toy(config)
    reader = {"Q": model.W_Q, "K": model.W_K, "V": model.W_V}[kind]
    reader[1, 2] = model.W_O[0, 1].mT  # head (1, 2) reads just what (0, 1) writes
    for other in "QKV":
        scores = composition_scores(model, other)
        if other == kind:
            assert scores.argmax() == 1 * 3 + 2
            assert scores[1, 2] > 2 * scores.flatten().sort().values[-2]
        else:
            assert scores.max() < 3 * null_score(64)


def test_random_pairs_scatter_round_the_null():
    config = Config(n_layers=2, n_heads=16, d_model=128, d_head=16, d_vocab=17, n_ctx=7)
    for kind in "QKV":
        scores = composition_scores(toy(config), kind)
        assert scores.square().mean().sqrt() == pytest.approx(null_score(128), rel=0.02)


def test_the_published_quantity_is_another_number_with_another_null():
    config = Config(n_layers=2, n_heads=16, d_model=128, d_head=16, d_vocab=17, n_ctx=7)
    model = toy(config)
    wrong = published_scores(model, "K")
    assert wrong.mean() == pytest.approx(16**0.5 / 128, rel=0.05)
    ov1, _ = dense(model, 0, 3)
    W_Q, W_K = model.W_Q[1, 5].double(), model.W_K[1, 5].double()
    W_V, W_O = model.W_V[0, 3].double(), model.W_O[0, 3].double()
    # the right product is W_V W_O W_K W_Q^T; cycled: W_Q^T W_V W_O W_K
    right, cycled = W_V @ W_O @ W_K @ W_Q.mT, W_Q.mT @ W_V @ W_O @ W_K
    assert_close(right.trace(), cycled.trace())
    scale = torch.linalg.matrix_norm(W_K @ W_Q.mT) * torch.linalg.matrix_norm(ov1)
    assert_close(wrong[3, 5], torch.linalg.matrix_norm(cycled) / scale)
    assert not torch.isclose(torch.linalg.matrix_norm(cycled), torch.linalg.matrix_norm(right))


def test_reverse_pairs_are_the_scores_of_the_model_with_its_layers_swapped():
    model, swapped = toy(), toy()
    for name in ("W_Q", "W_K", "W_V", "W_O"):
        getattr(swapped, name).copy_(getattr(model, name).flip(0))
    assert_close(reverse_scores(model, "K"), composition_scores(swapped, "K"))


@pytest.mark.parametrize("rows", [1, 5, 12, 100])
def test_all_layers_at_once_are_the_pairs_of_layers(monkeypatch, rows):
    monkeypatch.setattr(module, "ROWS", rows)
    model = toy(Config(3, 3, 12, 5, 17, 7))
    scores = pair_scores(ov_circuits(model), qk_circuits(model).mT)
    assert scores.shape == (3, 3, 3, 3)
    for earlier, later in ((0, 1), (0, 2), (1, 2)):
        assert_close(scores[earlier, :, later], composition_scores(model, "K", earlier, later))
        assert_close(scores[later, :, earlier], reverse_scores(model, "K", earlier, later))


def test_single_precision_is_close_and_nothing_read_is_nothing_scored():
    model = toy()
    ov, qk = ov_circuits(model), qk_circuits(model)
    exact = pair_scores(ov, qk)
    single = pair_scores(ov, qk, dtype=torch.float32)
    assert single.dtype == torch.float64
    assert_close(single, exact, rtol=1e-5, atol=1e-6)
    ov.B[..., 6:], qk.A[..., :6, :] = 0, 0
    assert pair_scores(ov, qk).count_nonzero() == 0


def test_matrices_of_different_widths_do_not_compose():
    ov = ov_circuits(toy())
    wide = ov_circuits(toy(Config(2, 3, 13, 5, 17, 7)))
    with pytest.raises(ValueError, match=r"must write into.*12, 12\).*13, 13\)"):
        pair_scores(ov, wide)


def test_the_scale_of_scores_does_not_matter():
    model = toy()
    before = composition_scores(model, "K")
    model.W_Q.mul_(7)
    assert_close(composition_scores(model, "K"), before)
    assert_close(qk_circuits(model)[1, 2].dense(), model.W_Q[1, 2] @ model.W_K[1, 2].mT)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("X",), ValueError, '"Q", "K" or "V", got \'X\''),
        (("K", 1, 0), IndexError, "n_layers=2, got 1 and 0"),
        (("K", 0, 2), IndexError, "n_layers=2, got 0 and 2"),
    ],
)
def test_wrong_arguments_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        composition_scores(toy(), *arguments)
