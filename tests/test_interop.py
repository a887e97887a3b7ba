"""Weights go to TransformerLens and come back whole; what does not fit is named, never dropped."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from pathsum.interop import from_transformer_lens, to_transformer_lens, transformer_lens_weights
from pathsum.model import AttentionOnlyTransformer, Config

SIZES = {"n_layers": 2, "n_heads": 3, "d_model": 12, "d_head": 5, "d_vocab": 17, "n_ctx": 7}
TOKENS = torch.arange(14).reshape(2, 7)


def toy(**changes):
    model = AttentionOnlyTransformer(Config(**{**SIZES, **changes}), seed=1).requires_grad_(False)
    for name, weights in model.named_parameters():  # gains and biases as training leaves them
        if name.startswith("norm"):
            weights.add_(torch.linspace(-0.5, 0.5, weights.numel()).view_as(weights))
    return model


@pytest.mark.parametrize("changes", [{}, {"norm": "pre"}, {"n_layers": 0}], ids=str)
def test_weights_come_back_as_they_went(changes):
    model = toy(**changes)
    back = from_transformer_lens(transformer_lens_weights(model))
    assert_close(back(TOKENS).detach(), model(TOKENS), rtol=0, atol=0)
    assert back.config.n_layers == model.config.n_layers and back.config.norm == model.config.norm
    assert back.state_dict().keys() == model.state_dict().keys()


def test_weights_lie_in_the_shapes_of_transformer_lens():
    weights = transformer_lens_weights(toy(norm="pre"))
    assert weights["blocks.1.attn.W_Q"].shape == (3, 12, 5)
    assert weights["blocks.1.attn.W_O"].shape == (3, 5, 12)
    assert weights["unembed.W_U"].shape == (12, 17)
    assert weights["blocks.0.ln1.w"].shape == weights["ln_final.b"].shape == (12,)
    assert weights["blocks.0.attn.b_Q"].shape == (3, 5)


def by_its_formulas(w, tokens, n_layers, shortformer):
    """Logits as TransformerLens defines them, from its names alone (biases and LayerNorm left out)."""
    positions = w["pos_embed.W_pos"][: tokens.shape[1]]
    resid = w["embed.W_E"][tokens] + (0 if shortformer else positions)
    mask = torch.ones(tokens.shape[1], tokens.shape[1], dtype=torch.bool).triu(1)
    for layer in range(n_layers):
        placed = resid + (positions if shortformer else 0)
        W_Q, W_K, W_V, W_O = (w[f"blocks.{layer}.attn.W_{name}"] for name in "QKVO")
        q, k, v = placed[:, None] @ W_Q, placed[:, None] @ W_K, resid[:, None] @ W_V
        scores = (q @ k.mT / W_Q.shape[-1] ** 0.5).masked_fill(mask, float("-inf"))
        resid = resid + (scores.softmax(-1) @ v @ W_O).sum(1)
    return resid @ w["unembed.W_U"]


@pytest.mark.parametrize("positions", ["shortformer", "standard"])
def test_the_weights_make_the_same_logits_by_the_other_librarys_formulas(positions):
    model = toy()
    weights = transformer_lens_weights(model, positions)
    assert weights["embed.W_E"].shape[1] == (24 if positions == "standard" else 12)
    logits = by_its_formulas(weights, TOKENS, 2, positions == "shortformer")
    assert_close(logits, model(TOKENS))


def test_positions_of_theirs_take_the_place_of_the_sinusoids_and_are_not_lost_in_a_file():
    weights = transformer_lens_weights(toy())
    weights["pos_embed.W_pos"] = torch.randn(7, 12, generator=torch.Generator().manual_seed(2))
    model = from_transformer_lens(weights)
    assert_close(model(TOKENS).detach(), by_its_formulas(weights, TOKENS, 2, shortformer=True))
    with pytest.raises(RuntimeError, match=r"Unexpected key.*W_pos"):
        toy().load_state_dict(model.state_dict())


def changed(name, value=None, new_name=None):
    weights = transformer_lens_weights(toy())
    old = weights.pop(name)
    if new_name:
        weights[new_name] = old
    elif value is not None:
        weights[name] = value
    return weights


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (changed("blocks.1.attn.W_O"), r"missing \['blocks\.1\.attn\.W_O'\], unknown \[\]"),
        (
            changed("embed.W_E", new_name="embed.W_e"),
            r"misspelt perhaps: \['embed.W_e for embed.W_E",
        ),
        (
            changed("blocks.0.attn.W_Q", new_name="blocks.0.attn.W_q"),
            r"misspelt perhaps: \['blocks\.0\.attn\.W_q for blocks\.0\.attn\.W_Q'\]",
        ),
        (
            {**transformer_lens_weights(toy()), "blocks.0.mlp.W_in": torch.zeros(12, 48)},
            r"missing \[\], unknown \['blocks\.0\.mlp\.W_in'\]",
        ),
        (
            {**transformer_lens_weights(toy()), "blocks.1.ln1.w": torch.ones(12)},
            r"missing \['blocks\.0\.ln1\.b', .*'ln_final\.w'\]",
        ),
        (
            changed("blocks.1.attn.W_V", torch.zeros(3, 12, 4)),
            r"blocks\.1\.attn\.W_V must be \(3, 12, 5\).*got \(3, 12, 4\)",
        ),
        (changed("embed.W_E", torch.zeros(17)), r"embed\.W_E must have 2 axes, got \(17,\)"),
        (
            changed("blocks.0.attn.b_V", torch.full((3, 5), 0.25)),
            r"blocks\.0\.attn\.b_V must be zero.*0\.25",
        ),
    ],
    ids=[
        "missing",
        "misspelt",
        "misspelt size",
        "MLP",
        "half a LayerNorm",
        "shape",
        "axes",
        "bias",
    ],
)
def test_a_weight_that_does_not_fit_is_named(weights, message):
    with pytest.raises(ValueError, match=message):
        from_transformer_lens(weights)


def test_biases_may_be_absent_and_buffers_present():
    weights = {k: v for k, v in transformer_lens_weights(toy()).items() if ".b_" not in k}
    weights["blocks.0.attn.mask"] = torch.ones(7, 7, dtype=torch.bool)
    assert_close(from_transformer_lens(weights)(TOKENS).detach(), toy()(TOKENS))


@pytest.mark.parametrize(
    ("changes", "positions", "message"),
    [
        ({"smear": True}, "shortformer", "no smeared keys"),
        ({"norm": "pre"}, "standard", "enter LayerNorm"),
        ({}, "rotary", r"one of \('shortformer', 'standard'\), got 'rotary'"),
    ],
)
def test_models_that_cannot_go_there_are_refused(changes, positions, message):
    with pytest.raises(ValueError, match=message):
        transformer_lens_weights(toy(**changes), positions)


def test_a_model_of_another_kind_is_refused():
    with pytest.raises(ValueError, match=r"attn_only = True .*got 'no such field'"):
        from_transformer_lens(torch.nn.Linear(2, 2))


@pytest.mark.skipif(
    importlib.util.find_spec("transformer_lens") is not None, reason="TransformerLens is installed"
)
def test_without_transformer_lens_one_is_told_what_to_install():
    with pytest.raises(ImportError, match=r"pip install \"pathsum\[interop\]\""):
        to_transformer_lens(toy())


PROBE = """
import json, sys
import torch
from pathsum import load_model
from pathsum.interop import from_transformer_lens, to_transformer_lens
from pathsum.model import AttentionOnlyTransformer, Config

torch.set_grad_enabled(False)
found = {}


def compare(name, model, positions):
    tokens = torch.randint(model.config.d_vocab, (2, model.config.n_ctx))
    try:
        theirs = to_transformer_lens(model, positions)
    except (ImportError, ValueError) as error:
        found[name] = str(error)
        return
    found[name] = float((theirs(tokens) - model(tokens)).abs().max())
    if positions == "shortformer":
        theirs.pos_embed.W_pos.add_(0.1)  # not the sinusoids any more
        back = from_transformer_lens(theirs)
        found[name + " back"] = float((theirs(tokens) - back(tokens)).abs().max())
        theirs.blocks[0].attn.b_O.add_(1) if len(theirs.blocks) else theirs.unembed.b_U.add_(1)
        try:
            from_transformer_lens(theirs)
        except ValueError as error:
            found[name + " with a bias"] = str(error)


torch.manual_seed(0)
norm = AttentionOnlyTransformer(Config(2, 3, 12, 5, 17, 7, norm="pre"))
norm.norm_gain.normal_(1, 0.3), norm.norm_bias.normal_(0, 0.3)
for positions in ("shortformer", "standard"):
    compare(f"{positions} 2l", load_model("attn-only-2l"), positions)
    compare(f"{positions} 0l", load_model("attn-only-0l"), positions)
    compare(f"{positions} norm", norm, positions)
print(json.dumps(found))
"""


def probe(root: Path, major: str) -> dict:
    """What both libraries say to the same models, in an environment with TransformerLens."""
    made = subprocess.run(
        [sys.executable, "benchmarks/environment.py", major],
        cwd=root,
        text=True,
        stdout=subprocess.PIPE,
    )
    assert made.returncode == 0, "the environment with TransformerLens could not be made"
    python = made.stdout.split()[-1]
    quiet = os.environ | {"PYTHONWARNINGS": "ignore", "HF_HUB_OFFLINE": "1"}
    run = subprocess.run([python, "-c", PROBE], env=quiet, text=True, capture_output=True)
    assert run.returncode == 0, run.stderr[-3000:]
    return json.loads(run.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.network
def test_transformer_lens_3_gives_equal_logits_both_ways(root: Path):
    found = probe(root, "3")
    for model in ("2l", "0l", "norm"):
        assert found[f"shortformer {model}"] < 1e-4
        assert found[f"shortformer {model} back"] < 1e-4
        assert "must be zero" in found[f"shortformer {model} with a bias"]
    assert found["standard 2l"] < 1e-4 and found["standard 0l"] < 1e-4
    assert "enter LayerNorm" in found["standard norm"]


@pytest.mark.slow
@pytest.mark.network
def test_transformer_lens_4_takes_models_without_layernorm_at_twice_the_width(root: Path):
    found = probe(root, "4")
    for model in ("2l", "0l", "norm"):
        assert re.search(r"4\.\d.*no shortformer positions", found[f"shortformer {model}"])
    assert found["standard 2l"] < 1e-4 and found["standard 0l"] < 1e-4
    assert "enter LayerNorm" in found["standard norm"]


def test_the_pinned_transformer_lens_is_what_the_extra_asks_for(root: Path):
    bounds = re.search(
        r'^interop = \["transformer-lens>=([\d.]+),<(\d+)"\]',
        (root / "pyproject.toml").read_text(),
        re.MULTILINE,
    )
    pins = {
        major: (root / f"benchmarks/requirements-transformer-lens-{major}.txt").read_text()
        for major in ("3", "4")
    }
    pinned = {
        major: re.search(r"^transformer-lens==([\d.]+)$", text, re.MULTILINE)[1]
        for major, text in pins.items()
    }
    assert pinned["3"].startswith(bounds[1] + ".") and pinned["4"].split(".")[0] == bounds[2]
