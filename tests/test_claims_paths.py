"""The claims that a model is a sum of paths can fail: terms left out, patterns that look ahead."""

import torch
from toys import lively, texts

from pathsum import claims
from pathsum import claims_paths as paths
from pathsum.paths import PathTerms, path_terms


def test_the_expansion_fails_if_a_head_is_left_out():
    def without_the_last(model, tokens):
        found = path_terms(model, tokens)
        return PathTerms(found.paths[:-1], found.values[:-1])

    assert paths.measure_expansion(lively(), texts()).verdict == "exact"
    assert paths.measure_expansion(lively(), texts(), without_the_last).verdict == "not seen"


def test_a_text_by_itself_is_the_model():
    model, tokens = lively(), texts(1)
    alone = paths.mixed_logits(model, tokens, torch.ones(1))
    torch.testing.assert_close(alone, model(tokens)[0], atol=1e-5, rtol=1e-5)


def test_only_frozen_patterns_make_it_linear():
    model, pair = lively(), texts(2)
    assert paths.measure_linearity(model, pair).verdict == "exact"
    off = paths.linearity_errors(model, pair, torch.tensor([0.7, -1.3]))
    assert off["frozen"] < 1e-4 < 0.1 < off["free"]


def test_without_attention_nothing_is_broken_and_the_claim_not_seen():
    model = lively()
    model.W_V.zero_()
    assert paths.measure_linearity(model, texts(2)).verdict == "not seen"


def test_paths_and_scores_add_up_and_a_model_that_leaves_out_terms_is_caught(monkeypatch):
    untrained, tokens = lively(n_layers=2), texts(2, 9)
    assert paths.measure_path_sum(untrained, tokens).verdict == "exact"
    assert paths.measure_score_sum(untrained, tokens).verdict == "exact"
    terms, scores = paths.path_terms(untrained, tokens), paths.score_terms
    terms.values[3] = 0
    monkeypatch.setattr(paths, "path_terms", lambda model, tokens: terms)
    assert paths.measure_path_sum(untrained, tokens).verdict == "not seen"
    monkeypatch.setattr(paths, "score_terms", lambda m, t, h: scores(m, t, h)[:, :-1])
    assert paths.measure_score_sum(untrained, tokens).verdict == "not seen"


def test_a_product_with_a_pattern_that_looks_ahead_is_no_head(monkeypatch):
    toy, tokens, real = lively(n_layers=2), texts(1, 7), paths.cache

    def ahead(model, ids):
        values = real(model, ids)
        return values | {"L0.pattern": values["L0.pattern"].flip(-1)}

    assert paths.measure_product(toy, tokens).verdict == "exact"
    monkeypatch.setattr(paths, "cache", ahead)
    assert paths.measure_product(toy, tokens).verdict == "not seen"


def test_sums_are_exact_on_the_shipped_models():
    rows = claims.measure("A11", "A6", "A7", "A8", "A9")
    assert [row["verdict"] for row in rows] == 5 * ["exact"]
