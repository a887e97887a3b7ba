"""Does a table entry show in behaviour? Lifts of (source, out) pairs on text, and of removing sources."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from pathsum.evaluate import BATCH
from pathsum.model import AttentionOnlyTransformer
from pathsum.skip_trigrams import TableRow, centred_ov, strongest_sources, table_rows

Pair = tuple[int, int]  # (source, out), token ids


@dataclass(frozen=True)
class Lifts:
    """Lift in nats of every source with every output, from one pass over a text."""

    sources: Int[Tensor, " sources"]
    outputs: Int[Tensor, " outputs"]
    values: Float[Tensor, "sources outputs"]  # NaN where a source was present never or always
    present: Int[Tensor, " sources"]  # positions that had the source before them

    def of(self, pairs: list[Pair]) -> Float[Tensor, " pairs"]:
        """The lifts of these pairs. KeyError for a token that was not measured."""
        row = {int(t): i for i, t in enumerate(self.sources)}
        column = {int(t): i for i, t in enumerate(self.outputs)}
        for source, out in pairs:
            if source not in row or out not in column:
                raise KeyError(f"the pair {(source, out)} was not measured: add it to the call")
        return self.values[[row[s] for s, _ in pairs], [column[o] for _, o in pairs]]


def seen_earlier(
    tokens: Int[Tensor, "batch pos"], sources: Int[Tensor, " sources"]
) -> Bool[Tensor, "batch pos sources"]:
    """Whether each source stood before each position; the position itself does not count."""
    here = tokens[..., None] == sources
    return here.cumsum(1) - here.long() > 0


@torch.no_grad()
def direct_log_probs(
    model: AttentionOnlyTransformer, outputs: Int[Tensor, " outputs"]
) -> Float[Tensor, "d_vocab outputs"]:
    """ln p(output | present token) if only the direct path W_E @ W_U spoke, for every token."""
    parts = []
    for rows in model.W_E.split(1024):
        logits = rows @ model.W_U
        parts.append(logits[:, outputs] - logits.logsumexp(-1, keepdim=True))
    return torch.cat(parts)


@torch.no_grad()
def measure_lifts(
    model: AttentionOnlyTransformer,
    inputs: Int[Tensor, "batch pos"],
    sources: Int[Tensor, " sources"],
    outputs: Int[Tensor, " outputs"],
) -> Lifts:
    """How much more than its direct path the model expects `out` once `source` has been seen.

    lift(s, o) = mean of ln p_model(o) - ln p_direct(o) over positions with s before them, minus
    the mean over positions without. A correlation over texts: what else the texts with s have in
    common is in it. Sums are accumulated by batches; no log-probabilities are kept.
    """
    direct = direct_log_probs(model, outputs)
    total = torch.zeros(len(outputs), dtype=torch.float64)
    with_source = torch.zeros(len(sources), len(outputs), dtype=torch.float64)
    present = torch.zeros(len(sources), dtype=torch.float64)
    for x in inputs.split(BATCH):
        logits = (model.final_residual(x) @ model.W_U).flatten(0, 1)
        gain = logits[:, outputs] - logits.logsumexp(-1, keepdim=True) - direct[x.flatten()]
        seen = seen_earlier(x, sources).flatten(0, 1).float()
        with_source += seen.mT @ gain
        total += gain.sum(0)
        present += seen.sum(0)
    absent = inputs.numel() - present
    values = with_source / present[:, None] - (total - with_source) / absent[:, None]
    return Lifts(sources, outputs, values.float(), present.long())


def shuffled_pairs(pairs: list[Pair], generator: torch.Generator, times: int = 20) -> list[Pair]:
    """Random pairs with the same sources and the same outs, each as often, `times` over.

    Pairs that are in `pairs` are left out: the null must not hold what it is compared with.
    """
    sources, outs = torch.tensor(pairs).mT
    kept = set(pairs)
    drawn = []
    for _ in range(times):
        order = torch.randperm(len(outs), generator=generator)
        drawn += [p for p in zip(sources.tolist(), outs[order].tolist()) if p not in kept]
    return drawn


@dataclass(frozen=True)
class Evidence:
    """The entries of all heads' tables, counted once per (source, out), and their lifts on text."""

    rows: list[TableRow]  # as read from the weights
    pairs: list[Pair]  # different ones whose lift could be measured
    heads: Int[Tensor, " pairs"]  # whose entry is the largest, so that each pair counts once
    lifts: Float[Tensor, " pairs"]  # nats
    null: Float[Tensor, " null"]  # of pairs with the same sources and outs, shuffled
    untested: int  # different pairs left out because the source is too rare in the text
    present: dict[int, int]  # source -> positions that had it before them

    @property
    def bar(self) -> float:
        """The 95th percentile of the null: what a pair must exceed."""
        return float(self.null.quantile(0.95))

    @property
    def survives(self) -> Bool[Tensor, " pairs"]:
        return self.lifts > self.bar

    def per_head(self, n_heads: int) -> Int[Tensor, "n_heads 2"]:
        """Per head: different pairs measured, and how many of them survive."""
        both = [(self.heads == h, (self.heads == h) & self.survives) for h in range(n_heads)]
        return torch.tensor([[int(a.sum()), int(b.sum())] for a, b in both])


def gather_evidence(
    model: AttentionOnlyTransformer,
    inputs: Int[Tensor, "batch pos"],
    among: Bool[Tensor, " d_vocab"],
    sources_per_head: int = 40,
    k: int = 3,
    at_least: int = 200,
    seed: int = 0,
) -> Evidence:
    """Tables of every head of a one-layer model, and the lift of each of their pairs.

    Per head the `sources_per_head` sources with the largest OV entries, `k` destinations and `k` outs
    each; sources with fewer than `at_least` positions after them (or before) are not tested.
    ValueError unless the model has one layer.
    """
    c = model.config
    if c.n_layers != 1:
        raise ValueError(f"tables of single heads tell all for one layer only, got {c.n_layers}")
    rows = []
    for head in range(c.n_heads):
        sources = strongest_sources(model, (0, head), among, sources_per_head)
        rows += table_rows(model, (0, head), sources, k, among)
    every = sorted({pair for row in rows for pair in row.pairs})
    sources, outs = (torch.tensor(sorted(set(column))) for column in zip(*every))
    found = measure_lifts(model, inputs, sources, outs)
    enough = (found.present >= at_least) & (inputs.numel() - found.present >= at_least)
    tested = set(sources[enough].tolist())
    pairs = [pair for pair in every if pair[0] in tested]
    if not pairs:
        raise ValueError(
            f"no source stands before {at_least} positions of this text: take more of it"
        )
    entries = torch.stack(
        [centred_ov(model, (0, h)).entries(*torch.tensor(pairs).mT) for h in range(c.n_heads)]
    )
    null = found.of(shuffled_pairs(pairs, torch.Generator().manual_seed(seed)))
    present = dict(zip(sources.tolist(), found.present.tolist()))
    return Evidence(
        rows, pairs, entries.argmax(0), found.of(pairs), null, len(every) - len(pairs), present
    )


@torch.no_grad()
def removal_effects(
    model: AttentionOnlyTransformer,
    inputs: Int[Tensor, "batch pos"],
    pairs: list[Pair],
    generator: torch.Generator,
    sequences: int = 4,
) -> Float[Tensor, " pairs"]:
    """How many nats of ln p(out) vanish when the source is replaced throughout the text: causal.

    For each pair up to `sequences` sequences that hold the source are run twice, the second time with
    each occurrence replaced by a token drawn from the text at large; averaged over the positions
    after its first occurrence that are not the source itself. NaN if no sequence has such positions.
    """
    effects = []
    pool = inputs.flatten()
    for source, out in pairs:
        rows = (inputs[:, :-1] == source).any(1).nonzero().flatten()[:sequences]
        if not len(rows):
            effects.append(float("nan"))
            continue
        x = inputs[rows]
        at = x == source
        drawn = pool[torch.randint(len(pool), x.shape, generator=generator)]
        counted = seen_earlier(x, torch.tensor([source]))[..., 0] & ~at
        before, after = (
            (model.final_residual(tokens)[counted] @ model.W_U).log_softmax(-1)[:, out]
            for tokens in (x, torch.where(at, drawn, x))
        )
        effects.append(float((before - after).mean()) if counted.any() else float("nan"))
    return torch.tensor(effects)


@torch.no_grad()
def removal_table(
    model: AttentionOnlyTransformer,
    inputs: Int[Tensor, "batch pos"],
    source: int,
    destinations: list[int],
    outputs: list[int],
    generator: torch.Generator,
    sequences: int = 16,
) -> Float[Tensor, "dests outs"]:
    """As `removal_effects`, for one source, at the positions where each destination stands.

    NaN for a destination that never stands after the source.
    """
    x = inputs[(inputs[:, :-1] == source).any(1).nonzero().flatten()[:sequences]]
    if not len(x):
        return torch.full((len(destinations), len(outputs)), float("nan"))
    at = x == source
    pool = inputs.flatten()
    drawn = pool[torch.randint(len(pool), x.shape, generator=generator)]
    seen = seen_earlier(x, torch.tensor([source]))[..., 0]
    table = []
    for destination in destinations:
        here = seen & (x == destination) & ~at
        before, after = (
            (model.final_residual(tokens)[here] @ model.W_U).log_softmax(-1)[:, outputs]
            for tokens in (x, torch.where(at, drawn, x))
        )
        table.append((before - after).mean(0))
    return torch.stack(table)
