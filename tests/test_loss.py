"""Chunked cross-entropy equals torch's, and never holds all logits."""

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

from pathsum import loss as loss_module
from pathsum.loss import cross_entropy_rows, mean_cross_entropy, rounded_products


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr(loss_module, "CHUNK", 5)


def case(rows=13, d_model=6, d_vocab=11):
    generator = torch.Generator().manual_seed(0)
    resid = torch.randn(rows, d_model, generator=generator, requires_grad=True)
    W_U = torch.randn(d_model, d_vocab, generator=generator, requires_grad=True)
    return resid, W_U, torch.randint(d_vocab, (rows,), generator=generator)


@pytest.mark.parametrize("rounded", [False, True])
def test_value_and_gradients_equal_torch(small_chunks, rounded):
    resid, W_U, targets = case()
    ours = mean_cross_entropy(resid, W_U, targets, rounded)
    grads = torch.autograd.grad(3 * ours, (resid, W_U))
    reference = cross_entropy(resid @ W_U, targets)
    tolerance = {"rtol": 3e-2, "atol": 3e-2} if rounded else {"rtol": 1e-5, "atol": 1e-6}
    assert_close(ours, reference, **tolerance)
    for got, expected in zip(grads, torch.autograd.grad(3 * reference, (resid, W_U))):
        assert_close(got, expected, **tolerance)


def test_rows_equal_torch(small_chunks):
    resid, W_U, targets = case()
    expected = cross_entropy(resid @ W_U, targets, reduction="none").detach()
    assert_close(cross_entropy_rows(resid, W_U, targets), expected)


def test_huge_logits_do_not_overflow(small_chunks):
    resid, W_U, targets = case()
    loss = mean_cross_entropy(1e4 * resid, W_U, targets)
    assert torch.isfinite(loss)
    assert_close(loss, cross_entropy(1e4 * resid @ W_U, targets), rtol=1e-4, atol=1e-2)


def test_no_tensor_of_all_logits_is_ever_made():
    rows, d_vocab = 4 * loss_module.CHUNK, 300
    sizes = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            out = function(*args, **(kwargs or {}))
            sizes.extend(t.numel() for t in [out] if isinstance(t, torch.Tensor))
            return out

    resid, W_U, targets = case(rows=rows, d_vocab=d_vocab)
    with Watch():
        mean_cross_entropy(resid, W_U, targets).backward()
    assert max(sizes) <= loss_module.CHUNK * d_vocab < rows * d_vocab


def test_rounding_is_switched_back_even_after_an_error():
    before = torch.get_float32_matmul_precision()
    with pytest.raises(RuntimeError, match="inside"), rounded_products():
        assert torch.get_float32_matmul_precision() == "medium"
        raise RuntimeError("inside")
    assert torch.get_float32_matmul_precision() == before
