"""Contrasts, edges, circuits and patching by position: laws on toy models, then the numbers that ship."""

from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close
from toys import TOY, lively

from pathsum import agreement
from pathsum.contrasts import Contrast, induction_contrast, noised, trigram_contrast
from pathsum.edges import (
    circuit_run,
    edge_attributions,
    edge_effects,
    graph_of,
    head_effects,
    head_mask,
)
from pathsum.model import AttentionOnlyTransformer, cache
from pathsum.patching import ablation_hook
from pathsum.pruning import (
    by_size,
    complement,
    curves,
    faithfulness,
    first_edges,
    pruned,
    random_order,
)
from pathsum.tracing import fitting_memory, patched_heads, patched_states

TWO = replace(TOY, n_layers=2)


@pytest.fixture
def model() -> AttentionOnlyTransformer:
    return lively(2)


@pytest.fixture
def contrast() -> Contrast:
    g = torch.Generator().manual_seed(4)
    clean, corrupted = torch.randint(17, (2, 6, 9), generator=g)
    return Contrast(clean, corrupted, torch.randint(17, (6,), generator=g))


def scored(logits, contrast):
    """The score by its definition: the answer's logit at the last position, less the mean."""
    last = logits[:, -1]
    return last.gather(1, contrast.answers[:, None])[:, 0] - last.mean(-1)


def scores(model, contrast):
    """The clean and the corrupted run's score, from logits."""
    return [scored(model(tokens), contrast) for tokens in (contrast.clean, contrast.corrupted)]


# ---- contrasts ----


@pytest.mark.parametrize("change", ["match", "answer"])
def test_the_corrupted_prompt_differs_in_one_place_of_the_first_copy(change: str):
    c = induction_contrast(997, change, batch=20, period=10)
    assert c.clean.shape == (20, 16)
    assert (c.clean[:, 1:6] == c.clean[:, 11:]).all(), "the second copy has begun"
    assert (c.clean[:, 6] == c.answers).all(), "after the earlier copy of the last token"
    places = (c.clean != c.corrupted).nonzero()[:, 1].unique().tolist()
    assert places == [5 if change == "match" else 6]


def test_the_trigram_prompts_differ_in_the_source_alone():
    c = trigram_contrast()
    assert (c.clean != c.corrupted).nonzero()[:, 1].unique().tolist() == [2]
    assert len(c.clean.unique(dim=0)) == len(c.clean)


def test_noise_is_where_it_was_asked_for_and_nowhere_else(model, contrast):
    noisy = noised(contrast, model, [2, 5], sd=2.0, seed=1)
    assert noisy.noise.abs().sum((0, 2)).nonzero()[:, 0].tolist() == [2, 5]
    assert_close(noisy.noise[:, [2, 5]].std(), 2 * model.W_E.std(), rtol=0.2, atol=0)
    assert_close(noised(contrast, model, [2, 5], 2.0, 1).noise, noisy.noise)
    with pytest.raises(IndexError, match=r"positions 0\.\.8, got 9"):
        noised(contrast, model, [9])
    with pytest.raises(ValueError, match="no second list"):
        noisy.swapped()


def test_versions_of_different_lengths_are_refused():
    tokens = torch.zeros(3, 5, dtype=torch.int64)
    with pytest.raises(
        ValueError, match=r"\(3, 5\) and \(3, 4\): patching needs the same position"
    ):
        Contrast(tokens, tokens[:, :4], tokens[:, 0])
    with pytest.raises(ValueError, match=r"expected \(3,\), got \(2,\)"):
        Contrast(tokens, tokens, tokens[:2, 0])
    with pytest.raises(ValueError, match="noise must be"):
        Contrast(tokens, tokens, tokens[:, 0], torch.zeros(3, 4, 2))
    with pytest.raises(ValueError, match="got 'both' and 16"):
        induction_contrast(17, "both")


# ---- edges ----


def test_all_edges_are_the_clean_run_and_none_the_corrupted_one(model, contrast):
    run, graph = circuit_run(model, contrast), graph_of(model)
    clean, corrupted = scores(model, contrast)
    assert_close(run(graph.whole()), clean, rtol=0, atol=1e-4)
    assert_close(run(0 * graph.whole()), corrupted, rtol=0, atol=1e-4)


def test_the_graph_has_every_edge_that_runs_forward():
    graph = graph_of(lively(2))
    heads, kinds = 3, 3
    into_first, into_second, to_logits = heads * kinds, heads * kinds * (1 + heads), 1 + 2 * heads
    assert len(graph.edges()) == into_first + into_second + to_logits
    assert graph.name((2, len(graph.receivers) - 1)) == "L0H1 > logits"
    assert not graph.exists[4, :9].any(), "no head of layer 1 speaks to layer 0"
    assert not graph.exists[1, :9].any(), "nor do heads of one layer to each other"


def test_cutting_all_edges_of_a_head_is_patching_what_it_writes(model, contrast):
    run, graph = circuit_run(model, contrast), graph_of(model)
    corrupted = cache(model, contrast.corrupted)

    def hook(site, value):
        if site != "L0.result":
            return None
        return torch.cat([value[:, :1], corrupted[site][:, 1:2], value[:, 2:]], 1)

    expected = scored(model(contrast.clean, hook), contrast)
    assert_close(run(head_mask(graph, [(0, 1)])), expected, rtol=0, atol=1e-4)
    effects = head_effects(model, contrast)
    clean, _ = scores(model, contrast)
    assert_close(effects[0, 1], (clean - expected).mean(), rtol=0, atol=1e-4)


def test_an_edge_into_a_query_changes_this_query_alone(model, contrast):
    """Path patching by hooks: what L0H2 wrote in the corrupted run, for the query of L1H1 only."""
    run, graph = circuit_run(model, contrast), graph_of(model)
    clean, corrupted = (cache(model, t) for t in (contrast.clean, contrast.corrupted))
    step = (corrupted["L0.result"] - clean["L0.result"])[:, 2] @ model.W_Q[1, 1]

    def hook(site, value):
        if site != "L1.q":
            return None
        changed = value.clone()
        changed[:, 1] += step
        return changed

    expected = scored(model(contrast.clean, hook), contrast)
    mask = graph.whole()
    mask[graph.senders.index("L0H2"), graph.receivers.index("L1H1.q")] = 0
    assert_close(run(mask), expected, rtol=0, atol=1e-4)


def test_attribution_is_exact_for_edges_into_the_logits_and_small_steps(model, contrast):
    attributions = edge_attributions(model, contrast)
    effects = edge_effects(model, contrast, progress=False)
    assert_close(attributions[:, -1], effects[:, -1], rtol=0, atol=1e-4)
    run, graph = circuit_run(model, contrast), graph_of(model)
    step = 1e-2
    with torch.no_grad():
        for edge in [(0, 1), (2, 10), (3, 11)]:
            little = graph.whole()
            little[edge] -= step
            fall = float((run(graph.whole()) - run(little)).mean())
            assert abs(fall / step - float(attributions[edge])) < 0.05 * max(
                1, abs(float(attributions[edge]))
            )


def test_attribution_is_exact_when_nothing_depends_on_patterns(model, contrast):
    with torch.no_grad():
        model.W_Q.zero_()  # attention is even, so the score is linear in every value edge
        model.W_O[0].zero_()  # and in each alone when the first layer is silent
    attributions = edge_attributions(model, contrast)
    assert_close(attributions, edge_effects(model, contrast, progress=False), rtol=0, atol=1e-3)


def test_models_whose_reads_are_no_sums_are_refused(contrast):
    for special in ({"norm": "pre"}, {"smear": True}):
        with pytest.raises(ValueError, match="LayerNorm or smeared keys"):
            circuit_run(AttentionOnlyTransformer(replace(TWO, **special)), contrast)
    with pytest.raises(IndexError, match=r"layers 0\.\.1 with heads 0\.\.2, got \(1, 3\)"):
        head_mask(graph_of(lively(2)), [(1, 3)])
    with pytest.raises(ValueError, match=r"a mask of this model is \(7, 19\), got \(2, 2\)"):
        circuit_run(lively(2), contrast)(torch.ones(2, 2))


# ---- circuits ----


def test_a_circuit_and_its_complement_are_all_edges(model, contrast):
    graph, run = graph_of(model), circuit_run(model, contrast)
    mask = first_edges(graph, random_order(graph), 11)
    assert mask.sum() == 11
    assert_close(mask + complement(graph, mask), graph.whole())
    assert faithfulness(run, graph, graph.whole()) == pytest.approx(1)
    assert faithfulness(run, graph, 0 * mask) == pytest.approx(0)
    inside, outside = curves(run, graph, random_order(graph), [0, len(graph.edges())])
    assert inside == pytest.approx([0, 1], abs=1e-5) and outside == pytest.approx([1, 0], abs=1e-5)


def test_pruning_keeps_what_matters_and_drops_what_does_not(model, contrast):
    with torch.no_grad():
        model.W_O[0, 0].zero_()  # a head that writes nothing has no edge worth keeping
    graph, run = graph_of(model), circuit_run(model, contrast)
    mask = pruned(run, graph, edge_attributions(model, contrast), tolerance=0.01)
    assert mask[1].sum() == 0
    assert 0 < mask.sum() < len(graph.edges())
    cuts = len(graph.edges()) - int(mask.sum())
    assert abs(faithfulness(run, graph, mask) - 1) <= 0.01 * cuts
    with pytest.raises(ValueError, match="above 0, got 0.0"):
        pruned(run, graph, graph.whole(), 0.0)
    assert by_size(graph, mask)[0] in [(s, r) for s, r in mask.nonzero().tolist()]


def test_where_both_versions_score_alike_there_is_nothing_to_explain(model, contrast):
    same = Contrast(contrast.clean, contrast.clean, contrast.answers)
    graph = graph_of(model)
    with pytest.raises(ValueError, match="nothing for a circuit to explain"):
        faithfulness(circuit_run(model, same), graph, graph.whole())


# ---- by position ----


def test_patching_everywhere_gives_the_other_run(model, contrast):
    for direction in ("restore", "corrupt"):
        shares = patched_states(model, contrast, direction, window=9)
        assert_close(shares[:, 0], torch.ones(3), rtol=0, atol=1e-4)
        alone = patched_states(model, contrast, direction)
        assert_close(alone[-1, :-1], torch.zeros(8), rtol=0, atol=1e-5)
        assert_close(alone[-1, -1], torch.ones(()), rtol=0, atol=1e-4)


def test_a_state_is_patched_as_a_hook_would_do_it(model, contrast):
    clean = cache(model, contrast.clean)

    def hook(site, value):
        if site != "L1.resid":
            return None
        return torch.cat([value[:, :3], clean[site][:, 3:5], value[:, 5:]], 1)

    got = scored(model(contrast.corrupted, hook), contrast)
    good, bad = (s.mean() for s in scores(model, contrast))
    expected = (got.mean() - bad) / (good - bad)
    for batch in (5, 256):
        shares = patched_states(model, contrast, window=2, batch=batch)
        assert_close(shares[1, 3], expected, rtol=0, atol=1e-4)


def test_a_head_is_patched_as_a_hook_would_do_it(model, contrast):
    clean = cache(model, contrast.clean)

    def hook(site, value):
        if site != "L0.result":
            return None
        changed = value.clone()
        changed[:, 2, 4] = clean[site][:, 2, 4]
        return changed

    got = scored(model(contrast.corrupted, hook), contrast)
    good, bad = (s.mean() for s in scores(model, contrast))
    shares = patched_heads(model, contrast, progress=False)
    assert_close(shares[0, 2, 4], (got.mean() - bad) / (good - bad), rtol=0, atol=1e-4)
    assert_close(shares[1, :, :-1], torch.zeros(3, 8), rtol=0, atol=1e-5)


def test_wrong_arguments_are_named(model, contrast):
    with pytest.raises(ValueError, match="got 'both'"):
        patched_states(model, contrast, "both")
    with pytest.raises(ValueError, match="at least 1 position, got 0"):
        patched_states(model, contrast, window=0)
    with pytest.raises(IndexError, match=r"layer must be 0\.\.2, got 3"):
        model.from_layer(torch.zeros(1, 2, 12), 3)
    with pytest.raises(MemoryError, match="pass a smaller batch, such as batch=256"):
        with fitting_memory(1024):
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried 9 bytes")
    with pytest.raises(RuntimeError, match="something else"):
        with fitting_memory(8):
            raise RuntimeError("something else")


def test_a_run_from_a_layer_is_the_rest_of_a_run(model, contrast):
    values = cache(model, contrast.clean)
    for layer in range(2):
        got = model.from_layer(values[f"L{layer}.resid"], layer)
        assert_close(got, values["resid_final"], rtol=0, atol=1e-4)


# ---- methods side by side ----


def test_ablation_effects_are_those_of_the_hooks(model, contrast):
    effects = agreement.ablation_effects(model, contrast, "zero")
    without = scored(model(contrast.clean, ablation_hook([(1, 2)])), contrast)
    clean, _ = scores(model, contrast)
    assert_close(effects[1, 2], (clean - without).mean(), rtol=0, atol=1e-4)
    with pytest.raises(ValueError, match="kind must be one of"):
        agreement.ablation_effects(model, contrast, "none")


def test_the_result_file_is_what_the_shipped_model_gives():
    from pathsum import load_model

    stored = agreement.results()
    again = agreement.measured(load_model("attn-only-2l"), "match")
    row = stored["attn-only-2l"]["match"]
    assert again["circuit"] == row["circuit"]
    for name, table in again["heads"].items():
        assert_close(torch.tensor(table), torch.tensor(row["heads"][name]), rtol=0, atol=1e-3)
    assert again["faithfulness"] == pytest.approx(row["faithfulness"], abs=1e-3)
