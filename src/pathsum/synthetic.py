"""Seven small tasks whose right answers are known, each made to need one more thing than the one before.

Token 0 is the start token. A batch is inputs, what the model should say after each position, and at
which positions that counts: where the answer cannot be known from what stands before, it does not.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

SYMBOLS = 24  # tokens 1..24 are symbols
N_CTX = 32  # positions, start token included
AGAIN = 11  # symbols of a repeat
FACTS = 4  # sources, destinations and answers of the grammar
D_VOCAB = 1 + SYMBOLS + 2  # start, symbols, and two words that name a mode
MODES = (1 + SYMBOLS, 2 + SYMBOLS)  # "go on as before" and "say the last one again"


@dataclass(frozen=True)
class Batch:
    """Sequences of a task, with the right answers and where they are asked for."""

    inputs: Int[Tensor, "batch pos"]
    targets: Int[Tensor, "batch pos"]  # what to say after each position
    scored: Bool[Tensor, "batch pos"]  # where it is asked for


@dataclass(frozen=True)
class Task:
    """One task: its name, what is asked, and a function that draws sequences."""

    name: str
    asks: str  # in one sentence
    draw: Callable[[int, torch.Generator], Batch]
    choices: int  # equally likely answers for a model that knows the task but not the answer


def _symbols(batch: int, count: int, generator: torch.Generator) -> Int[Tensor, "batch count"]:
    """Rows of different symbols in random order."""
    return 1 + torch.rand(batch, SYMBOLS, generator=generator).argsort(1)[:, :count]


def _started(rest: Int[Tensor, "batch rest"]) -> Int[Tensor, "batch pos"]:
    return torch.cat([torch.zeros(len(rest), 1, dtype=torch.int64), rest], 1)


def _repeats(batch: int, once: int, generator: torch.Generator) -> Int[Tensor, "batch rest"]:
    """`once` different symbols, then AGAIN of them, from somewhere in between, once more."""
    first = _symbols(batch, once, generator)
    start = torch.randint(once - AGAIN, (batch, 1), generator=generator)
    return torch.cat([first, first.gather(1, start + torch.arange(AGAIN + 1))], 1)


def copying(batch: int, generator: torch.Generator) -> Batch:
    """Say the present token again."""
    inputs = _started(torch.randint(1, 1 + SYMBOLS, (batch, N_CTX - 1), generator=generator))
    return Batch(inputs, inputs, inputs > 0)


def previous(batch: int, generator: torch.Generator) -> Batch:
    """Say the token before the present one."""
    inputs = _started(torch.randint(1, 1 + SYMBOLS, (batch, N_CTX - 1), generator=generator))
    return Batch(inputs, _before(inputs), torch.arange(N_CTX).expand(batch, -1) >= 2)


def _before(inputs: Int[Tensor, "batch pos"]) -> Int[Tensor, "batch pos"]:
    return torch.cat([inputs[:, :1], inputs[:, :-1]], 1)


def grammar(batch: int, generator: torch.Generator) -> Batch:
    """Source a, some filler, destination b: say answer (a + b) mod 4, a rule that no sum can express.

    Symbols 1-4 are sources, 5-8 destinations, 9-12 answers, the rest filler. One source a row.
    """
    inputs = torch.randint(13, 1 + SYMBOLS, (batch, N_CTX - 1), generator=generator)
    source = torch.randint(FACTS, (batch, 1), generator=generator)
    ends = torch.randint(FACTS, (batch, N_CTX - 1), generator=generator)
    at = torch.randint(8, (batch, 1), generator=generator)  # of the source
    place = torch.arange(N_CTX - 1)
    asked = (place > at) & (torch.rand(batch, N_CTX - 1, generator=generator) < 0.4)
    inputs = torch.where(asked, 5 + ends, inputs)
    inputs = torch.where(place == at, 1 + source, inputs)
    targets = torch.where(asked, 9 + (source + ends) % FACTS, 0)
    return Batch(_started(inputs), _started(targets), _started(asked.long()) > 0)


def loops(batch: int, generator: torch.Generator) -> Batch:
    """Random symbols in a loop of 6 to 12: say what comes next, from the second time on."""
    periods = torch.randint(6, 13, (batch, 1), generator=generator)
    rest = _symbols(batch, 12, generator).gather(1, torch.arange(N_CTX) % periods)
    return Batch(_started(rest[:, :-1]), rest, torch.arange(N_CTX) >= periods + 1)


def repeats(batch: int, generator: torch.Generator) -> Batch:
    """20 different symbols, then 11 of them in the same order: say what comes next in these."""
    rest = _repeats(batch, 20, generator)
    scored = (torch.arange(N_CTX) > 20).expand(batch, -1)
    return Batch(_started(rest[:, :-1]), rest, scored)


def recall(batch: int, generator: torch.Generator) -> Batch:
    """Pairs of a key and a value, then keys alone: say each one's value.

    Symbols 1-12 are keys, 13-24 values; after 8 pairs the keys come back in another order.
    """
    pairs = 8
    keys = 1 + torch.rand(batch, 12, generator=generator).argsort(1)[:, :pairs]
    values = torch.randint(13, 1 + SYMBOLS, (batch, pairs), generator=generator)
    told = torch.stack([keys, values], 2).flatten(1)
    order = torch.rand(batch, pairs, generator=generator).argsort(1)
    inputs = _started(torch.cat([told, keys.gather(1, order)], 1))
    targets = torch.cat([torch.zeros_like(inputs[:, : 1 + 2 * pairs]), values.gather(1, order)], 1)
    return Batch(inputs, targets, targets > 0)


def modes(batch: int, generator: torch.Generator) -> Batch:
    """A word for the mode, then a repeat: say what comes next in it, or else the token before.

    Two circuits that share the word at the start: it must switch the one on and the other off.
    """
    rest = _repeats(batch, 19, generator)
    mode = torch.randint(2, (batch, 1), generator=generator)
    inputs = _started(torch.cat([MODES[0] + mode, rest[:, :-1]], 1))
    onward = torch.cat([torch.zeros_like(mode), rest], 1)
    targets = torch.where(mode == 0, onward, _before(inputs))
    return Batch(inputs, targets, (torch.arange(N_CTX) > 20).expand(batch, -1))


TASKS = {
    task.name: task
    for task in (
        Task("copying", "the present token", copying, SYMBOLS),
        Task("previous", "the token before", previous, SYMBOLS),
        Task("grammar", "the answer to a source and a destination", grammar, FACTS),
        Task("loops", "what comes next in a loop", loops, 12),
        Task("repeats", "what came next the last time", repeats, 20),
        Task("recall", "the value that came with this key", recall, 8),
        Task("modes", "what comes next or the token before, as told", modes, 20),
    )
}


def task_named(name: str) -> Task:
    """The task; ValueError for a name that there is not."""
    if name not in TASKS:
        raise ValueError(f"there is no task {name!r}: choose one of {', '.join(TASKS)}")
    return TASKS[name]
