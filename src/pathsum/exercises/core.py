"""What every exercise check is made of: it runs a reader's answer and says in words what is wrong.

A check is a function of the answer under `@check("Exercise 2.1")`. It calls the answer through
`call`, reads what came back through `tensor` or `number`, and compares with `agree`; each of these
raises `ExerciseFailed` with one line for the reader. A check holds no stored results: it compares
with a law or a slow, obvious loop, on sizes that all differ so that no transpose fits by luck.
"""

import linecache
import math
import traceback
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from pathsum.exercises.progress import DONE, UNWRITTEN, WRONG, results, seed_checks, student


class ExerciseFailed(Exception):
    """An answer that is not right yet; a notebook shows its one line and no traceback."""

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


class _NotWritten(Exception):
    """The answer is still a stub."""


def check(exercise: str) -> Callable[[Callable[[Any], None]], Callable[[Any], None]]:
    """Decorator: turn a comparison into the check of `exercise`, such as "Exercise 2.1".

    The check prints "Exercise 2.1: correct" or "Exercise 2.1: not written yet", and otherwise
    raises ExerciseFailed; the line begins with the exercise's name.
    """

    def decorate(compare: Callable[[Any], None]) -> Callable[[Any], None]:
        @wraps(compare)
        def checked(answer: Any) -> None:
            try:
                compare(answer)
            except _NotWritten:
                results[exercise] = UNWRITTEN
                print(f"{exercise}: not written yet")
                return
            except ExerciseFailed as failure:
                results[exercise] = WRONG
                raise ExerciseFailed(f"{exercise}: {failure}") from None
            results[exercise] = DONE
            print(f"{exercise}: correct{f' (numbers of {student()})' if student() else ''}")

        checked.exercise = exercise
        return checked

    return decorate


def require(checked: Callable[[Any], None], answer: Any, *students: str) -> None:
    """For grading: run a check with the numbers of each of these students, all of which must pass.

    Unlike the check alone it raises ExerciseFailed also for an answer that is not written yet.
    """
    before = student()
    try:
        for name in students or (before,):
            seed_checks(name)
            try:
                checked.__wrapped__(answer)
            except _NotWritten:
                raise ExerciseFailed(f"{checked.exercise}: {UNWRITTEN}") from None
            except ExerciseFailed as failure:
                raise ExerciseFailed(f"{checked.exercise}: {failure}") from None
    finally:
        seed_checks(before)


def call(answer: Any, *inputs: Any) -> Any:
    """What the answer returns for these inputs.

    The answer gets copies of tensors, so it can't spoil the comparison. ExerciseFailed if it is no
    function, raises, or changes its inputs.
    """
    if not callable(answer):
        raise ExerciseFailed(f"expected a function, given {described(answer)}")
    copies = [x.clone() if isinstance(x, Tensor) else x for x in inputs]
    try:
        given = answer(*copies)
    except NotImplementedError:
        raise _NotWritten from None
    except (Exception, SystemExit) as error:
        message = (str(error).strip() or "no message").split("\n")[0]
        where = _line_in(answer, error)
        raise ExerciseFailed(
            f"your function stopped with {type(error).__name__}: {message}{where}"
        ) from None
    for before, after in zip(inputs, copies):
        if isinstance(before, Tensor) and not torch.equal(before, after):
            raise ExerciseFailed(
                "your function changes its input in place: work on a copy, as in x = x.clone()"
            )
    return given


def _line_in(answer: Any, error: BaseException) -> str:
    """The text of the answer's own line at which the error arose, if it can be had."""
    code = getattr(answer, "__code__", None)
    frames = [f for f in traceback.extract_tb(error.__traceback__) if code]
    own = [f for f in frames if f.filename == code.co_filename]
    line = linecache.getline(own[-1].filename, own[-1].lineno or 0).strip() if own else ""
    return f", in the line `{line}`" if line else ""


def described(given: Any) -> str:
    """A short description of any object, for messages."""
    if given is None:
        return "None (is there a `return`?)"
    if isinstance(given, Tensor):
        return f"a tensor of shape {tuple(given.shape)} and type {given.dtype}"
    kind = type(given).__module__.split(".")[0]
    name = type(given).__name__ if kind == "builtins" else f"{kind}.{type(given).__name__}"
    try:
        text = repr(given)
    except Exception:
        text = "an object that cannot be printed"
    return f"{name}: {text[:60]}{'...' if len(text) > 60 else ''}".replace("\n", " ")


def tensor(given: Any, shape: tuple[int, ...], axes: str = "") -> Tensor:
    """The answer as a float64 tensor of `shape`; ExerciseFailed for anything else.

    `axes` names the axes in messages, such as "(dest, src)".
    """
    wanted = f"a tensor of shape {shape}{f', {axes}' if axes else ''}"
    if not isinstance(given, Tensor):
        hint = ": torch.from_numpy makes it a tensor" if type(given).__name__ == "ndarray" else ""
        raise ExerciseFailed(f"expected {wanted}, given {described(given)}{hint}")
    if tuple(given.shape) != shape:
        hint = ""
        if len(shape) > 1 and sorted(given.shape) == sorted(shape):
            hint = ": the axes are in another order (transposed?)"
        elif given.numel() == torch.Size(shape).numel():
            hint = ": the right number of entries, arranged in another way"
        raise ExerciseFailed(f"expected {wanted}, given shape {tuple(given.shape)}{hint}")
    if not given.is_floating_point():
        raise ExerciseFailed(f"expected {wanted} of floating-point numbers, given {given.dtype}")
    try:
        values = given.detach().cpu().to_dense().double()
    except Exception as error:
        raise ExerciseFailed(f"expected {wanted}, given one that has no values ({error})") from None
    missing = int((~values.isfinite()).sum())
    if missing:
        kind = "NaN" if values.isnan().any() else "infinite"
        raise ExerciseFailed(
            f"{missing} of {values.numel()} entries are {kind}: "
            "a division by zero, or a softmax over -inf alone?"
        )
    return values


def number(given: Any) -> float:
    """The answer as a float, from a Python number or a tensor of one; ExerciseFailed otherwise."""
    if isinstance(given, Tensor):
        if given.numel() != 1 or given.is_complex():
            raise ExerciseFailed(f"expected one number, given {described(given)}")
        return float(tensor(given.reshape(()).to(torch.float64), ()))
    if isinstance(given, bool):
        raise ExerciseFailed(f"expected one number, given {given}")
    try:
        value = float(given) if not isinstance(given, str) else None
    except Exception:
        value = None
    if value is None or not math.isfinite(value):
        raise ExerciseFailed(f"expected one number, given {described(given)}")
    return value


def whole_numbers(given: Any, what: str) -> list[int]:
    """The answer as a list of whole numbers, from a list, a tuple or a tensor with one axis."""
    if isinstance(given, Tensor) and given.ndim == 1 and given.device.type != "meta":
        given = given.tolist()
    if isinstance(given, list | tuple) and all(type(entry) is int for entry in given):
        return list(given)
    raise ExerciseFailed(f"expected {what}, given {described(given)}")


def agree(
    given: Tensor,
    expected: Tensor,
    what: str,
    mistakes: Mapping[str, Tensor] | None = None,
    tolerance: float = 1e-4,
) -> None:
    """ExerciseFailed unless both tensors are equal to within `tolerance` times their scale.

    `mistakes` maps what to tell the reader to the result of that mistake; they are tried in
    order, after which come a flipped sign, a transpose and a constant factor.
    """
    expected = expected.detach().double()
    if _near(given, expected, tolerance):
        return
    for words, result in (mistakes or {}).items():
        result = result.detach().double()
        if result.shape == given.shape and _near(given, result, tolerance):
            raise ExerciseFailed(f"{what} is not right: {words}")
    if _near(given, -expected, tolerance):
        raise ExerciseFailed(f"{what} has the wrong sign everywhere")
    if (
        given.ndim > 1
        and given.shape[-1] == given.shape[-2]
        and _near(given, expected.mT, tolerance)
    ):
        raise ExerciseFailed(f"{what} is the transpose of what was asked for")
    factor = float((given * expected).sum() / expected.square().sum().clamp_min(1e-300))
    if factor and _near(given, factor * expected, tolerance):
        raise ExerciseFailed(f"{what} is {factor:.4g} times what it should be, everywhere")
    off = (given - expected).abs()
    place = tuple(int(i) for i in torch.unravel_index(off.argmax(), off.shape))
    at = f" at {place}" if place else ""
    raise ExerciseFailed(
        f"{what} is not right: {int((off > _allowed(expected, tolerance)).sum())} of {off.numel()} "
        f"entries differ, most{at}: expected {float(expected[place]):.4g}, "
        f"given {float(given[place]):.4g}"
    )


def _allowed(expected: Tensor, tolerance: float) -> float:
    return tolerance * max(1.0, float(expected.abs().max())) if expected.numel() else tolerance


def _near(given: Tensor, expected: Tensor, tolerance: float) -> bool:
    off = (given - expected).abs()
    return bool((off <= _allowed(expected, tolerance)).all())


def sizes(count: int, generator: torch.Generator, low: int = 3, high: int = 12) -> list[int]:
    """`count` random sizes from `low` to `high`, pairwise different, so that no transpose fits."""
    if count > high - low + 1:
        raise ValueError(f"there are only {high - low + 1} sizes from {low} to {high}, not {count}")
    return [low + int(i) for i in torch.randperm(high - low + 1, generator=generator)[:count]]


def random_pattern(*shape: int, generator: torch.Generator) -> Tensor:
    """A random causal attention pattern, shape (..., pos, pos): rows sum to 1, no look ahead."""
    scores = 2 * torch.randn(*shape, generator=generator)
    future = torch.ones(shape[-2:], dtype=torch.bool).triu(1)
    return scores.masked_fill(future, float("-inf")).softmax(-1)
