"""Shipped models: loaded offline and distrusted; runs of one's own; bars; the recorded results."""

import copy
import json
import socket
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.testing import assert_close

from pathsum import checkpoints
from pathsum.checkpoints import (
    CheckpointError,
    bars,
    export,
    load_model,
    load_run,
    measured,
    model_card,
    model_names,
    training_log,
)
from pathsum.dataset import TokenData
from pathsum.model import Config
from pathsum.presets import PRESETS, TrainConfig
from pathsum.runs import Run

SHIPPED = ["attn-only-0l", "attn-only-1l", "attn-only-2l"]


@pytest.fixture(scope="module")
def toy_run(tmp_path_factory):
    """A finished run of 6 steps, with the real vocabulary so that it can be exported."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(1, 4096, (33 * 40,), generator=generator).numpy().astype("uint16")
    data = TokenData(tokens, tokens[: 33 * 4], "toy", {})
    model = Config(n_layers=2, n_heads=3, d_model=12, d_head=5, d_vocab=4096, n_ctx=33)
    config = TrainConfig(model=model, data="toy", steps=6, batch=4, records=3, save_every=3)
    folder = tmp_path_factory.mktemp("runs") / "toy"
    run = Run(folder, config, data)
    run.start(resume=False)
    run.train(progress=False)
    return folder


@pytest.fixture
def shelf(toy_run, tmp_path, monkeypatch):
    """A folder of shipped models that holds just the toy, as `toy-2l`."""
    monkeypatch.setattr(checkpoints, "MODELS", tmp_path / "models")
    export(toy_run, "toy-2l")
    return tmp_path / "models"


def change_card(shelf, change) -> None:
    path = shelf / "toy-2l.json"
    card = json.loads(path.read_text())
    change(card)
    path.write_text(json.dumps(card))


# runs of one's own


def test_load_run_gives_the_last_snapshot_or_the_one_asked_for(toy_run):
    snapshots = sorted((toy_run / "snapshots").glob("*.safetensors"))
    assert snapshots[-1].stem == "step-000006"
    last, first = load_run(toy_run), load_run(toy_run, step=0)
    assert_close(last.W_E, load_file(snapshots[-1])["W_E"].float())
    assert_close(first.W_E, load_file(snapshots[0])["W_E"].float())
    assert not torch.equal(last.W_E, first.W_E)
    assert not any(p.requires_grad for p in last.parameters())


def test_load_run_says_what_is_missing(toy_run, tmp_path):
    with pytest.raises(CheckpointError, match="holds no measured run.*pathsum.train quick"):
        load_run(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match=r"no snapshot of step 5, only of \[0, .*6\]"):
        load_run(toy_run, step=5)


def test_a_run_whose_weights_do_not_fit_its_config_is_refused(toy_run, tmp_path):
    copied = tmp_path / "run"
    (copied / "snapshots").mkdir(parents=True)
    about = json.loads((toy_run / "run.json").read_text())
    about["config"]["model"]["d_model"] = 16
    (copied / "run.json").write_text(json.dumps(about))
    weights = load_file(toy_run / "snapshots" / "step-000006.safetensors")
    save_file(weights, copied / "snapshots" / "step-000006.safetensors")
    with pytest.raises(CheckpointError, match=r"does not fit its config.*W_E"):
        load_run(copied)


# export and loading, on the toy


def test_an_exported_model_is_the_run_rounded_to_half_precision(shelf, toy_run):
    shipped, run = load_model("toy-2l"), load_run(toy_run)
    for (name, a), (_, b) in zip(shipped.named_parameters(), run.named_parameters(), strict=True):
        assert torch.equal(a, b), name
        assert torch.equal(a, a.half().float()) and a.dtype == torch.float32
    card = model_card("toy-2l")
    assert card["tokens"] == 6 * 4 * 33
    assert card["parameters"] == sum(p.numel() for p in shipped.parameters())
    assert [record["step"] for record in training_log("toy-2l")][-1] == 6


def test_an_unfinished_run_is_not_exported(toy_run, tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoints, "MODELS", tmp_path / "models")
    about = json.loads((toy_run / "run.json").read_text())
    about["config"]["steps"] = 9
    unfinished = tmp_path / "run"
    unfinished.mkdir()
    (unfinished / "run.json").write_text(json.dumps(about))
    (unfinished / "log.jsonl").write_text((toy_run / "log.jsonl").read_text())
    (unfinished / "snapshots").symlink_to(toy_run / "snapshots")
    with pytest.raises(CheckpointError, match="stopped at step 6 of 9.*--resume"):
        export(unfinished, "toy")
    assert not list((tmp_path / "models").glob("*.safetensors"))


def test_an_unknown_name_suggests_the_nearest(shelf):
    with pytest.raises(CheckpointError, match="'toy-21'.*did you mean 'toy-2l'.*load_run"):
        load_model("toy-21")
    (shelf / "toy-2l.safetensors").unlink()
    with pytest.raises(CheckpointError, match="there are none"):
        load_model("toy-2l")


@pytest.mark.parametrize("change", ["one byte", "cut short"])
def test_a_changed_file_is_recognised_by_its_hash(shelf, change):
    path = shelf / "toy-2l.safetensors"
    content = bytearray(path.read_bytes())
    if change == "one byte":
        content[len(content) // 2] ^= 1
    else:
        del content[-10:]
    path.write_bytes(content)
    with pytest.raises(
        CheckpointError, match="toy-2l.safetensors has sha256.*install pathsum again"
    ):
        load_model("toy-2l")


@pytest.mark.parametrize("amount", [0.01, float("nan")], ids=["off by 0.01", "not a number"])
def test_logits_that_differ_from_the_stored_ones_are_an_error(shelf, amount):
    def change(card):
        card["probe"]["logits"][0][0] += amount

    change_card(shelf, change)
    with pytest.raises(CheckpointError, match="logits up to .* away from the stored ones.*cpu"):
        load_model("toy-2l")


def test_a_rounding_difference_of_the_stored_logits_is_allowed(shelf):
    def change(card):
        card["probe"]["logits"][0][0] += 1e-4

    change_card(shelf, change)
    load_model("toy-2l")


@pytest.mark.parametrize("wrong", ["missing", "misspelt", "one more", "reshaped"])
def test_weights_that_do_not_fit_raise_whatever_is_wrong(shelf, wrong, monkeypatch):
    path = shelf / "toy-2l.safetensors"
    weights = load_file(path)
    moved = weights.pop("W_O") if wrong != "one more" else weights["W_O"].clone()
    if wrong == "misspelt":
        weights["W_0"] = moved
    elif wrong == "one more":
        weights["W_extra"] = moved
    elif wrong == "reshaped":
        weights["W_O"] = moved.mT.contiguous()
    save_file(weights, path)
    change_card(shelf, lambda card: card.update(sha256=checkpoints.hashlib.sha256(
        path.read_bytes()).hexdigest()))  # fmt: skip
    with pytest.raises(CheckpointError, match="does not fit its config.*W_"):
        load_model("toy-2l")


# bars, on made-up results


def made_up() -> dict:
    zero = {"heldout_loss": 4.83, "prefix_matching": [], "previous_token": []}
    one = {"heldout_loss": 4.2, "prefix_matching": [[0.01, 0.02]], "previous_token": [[0.5, 0.1]]}
    two = {
        "heldout_loss": 3.6,
        "prefix_matching": [[0.0, 0.01], [0.1, 0.6]],
        "previous_token": [[0.9, 0.1], [0.1, 0.1]],
        "first_copy": 12.0,
        "second_copy": 9.0,
    }
    return {**dict(zip(SHIPPED, (zero, one, two))), "bigram-table": {"heldout_loss": 4.78}}


def test_made_up_results_that_reach_everything_pass_every_bar():
    assert all(reached for *_, reached in bars(made_up()))
    assert len(bars(made_up())) == 7


@pytest.mark.parametrize(
    ("name", "key", "value", "which"),
    [
        ("attn-only-2l", "prefix_matching", [[0.9, 0.9], [0.1, 0.4]], 0),  # layer 0 does not count
        ("attn-only-2l", "previous_token", [[0.6, 0.1], [0.9, 0.9]], 1),  # nor layer 1 here
        ("attn-only-2l", "second_copy", 10.1, 2),
        ("attn-only-1l", "prefix_matching", [[0.0, 0.1]], 3),
        ("attn-only-1l", "heldout_loss", 4.83, 4),
        ("attn-only-2l", "heldout_loss", 4.2, 5),
        ("attn-only-0l", "heldout_loss", 4.89, 6),
        ("bigram-table", "heldout_loss", 4.94, 6),  # too good a model is as suspicious
    ],
)
def test_each_bar_is_missed_by_the_number_it_is_about(name, key, value, which):
    results = copy.deepcopy(made_up())
    results[name][key] = value
    missed = [i for i, (*_, reached) in enumerate(bars(results)) if not reached]
    assert missed == [which]


def test_the_report_says_when_a_bar_is_missed(monkeypatch, capsys, tmp_path):
    results = made_up()
    results["attn-only-1l"]["prefix_matching"] = [[0.0, 0.3]]
    monkeypatch.setattr(checkpoints, "measured", lambda: results)
    assert checkpoints.report(tmp_path / "results" / "models.json") is False
    assert "MISSED   1 layer: best prefix-matching score: 0.300 (< 0.1)" in capsys.readouterr().out
    assert json.loads((tmp_path / "results" / "models.json").read_text()) == results
    with pytest.raises(SystemExit, match="a bar is missed"):
        checkpoints.main(["report"])


# the models that ship


def test_the_three_models_ship_and_load_without_a_network(monkeypatch):
    def refuse(*arguments, **settings):
        raise AssertionError("load_model opened a socket")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)
    assert set(SHIPPED) <= set(model_names())
    for layers, name in enumerate(SHIPPED):
        model = load_model(name)
        assert model.config.n_layers == layers and model.config.norm is None
        sizes = replace(model.config, n_layers=2)
        assert sizes == PRESETS["book"].model
        logits = model(torch.tensor([[0, 17, 300]]))
        assert logits.shape == (1, 3, 4096) and logits.isfinite().all()
    with pytest.raises(CheckpointError, match="did you mean 'attn-only-2l'"):
        load_model("attn-only-2")


def test_the_shipped_models_were_trained_alike():
    cards = [model_card(name) for name in SHIPPED]
    assert {card["tokens"] for card in cards} == {24_576_000}
    assert len({card["corpus_fingerprint"] for card in cards}) == 1
    assert len({json.dumps(card["training"], sort_keys=True) for card in cards}) == 1
    for name, card in zip(SHIPPED, cards):
        assert card["minutes"] > 0 and card["commit"]
        log = training_log(name)
        assert [log[0]["step"], log[-1]["step"]] == [0, card["training"]["steps"]]


@pytest.fixture(scope="module")
def results():
    return measured()


@pytest.mark.slow
def test_every_bar_is_reached(results):
    missed = [(what, number, required) for what, number, required, ok in bars(results) if not ok]
    assert not missed


@pytest.mark.slow
def test_the_recorded_results_are_what_the_models_give(root, results):
    recorded = json.loads((root / "book" / "results" / "models.json").read_text())
    assert recorded.keys() == results.keys()
    for name, numbers in results.items():
        assert recorded[name].keys() == numbers.keys(), name
        for key, value in numbers.items():
            given, expected = (torch.tensor(v[name][key]) for v in (results, recorded))
            assert_close(given, expected, atol=2e-3, rtol=1e-3, msg=lambda m: f"{name} {key}: {m}")
