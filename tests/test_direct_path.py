"""The direct path as a table: laws, and the dense table on sizes where it fits."""

import pytest
import torch
from torch.testing import assert_close

from pathsum import direct_path
from pathsum.bigrams import KneserNey, count_bigrams
from pathsum.direct_path import (
    correlation,
    cut_to_rank,
    direct_rows,
    first_tokens,
    own_ranks,
    pair_log_probs,
    pair_loss,
    singular_factors,
    table_rows,
    times_counted,
    trained_further,
)
from pathsum.model import AttentionOnlyTransformer, Config

D_MODEL, D_VOCAB = 12, 17


@pytest.fixture(scope="module")
def model():
    config = Config(n_layers=0, n_heads=3, d_model=D_MODEL, d_head=5, d_vocab=D_VOCAB, n_ctx=7)
    model = AttentionOnlyTransformer(config, seed=1).requires_grad_(False)
    model.W_U.mul_(100)
    return model


@pytest.fixture(scope="module")
def text():
    """Inputs and targets; token 16 is never read, and row 3 is the only one with many pairs."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randint(16, (9, 7), generator=generator)
    targets = torch.randint(D_VOCAB, (9, 7), generator=generator)
    return torch.where(inputs < 5, 3, inputs), targets


@pytest.fixture(scope="module")
def pairs(text):
    return count_bigrams(text[0].flatten(), text[1].flatten(), D_VOCAB)


def test_pair_loss_of_the_direct_path_is_the_loss_of_a_model_without_layers(model, text, pairs):
    logits = model(text[0])
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), text[1].flatten())
    assert pair_loss(direct_rows(model.W_E, model.W_U), pairs) == pytest.approx(float(expected))


def test_pair_loss_of_a_table_is_its_mean_loss(text, pairs):
    table = KneserNey(pairs)
    expected = float(table.losses(*text).mean())
    assert pair_loss(table_rows(table), pairs) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("rows", [1, 2, 5, 256])
def test_reading_the_table_in_blocks_of_any_height_gives_the_same(model, pairs, rows, monkeypatch):
    monkeypatch.setattr(direct_path, "ROWS", rows)
    given = pair_log_probs(direct_rows(model.W_E, model.W_U), pairs)
    dense = (model.W_E @ model.W_U).log_softmax(1)
    assert_close(given, dense[first_tokens(pairs), pairs.following.long()])


def test_first_tokens_and_following_are_the_pairs_that_were_counted(text, pairs):
    found = set(zip(first_tokens(pairs).tolist(), pairs.following.tolist()))
    assert found == set(zip(text[0].flatten().tolist(), text[1].flatten().tolist()))


def test_singular_factors_are_the_dense_svd(model):
    left, values, right = singular_factors(model.W_E, model.W_U)
    dense = model.W_E @ model.W_U
    assert_close(left * values @ right, dense, atol=1e-4, rtol=1e-4)
    assert_close(values, torch.linalg.svdvals(dense)[:D_MODEL], atol=1e-4, rtol=1e-4)
    for basis in (left.T @ left, right @ right.T):
        assert_close(basis, torch.eye(D_MODEL), atol=1e-5, rtol=0)


def test_the_full_rank_cut_predicts_the_same_and_lower_ones_are_nearest(model):
    dense = model.W_E @ (model.W_U - model.W_U.mean(1, keepdim=True))
    whole = torch.matmul(*cut_to_rank(model.W_E, model.W_U, D_MODEL))
    assert_close(whole.softmax(1), (model.W_E @ model.W_U).softmax(1), atol=1e-4, rtol=1e-3)
    left, right = cut_to_rank(model.W_E, model.W_U, 4)
    assert left.shape == (D_VOCAB, 4) and right.shape == (4, D_VOCAB)
    missing = torch.linalg.svdvals(dense)[4:].square().sum()  # Eckart and Young
    assert_close((dense - left @ right).square().sum(), missing, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("rank", [0, D_MODEL + 1])
def test_a_rank_that_the_product_cannot_have_is_refused(model, rank):
    with pytest.raises(ValueError, match=f"1..d_model={D_MODEL}, got {rank}"):
        cut_to_rank(model.W_E, model.W_U, rank)


def test_own_ranks_count_the_likelier_tokens(model):
    table = (model.W_E @ model.W_U).softmax(1)
    tokens = torch.tensor([4, 0, 16, 9])
    places = own_ranks(direct_rows(model.W_E, model.W_U), tokens)
    order = [table[t].argsort(descending=True).tolist().index(t) for t in tokens.tolist()]
    assert places.tolist() == order
    identity = 10 * torch.eye(D_VOCAB)
    assert own_ranks(direct_rows(identity, identity), tokens).tolist() == [0, 0, 0, 0]


def test_weights_in_a_correlation_are_repetitions():
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(2, 40, generator=generator)
    weights = torch.randint(1, 5, (40,), generator=generator)
    long = torch.stack([v.repeat_interleave(weights) for v in (x, y)])
    assert correlation(x, y, weights.float()) == pytest.approx(float(torch.corrcoef(long)[0, 1]))
    assert correlation(x, -2 * x + 1, weights.float()) == pytest.approx(-1)


def test_times_counted_looks_pairs_up_in_another_text(pairs):
    first = torch.tensor([3, 3, 16, 0, 15])
    second = torch.tensor([2, 4, 16, 0, 9])
    asked = count_bigrams(first, second, D_VOCAB)
    given = times_counted(asked, pairs)
    rows = first_tokens(asked).tolist()
    expected = [int(pairs.row(a)[b]) for a, b in zip(rows, asked.following.tolist())]
    assert given.tolist() == expected and 0 in expected and max(expected) > 0
    assert times_counted(pairs, pairs).tolist() == pairs.counts.tolist()


def test_training_further_steps_where_autograd_says(model, pairs):
    W_E, W_U = trained_further(model.W_E, model.W_U, pairs, steps=1, lr=0.3)
    E, U = (W.detach().clone().requires_grad_() for W in (model.W_E, model.W_U))
    logs = (E @ U).log_softmax(1)[first_tokens(pairs), pairs.following.long()]
    (-(logs * pairs.counts).sum() / pairs.counts.sum()).backward()
    for before, after, grad in ((model.W_E, W_E, E.grad), (model.W_U, W_U, U.grad)):
        clear = grad.abs() > 1e-5  # Adam's first step is the rate times the sign
        assert_close((before - after)[clear], 0.1 * grad[clear].sign(), atol=1e-3, rtol=0)
        assert clear.float().mean() > 0.5


def test_training_further_comes_down_to_the_entropy_of_the_text(text, pairs):
    config = Config(n_layers=0, n_heads=3, d_model=D_VOCAB, d_head=5, d_vocab=D_VOCAB, n_ctx=7)
    start = AttentionOnlyTransformer(config).requires_grad_(False)
    kept = start.W_E.clone(), start.W_U.clone()
    better = trained_further(start.W_E, start.W_U, pairs, steps=300, lr=0.1)
    totals = pairs.totals()[first_tokens(pairs)]
    entropy = float(-(pairs.counts * (pairs.counts / totals).log()).sum() / pairs.counts.sum())
    assert entropy <= pair_loss(direct_rows(*better), pairs) < entropy + 0.02
    assert torch.equal(start.W_E, kept[0]) and torch.equal(start.W_U, kept[1])
