"""Do the triples of a table show in behaviour? Lifts where the destination stands, against random triples."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from pathsum.evaluate import BATCH
from pathsum.lifts import Pair, direct_log_probs, seen_earlier
from pathsum.model import AttentionOnlyTransformer
from pathsum.skip_trigrams import TableRow

Cell = tuple[int, int]  # (source, destination), token ids


@torch.no_grad()
def cell_lifts(
    model: AttentionOnlyTransformer,
    inputs: Int[Tensor, "batch pos"],
    cells: list[Cell],
    outputs: Int[Tensor, " outputs"],
) -> tuple[Float[Tensor, "cells outputs"], Int[Tensor, "cells 2"]]:
    """Lift in nats of every output where a destination stands and a source stood earlier.

    lift(s, d, o) = mean of ln p_model(o) - ln p_direct(o) over the positions of d with s before them,
    minus the mean over those without: what the source does to this destination's prediction, and what
    else such texts have in common. Second: positions with and without; NaN where one of them is 0.
    """
    direct = direct_log_probs(model, outputs)
    sources, destinations = (torch.tensor(sorted(set(column))) for column in zip(*cells))
    gains, seen, here = [], [], []
    for x in inputs.split(BATCH):
        at = torch.isin(x, destinations)
        logits = model.final_residual(x)[at] @ model.W_U
        gains.append(logits[:, outputs] - logits.logsumexp(-1, keepdim=True) - direct[x[at]])
        seen.append(seen_earlier(x, sources)[at])
        here.append(x[at])
    gain, before, present = torch.cat(gains), torch.cat(seen), torch.cat(here)
    place = {int(source): column for column, source in enumerate(sources)}
    values, counts = [], []
    for source, destination in cells:
        rows = present == destination
        with_it = before[rows, place[source]]
        parts = gain[rows][with_it], gain[rows][~with_it]
        values.append(parts[0].mean(0) - parts[1].mean(0))
        counts.append([len(part) for part in parts])
    return torch.stack(values), torch.tensor(counts)


@dataclass(frozen=True)
class TripleEvidence:
    """The (source, output) pairs of all heads' tables, once each, judged by their triples on text."""

    named: int  # triples in the tables
    different: int  # pairs among them
    pairs: list[Pair]  # those that text could test
    heads: Int[Tensor, " pairs"]  # whose table names the pair, with the largest entry
    lifts: Float[Tensor, " pairs"]  # nats, mean over the pair's destinations by positions
    null: Float[
        Tensor, " null"
    ]  # the same of random triples: source and destinations, another output

    @property
    def bar(self) -> float:
        """The 95th percentile of the random triples: what a pair must exceed."""
        return float(self.null.quantile(0.95))

    @property
    def survives(self) -> Bool[Tensor, " pairs"]:
        return (self.lifts > self.bar) & (self.lifts > 0)

    def per_head(self, n_heads: int) -> list[int]:
        """How many pairs of each head survive."""
        return [int((self.survives & (self.heads == head)).sum()) for head in range(n_heads)]


def triple_evidence(
    model: AttentionOnlyTransformer,
    inputs: Int[Tensor, "batch pos"],
    rows: list[TableRow],
    at_least: int = 10,
    times: int = 20,
    seed: int = 0,
) -> TripleEvidence:
    """The triples of a one-layer model's tables on text, against matched random ones.

    A triple is tested if its destination stands `at_least` times after the source and as often without
    it. A pair's lift is the mean over its tested triples, weighted by those positions. A matched random
    triple keeps source and destination, hence the same positions, and gets the output of another pair,
    `times` over; outputs that the source's own rows name are left out. ValueError if the text tests
    no triple.
    """
    destinations: dict[Pair, set[int]] = {}
    owner: dict[
        Pair, tuple[float, int]
    ] = {}  # by how much the pair's output is raised, and by whom
    for row in rows:
        for pair, raised in zip(row.pairs, row.raises.tolist()):
            destinations.setdefault(pair, set()).update(row.destinations.tolist())
            owner[pair] = max(owner.get(pair, (raised, row.head[1])), (raised, row.head[1]))
    cells = sorted({(source, d) for (source, _), ds in destinations.items() for d in ds})
    outputs = torch.tensor(sorted({out for _, out in destinations}))
    values, counts = cell_lifts(model, inputs, cells, outputs)
    tested = {cell: i for i, cell in enumerate(cells) if int(counts[i].min()) >= at_least}
    column = {int(out): i for i, out in enumerate(outputs)}

    def of_cells(pair: Pair) -> list[int]:
        return [tested[(pair[0], d)] for d in sorted(destinations[pair]) if (pair[0], d) in tested]

    pairs = [pair for pair in sorted(destinations) if of_cells(pair)]
    if not pairs:
        raise ValueError(
            f"no destination stands {at_least} times with and without its source: take more text"
        )
    means = []  # of every output, for each pair's source and destinations
    for pair in pairs:
        chosen = of_cells(pair)
        weight = counts[chosen, 0].float()
        means.append((weight[:, None] * values[chosen]).sum(0) / weight.sum())
    table = torch.stack(means)
    outs = torch.tensor([column[out] for _, out in pairs])
    generator, null = torch.Generator().manual_seed(seed), []
    own = torch.tensor([[(source, int(o)) in destinations for o in outputs] for source, _ in pairs])
    for _ in range(times):
        other = outs[torch.randperm(len(outs), generator=generator)]
        drawn, taken = table.gather(1, other[:, None])[:, 0], own.gather(1, other[:, None])[:, 0]
        null.append(drawn[~taken])
    return TripleEvidence(
        named=len({triple for row in rows for triple in row.triples}),
        different=len(destinations),
        pairs=pairs,
        heads=torch.tensor([owner[pair][1] for pair in pairs]),
        lifts=table.gather(1, outs[:, None])[:, 0],
        null=torch.cat(null),
    )
