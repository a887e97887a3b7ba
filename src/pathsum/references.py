"""The synthetic tasks solved by hand: weights that do what the story says, at the smallest size it needs."""

import torch
from torch import Tensor

from pathsum.by_hand import BASE, N_PLACES, shift_matrix
from pathsum.model import AttentionOnlyTransformer, Config, sinusoidal_positions
from pathsum.synthetic import D_VOCAB, FACTS, MODES, N_CTX, task_named

# The residual stream is cut into blocks: the token, two notes, the answer, and what positions add.
BLOCKS = {"token": D_VOCAB, "kept": D_VOCAB, "told": 2, "answer": D_VOCAB, "place": N_PLACES}
AT = {
    name: slice(sum(list(BLOCKS.values())[:i]), sum(list(BLOCKS.values())[: i + 1]))
    for i, name in enumerate(BLOCKS)
}
D_HEAD = D_VOCAB + N_PLACES + 1  # tokens to match, places to match, one number to rest by
START = 0


def _empty(n_layers: int, n_heads: int) -> AttentionOnlyTransformer:
    """A model of zeros with tokens in their block, positions in theirs, and answers read from theirs."""
    config = Config(
        n_layers, n_heads, sum(BLOCKS.values()), D_HEAD, d_vocab=D_VOCAB, n_ctx=N_CTX
    )
    model = AttentionOnlyTransformer(config).requires_grad_(False)
    for parameter in (*model.parameters(), model.W_pos):
        parameter.zero_()
    model.W_E[:, AT["token"]] = torch.eye(D_VOCAB)
    model.W_U[AT["answer"]] = torch.eye(D_VOCAB)
    model.W_pos[:, AT["place"]] = sinusoidal_positions(N_CTX, N_PLACES, base=BASE)
    return model


class _Head:
    """One head of a model under construction; scores are in nats, since 1 / sqrt(d_head) is undone."""

    def __init__(self, model: AttentionOnlyTransformer, layer: int, head: int) -> None:
        self.W_Q, self.W_K = model.W_Q[layer, head], model.W_K[layer, head]
        self.W_V, self.W_O = model.W_V[layer, head], model.W_O[layer, head]
        self.scale = D_HEAD**0.5

    def matches(self, query: str, key: str, gain: float) -> None:
        """Score `gain` where the token in the query's block is that in the key's."""
        self.W_Q[AT[query], :D_VOCAB] += gain * self.scale * torch.eye(D_VOCAB)
        self.W_K[AT[key], :D_VOCAB] += torch.eye(D_VOCAB)

    def looks_back(self, places: int, gain: float) -> None:
        """Score `gain` for the key so many places before the query, less elsewhere."""
        at = slice(D_VOCAB, D_VOCAB + N_PLACES)
        turn = shift_matrix(-places) * 2 / N_PLACES  # a place has length sqrt(N_PLACES / 2)
        self.W_Q[AT["place"], at] += gain * self.scale * turn
        self.W_K[AT["place"], at] += torch.eye(N_PLACES)

    def prefers(self, query: Tensor, key_tokens: list[int]) -> None:
        """Score of each query (d_model entries, in nats) for these key tokens."""
        self.W_Q[:, -1] += self.scale * query
        self.W_K[AT["token"], -1][key_tokens] += 1

    def moves(self, source: str, target: str, amount: float) -> None:
        """Copies what stands in one block at the source into another, the start token left out."""
        size = BLOCKS[target]
        identity = torch.eye(D_VOCAB)
        identity[START] = 0
        if target == "told":  # two modes are two coordinates
            identity = identity[:, list(MODES)]
        self.W_V[AT[source], :size] += identity
        self.W_O[:size, AT[target]] += amount * torch.eye(size)


def _constant(value: float) -> Tensor:
    """A query that is the same whatever the token."""
    query = torch.zeros(sum(BLOCKS.values()))
    query[AT["token"]] = value
    return query


def _told(mode: int, value: float) -> Tensor:
    """A query that is there in one mode only."""
    query = torch.zeros(sum(BLOCKS.values()))
    query[AT["told"].start + mode] = value
    return query


def reference(task: str, gain: float = 25.0) -> AttentionOnlyTransformer:
    """A model of weights written by hand that solves the task; `gain` in nats and in logits.

    Layers and heads: copying 0, previous 1 of 1, grammar 1 of 4, loops, repeats and recall 2 of 1,
    modes 2 of 2. ValueError for an unknown task.
    """
    task_named(task)
    if task == "copying":
        model = _empty(0, 1)
        model.W_U[AT["token"]] += gain * torch.eye(D_VOCAB)
        return model
    if task == "previous":
        model = _empty(1, 1)
        head = _Head(model, 0, 0)
        head.looks_back(1, 4 * gain)
        head.moves("token", "answer", gain)
        return model
    if task == "grammar":
        model = _empty(1, FACTS)
        for b in range(FACTS):  # a head for each destination: it looks at the source, or rests
            head = _Head(model, 0, b)
            head.prefers(_constant(gain / 2), [START])
            head.W_Q[1 + FACTS + b, 0] = gain * head.scale
            head.W_K[1 : 1 + FACTS, 0] = 1
            for a in range(FACTS):
                head.W_V[1 + a, a] = 1
                head.W_O[a, AT["answer"].start + 1 + 2 * FACTS + (a + b) % FACTS] = gain
        return model
    model = _empty(2, 2 if task == "modes" else 1)
    note = _Head(model, 0, 0)
    note.looks_back(1, 4 * gain)
    note.moves("token", "kept", 1.0)
    onward = _Head(model, 1, 0)
    onward.matches("token", "kept", gain)
    onward.moves("token", "answer", gain)
    if task == "modes":
        told = _Head(model, 0, 1)  # reads the word for the mode, wherever it stands
        told.prefers(_constant(gain), list(MODES))
        told.moves("token", "told", 1.0)
        onward.prefers(_told(1, 2 * gain), [START])  # rests in the other mode
        back = _Head(model, 1, 1)
        back.looks_back(1, 4 * gain)
        back.moves("token", "answer", gain)
        back.prefers(_told(0, 8 * gain), [START])
    return model
