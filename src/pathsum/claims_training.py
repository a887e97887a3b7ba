"""The claim about the moment when induction heads form, read from the records of training.

`measure_phase` takes the records as arguments, so that a test can hand it some for which the claim is
false; the registered function calls it with those of trained models.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.claims import Measurement, claim


@dataclass(frozen=True)
class Course:
    """What the records of one training say of induction, one entry a record."""

    steps: list[int]
    in_context: Float[Tensor, " records"]  # late loss less early loss, nats; more negative is more
    prefix: Float[Tensor, " records"]  # prefix-matching score of the head that is best at the end

    def window(self, low: float = 0.1, high: float = 0.5) -> tuple[int, int]:
        """The record before the prefix score first reaches `low` of its final value, and the one that
        first reaches `high` of it."""
        first, last = (int((self.prefix >= x * self.prefix[-1]).nonzero()[0]) for x in (low, high))
        return max(first - 1, 0), last


def course(log: list[dict]) -> Course:
    """The course of a run. ValueError for a record without heads."""
    scores = torch.tensor([record["prefix_matching"] for record in log])
    if not scores.numel():
        raise ValueError("the record has no heads: take a model with attention layers")
    scores = scores.flatten(1)
    return Course(
        [record["step"] for record in log],
        torch.tensor([record["in_context_score"] for record in log]),
        scores[:, int(scores[-1].argmax())],
    )


def measure_phase(two: Course, one: Course) -> Measurement:
    """X2: does learning in context come when the induction heads form, and not without them?"""
    first, last = two.window()
    falls = two.in_context.diff()
    steepest = int(falls.argmin())  # between this record and the next
    within = first <= steepest < last
    formed = float(two.in_context[last] - two.in_context[first])
    share = formed / float(two.in_context[-1] - two.in_context[0])
    at = [one.steps.index(two.steps[i]) for i in (first, last)]
    alone = float(one.in_context[at[1]] - one.in_context[at[0]])
    flat = abs(alone) < 0.25 * abs(formed)
    start, end = two.steps[first], two.steps[last]
    return Measurement(
        share,
        "share of the final in-context score",
        "holds" if within and flat else "weaker" if share > 0.5 and flat else "not seen",
        f"the best head's prefix-matching score goes from a tenth to half of its final value in steps "
        f"{start} to {end}; there {share:.0%} of the final in-context score of "
        f"{float(two.in_context[-1]):.2f} nats forms, against {alone:+.3f} nats with one layer; the "
        f"steepest fall between two records is that of steps {two.steps[steepest]} to "
        f"{two.steps[steepest + 1]}, {'within' if within else 'outside'} these",
    )


@claim(
    id="X2",
    section="Olsson et al. 2022 (phase change)",
    statement="Learning in context, prefix-matching and induction heads come together, in a short "
    "part of training; with one layer nothing of the sort happens.",
    paper="in-context score from -0.15 to -0.4 nats, over 2.5 to 5 billion tokens",
    criterion="steepest fall of the in-context score while the prefix-matching score goes from 0.1 to "
    "0.5 of its final value; change with one layer in that time below a quarter of it",
    page="training",
)
def phase(two_log: list[dict], one_log: list[dict]) -> Measurement:
    return measure_phase(course(two_log), course(one_log))
