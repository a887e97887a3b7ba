"""Bad input to what reads and runs models: an error that says what was expected and what came."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from pathsum import circuits, composition, evaluate, heads, idealised, patching, skip_trigrams
from pathsum.factored import FactoredMatrix
from pathsum.model import AttentionOnlyTransformer, Config, cache
from pathsum.paths import patterns_of
from pathsum.tokenizer import load_tokenizer

TOY = Config(n_layers=2, n_heads=3, d_model=12, d_head=5, d_vocab=17, n_ctx=7)
TEXT = torch.randint(17, (4, 7), generator=torch.Generator().manual_seed(0))
NEXT = torch.randint(17, (4, 7), generator=torch.Generator().manual_seed(1))
EVERYTHING = torch.ones(17, dtype=torch.bool)


def toy(**changes) -> AttentionOnlyTransformer:
    return AttentionOnlyTransformer(replace(TOY, **changes), seed=0).requires_grad_(False)


def random_generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


# every public function that takes a model, called as it should be
CALLS: dict[str, Callable] = {
    "full_ov_circuits": lambda m: circuits.full_ov_circuits(m, 0),
    "full_qk_circuits": lambda m: circuits.full_qk_circuits(m, 0),
    "direct_path": circuits.direct_path,
    "positional_scores": lambda m: circuits.positional_scores(m, 0),
    "circuits.copying_eigenvalues": lambda m: circuits.copying_eigenvalues(m, 0),
    "full_ov_eigenvalues": lambda m: circuits.full_ov_eigenvalues(
        m.W_E, composition.ov_circuits(m), m.W_U
    ),
    "ov_circuits": composition.ov_circuits,
    "qk_circuits": composition.qk_circuits,
    "composition_scores": lambda m: composition.composition_scores(m, "K"),
    "published_scores": lambda m: composition.published_scores(m, "Q"),
    "reverse_scores": lambda m: composition.reverse_scores(m, "V"),
    "centred_ov": lambda m: skip_trigrams.centred_ov(m, (0, 0)),
    "centred_qk": lambda m: skip_trigrams.centred_qk(m, (0, 0)),
    "table_rows": lambda m: skip_trigrams.table_rows(m, (0, 0), torch.tensor([1, 2])),
    "strongest_sources": lambda m: skip_trigrams.strongest_sources(m, (0, 0), EVERYTHING, 3),
    "split_token_scores": lambda m: skip_trigrams.split_token_scores(m, (0, 0), [(1, 2, 3)]),
    "heads.copying_eigenvalues": heads.copying_eigenvalues,
    "copying_score": heads.copying_score,
    "raised_share": lambda m: heads.raised_share(m, length=5),
    "ablated_losses": lambda m: patching.ablated_losses(m, TEXT, NEXT, [(0, 1)]),
    "ablated_losses frozen": lambda m: patching.ablated_losses(
        m, TEXT, NEXT, [(0, 1)], "mean", freeze_patterns=True
    ),
    "substituted_losses": lambda m: idealised.substituted_losses(
        m, TEXT, NEXT, previous=[(0, 0)], induction=[(1, 0)]
    ),
    "token_losses": lambda m: evaluate.token_losses(m, TEXT, NEXT),
    "repeat_scores": lambda m: evaluate.repeat_scores(m, sequences=2),
}


@pytest.mark.parametrize("name", CALLS)
def test_every_call_works_on_a_good_model(name):
    CALLS[name](toy())


@pytest.mark.parametrize("name", CALLS)
def test_weights_that_are_nan_are_refused(name):
    model = toy()
    for weights in model.parameters():
        weights.view(-1)[3] = torch.nan
    with pytest.raises(ValueError, match="NaN"):
        CALLS[name](model)


RUN = [name for name in CALLS if "losses" in name or "eigen" in name or name.endswith("score")]


@pytest.mark.parametrize("name", [*RUN, "repeat_scores", "raised_share", "positional_scores"])
def test_weights_that_are_infinite_are_refused_where_they_would_spoil_a_result(name):
    model = toy()
    for weights in model.parameters():
        weights.view(-1)[3] = torch.inf
    with pytest.raises(ValueError, match="NaN or infinity|holds NaN"):
        CALLS[name](model)


@pytest.mark.parametrize("name", CALLS)
def test_a_model_without_numbers_is_refused(name):
    with pytest.raises(ValueError, match="hold.? numbers"):
        CALLS[name](toy().to("meta"))


NEEDS_LAYERS = [
    name
    for name in CALLS
    if name
    not in (
        "direct_path", "ov_circuits", "qk_circuits", "full_ov_eigenvalues",
        "heads.copying_eigenvalues", "copying_score", "raised_share", "token_losses",
        "repeat_scores",
    )
]  # fmt: skip


@pytest.mark.parametrize("name", NEEDS_LAYERS)
def test_what_needs_a_layer_says_so_to_a_model_without(name):
    with pytest.raises(IndexError, match="no attention layers|n_layers=0"):
        CALLS[name](toy(n_layers=0))


@pytest.mark.parametrize("name", ["composition_scores", "published_scores", "reverse_scores"])
def test_composition_needs_two_layers(name):
    with pytest.raises(IndexError, match="n_layers=1, got 0 and 1"):
        CALLS[name](toy(n_layers=1))


@pytest.mark.parametrize("layer", [-1, 2, 9])
@pytest.mark.parametrize(
    "function",
    [
        circuits.full_ov_circuits,
        circuits.full_qk_circuits,
        circuits.positional_scores,
        circuits.copying_eigenvalues,
    ],
)
def test_a_layer_that_is_not_there_is_named(function, layer):
    with pytest.raises(IndexError, match=rf"0\.\.1, got {layer}"):
        function(toy(), layer)


@pytest.mark.parametrize("head", [(-1, 0), (2, 0), (0, -1), (1, 3)])
@pytest.mark.parametrize(
    "call",
    [
        lambda m, head: skip_trigrams.centred_ov(m, head),
        lambda m, head: skip_trigrams.centred_qk(m, head),
        lambda m, head: skip_trigrams.table_rows(m, head, torch.tensor([1])),
        lambda m, head: skip_trigrams.look_up(m, load_tokenizer(), head, " the"),
        lambda m, head: skip_trigrams.strongest_sources(m, head, EVERYTHING, 1),
        lambda m, head: skip_trigrams.split_token_scores(m, head, [(1, 2, 3)]),
        lambda m, head: patching.ablated_losses(m, TEXT, NEXT, [(0, 0), head]),
        lambda m, head: idealised.substituted_losses(m, TEXT, NEXT, previous=[head]),
        lambda m, head: idealised.substituted_losses(m, TEXT, NEXT, induction=[head]),
    ],
)
def test_a_head_that_is_not_there_is_named(call, head):
    with pytest.raises(IndexError, match=rf"layer in 0\.\.1 and head in 0\.\.2.*got \({head[0]}, "):
        call(toy(), head)


@pytest.mark.parametrize(
    ("head", "message"),
    [
        ((5, 0), "no site 'L5.result'"),  # found when the run is over
        ((0, 5), r"L0 has heads 0\.\.2, got 5"),
        ((0, -1), r"counted from 0, got \(0, -1\)"),
        ((-1, 0), r"counted from 0, got \(-1, 0\)"),
    ],
)
def test_a_hook_does_not_ablate_a_head_that_is_not_there_in_silence(head, message):
    with pytest.raises(IndexError, match=message):
        toy()(TEXT, hook=patching.ablation_hook([(0, 1), head]))


def test_a_hook_can_be_used_again():
    hook = patching.ablation_hook([(0, 1), (1, 2)])
    torch.testing.assert_close(toy()(TEXT, hook=hook), toy()(TEXT, hook=hook))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m, x, y: evaluate.token_losses(m, x, y), "n_ctx=7, got"),
        (lambda m, x, y: patching.ablated_losses(m, x, y, [(0, 0)]), "n_ctx=7, got"),
        (lambda m, x, y: patching.ablated_losses(m, x, y, [(0, 0)], "mean"), "n_ctx=7, got"),
        (lambda m, x, y: idealised.substituted_losses(m, x, y, [(0, 0)]), "n_ctx=7, got"),
        (lambda m, x, y: evaluate.training_record(m, x, y), "n_ctx=7, got"),
    ],
)
def test_a_text_longer_than_the_context_is_refused(call, message):
    long = torch.zeros(2, 9, dtype=torch.int64)
    with pytest.raises(ValueError, match=message + r" \(2, 9\).*shorten"):
        call(toy(), long, long)


@pytest.mark.parametrize(
    ("inputs", "targets", "message"),
    [
        (TEXT, NEXT[:3], r"one target, got \(4, 7\) and \(3, 7\)"),
        (TEXT, NEXT[:, :5], r"one target, got \(4, 7\) and \(4, 5\)"),
        (TEXT, NEXT + 17, r"targets must lie in 0\.\.16"),
        (TEXT, NEXT - 17, r"targets must lie in 0\.\.16"),
        (TEXT + 17, NEXT, r"ids must lie in 0\.\.16"),
        (TEXT.to("meta"), NEXT, "inputs must hold numbers"),
        (TEXT, NEXT.to("meta"), "targets must hold numbers"),
    ],
)
def test_losses_need_a_target_of_the_vocabulary_for_every_input(inputs, targets, message):
    plain = evaluate.token_losses
    while hasattr(plain, "__wrapped__"):  # a reader's call has no shape checks around it
        plain = plain.__wrapped__
    with pytest.raises(ValueError, match=message), torch.no_grad():
        plain(toy(), inputs, targets)


def test_tokens_and_model_must_share_a_device():
    with pytest.raises(ValueError, match="one device that holds numbers, got 'meta' and 'cpu'"):
        toy()(TEXT.to("meta"))
    with pytest.raises(ValueError, match="got 'cpu' and 'meta'"):
        toy().to("meta")(TEXT)


@pytest.mark.parametrize("text", ["flibbertigibbet", " zzzqqq", "", "the  the"])
def test_a_text_that_is_no_token_is_answered_with_near_ones(text):
    with pytest.raises(KeyError, match="is not one token .* near ones"):
        skip_trigrams.look_up(toy(d_vocab=4096), load_tokenizer(), (0, 0), " the", text)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: circuits.positional_scores(toy(), 0, 7), ValueError, r"0\.\.6, got 7"),
        (lambda: circuits.positivity_null(0, 3, random_generator()), ValueError, "got 0, 3"),
        (lambda: circuits.positivity_null(4, 3, random_generator(), 1), ValueError, "and 1"),
        (
            lambda: circuits.diagonal_ranks(FactoredMatrix(torch.ones(3, 2), torch.ones(2, 4))),
            ValueError, r"square circuit .*\(3, 4\)",
        ),
        (lambda: composition.composition_scores(toy(), "k"), ValueError, "got 'k'"),
        (lambda: composition.reverse_scores(toy(), "K", 1, 1), IndexError, "got 1 and 1"),
        (lambda: composition.null_score(0), ValueError, "at least 1, got 0"),
        (lambda: circuits.direct_path(toy()).rows([99]), IndexError, "99 is out of bounds.* 17"),
        (lambda: circuits.direct_path(toy()).columns([99]), IndexError, "99 is out of bounds.* 17"),
        (lambda: composition.ov_circuits(toy())[0, 7], IndexError, "7 is out of bounds.* 3"),
        (lambda: composition.ov_circuits(toy())[0, 1, 2], IndexError, "batch axes"),
        (lambda: circuits.direct_path(toy()).topk(0), ValueError, r"1\.\.289"),
        (
            lambda: FactoredMatrix(torch.ones(3, 2, device="meta"), torch.ones(2, 3)),
            ValueError, "got 'meta' and 'cpu'",
        ),
        (lambda: FactoredMatrix(torch.ones(3, 2), torch.ones(3, 3)), ValueError, "rank, cols"),
        (lambda: skip_trigrams.table_rows(toy(), (0, 0), torch.tensor([99])), IndexError, "99"),
        (lambda: skip_trigrams.table_rows(toy(), (0, 0), TEXT[0], 18), ValueError, r"1\.\.17"),
        (lambda: skip_trigrams.split_token_scores(toy(), (0, 0), []), ValueError, "no split"),
        (
            lambda: skip_trigrams.split_token_scores(toy(), (0, 0), [(1, 2, 99)]),
            IndexError, "99 is out of bounds.* 17",
        ),
        (lambda: heads.previous_token_score(torch.ones(1, 1)), ValueError, "at least 2 positions"),
        (lambda: heads.previous_token_score(torch.full((3, 3), torch.nan)), ValueError, "NaN"),
        (lambda: heads.prefix_matching_score(torch.ones(5, 5), 4), ValueError, "2 and 3"),
        (lambda: heads.positivity(torch.tensor([torch.nan])), ValueError, "eigenvalues"),
        (lambda: heads.repeated_tokens(1, 2, 3, 1, random_generator()), ValueError, "got 1, 2, 3"),
        (lambda: patching.ablation_hook([(0, 0)], "none"), ValueError, "got 'none'"),
        (lambda: patching.ablation_hook([(0, 0)], "mean"), ValueError, "needs a reference"),
        (
            lambda: toy()(
                TEXT, hook=patching.ablation_hook([(0, 1)], "resample", cache(toy(), TEXT[:, :5]))
            ),
            ValueError, r"\(3, 7, 12\) after the batch, got \(3, 5, 12\)",
        ),
        (
            lambda: toy()(TEXT, hook=patching.frozen_hook(patterns_of(toy(n_layers=1), TEXT))),
            IndexError, "patterns for 1 layers, none for layer 1",
        ),
        (
            lambda: toy()(TEXT[:, :5], hook=patching.frozen_hook(patterns_of(toy(), TEXT))),
            ValueError, r"L0.pattern.*\(4, 3, 5, 5\), got \(4, 3, 7, 7\)",
        ),
        (lambda: idealised.exact_previous_pattern(0), ValueError, "at least 1 position"),
        (lambda: idealised.exact_induction_pattern(TEXT[:, :0]), ValueError, "at least 1 position"),
        (lambda: idealised.exact_induction_pattern(TEXT, 1, 2), ValueError, "got 2, 1"),
        (lambda: idealised.recovered(2.0, 2.0, 1.0), ValueError, "must cost something"),
        (lambda: idealised.recovered(2.0, torch.nan, 1.0), ValueError, "must cost something"),
        (lambda: idealised.uncomposed_hook(toy(), "A"), ValueError, "got 'A'"),
        (lambda: idealised.uncomposed_hook(toy(norm="pre"), "K"), ValueError, "norm='pre'"),
        (lambda: evaluate.in_context_score(torch.ones(2, 7)), ValueError, "at least 8 positions"),
        (lambda: evaluate.in_context_score(torch.full((2, 9), torch.nan)), ValueError, "losses"),
        (lambda: evaluate.repeat_scores(toy(n_ctx=3), 2), ValueError, "period"),
    ],
)  # fmt: skip
def test_the_error_says_what_was_expected_and_what_came(call, error, message):
    with pytest.raises(error, match=message):
        call()
