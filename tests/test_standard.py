"""Standard models: laws on toy models, then the numbers that ship."""

import pytest
import torch
from torch.nn.functional import gelu, layer_norm
from torch.testing import assert_close

from pathsum.checkpoints import load_model, model_names, shipped_names
from pathsum.model import AttentionOnlyTransformer, Config, cache
from pathsum.neurons import (
    direct_logits,
    holders,
    neuron_contributions,
    neuron_hook,
    token_share,
    top_inputs,
)
from pathsum.paths import order_terms, path_terms
from pathsum.presets import PRESETS, TrainConfig
from pathsum.runs import optimizers
from pathsum.score_paths import score_terms
from pathsum.standard import (
    StandardConfig,
    StandardTransformer,
    config_of,
    standard_sites,
    transformer,
)
from pathsum.standard_circuits import standard_copying, standard_ov, token_reads
from pathsum.standard_losses import all_but, class_means, ladder, loss_with, losses_of
from pathsum.standard_paths import (
    CLASSES,
    class_of,
    class_terms,
    frozen_hook,
    frozen_standard,
    mlp_outputs,
    of_another_text,
    standard_terms,
)
from pathsum.standard_results import kinds_of, pair_seen, results
from pathsum.stream import folded, rotated

TOY = StandardConfig(
    n_layers=2, n_heads=3, d_model=12, d_head=5, d_vocab=17, n_ctx=7, d_mlp=11
)


@pytest.fixture
def model() -> StandardTransformer:
    """An untrained model in which nothing is zero, one or small."""
    toy, g = StandardTransformer(TOY).requires_grad_(False), torch.Generator().manual_seed(3)
    for weights in toy.parameters():
        weights += 0.5 * torch.randn(weights.shape, generator=g)
    return toy


@pytest.fixture
def text():
    return torch.randint(17, (3, 7), generator=torch.Generator().manual_seed(5))


def test_hooks_see_every_site_and_change_nothing(model, text):
    values = cache(model, text)
    assert list(values) == standard_sites(TOY)
    assert_close(values["logits"], model(text), rtol=1e-4, atol=1e-4)
    assert values["L1.pre"].shape == (3, 7, 11) and values["L0.mlp_scale"].shape == (3, 7, 1)


def test_the_model_is_the_formula_written_out(model, text):
    """An independent forward pass, head by head and layer by layer."""
    m, x = model, model.W_E[text] + model.W_pos[:7]
    mask = torch.ones(7, 7).triu(1).bool()
    for n in range(2):
        read = layer_norm(x, (12,), m.norm_gain[n], m.norm_bias[n])
        for h in range(3):
            q, k, v = (read @ W[n, h] for W in (m.W_Q, m.W_K, m.W_V))
            scores = (q @ k.mT / 5**0.5).masked_fill(mask, -torch.inf)
            x = x + scores.softmax(-1) @ v @ m.W_O[n, h]
        read = layer_norm(x, (12,), m.mlp_norm_gain[n], m.mlp_norm_bias[n])
        x = x + gelu(read @ m.W_in[n] + m.b_in[n]) @ m.W_out[n] + m.b_out[n]
    logits = layer_norm(x, (12,), m.norm_gain[2], m.norm_bias[2]) @ m.W_U
    assert_close(model(text), logits, rtol=1e-4, atol=1e-4)


def test_terms_add_up_to_the_run_also_with_parts_of_another_text(model, text):
    terms = standard_terms(model, text)
    assert len(terms) == 2 * 4**2 + 1
    assert_close(sum(terms.values()), cache(model, text)["resid_final"], rtol=1e-4, atol=1e-4)
    own = frozen_standard(model, text)
    assert_close(model(text, frozen_hook(own)), model(text), rtol=1e-4, atol=1e-4)
    for field in ("patterns", "scales", "mlp_scales", "gates"):
        other = of_another_text(own, field)
        run = model(text, frozen_hook(other))
        assert_close(sum(standard_terms(model, text, other).values()) @ model.W_U, run,
                     rtol=1e-3, atol=1e-3)  # fmt: skip
        assert not torch.allclose(run, model(text), atol=1e-3), field


def test_terms_are_linear_in_what_they_carry_and_biases_in_nothing(model, text):
    own, before = frozen_standard(model, text), standard_terms(model, text)
    model.W_E.mul_(3)
    after = standard_terms(model, text, own)
    for route, value in before.items():
        factor = 3 if route[0] == "token" else 1
        assert_close(after[route], factor * value, rtol=1e-3, atol=1e-3)


def test_an_mlp_with_frozen_gates_is_the_mlp(model, text):
    values, own = cache(model, text), frozen_standard(model, text)
    got = mlp_outputs(model, own, 1, values["L1.mid"], biases=True)
    assert_close(got, values["L1.mlp"], rtol=1e-4, atol=1e-4)


def test_classes_split_the_routes(model, text):
    assert set(map(class_of, standard_terms(model, text))) == set(CLASSES)
    assert_close(sum(class_terms(model, text).values()), sum(standard_terms(model, text).values()))
    assert class_of(("token", ("A0", "M0", "A1"))) == "MLP 0"
    assert class_of(("token", ("M0", "M1"))) == "both MLPs"
    assert class_of(("position", ("M0",))) == "positions"


def test_losses_of_all_classes_are_the_models(model, text):
    targets = text.roll(1, 0)
    own = torch.nn.functional.cross_entropy(
        model(text).flatten(0, 1), targets.flatten(), reduction="none"
    )
    means = class_means(model, text)
    for put in (None, means):
        found = losses_of(model, text, targets, ladder() | all_but(), put)
        assert_close(found["+ both MLPs"].flatten(), own, rtol=1e-4, atol=1e-4)
    only = losses_of(model, text, targets, {"none": ()}, means)["none"]
    constant = sum(means.values()) @ model.W_U
    assert_close(only[0, 0], constant.logsumexp(0) - constant[targets[0, 0]], rtol=1e-4, atol=1e-4)
    assert_close(torch.tensor(loss_with(model, text, targets, [])), own.mean(), rtol=1e-4, atol=1e-4)
    with pytest.raises(KeyError, match="classes are"):
        losses_of(model, text, targets, {"x": ("MLP 7",)})


def test_contributions_of_neurons_add_up(model, text):
    targets, hold = text.roll(1, 0), frozen_hook(frozen_standard(model, text))

    def score(logits):
        return (logits - logits.mean(-1, keepdim=True)).gather(2, targets[..., None]).sum()

    for layer, given in enumerate(neuron_contributions(model, text, targets)):
        def shut(site, value, layer=layer):
            return torch.zeros_like(value) if site == f"L{layer}.post" else hold(site, value)

        fall = score(model(text, hold)) - score(model(text, shut))
        assert_close(given.sum(), fall, rtol=1e-3, atol=1e-3)


def test_small_measures_of_neurons(model, text):
    assert holders(torch.tensor([4.0, -4, 1, 1])).item() == 2
    assert top_inputs(torch.tensor([[1.0, -9, 2]]), torch.tensor([[3, 4, 3]]), 1) == ([3], 1.0)
    ids = torch.randint(4, (9, 7), generator=torch.Generator().manual_seed(1))
    decided = ids[..., None].float() * torch.ones(2)
    assert_close(token_share(decided, ids, 3), torch.ones(2))
    means = torch.arange(11.0)
    values = cache(model, text, neuron_hook(1, torch.tensor([2, 5]), means))
    assert (values["L1.post"][..., 5] == 5).all() and (values["L1.post"][..., 3] != 3).any()
    step = direct_logits(model, 1, [2])[0]
    scale = cache(model, text)["L2.scale"]
    unit = torch.zeros(3, 7, 12) + model.W_out[1, 2]
    logits = ((unit - unit.mean(-1, keepdim=True)) * scale * model.norm_gain[2]) @ model.W_U
    assert_close(logits - logits.mean(-1, keepdim=True), step * scale, rtol=1e-4, atol=1e-4)


def test_ov_circuits_are_what_a_head_adds_to_the_logits(model):
    reads = token_reads(model, 0)
    written = reads @ model.W_V[0, 1] @ model.W_O[0, 1]
    logits = (written - written.mean(-1, keepdim=True)) * model.norm_gain[2] @ model.W_U
    assert_close(standard_ov(model, 0)[1].dense(), logits, rtol=1e-3, atol=1e-3)
    assert standard_copying(model).shape == (2, 3)
    assert_close(token_reads(model, 0, effective=True), reads)


def test_functions_for_attention_alone_refuse_it(model, text):
    for refused in (
        lambda: path_terms(model, text),
        lambda: order_terms(model, text),
        lambda: score_terms(model, text, 0),
        lambda: folded(model),
        lambda: rotated(model, torch.eye(12)),
    ):
        with pytest.raises(ValueError, match="attention-only model, got one with MLPs of 11"):
            refused()


def test_configs_find_their_model():
    assert config_of(TOY.to_dict()) == TOY
    assert type(transformer(TOY)) is StandardTransformer
    assert type(transformer(Config(n_layers=1))) is AttentionOnlyTransformer
    standard = PRESETS["standard"]
    assert TrainConfig.from_dict(standard.to_dict()) == standard
    with pytest.raises(ValueError, match="whole number above 0, got 0"):
        StandardConfig(n_layers=1, d_mlp=0)
    with pytest.raises(ValueError, match="leave both out"):
        StandardConfig(n_layers=1, norm=None)
    muon, adam = optimizers(StandardTransformer(TOY), standard)
    both = [p for o in (muon, adam) for group in o.param_groups for p in group["params"]]
    assert len(both) == len(list(StandardTransformer(TOY).parameters()))


def test_the_shipped_one_is_known_apart():
    assert set(shipped_names()) - set(model_names()) == {"standard-2l"}
    assert type(load_model("standard-2l")) is StandardTransformer


def test_kinds_of_tokens_are_exclusive():
    targets = torch.arange(4096)[None]
    assert (sum(mask.int() for mask in kinds_of(targets).values()) == 1).all()
    assert pair_seen(torch.tensor([[1, 2, 1]]), torch.tensor([[2, 1, 2]])).tolist() == [
        [False, False, True]
    ]


# ---- what the chapter says of the result file ----


@pytest.fixture(scope="module")
def found():
    return results()


def test_the_model_stands_between_one_layer_and_two(found):
    loss = {name: row["loss"] for name, row in found["references"].items()}
    assert loss["attn-only-2l"] < loss["standard-2l"] < loss["attn-only-1l"]


def test_attention_only_paths_explain_nothing(found):
    loss = {name: row["loss"] for name, row in found["references"].items()}
    for how in ("zero", "mean"):
        paths = found["paths"][how]
        assert paths["attention_only"] > loss["uniform"] > loss["unigram"]
        assert abs(list(paths["ladder"].values())[-1] - loss["standard-2l"]) < 1e-3
        for kind in ("direct", "one attention layer", "two attention layers", "MLP 1"):
            assert abs(paths["without"][kind] - loss["standard-2l"]) < 0.005
        assert paths["without"]["MLP 0"] > 5.5 and paths["without"]["both MLPs"] > 4.5
    ladder_means = list(found["paths"]["mean"]["ladder"].values())
    assert 0.05 < ladder_means[1] - ladder_means[4] < 0.2
    gaps = {k: v["attention_only"] - v["model"] for k, v in found["paths"]["kinds"].items()}
    assert set(sorted(gaps, key=gaps.get)[-2:]) == {"goes on a word", "pair seen before"}
    assert min(gaps, key=gaps.get) == "begins a word" and 2.4 < min(gaps.values()) < 2.6
    assert min(gaps["goes on a word"], gaps["pair seen before"]) > 7


def test_gates_hide_most(found):
    cost = found["ablations"]["of_another_text"]
    assert cost["nothing"] < cost["scales"] < cost["patterns"] < cost["gates"]
    assert 0.2 < cost["scales"] - cost["nothing"] < 0.3
    unigram = found["references"]["unigram"]["loss"]
    assert cost["gates"] > unigram and found["ablations"]["mean_gates"] > unigram


def test_neurons_are_many_and_open_often(found):
    for facts in found["neurons"].values():
        assert facts["half_of_means"] > 100 and facts["half_at_a_place"] > 20
        held = facts["held_at_mean"]
        assert all(a > b for a, b in list(zip(held["first"], held["random"]))[:-1])
    first = [n for facts in found["neurons"].values() for n in facts["first"][:5]]
    assert sum(1 / 4 < n["active"] < 2 / 3 for n in first) >= 8
    assert first[-1]["active"] < 0.11 and first[-1]["raises"] == ["K", "O", "B", "H", "F"]


def test_heads_copy_what_the_first_mlp_makes(found):
    heads = found["heads"]
    raw, gains, made = (torch.tensor(rows) for rows in heads["copying"].values())
    assert (gains - raw).abs().max() < 0.06
    assert (made[1] > gains[1]).all() and int((made[1] > 0.94).sum()) == 4
    best = int(torch.tensor(heads["prefix_matching"][1]).argmax())
    assert made[1, best] > 0.99
    assert max(heads["prefix_matching"][1]) < 0.3 < max(heads["attn-only-2l"]["prefix_matching"][1])
