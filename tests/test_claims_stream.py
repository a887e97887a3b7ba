"""The claims on the residual stream: the verdicts on our models, and that each can turn out otherwise."""

from copy import deepcopy

import pytest
import torch

from pathsum import claims_stream as stream
from pathsum.checkpoints import load_model
from pathsum.model import AttentionOnlyTransformer, cache
from pathsum.samples import demo_tokens


@pytest.fixture(scope="module")
def trained() -> AttentionOnlyTransformer:
    return load_model("attn-only-2l")


def test_bandwidth_spectra_fall_faster_than_noise_but_nothing_is_used_by_one_alone(trained):
    result = stream.bandwidth(trained)
    assert result.verdict == "weaker" and result.number < 217
    assert "0 are used by one alone" in result.detail


def test_no_head_of_the_shipped_model_clears_memory(trained):
    result = stream.memory(trained)
    assert result.verdict == "weaker" and result.number == 0


def test_the_head_shown_first_rests_on_the_start_token(trained):
    score = stream.eigenvalue_score(trained)
    assert divmod(int(score.argmin()), 8) == (1, 4)
    pattern = cache(trained, demo_tokens())["L1.pattern"][0, 4]
    assert pattern[1:, 0].mean() > 0.9


def test_bandwidth_distinguishes_noise_and_single_use(trained):
    noise = deepcopy(trained)
    generator = torch.Generator().manual_seed(1)
    noise.W_E.copy_(torch.randn(noise.W_E.shape, generator=generator))
    noise.W_U.copy_(torch.randn(noise.W_U.shape, generator=generator))
    assert stream.measure_bandwidth(noise).verdict == "not seen"
    apart = deepcopy(trained)
    apart.W_E[:, 128:] *= 0.01
    apart.W_U[:128] *= 0.01
    assert stream.measure_bandwidth(apart).verdict == "holds"


def test_memory_is_seen_when_a_head_erases_what_it_stands_on(trained):
    eraser = deepcopy(trained)
    eraser.W_V[0, 0] = torch.eye(256)[:, :32]
    eraser.W_O[0, 0] = -torch.eye(256)[:32]
    eraser.W_Q[0, 0] = 20 * torch.eye(256)[:, :32]  # the fast sinusoids: each position its own
    eraser.W_K[0, 0] = 20 * torch.eye(256)[:, :32]
    score = stream.eigenvalue_score(eraser)[0, 0]
    torch.testing.assert_close(score, torch.tensor(-1.0, dtype=torch.float64))
    assert stream.measure_memory(eraser, demo_tokens()).verdict == "holds"
    eraser.W_O[0, 0] *= -1  # now it doubles what it stands on
    assert stream.measure_memory(eraser, demo_tokens()).verdict == "weaker"
