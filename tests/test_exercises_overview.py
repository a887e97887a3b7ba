"""Each check of the overview passes its solution and names likely mistakes."""

import re
from pathlib import Path

import pytest
import torch

from pathsum.exercises import overview
from pathsum.exercises.core import ExerciseFailed

INF = float("inf")


def masked_softmax(scores):
    future = torch.ones_like(scores).triu(1).bool()
    return scores.masked_fill(future, -INF).softmax(-1)


def sequential(x, patterns, W_V, W_O):
    start = x
    for A, V, O in zip(patterns, W_V, W_O):
        x = x + A @ x @ V @ O
    return x - start


def layer(x, patterns, W_V, W_O):
    return sum(A @ x @ V @ O for A, V, O in zip(patterns, W_V, W_O))


def scores(x, W_Q, W_K):
    return (x @ W_Q) @ (x @ W_K).mT / W_Q.shape[1] ** 0.5


MISTAKES = {
    "check_virtual_weights": [
        (lambda o, i: i.mT @ o.mT, "another order"),
        (lambda o, i: -(o @ i), "wrong sign"),
        (lambda o, i: o @ i / o.shape[1] ** 0.5, "times what it should be"),
    ],
    "check_attention_pattern": [
        (lambda x, q, k: scores(x, q, k).softmax(-1), "comes after it"),
        (lambda x, q, k: masked_softmax((x @ q) @ (x @ k).mT), r"not divided by sqrt\(d_head\)"),
        (lambda x, q, k: masked_softmax((x @ q) @ (x @ k).mT / x.shape[1] ** 0.5), "d_model"),
        (lambda x, q, k: masked_softmax((x @ q) @ (x @ k).mT / q.shape[1]), "square root"),
        (lambda x, q, k: masked_softmax(scores(x, k, q)), "exchanged"),
        (
            lambda x, q, k: (
                scores(x, q, k)
                .masked_fill(torch.ones(len(x), len(x)).triu(1).bool(), -INF)
                .softmax(0)
            ),
            "softmax runs over destinations",
        ),
        (
            lambda x, q, k: (
                scores(x, q, k)
                .masked_fill(torch.ones(len(x), len(x)).tril(-1).bool(), -INF)
                .softmax(-1)
            ),
            "wrong way round",
        ),
        (lambda x, q, k: scores(x, q, k).softmax(-1).tril(), "no longer sum to 1"),
        (lambda x, q, k: scores(x, q, k).tril().softmax(-1), r"exp\(0\)"),
        (lambda x, q, k: scores(x, q, k), "softmax is missing"),
        (lambda x, q, k: masked_softmax(scores(x, q, k)).mT, "transpose"),
    ],
    "check_attention_layer": [
        (sequential, "reads what the head before it wrote; all heads"),
        (lambda x, *rest: x + sequential(x, *rest), "stream itself is added; return the sum"),
        (lambda x, *rest: x + layer(x, *rest), "return only what the layer adds"),
        (lambda x, a, v, o: layer(x, a, v, o) / len(a), "averaged"),
        (lambda x, a, v, o: layer(x, a.mT, v, o), "rows are destinations"),
        (lambda x, a, v, o: layer(x, a[-1:], v[-1:], o[-1:]), "only the last head"),
        (lambda x, a, v, o: sum(x @ V @ O for V, O in zip(v, o)), "patterns are not used"),
    ],
    "check_kron_head": [
        (lambda A, W: torch.kron(A, W), "stands transposed"),
        (lambda A, W: torch.kron(W.mT.contiguous(), A), "row after row"),
        (lambda A, W: torch.kron(W, A), "the order is the other one"),
        (lambda A, W: torch.kron(A.mT.contiguous(), W.mT.contiguous()), "pattern should not"),
        (lambda A, W: torch.kron(A, W.mT), "stopped with RuntimeError"),
    ],
    "check_reparametrise": [
        (lambda q, k, M: (q @ M, k @ M), "twice in the scores"),
        (lambda q, k, M: (q @ M, k @ torch.linalg.inv(M)), "one transpose is missing"),
        (lambda q, k, M: (q @ M, k @ M.mT), "orthogonal"),
        (lambda q, k, M: (q @ M, k), "unchanged"),
        (lambda q, k, M: (q @ M.mT, k), "the new W_Q is not right"),
        (lambda q, k, M: q @ M, "two matrices"),
    ],
    "check_virtual_head": [
        (lambda A, V, B, W: (A @ B, V @ W), "lets head 2 move first"),
        (lambda A, V, B, W: (B @ A, W @ V), "order of column vectors"),
        (lambda A, V, B, W: (B * A, V @ W), "entry by entry; a path"),
        (lambda A, V, B, W: (B @ A, V * W), "use a matrix product"),
        (lambda A, V, B, W: (B, V @ W), "only one of the two"),
        (lambda A, V, B, W: B @ A, "a pattern and a matrix"),
    ],
}


def chapter_cells(root: Path) -> list[str]:
    text = (root / "book/transformer-overview.md").read_text(encoding="utf-8")
    return re.findall(r"```\{code-cell\}.*?\n(?:---\n.*?\n---\n)?(.*?)```", text, re.DOTALL)


@pytest.mark.parametrize("name", MISTAKES)
def test_the_solution_of_the_chapter_passes(name: str, root: Path, capsys):
    (source,) = [
        cell for cell in chapter_cells(root) if f"def {name.removeprefix('check_')}(" in cell
    ]
    scope: dict = {}
    exec("import torch\nfrom torch import Tensor\nfrom jaxtyping import Float\n" + source, scope)
    getattr(overview, name)(scope[name.removeprefix("check_")])
    assert re.fullmatch(r"Exercise 2\.\d: correct\n", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("name", "answer", "words"),
    [
        pytest.param(name, answer, words, id=f"{name}: {words}")
        for name, mistakes in MISTAKES.items()
        for answer, words in mistakes
    ],
)
def test_a_mistake_is_named(name: str, answer, words: str):
    with pytest.raises(ExerciseFailed, match=words):
        getattr(overview, name)(answer)


def test_every_check_of_the_module_is_tried():
    assert set(MISTAKES) == {name for name in vars(overview) if name.startswith("check_")}
