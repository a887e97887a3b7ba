"""Claims Z1 to Z3: they fail where they are false, and hold on the shipped models as recorded."""

import re

import pytest
import torch

from pathsum import claims
from pathsum.bigrams import KneserNey, count_bigrams
from pathsum.claims_zero import measure_bigram, measure_inverse, measure_residual
from pathsum.model import AttentionOnlyTransformer, Config

D_VOCAB = 48


def text(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets of a random walk in which no token ever follows itself."""
    chain = torch.Generator().manual_seed(0)
    odds = torch.randn(D_VOCAB, D_VOCAB, generator=chain).mul(2).exp().fill_diagonal_(0)
    generator = torch.Generator().manual_seed(seed)
    tokens = [torch.randint(D_VOCAB, (200,), generator=generator)]
    for _ in range(60):
        tokens.append(torch.multinomial(odds[tokens[-1]], 1, generator=generator)[:, 0])
    walk = torch.stack(tokens, dim=1)
    return walk[:, :-1], walk[:, 1:]


def zero_layer(W_E, W_U) -> AttentionOnlyTransformer:
    sizes = {"d_model": W_E.shape[1], "d_vocab": W_E.shape[0], "n_heads": 3, "d_head": 5}
    model = AttentionOnlyTransformer(Config(n_layers=0, n_ctx=60, **sizes)).requires_grad_(False)
    model.W_E.copy_(W_E)
    model.W_U.copy_(W_U)
    return model


@pytest.fixture(scope="module")
def counts():
    inputs, targets = text(1)
    return count_bigrams(inputs.flatten(), targets.flatten(), D_VOCAB)


@pytest.fixture(scope="module")
def learned(counts):
    """A model whose table is the smoothed one, exactly: it has room for every row."""
    table = KneserNey(counts)
    logs = torch.stack([table.row(t) for t in range(D_VOCAB)]).log()
    return zero_layer(logs, torch.eye(D_VOCAB))


def test_z1_holds_for_the_smoothed_table_itself(learned, counts):
    seen = measure_bigram(learned, counts, counts, frequent=20)
    assert seen.verdict == "holds"
    assert seen.number == pytest.approx(0, abs=1e-4)
    assert "correlate at 1.000" in seen.detail


def test_z1_fails_for_the_transposed_table_and_for_an_untrained_model(learned, counts):
    backward = zero_layer(learned.W_E.T.clone(), torch.eye(D_VOCAB))
    assert measure_bigram(backward, counts, counts, frequent=20).verdict == "not seen"
    untrained = AttentionOnlyTransformer(learned.config).requires_grad_(False)
    seen = measure_bigram(untrained, counts, counts, frequent=20)
    assert seen.verdict == "not seen" and seen.number > 0.5


def test_z1_is_weaker_when_only_the_loss_is_off(learned, counts):
    flat = zero_layer(0.6 * learned.W_E, torch.eye(D_VOCAB))  # same order, too little contrast
    seen = measure_bigram(flat, counts, counts, frequent=20)
    assert seen.verdict == "weaker" and seen.number > 0.1


def test_z2_holds_where_nothing_follows_itself_and_fails_for_an_inverse(learned, counts):
    mixed = torch.linalg.qr(torch.randn(D_VOCAB, D_VOCAB, generator=torch.Generator())).Q
    turned = zero_layer(learned.W_E @ mixed, mixed.T.contiguous())  # the same table
    assert measure_inverse(turned, counts, frequent=20).verdict == "holds"
    tied = zero_layer(5 * mixed, 5 * mixed.T)
    seen = measure_inverse(tied, counts, frequent=20)
    assert seen.verdict == "not seen" and seen.number == 1


def test_z3_holds_for_a_worse_table_and_fails_for_the_same_one(learned):
    inputs, targets = text(2)
    worse = zero_layer(learned.W_E.T.clone(), torch.eye(D_VOCAB))
    assert measure_residual(learned, {"worse": worse}, inputs, targets).verdict == "holds"
    same = measure_residual(learned, {"same": learned}, inputs, targets)
    assert same.verdict == "not seen" and same.number <= 0
    badly_scaled = zero_layer(0.5 * learned.W_E, torch.eye(D_VOCAB))  # nothing is missing from it
    seen = measure_residual(learned, {"scaled": badly_scaled}, inputs, targets)
    assert seen.verdict != "holds"
    both = measure_residual(learned, {"worse": worse, "same": learned}, inputs, targets)
    assert both.verdict == "not seen"


@pytest.fixture(scope="module")
def measured():
    return {row["id"]: row for row in claims.measure("Z1", "Z2", "Z3")}


def numbers(detail: str) -> list[float]:
    return [float(n.replace(",", "")) for n in re.findall(r"\d[\d,]*\.?\d*", detail)]


def test_the_shipped_models_give_the_verdicts_that_the_chapter_speaks_of(measured):
    assert {name: row["verdict"] for name, row in measured.items()} == {
        "Z1": "weaker",
        "Z2": "holds",
        "Z3": "holds",
    }
    assert all(row["page"] == "zero-layer" for row in measured.values())


def test_z1_misses_its_bar_on_the_training_text_narrowly_and_meets_the_rest(measured):
    row = measured["Z1"]
    new = float(re.search(r"on held-out text (\d\.\d+)", row["detail"])[1])
    r = float(re.search(r"correlate at (\d\.\d+)", row["detail"])[1])
    cuts = [float(n) for n in re.findall(r"(\d+\.\d+) at \d+", row["detail"])]
    assert 0.1 < row["number"] < 0.12 and new < 0.05 and r > 0.95
    assert len(cuts) == 4 and cuts == sorted(cuts) and cuts[0] > 0


def test_z2_and_z3_meet_theirs(measured):
    assert 0 <= measured["Z2"]["number"] < 0.05
    assert measured["Z3"]["number"] > 0.1


def test_detail_sentences_hold_numbers_and_no_machine_words(measured):
    for row in measured.values():
        assert len(numbers(row["detail"])) >= 4
        assert "nan" not in row["detail"].lower()
