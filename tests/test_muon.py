"""Muon: equal to torch's on plain matrices; heads are orthogonalised side by side."""

import pytest
import torch
from einops import rearrange
from torch.testing import assert_close

from pathsum.muon import HEADS_AS_COLUMNS, HEADS_AS_ROWS, Muon, orthogonalised


def gradients(shape, n=6):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator) for _ in range(n)]


@pytest.mark.parametrize("shape", [(16, 40), (40, 16), (12, 12)], ids=["wide", "tall", "square"])
def test_steps_equal_torch_muon_to_its_bfloat16(shape):
    start = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    ours, theirs = (torch.nn.Parameter(start.clone()) for _ in range(2))
    mine = Muon([ours], lr=0.02)
    reference = torch.optim.Muon([theirs], lr=0.02, weight_decay=0.0, adjust_lr_fn="original")
    for gradient in gradients(shape):
        ours.grad, theirs.grad = gradient.clone(), gradient.clone()
        mine.step()
        reference.step()
    moved = (theirs - start).detach()
    assert moved.norm() > 0.1
    assert (ours - theirs).norm() < 0.02 * moved.norm()


def test_singular_values_end_near_one_and_singular_vectors_stay():
    X = torch.randn(3, 8, 20, generator=torch.Generator().manual_seed(2))
    U, S, Vh = torch.linalg.svd(X, full_matrices=False)
    result = orthogonalised(X)
    values = torch.diagonal(U.mT @ result @ Vh.mT, dim1=1, dim2=2)
    assert values.min() > 0.6 and values.max() < 1.3
    assert_close((U * values[:, None]) @ Vh, result, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("layout", "shape"), [(HEADS_AS_COLUMNS, (2, 3, 12, 5)), (HEADS_AS_ROWS, (2, 3, 5, 12))]
)
def test_a_layers_heads_are_one_matrix(layout, shape):
    """A step on the stored weights moves each layer as a step on its merged matrix does."""
    stored = torch.nn.Parameter(torch.zeros(shape))
    merged = [torch.nn.Parameter(m.clone()) for m in rearrange(stored.detach(), layout)]
    per_head, whole = Muon([{"params": [stored], "layout": layout}]), Muon(merged)
    for gradient in gradients(shape, 3):
        stored.grad = gradient
        for matrix, part in zip(merged, rearrange(gradient, layout)):
            matrix.grad = part.clone()
        per_head.step()
        whole.step()
    assert_close(rearrange(stored.detach(), layout), torch.stack([m.detach() for m in merged]))


@pytest.mark.parametrize("wrong", [{"lr": -1.0}, {"momentum": 1.0}])
def test_rates_out_of_range_are_refused(wrong):
    with pytest.raises(ValueError, match="need lr"):
        Muon([torch.nn.Parameter(torch.zeros(2, 2))], **wrong)
