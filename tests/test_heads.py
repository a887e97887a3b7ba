"""Behaviour scores on patterns whose answer is known, and on planted weights."""

import pytest
import torch
from torch.testing import assert_close

from pathsum.heads import (
    copying_score,
    duplicate_token_score,
    prefix_matching_score,
    present_token_score,
    previous_token_score,
    raised_share,
    repeated_tokens,
    start_token_score,
    value_weighted,
)
from pathsum.model import AttentionOnlyTransformer, Config

N, PERIOD = 13, 4  # start token and three copies of four tokens


def pattern_looking_back(offset):
    """All attention `offset` back; the first rows rest on the start token."""
    pattern = torch.zeros(N, N)
    for dest in range(N):
        pattern[dest, max(0, dest - offset)] = 1
    return pattern


def test_repeated_tokens_start_once_and_repeat():
    tokens = repeated_tokens(5, PERIOD, 3, 17, torch.Generator().manual_seed(0), start_id=3)
    assert tokens.shape == (5, N)
    assert (tokens == 3).sum() == 5 and (tokens[:, 0] == 3).all()
    assert_close(tokens[:, 1:5], tokens[:, 5:9])
    assert_close(tokens[:, 1:5], tokens[:, 9:])
    drawn = repeated_tokens(2000, PERIOD, 1, 17, torch.Generator().manual_seed(0), start_id=3)
    assert set(drawn[:, 1:].flatten().tolist()) == set(range(17)) - {3}


def test_an_induction_head_lies_one_short_of_the_period():
    assert prefix_matching_score(pattern_looking_back(PERIOD - 1), PERIOD) == 1
    assert prefix_matching_score(pattern_looking_back(PERIOD), PERIOD) == 0  # duplicate-token head
    assert prefix_matching_score(pattern_looking_back(1), PERIOD) == 0  # previous-token head


def test_prefix_matching_sums_over_all_earlier_copies():
    pattern = torch.zeros(N, N)
    for dest in range(N):
        earlier = [dest - b + 1 for b in range(PERIOD, N, PERIOD) if dest - b >= 1]
        for src in earlier:
            pattern[dest, src] = 1 / len(earlier)
    assert_close(prefix_matching_score(pattern, PERIOD), torch.tensor(1.0))


def test_prefix_matching_equals_a_slow_loop():
    pattern = torch.rand(2, 3, N, N, generator=torch.Generator().manual_seed(1)).tril()
    total, count = torch.zeros(2, 3), 0
    for dest in range(1 + PERIOD, N):
        count += 1
        for src in range(1, N):
            same = (src - 1 - 1) % PERIOD == (dest - 1) % PERIOD and 1 <= src - 1 < dest
            if same:
                total += pattern[:, :, dest, src]
    # sources whose predecessor is a copy of dest, the destination itself excluded
    assert_close(prefix_matching_score(pattern, PERIOD), total / count)


def test_offsets_are_told_apart():
    assert previous_token_score(pattern_looking_back(1)) == 1
    assert previous_token_score(pattern_looking_back(2)) == pytest.approx(1 / (N - 1))
    assert present_token_score(pattern_looking_back(0)) == 1
    assert present_token_score(pattern_looking_back(1)) == 0
    assert start_token_score(pattern_looking_back(N)) == 1


@pytest.mark.parametrize("wrong", [torch.ones(3), torch.ones(2, 3, 4), torch.ones(1, 1)])
def test_scores_refuse_what_is_no_pattern(wrong):
    with pytest.raises((ValueError, TypeError)):
        previous_token_score(wrong)


@pytest.mark.parametrize("period", [1, 12, 40])
def test_a_period_that_does_not_fit_is_refused(period):
    with pytest.raises(ValueError, match=f"got {period}"):
        prefix_matching_score(pattern_looking_back(1), period)


def dense_copying(model, layer, head):
    circuit = model.W_E @ model.W_V[layer, head] @ model.W_O[layer, head] @ model.W_U
    eigenvalues = torch.linalg.eigvals(circuit.double())
    return (eigenvalues.sum().real / eigenvalues.abs().sum()).float()


def test_copying_equals_the_eigenvalues_of_the_dense_circuit():
    model = AttentionOnlyTransformer(Config(2, 3, 12, 5, 17, 7), seed=3).requires_grad_(False)
    expected = [[dense_copying(model, layer, head) for head in range(3)] for layer in range(2)]
    assert_close(copying_score(model), torch.tensor(expected), rtol=1e-4, atol=1e-4)


def test_a_planted_copying_head_scores_one_and_its_negative_minus_one():
    model = AttentionOnlyTransformer(Config(1, 3, 17, 5, 17, 7), seed=3).requires_grad_(False)
    model.W_E.copy_(torch.eye(17))
    model.W_U.copy_(torch.eye(17))
    model.W_O[0, 0] = model.W_V[0, 0].mT
    model.W_O[0, 1] = -model.W_V[0, 1].mT
    assert_close(copying_score(model)[0, :2], torch.tensor([1.0, -1.0]))


def test_a_duplicate_token_head_finds_the_token_itself():
    assert duplicate_token_score(pattern_looking_back(PERIOD), PERIOD) == 1
    assert duplicate_token_score(pattern_looking_back(PERIOD - 1), PERIOD) == 0


def test_value_weighting_scales_each_source():
    pattern = torch.rand(2, 3, 6, 6, generator=torch.Generator().manual_seed(0))
    v = torch.randn(2, 3, 6, 5, generator=torch.Generator().manual_seed(1))
    got = value_weighted(pattern, v)
    assert_close(got[1, 2, 4, 3], pattern[1, 2, 4, 3] * v[1, 2, 3].norm())


def test_the_raised_share_is_that_of_a_slow_loop():
    c = Config(n_layers=2, n_heads=3, d_model=12, d_head=5, d_vocab=17, n_ctx=7)
    model = AttentionOnlyTransformer(c, seed=1).requires_grad_(False)
    found = raised_share(model, length=6, samples=4, generator=torch.Generator().manual_seed(5))
    generator = torch.Generator().manual_seed(5)
    samples = [1 + torch.randperm(16, generator=generator)[:6] for _ in range(4)]
    for layer in range(2):
        for head in range(3):
            own = total = 0.0
            for tokens in samples:
                for place, source in enumerate(tokens):
                    v = model.W_E[source] @ model.W_V[layer, head] @ model.W_O[layer, head]
                    logits = [float(v @ model.W_U[:, out]) for out in tokens]
                    rises = [max(0.0, value - sum(logits) / 6) for value in logits]
                    own, total = own + rises[place], total + sum(rises)
            assert float(found[layer, head]) == pytest.approx(2 * own / total - 1, abs=1e-5)


def test_the_raised_share_is_one_for_a_copier_minus_one_for_its_opposite_and_low_by_chance():
    c = Config(n_layers=1, n_heads=2, d_model=40, d_head=40, d_vocab=40, n_ctx=7)
    model = AttentionOnlyTransformer(c, seed=0).requires_grad_(False)
    model.W_E[:], model.W_U[:], model.W_V[0] = torch.eye(40), torch.eye(40), torch.eye(40)
    model.W_O[0, 0], model.W_O[0, 1] = torch.eye(40), -torch.eye(40)
    torch.testing.assert_close(raised_share(model), torch.tensor([[1.0, -1.0]]))
    big = Config(n_layers=2, n_heads=8, d_model=64, d_head=16, d_vocab=300, n_ctx=7)
    chance = raised_share(AttentionOnlyTransformer(big, seed=0), samples=40)
    assert float(chance.mean()) == pytest.approx(2 / 25 - 1, abs=0.02)


@pytest.mark.parametrize(("length", "samples"), [(17, 1), (1, 1), (5, 0)])
def test_the_raised_share_refuses_sizes_that_cannot_be(length, samples):
    c = Config(n_layers=1, n_heads=1, d_model=4, d_head=2, d_vocab=17, n_ctx=7)
    with pytest.raises(ValueError, match=f"2..16, .* got {length} and {samples}"):
        raised_share(AttentionOnlyTransformer(c), length, samples)
