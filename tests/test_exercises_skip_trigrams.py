"""The checks of the skip-trigram exercises pass a right answer and name each planted mistake."""

import pytest
import torch

from pathsum.exercises.core import ExerciseFailed
from pathsum.exercises.skip_trigrams import (
    check_centred,
    check_distinct_pairs,
    check_fourth_entry,
    check_lift,
    check_split_words,
)


def centred(ov):
    ov = ov - ov.mean(0)
    return ov - ov.mean(1, keepdim=True)


def distinct_pairs(triples):
    return len({(source, out) for source, _, out in triples})


def seen(tokens, source, own=False):
    here = (tokens == source).long()
    return (here.cumsum(1) - (0 if own else here)) > 0


def lift(gain, tokens, source):
    earlier = seen(tokens, source)
    return gain[earlier].mean() - gain[~earlier].mean()


def lift_with_itself(gain, tokens, source):
    earlier = seen(tokens, source, own=True)
    return gain[earlier].mean() - gain[~earlier].mean()


def lift_anywhere(gain, tokens, source):
    rows = (tokens == source).any(1)
    return gain[rows].mean() - gain[~rows].mean()


def lift_right_after(gain, tokens, source):
    after = torch.zeros_like(tokens, dtype=torch.bool)
    after[:, 1:] = tokens[:, :-1] == source
    return gain[after].mean() - gain[~after].mean()


def fourth_entry(true_1, true_2, crossed):
    return true_1 * true_2 / crossed


def split_words(vocabulary):
    known = set(vocabulary)
    return [
        (word, word[1:cut], word[cut:])
        for word in vocabulary
        if word.startswith(" ") and word[1:] not in known
        for cut in range(2, len(word))
        if word[1:cut] in known and word[cut:] in known
    ]


def split_words_that_are_tokens(vocabulary):
    known = set(vocabulary)
    return [
        (w, w[1:c], w[c:])
        for w in vocabulary
        if w.startswith(" ")
        for c in range(2, len(w))
        if w[1:c] in known and w[c:] in known
    ]


RIGHT = [
    (check_centred, centred),
    (check_distinct_pairs, distinct_pairs),
    (check_lift, lift),
    (check_fourth_entry, fourth_entry),
    (check_split_words, split_words),
]


@pytest.mark.parametrize(("check", "answer"), RIGHT, ids=lambda f: f.__name__)
def test_right_answers_pass_and_stubs_are_named(check, answer, capsys):
    def stub(*_):
        raise NotImplementedError

    check(answer)
    assert capsys.readouterr().out.endswith(": correct\n")
    check(stub)
    assert capsys.readouterr().out.endswith(": not written yet\n")


@pytest.mark.parametrize(
    ("check", "answer", "words"),
    [
        (check_centred, lambda ov: ov - ov.mean(1, keepdim=True), "mean over sources"),
        (check_centred, lambda ov: ov - ov.mean(0), "mean over outputs"),
        (check_centred, lambda ov: ov - ov.mean(), "has its own"),
        (check_centred, lambda ov: ov - ov.mean(0) - ov.mean(1, keepdim=True), "taken away twice"),
        (check_centred, lambda ov: centred(ov) / centred(ov).std(), "scale should stay"),
        (check_centred, lambda ov: centred(ov).mT, "transposed"),
        (check_centred, lambda ov: ov.sub_(ov.mean(0)), "in place"),
        (check_distinct_pairs, len, "every entry is counted"),
        (check_distinct_pairs, lambda t: len(set(t)), "for each destination"),
        (check_distinct_pairs, lambda t: -1, "number is not right"),
        (check_distinct_pairs, lambda t: set(t), "expected one number"),
        (check_lift, lift_with_itself, "position itself"),
        (check_lift, lift_anywhere, "anywhere"),
        (check_lift, lift_right_after, "right after"),
        (check_lift, lambda g, t, s: g[seen(t, s)].mean(), "not subtracted"),
        (check_lift, lambda g, t, s: g[seen(t, s)].mean() - g.mean(), "over all positions"),
        (check_lift, lambda g, t, s: -lift(g, t, s), "wrong sign"),
        (check_lift, lambda g, t, s: g[seen(t, s)], "expected one number"),
        (check_fourth_entry, lambda a, b, c: a + b - c, "logarithms add"),
        (check_fourth_entry, lambda a, b, c: a * c / b, "on one side"),
        (check_fourth_entry, lambda a, b, c: b * c / a, "on one side"),
        (check_fourth_entry, lambda a, b, c: c / (a * b), "upside down"),
        (check_fourth_entry, lambda a, b, c: (a * b) ** 0.5, "log scale"),
        (check_fourth_entry, lambda a, b, c: 0.0, "not right"),
        (check_split_words, split_words_that_are_tokens, "a token too"),
        (check_split_words, lambda v: split_words(v)[1:], "missing"),
        (check_split_words, lambda v: split_words(v) * 2, "comes twice"),
        (check_split_words, lambda v: [(w, w[1:], "") for w in v if w[:1] == " "], "empty part"),
        (check_split_words, lambda v: [w for w in v], "expected triples"),
        (check_split_words, lambda v: [(w[1:], f, r) for w, f, r in split_words(v)], "a space and"),
        (check_split_words, lambda v: [(" qz", "q", "z")], "not all three"),
        (check_split_words, lambda v: 3, "expected a list"),
    ],
)
def test_each_planted_mistake_is_named(check, answer, words):
    with pytest.raises(ExerciseFailed, match=words):
        check(answer)
