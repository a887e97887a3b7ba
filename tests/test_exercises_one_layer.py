"""The checks pass a right answer and name each planted mistake."""

import pytest
import torch

from pathsum.exercises.core import ExerciseFailed
from pathsum.exercises.one_layer import (
    check_by_offset,
    check_comparable,
    check_confused,
    check_expand,
    check_qk_row,
    lookup,
)


def expand(x, A, W_OV, W_U):
    return torch.stack([x @ W_U, *(a @ x @ W @ W_U for a, W in zip(A, W_OV))])


def head_after_head(x, A, W_OV, W_U):
    terms, stream = [x @ W_U], x
    for a, W in zip(A, W_OV):
        written = a @ stream @ W
        terms.append(written @ W_U)
        stream = stream + written
    return torch.stack(terms)


def with_the_stream(x, A, W_OV, W_U):
    return torch.stack([x @ W_U, *((x + a @ x @ W) @ W_U for a, W in zip(A, W_OV))])


def qk_row(dest, W_E, W_Q, W_K):
    return W_E[dest] @ W_Q @ (W_E @ W_K).mT / W_Q.shape[1] ** 0.5


def by_offset(scores):
    return torch.stack([scores.diagonal(-k).mean() for k in range(len(scores))])


def comparable(table):
    return table - table.mean(-1, keepdim=True)


def confused(tokens):
    other = tokens.clone()
    other[[0, 2]] = tokens[[2, 0]]
    return other


def swapped_last(tokens):
    other = tokens.clone()
    other[[-1, 0]] = tokens[[0, -1]]
    return other


def far_pair_swapped(tokens):
    other = tokens.clone()
    other[[0, 3]] = tokens[[3, 0]]
    return other


def another_token(tokens):
    other = tokens.clone()
    other[2] = 0
    return other


def copy_moved_to_the_end(tokens):
    return torch.cat([tokens[:1], tokens[2:-1], tokens[1:2], tokens[-1:]])


RIGHT = [
    (check_expand, expand),
    (check_qk_row, qk_row),
    (check_by_offset, by_offset),
    (check_comparable, comparable),
    (check_confused, confused),
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
        (check_expand, lambda x, A, W, U: expand(x, A, W, U)[1:], "direct path is missing"),
        (check_expand, lambda x, A, W, U: expand(x, A.mT, W, U), "A @ x"),
        (check_expand, lambda x, A, W, U: expand(x, A, W.mT, U), "rows are vectors"),
        (check_expand, head_after_head, "all read x"),
        (check_expand, with_the_stream, "still holds the stream"),
        (check_expand, lambda *a: expand(*a).roll(-1, 0), "direct path comes first"),
        (check_expand, lambda *a: expand(*a).sum(0), "expected a tensor"),
        (check_qk_row, lambda d, E, Q, K: E[d] @ Q @ (E @ K).mT, "not divided"),
        (check_qk_row, lambda d, E, Q, K: E[d] @ Q @ (E @ K).mT / Q.shape[1], "square root"),
        (check_qk_row, lambda d, E, Q, K: E[d] @ Q @ (E @ K).mT / len(Q) ** 0.5, "d_model"),
        (check_qk_row, lambda d, E, Q, K: qk_row(d, E, K, Q), "this is the column"),
        (check_qk_row, lambda *a: qk_row(*a).softmax(0), "after a softmax"),
        (
            check_by_offset,
            lambda s: torch.stack([s.diagonal(-k).sum() for k in range(len(s))]),
            "these are sums",
        ),
        (
            check_by_offset,
            lambda s: torch.stack([s.diagonal(-k).sum() / len(s) for k in range(len(s))]),
            "over all positions",
        ),
        (check_by_offset, lambda s: by_offset(s.mT), "ahead of their destination"),
        (check_by_offset, lambda s: by_offset(s).flip(0), "0 comes first"),
        (check_comparable, lambda t: t, "still shows"),
        (check_comparable, lambda t: t - t.mean(0), "columns were centred"),
        (check_comparable, lambda t: comparable(t) / t.std(-1, keepdim=True), "nothing be scaled"),
        (check_comparable, lambda t: t - t.amax(-1, keepdim=True), "largest entry"),
        (check_comparable, lambda t: t.log_softmax(-1), "log-sum-exp"),
        (check_confused, lambda t: t, "the same text"),
        (check_confused, swapped_last, "last token is another"),
        (check_confused, another_token, "different tokens"),
        (check_confused, far_pair_swapped, "say the same in both"),
        (check_confused, copy_moved_to_the_end, "right before the last"),
        (check_confused, lambda t: t.tolist(), "expected a tensor"),
    ],
)
def test_each_planted_mistake_is_named(check, answer, words):
    with pytest.raises(ExerciseFailed, match=words):
        check(answer)


def test_the_lookup_is_that_of_an_induction_head():
    assert lookup([5, 7, 9, 4, 7]) == 9
    assert lookup([5, 7, 9]) is None
