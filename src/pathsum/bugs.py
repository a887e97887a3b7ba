"""Skip-trigram bugs: what a head must also raise because its table is a product of two tables.

A head adds A(dest, src) * OV(src, out): two functions of two tokens, not one of three. If it holds the
trigrams (s, d1, o1) and (s, d2, o2), it holds (s, d1, o2) and (s, d2, o1) as well, wanted or not.
Source: Elhage et al. 2021, Interpretation as Skip-Trigrams ("bugs").
"""

from collections import defaultdict
from dataclasses import dataclass

import torch
from einops import einsum
from jaxtyping import Bool, Float, Int
from torch import Tensor

from pathsum.bigrams import BigramCounts
from pathsum.evaluate import BATCH
from pathsum.factored import FactoredMatrix
from pathsum.model import AttentionOnlyTransformer
from pathsum.skip_trigrams import Head, centred_ov, centred_qk, check_head

Trigram = tuple[int, int, int]  # (source, destination, out), token ids


@dataclass(frozen=True)
class Closure:
    """Two trigrams of one head that share their source, and what the head makes of the other two."""

    head: Head
    source: int
    destinations: tuple[int, int]
    outputs: tuple[int, int]
    logits: Float[Tensor, "2 2"]  # [destination, output]; the diagonal is what the text has

    @property
    def crossed(self) -> Float[Tensor, " 2"]:
        """Contributions to the two trigrams that nobody asked for, logits."""
        return torch.stack([self.logits[0, 1], self.logits[1, 0]])

    @property
    def interaction(self) -> float:
        """ln of (both true) / (both crossed), nats: 0 for every product of two functions."""
        logs = self.logits.double().log()
        return float(logs[0, 0] + logs[1, 1] - logs[0, 1] - logs[1, 0])


def contribution(
    model: AttentionOnlyTransformer,
    head: Head,
    source: int,
    destinations: Int[Tensor, " dests"],
    outputs: Int[Tensor, " outs"],
) -> Float[Tensor, "dests outs"]:
    """exp(centred score) * centred OV entry, from the weights: logits up to a factor per destination.

    The factor is what softmax divides by, which depends on the rest of the context.
    """
    return _product(centred_qk(model, head), centred_ov(model, head), source, destinations, outputs)


def _product(
    qk: FactoredMatrix, ov: FactoredMatrix, source: int, destinations: Tensor, outputs: Tensor
) -> Float[Tensor, "dests outs"]:
    scores = qk.A[destinations] @ qk.B[:, source]
    return scores.exp()[:, None] * (ov.A[source] @ ov.B[:, outputs])


@torch.no_grad()
def trigrams_at_work(
    model: AttentionOnlyTransformer,
    head: Head,
    inputs: Int[Tensor, "batch pos"],
    targets: Int[Tensor, "batch pos"],
    at_least: float = 1.0,
) -> dict[Trigram, tuple[int, float]]:
    """Trigrams by which the head raised the token that did come: in how many sequences, mean logits.

    A source before the destination counts if its contribution A * OV(source, next token) reaches
    `at_least` logits; equal sources add theirs up. The start token is left out, being always there.
    Exact for layer 0, where values are embeddings; IndexError for a head that is not there.
    """
    layer, number = check_head(model, head)
    ov = centred_ov(model, head)
    added_logits: dict[Trigram, list[float]] = defaultdict(list)
    sequences: dict[Trigram, set[int]] = defaultdict(set)
    for start, (x, y) in enumerate(zip(inputs.split(BATCH), targets.split(BATCH))):
        pattern = _pattern(model, layer, x)[:, number].tril(-1)
        entries = einsum(ov.A[x], ov.B.mT[y], "b src r, b dest r -> b dest src")
        same = (x[:, None, :] == x[:, :, None]).float()  # adds up what equal sources contribute
        added = (pattern * entries) @ same
        first = ~(x[:, :, None] == x[:, None, :]).tril(-1).any(-1)  # counts each source once
        for b, d, s in ((added >= at_least) & first[:, None, :]).nonzero().tolist():
            if s < d and int(x[b, s]):  # the start token is there always
                trigram = (int(x[b, s]), int(x[b, d]), int(y[b, d]))
                added_logits[trigram].append(float(added[b, d, s]))
                sequences[trigram].add(start * BATCH + b)
    return {t: (len(sequences[t]), sum(v) / len(v)) for t, v in added_logits.items()}


def _pattern(
    model: AttentionOnlyTransformer, layer: int, tokens: Int[Tensor, "batch pos"]
) -> Float[Tensor, "batch head dest src"]:
    """The patterns of one layer, without the logits that `cache` would compute too."""
    kept: dict[str, Tensor] = {}
    model.final_residual(tokens, hook=lambda site, value: kept.update({site: value}))
    return kept[f"L{layer}.pattern"]


def followed(counts: BigramCounts) -> Bool[Tensor, "d_vocab d_vocab"]:
    """Whether [first, second] was ever seen in the counted text; one byte per pair of tokens."""
    seen = torch.zeros(counts.d_vocab, counts.d_vocab, dtype=torch.bool)
    first = torch.arange(counts.d_vocab).repeat_interleave(counts.starts.diff().long())
    seen[first, counts.following.long()] = True
    return seen


def find_closures(
    model: AttentionOnlyTransformer,
    head: Head,
    trigrams: dict[Trigram, tuple[int, float]],
    seen: Bool[Tensor, "d_vocab d_vocab"],
    times: int = 2,
) -> list[Closure]:
    """Pairs of trigrams of `times` sequences or more whose crossed partners training text never had.

    Not even as bigrams: neither output ever followed the other's destination, so the partner is
    wrong in any context. `seen` is `followed(counts)`. Largest smaller crossed contribution first.
    """
    by_source: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for (source, dest, out), (n, _) in trigrams.items():
        if n >= times:
            by_source[source].append((dest, out))
    qk, ov = centred_qk(model, head), centred_ov(model, head)
    found = []
    for source, ends in by_source.items():
        dests, outs = torch.tensor(ends).mT
        never = ~seen[dests][:, outs]
        logits = _product(qk, ov, source, dests, outs)
        for i, j in (never & never.mT).triu(1).nonzero().tolist():
            part = logits[[i, j]][:, [i, j]]
            found.append(
                Closure(head, source, (ends[i][0], ends[j][0]), (ends[i][1], ends[j][1]), part)
            )
    return sorted(found, key=lambda c: -float(c.crossed.min()))


@dataclass(frozen=True)
class BugCost:
    """What it costs that outputs are raised which never follow the token they stand after."""

    unseen: float  # share of targets that never followed the token before them in training
    mass: float  # mean probability that the model gives to all such outputs together
    gates: tuple[float, ...]  # shares of the heads' positive contributions that were taken away
    lowerings: tuple[float, ...]  # logits taken away from all such outputs alike
    fit: Float[Tensor, "gates lowerings"]  # loss on half of the text, nats per token
    test: Float[Tensor, "gates lowerings"]  # loss on the other half

    def best(self, with_gate: bool) -> tuple[float, float, float]:
        """(gate, lowering, loss on the test half) that the fitting half chooses."""
        losses = self.fit if with_gate else self.fit[self.gates.index(0.0)][None]
        i, j = divmod(int(losses.argmin()), len(self.lowerings))
        i = i if with_gate else self.gates.index(0.0)
        return self.gates[i], self.lowerings[j], float(self.test[i, j])


@torch.no_grad()
def bug_cost(
    model: AttentionOnlyTransformer,
    inputs: Int[Tensor, "batch pos"],
    targets: Int[Tensor, "batch pos"],
    seen: Bool[Tensor, "d_vocab d_vocab"],
    gates: tuple[float, ...] = (0.0, 0.1, 0.25, 0.5, 1.0),
    lowerings: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5),
) -> BugCost:
    """Losses with a gate per (destination, output) on what the heads write, beside a control.

    The gate takes away a share of the heads' positive contributions (above their mean over outputs)
    to outputs that never came after the destination in training. That depends on three tokens, as no
    sum of products can. The control takes a constant away from the same outputs: a correction of
    bigrams, which the direct path might have learnt. Strengths are fitted on every other sequence.
    ValueError unless there are two sequences or more, and 0 among the gates.
    """
    if len(inputs) < 2 or 0.0 not in gates:
        raise ValueError(
            f"needs two sequences and the gate 0.0, got {len(inputs)} and {gates}: "
            "one half of the text fits the strengths, the other tests them"
        )
    losses = torch.zeros(2, len(gates), len(lowerings), dtype=torch.float64)
    mass = unseen = 0.0
    for n, (x, y) in enumerate(zip(inputs.split(1), targets.split(1))):
        direct = (model.W_E[x] @ model.W_U)[0]
        logits = (model.final_residual(x) @ model.W_U)[0]
        heads, never, target = logits - direct, ~seen[x[0]], y[0, :, None]
        wrong = (heads - heads.mean(-1, keepdim=True)).clamp_min(0) * never
        mass += float((logits.softmax(-1) * never).sum(-1).mean()) / len(inputs)
        unseen += float(never.gather(1, target).float().mean()) / len(inputs)
        for i, gate in enumerate(gates):
            # ln of both halves of the normaliser, so that a lowering costs no second pass
            gated = logits - gate * wrong
            of_never = gated.masked_fill(~never, float("-inf")).logsumexp(-1)
            of_seen = gated.masked_fill(never, float("-inf")).logsumexp(-1)
            own, is_never = gated.gather(1, target)[:, 0], never.gather(1, target)[:, 0]
            for j, lowering in enumerate(lowerings):
                normaliser = torch.logaddexp(of_seen, of_never - lowering)
                losses[n % 2, i, j] += float((normaliser - own + lowering * is_never).mean())
    halves = torch.tensor([(len(inputs) + 1) // 2, len(inputs) // 2])[:, None, None]
    fit, test = (losses / halves).float()
    return BugCost(unseen, mass, gates, lowerings, fit, test)
