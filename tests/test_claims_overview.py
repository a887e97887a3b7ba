"""The overview's claims: the verdicts on our models, and that each can turn out otherwise."""

from copy import deepcopy
from inspect import signature

import pytest
import torch

from pathsum import claims_overview as overview
from pathsum import stream
from pathsum.checkpoints import load_model
from pathsum.evaluate import repeat_scores
from pathsum.model import AttentionOnlyTransformer, Config
from pathsum.samples import demo_tokens
from pathsum.tokenizer import load_tokenizer

TOY = Config(n_layers=2, n_heads=3, d_model=12, d_head=5, d_vocab=17, n_ctx=7)


@pytest.fixture(scope="module")
def toy() -> AttentionOnlyTransformer:
    return AttentionOnlyTransformer(TOY, seed=3).requires_grad_(False)


@pytest.fixture(scope="module")
def tokens() -> torch.Tensor:
    return torch.randint(17, (1, 7), generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def trained() -> AttentionOnlyTransformer:
    return load_model("attn-only-2l")


@pytest.mark.parametrize(
    "measure",
    ["concatenation", "readings", "two_matrices", "superficial", "rotation"],
)
def test_identities_are_exact_on_the_shipped_model(measure: str, trained):
    function = getattr(overview, measure)
    assert function(*[trained] * len(signature(function).parameters)).verdict == "exact"


def test_the_strongest_virtual_weights_join_the_previous_token_and_the_induction_head(trained):
    write, read = trained.W_O[0], trained.W_K[1]
    product = torch.einsum("afm,bmg->abfg", write, read).norm(dim=(2, 3))
    coupling = product / (write.norm(dim=(1, 2))[:, None] * read.norm(dim=(1, 2)))
    scores = repeat_scores(trained, sequences=4)
    best = [
        max(range(8), key=scores[name][layer].__getitem__)
        for layer, name in enumerate(("previous_token", "prefix_matching"))
    ]
    assert list(divmod(int(coupling.argmax()), 8)) == best


def test_the_demo_text_repeats_a_name_of_seven_tokens():
    words = load_tokenizer().token_strings(demo_tokens()[0])
    first = words.index("·El")
    second = words.index("·El", first + 1)
    assert words[first : first + 7] == words[second : second + 7]
    assert "".join(words[first : first + 7]) == "·Elizabeth·Bennet"


def test_rotation_is_not_seen_when_the_rotation_leaves_something_out(toy, tokens, monkeypatch):
    real = stream.rotated

    def forgets_W_O(model, R):
        other = real(model, R)
        other.W_O.copy_(model.W_O)
        return other

    monkeypatch.setattr(stream, "rotated", forgets_W_O)
    result = overview.measure_rotation(toy, tokens, overview.random_layer_norm_model())
    assert result.verdict == "not seen"


def test_rotation_needs_a_layer_norm_that_knows_its_coordinates(toy, tokens):
    flat = overview.random_layer_norm_model()
    flat.norm_gain.fill_(1)
    flat.norm_bias.zero_()
    assert overview.measure_rotation(toy, tokens, flat).verdict == "not seen"


def test_readings_are_not_seen_in_the_order_of_columns():
    def by_columns(A, W, x):
        first, _, third = overview.three_readings(A, W, x)
        return [first, (torch.kron(A, W) @ x.mT.flatten()).reshape(first.shape), third]

    assert overview.measure_readings(by_columns).verdict == "not seen"


def test_superficial_is_not_seen_for_another_head_or_for_the_same_numbers(toy, tokens):
    other = deepcopy(toy)
    other.W_Q.copy_(other.W_Q.flip(1))
    assert overview.measure_superficial(toy, other, tokens).verdict == "not seen"
    assert overview.measure_superficial(toy, deepcopy(toy), tokens).verdict == "not seen"
    assert (
        overview.measure_superficial(toy, overview.reparametrised(toy), tokens).verdict == "exact"
    )


def test_heads_fed_one_after_another_are_not_a_sum(toy, tokens, monkeypatch):
    real = overview.cache

    def spoiled(model, ids):
        values = real(model, ids)
        values["L1.result"] = values["L1.result"] + 1e-3 * values["L0.result"]
        return values

    assert overview.measure_concatenation(toy, tokens).verdict == "exact"
    assert overview.measure_two_matrices(toy, tokens).verdict == "exact"
    monkeypatch.setattr(overview, "cache", spoiled)
    assert overview.measure_concatenation(toy, tokens).verdict == "not seen"
    assert overview.measure_two_matrices(toy, tokens).verdict == "not seen"


def test_rotations_are_orthogonal_and_keep_the_mean_when_asked():
    for keep_mean in (False, True):
        R = stream.random_rotation(9, torch.Generator().manual_seed(0), keep_mean)
        torch.testing.assert_close(R @ R.mT, torch.eye(9, dtype=torch.float64))
        ones = torch.ones(9, dtype=torch.float64)
        assert torch.allclose(ones @ R, ones) == keep_mean


def test_a_folded_model_is_the_same_function_at_every_length():
    model = overview.random_layer_norm_model(seed=5)
    plain, hook = stream.folded(model)
    for length in (1, 3, 20):
        ids = torch.randint(100, (2, length), generator=torch.Generator().manual_seed(length))
        torch.testing.assert_close(plain(ids, hook=hook), model(ids), atol=1e-5, rtol=1e-5)
    with pytest.raises(ValueError, match="nothing to fold|something to fold"):
        stream.folded(AttentionOnlyTransformer(TOY))


def test_dimensions_and_shares_of_known_matrices():
    flat = torch.cat([torch.eye(4), -torch.eye(4)])
    shares = stream.variance_shares(flat)
    torch.testing.assert_close(shares, torch.full((4,), 0.25, dtype=torch.float64))
    assert stream.dimensions_for(shares) == 4 and stream.dimensions_for(shares, 0.5) == 2
    of_E, of_U = stream.joint_components(flat * torch.tensor([1.0, 1, 0, 0]), flat.mT)
    torch.testing.assert_close(of_E.sum() + of_U.sum(), torch.tensor(2.0, dtype=torch.float64))
    assert (of_E[-2:] < 1e-12).all() and (of_U > 0.2).all()
