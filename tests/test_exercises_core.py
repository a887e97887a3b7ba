"""The harness of the exercise checks: what it prints, what it survives, what it says."""

import re
import sys

import numpy as np
import pytest
import torch

from pathsum.exercises.core import (
    ExerciseFailed,
    agree,
    call,
    check,
    described,
    number,
    random_pattern,
    sizes,
    tensor,
)

X = torch.arange(6.0).reshape(2, 3)


@check("Exercise 9.9")
def check_double(answer):
    agree(
        tensor(call(answer, X), (2, 3), "(a, b)"), 2 * X, "the double", {"it is the square": X**2}
    )


def message_of(answer, checked=check_double) -> str:
    with pytest.raises(ExerciseFailed) as caught:
        checked(answer)
    return str(caught.value)


def test_a_right_answer_prints_one_line(capsys):
    assert check_double(lambda x: 2 * x) is None
    assert capsys.readouterr().out == "Exercise 9.9: correct\n"


def test_an_unwritten_answer_prints_one_line_and_raises_nothing(capsys):
    def stub(x):
        raise NotImplementedError("write this")

    check_double(stub)
    assert capsys.readouterr().out == "Exercise 9.9: not written yet\n"


def test_a_failure_is_one_line_in_a_notebook():
    with pytest.raises(ExerciseFailed) as caught:
        check_double(lambda x: x**2)
    (line,) = caught.value._render_traceback_()
    assert line == "Exercise 9.9: the double is not right: it is the square" and "\n" not in line


class Hostile:
    def __repr__(self):
        raise RuntimeError("no repr")

    def __float__(self):
        raise RuntimeError("no float")

    def __array__(self):
        raise RuntimeError("no array")


RETURNS = [
    pytest.param(None, "is there a `return`?", id="None"),
    pytest.param(np.ones((2, 3)), "torch.from_numpy", id="numpy"),
    pytest.param([[1, 2, 3]] * 2, "given list", id="list"),
    pytest.param("2x", "given str", id="string"),
    pytest.param(Hostile(), "cannot be printed", id="hostile object"),
    pytest.param(
        torch.ones(3, 2), r"given shape \(3, 2\): the axes are in another order", id="axes"
    ),
    pytest.param(torch.ones(6), "arranged in another way", id="flat"),
    pytest.param(torch.ones(2, 4), r"given shape \(2, 4\)$", id="shape"),
    pytest.param(torch.tensor(1.0), r"given shape \(\)", id="scalar"),
    pytest.param(X.long(), "given torch.int64", id="integers"),
    pytest.param(X.bool(), "given torch.bool", id="bools"),
    pytest.param(X.to(torch.complex64), "given torch.complex64", id="complex"),
    pytest.param(torch.full((2, 3), float("nan")), "6 of 6 entries are NaN", id="NaN"),
    pytest.param(torch.full((2, 3), float("inf")), "6 of 6 entries are infinite", id="inf"),
    pytest.param(torch.ones(2, 3, device="meta"), "has no values", id="meta device"),
    pytest.param(-2 * X, "wrong sign everywhere", id="sign"),
    pytest.param(3 * X, "1.5 times what it should be", id="factor"),
    pytest.param(2 * X + (X == 4), r"1 of 6 entries differ, most at \(1, 1\)", id="one entry"),
]


@pytest.mark.parametrize(("returned", "words"), RETURNS)
def test_whatever_comes_back_is_answered_in_words(returned, words):
    message = message_of(lambda x: returned)
    assert message.startswith("Exercise 9.9: ") and re.search(words, message), message


def test_answers_with_a_graph_or_of_another_precision_count(capsys):
    check_double(lambda x: (2 * x).requires_grad_())
    check_double(lambda x: (2 * x).double())
    check_double(lambda x: (2 * x).half())
    assert capsys.readouterr().out.count("correct") == 3


def test_an_error_inside_the_answer_is_told_with_its_line():
    def broken(x):
        y = x @ x
        return y

    message = message_of(broken)
    assert "stopped with RuntimeError" in message and "in the line `y = x @ x`" in message


def test_leaving_the_interpreter_or_a_wrong_signature_is_told_too():
    assert "SystemExit" in message_of(lambda x: sys.exit())
    assert "TypeError" in message_of(lambda: X)
    assert "expected a function, given a tensor" in message_of(X)


def test_an_answer_cannot_change_what_it_is_compared_with():
    assert "changes its input in place" in message_of(lambda x: x.mul_(2))


def test_transposes_are_named_for_square_results():
    square = torch.tensor([[1.0, 2.0], [5.0, 4.0]])
    with pytest.raises(ExerciseFailed, match="transpose"):
        agree(square.mT.double(), square, "it")


@pytest.mark.parametrize(
    "given", [None, "3", True, [1, 2], torch.ones(2), float("nan"), float("inf"), Hostile(), 1j]
)
def test_what_is_no_number_is_refused(given):
    with pytest.raises(ExerciseFailed, match="expected one number|entries are"):
        number(given)


@pytest.mark.parametrize("given", [3, 3.0, torch.tensor(3), torch.tensor([3.0]), np.float32(3)])
def test_numbers_come_in_many_forms(given):
    assert number(given) == 3.0


def test_a_bug_of_the_check_itself_is_not_blamed_on_the_reader():
    @check("Exercise 9.8")
    def broken_check(answer):
        return 1 / 0

    with pytest.raises(ZeroDivisionError):
        broken_check(lambda: 1)


def test_sizes_are_pairwise_different_and_repeatable():
    def draw():
        return sizes(4, torch.Generator().manual_seed(1))

    assert draw() == draw() and len(set(draw())) == 4
    with pytest.raises(ValueError, match="only 10"):
        sizes(11, torch.Generator())


def test_random_patterns_are_causal_and_sum_to_one():
    A = random_pattern(3, 5, 5, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(A.sum(-1), torch.ones(3, 5))
    assert A.triu(1).abs().max() == 0


def test_descriptions_are_short_single_lines():
    assert len(described("x\n" * 500)) < 90 and "\n" not in described("x\n" * 500)
