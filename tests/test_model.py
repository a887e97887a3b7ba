"""The model: both attention paths, an independent reference, hooks, and bad input."""

import pytest
import torch
from torch.testing import assert_close

from pathsum.model import (
    AttentionOnlyTransformer,
    Config,
    cache,
    sinusoidal_positions,
    sites,
)

TOY = Config(n_layers=2, n_heads=3, d_model=12, d_head=5, d_vocab=17, n_ctx=7)
TOY_NORM = Config(n_layers=2, n_heads=3, d_model=12, d_head=5, d_vocab=17, n_ctx=7, norm="pre")
TOY_SMEAR = Config(n_layers=2, n_heads=3, d_model=12, d_head=5, d_vocab=17, n_ctx=7, smear=True)
ALL = pytest.mark.parametrize(
    "config", [TOY, TOY_NORM, TOY_SMEAR], ids=["no norm", "pre-LN", "smeared keys"]
)


def toy(config=TOY):
    """A toy model whose weights are large enough for patterns to be far from uniform."""
    model = AttentionOnlyTransformer(config, seed=1)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.5 * torch.randn(parameter.shape, generator=generator))
    return model.requires_grad_(False)


def tokens(batch=4, pos=7):
    return torch.randint(17, (batch, pos), generator=torch.Generator().manual_seed(3))


@ALL
def test_the_fused_path_equals_the_explicit_path(config):
    model, x = toy(config), tokens()
    assert_close(model(x), model(x, hook=lambda site, value: None), rtol=1e-4, atol=1e-4)


def reference_logits(model, sequence):
    """One sequence, by loops over heads and positions, from the definition alone."""
    c = model.config
    resid = torch.stack([model.W_E[token] for token in sequence]).double()
    for layer in range(c.n_layers):
        x = resid
        if c.norm:
            gain, bias = model.norm_gain[layer].double(), model.norm_bias[layer].double()
            x = torch.nn.functional.layer_norm(x, (c.d_model,), gain, bias, 1e-5)
        write = torch.zeros_like(resid)
        for head in range(c.n_heads):
            W_Q, W_K, W_V, W_O = (
                W[layer, head].double() for W in (model.W_Q, model.W_K, model.W_V, model.W_O)
            )
            for dest in range(len(sequence)):
                query = (x[dest] + model.W_pos[dest]) @ W_Q
                keys = [(x[src] + model.W_pos[src]) @ W_K for src in range(dest + 1)]
                if c.smear:
                    own = model.smear_logit[layer, head].double().sigmoid()
                    keys = [own * k + (1 - own) * keys[max(i - 1, 0)] for i, k in enumerate(keys)]
                weights = torch.stack([query @ key for key in keys]) / c.d_head**0.5
                for src, weight in enumerate(weights.softmax(0)):
                    write[dest] += weight * (x[src] @ W_V @ W_O)
        resid = resid + write
    if c.norm:
        gain, bias = model.norm_gain[-1].double(), model.norm_bias[-1].double()
        resid = torch.nn.functional.layer_norm(resid, (c.d_model,), gain, bias, 1e-5)
    return (resid @ model.W_U.double()).float()


@ALL
def test_logits_equal_a_slow_loop_over_the_definition(config):
    model, x = toy(config), tokens(batch=2)
    for row, sequence in zip(model(x), x):
        assert_close(row, reference_logits(model, sequence), rtol=1e-4, atol=1e-4)


def test_one_head_equals_torch_multihead_attention_without_positions():
    config = Config(n_layers=1, n_heads=3, d_model=15, d_head=5, d_vocab=17, n_ctx=7)
    model, x = toy(config), tokens(batch=2)
    model.W_pos.zero_()
    torch_layer = torch.nn.MultiheadAttention(15, 3, bias=False, batch_first=True)
    with torch.no_grad():
        side_by_side = [
            W[0].permute(0, 2, 1).reshape(15, 15) for W in (model.W_Q, model.W_K, model.W_V)
        ]
        torch_layer.in_proj_weight.copy_(torch.cat(side_by_side))
        torch_layer.out_proj.weight.copy_(model.W_O[0].reshape(15, 15).T)
        resid = model.W_E[x]
        mask = torch.ones(7, 7, dtype=torch.bool).triu(1)
        expected = resid + torch_layer(resid, resid, resid, attn_mask=mask)[0]
    assert_close(model.final_residual(x), expected, rtol=1e-5, atol=1e-5)


def test_a_token_never_sees_what_comes_after_it():
    model, x = toy(), tokens()
    changed = x.clone()
    changed[:, 4:] = (changed[:, 4:] + 1) % 17
    assert_close(model(changed)[:, :4], model(x)[:, :4])
    assert (model(changed)[:, 4] - model(x)[:, 4]).abs().max() > 1e-3


def test_positions_reach_queries_and_keys_only():
    model, x = toy(), tokens()
    before = cache(model, x)
    model.W_pos.add_(torch.randn(model.W_pos.shape, generator=torch.Generator().manual_seed(4)))
    after = cache(model, x)
    assert_close(after["L0.v"], before["L0.v"])
    assert_close(after["embed"], before["embed"])
    assert not torch.allclose(after["L0.q"], before["L0.q"])
    assert not torch.allclose(after["L0.k"], before["L0.k"])


def test_no_layers_is_the_product_of_embedding_and_unembedding():
    model = toy(Config(n_layers=0, n_heads=3, d_model=12, d_head=5, d_vocab=17, n_ctx=7))
    assert_close(model(tokens()), (model.W_E @ model.W_U)[tokens()])


@ALL
def test_the_cache_holds_every_site_in_order(config):
    values = cache(toy(config), tokens())
    assert list(values) == sites(config)
    assert values["L1.pattern"].shape == (4, 3, 7, 7)
    assert values["L1.result"].shape == (4, 3, 7, 12)


def test_patterns_are_causal_and_rows_sum_to_one():
    pattern = cache(toy(), tokens())["L1.pattern"]
    assert_close(pattern.sum(-1), torch.ones(4, 3, 7))
    assert pattern.triu(1).abs().max() == 0


def test_a_hook_that_patches_every_head_output_gives_the_other_run():
    model, x, other = toy(), tokens(), (tokens() + 5) % 17
    source = cache(model, other)
    logits = model(x, hook=lambda site, value: source[site] if site == "resid_final" else None)
    assert_close(logits, source["logits"])
    logits = model(
        x, hook=lambda site, value: torch.zeros_like(value) if "result" in site else None
    )
    assert_close(logits, (model.W_E @ model.W_U)[x])


def test_a_replacement_of_the_wrong_shape_is_refused():
    with pytest.raises(ValueError, match=r"L0\.pattern.*shape \(4, 3, 7, 7\).*\(7, 7\)"):
        toy()(tokens(), hook=lambda site, value: torch.eye(7) if site == "L0.pattern" else None)


def test_the_same_seed_gives_the_same_model_and_global_state_is_untouched():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    first, second = AttentionOnlyTransformer(TOY, seed=7), AttentionOnlyTransformer(TOY, seed=7)
    assert_close(torch.rand(3), expected)
    assert_close(first.W_Q, second.W_Q)
    assert not torch.allclose(first.W_Q, AttentionOnlyTransformer(TOY, seed=8).W_Q)


def test_a_shift_of_sinusoids_is_a_rotation():
    positions = sinusoidal_positions(50, 12, amplitude=2.0, base=100.0)
    distance = torch.cdist(positions, positions)
    assert_close(distance.diagonal(-7), distance[7, 0].expand(43), rtol=1e-4, atol=1e-4)
    assert_close(positions.norm(dim=1), torch.full((50,), 2.0 * 6**0.5))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (torch.zeros(1, 8, dtype=torch.long), r"n_ctx=7.*\(1, 8\).*shorten"),
        (torch.zeros(7, dtype=torch.long), r"\(batch, pos\).*\(7,\).*tokens\[None\]"),
        (torch.zeros(1, 0, dtype=torch.long), r"1 <= pos"),
        (torch.full((1, 3), 17), r"0\.\.16, got 17\.\.17"),
        (torch.full((1, 3), -1), r"0\.\.16, got -1"),
        (torch.zeros(1, 3), r"torch\.float32"),
    ],
    ids=["too long", "no batch axis", "empty", "id too large", "negative id", "floats"],
)
def test_bad_tokens_say_what_was_expected_and_what_came(wrong, message):
    from pathsum.model import check_tokens

    with pytest.raises(ValueError, match=message):
        check_tokens(wrong, TOY)


@pytest.mark.parametrize(
    ("field", "value"), [("n_layers", 101), ("n_layers", -1), ("n_heads", 0), ("norm", "post"), ("d_head", -1)]
)
def test_a_config_that_makes_no_sense_is_refused(field, value):
    with pytest.raises(ValueError, match=field):
        Config(**{"n_layers": 1, field: value})


def test_paper_preset_has_the_papers_shapes():
    from pathsum.presets import PRESETS

    c = PRESETS["paper"].model
    assert (c.n_heads, c.d_head, c.d_model, c.n_ctx) == (12, 64, 768, 2048)
    assert c.n_heads * c.d_head == c.d_model
    assert 50_000 <= c.d_vocab <= 51_000


def test_gradients_are_the_same_to_the_bit_every_time():
    """Also on several threads, and for tokens that come many times: resumed runs rely on it."""
    model = AttentionOnlyTransformer(Config(n_layers=1, n_heads=2, d_model=64, d_head=32))
    x = torch.randint(50, (8, 256), generator=torch.Generator().manual_seed(0))
    found = []
    for _ in range(4):
        model.zero_grad()
        model.final_residual(x).square().mean().backward()
        found.append(model.W_E.grad.clone())
    assert all(torch.equal(found[0], other) for other in found[1:])


def test_a_smeared_key_is_its_own_and_the_one_before_in_the_learnt_shares():
    model, x = toy(TOY_SMEAR), tokens()
    keys = cache(model, x)["L0.k"]
    plain = toy(TOY_SMEAR)
    plain.smear_logit.fill_(100.0)  # all of its own
    own = cache(plain, x)["L0.k"]
    share = model.smear_logit[0].sigmoid()[:, None, None]
    assert_close(keys[:, :, 1:], share * own[:, :, 1:] + (1 - share) * own[:, :, :-1])
    assert_close(keys[:, :, 0], own[:, :, 0])
