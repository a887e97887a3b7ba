"""From the graph of all edges to a circuit: greedy pruning, and how good what remains is."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor
from tqdm.auto import tqdm

from pathsum.edges import Graph

Mask = Float[Tensor, "sender receiver"]
Score = Callable[[Mask], Float[Tensor, " batch"]]


def faithfulness(score: Score, graph: Graph, mask: Mask) -> float:
    """What a circuit has of the whole model's score; see `faithfulness_of`."""
    return faithfulness_of(score, graph, [mask])[0]


@torch.no_grad()
def faithfulness_of(score: Score, graph: Graph, masks: list[Mask]) -> list[float]:
    """What each circuit has of the model's score, where 0 is the corrupted run and 1 the clean one.

    May lie outside 0 to 1: a circuit without the edges that hold back scores more than the model.
    ValueError if the two runs score alike, so that there is nothing to explain.
    """
    full, none = (float(score(m).mean()) for m in (graph.whole(), 0 * graph.whole()))
    if abs(full - none) < 1e-6:
        raise ValueError(
            f"both versions of the prompts score {full:.3g}: there is nothing for a circuit to explain"
        )
    return [(float(score(mask).mean()) - none) / (full - none) for mask in masks]


def complement(graph: Graph, mask: Mask) -> Mask:
    """The edges that are not in a circuit."""
    return graph.whole() - mask * graph.exists


@torch.no_grad()
def pruned(
    score: Score,
    graph: Graph,
    order: Float[Tensor, "sender receiver"],
    tolerance: float,
    progress: bool = True,
) -> Mask:
    """The circuit that is left when edges are cut one after the other, as long as it costs little.

    Edges are tried from the smallest |order| up (attributions, say); one is cut for good if that
    changes the circuit's mean score by less than `tolerance` times the model's (clean less corrupted).
    A cut is never taken back, and what many cuts cost may add up. ValueError for a tolerance that is not above 0.
    """
    if not tolerance > 0:
        raise ValueError(f"tolerance must be above 0, got {tolerance}: nothing would be cut")
    mask = graph.whole()
    full, none = float(score(mask).mean()), float(score(0 * mask).mean())
    now = full
    edges = by_size(graph, order)[::-1]
    for edge in tqdm(edges, desc="pruning", leave=False, disable=not progress):
        mask[edge] = 0
        without = float(score(mask).mean())
        if abs(without - now) < tolerance * abs(full - none):
            now = without
        else:
            mask[edge] = 1
    return mask


def by_size(graph: Graph, values: Float[Tensor, "sender receiver"]) -> list[tuple[int, int]]:
    """Edges from the largest absolute value to the smallest."""
    return sorted(graph.edges(), key=lambda edge: -abs(float(values[edge])))


def first_edges(graph: Graph, order: list[tuple[int, int]], count: int) -> Mask:
    """The circuit of the first `count` edges of a list."""
    mask = torch.zeros(graph.exists.shape)
    for edge in order[:count]:
        mask[edge] = 1
    return mask


@torch.no_grad()
def curves(
    score: Score, graph: Graph, order: list[tuple[int, int]], counts: list[int]
) -> tuple[list[float], list[float]]:
    """(faithfulness of the first edges of a list, of all the others), for each number of edges."""
    masks = [first_edges(graph, order, count) for count in counts]
    masks += [complement(graph, mask) for mask in masks]
    shares = faithfulness_of(score, graph, masks)
    return shares[: len(counts)], shares[len(counts) :]


def random_order(graph: Graph, seed: int = 0) -> list[tuple[int, int]]:
    """The edges in a random order, whose first ones are the circuits that any other must beat."""
    edges = graph.edges()
    generator = torch.Generator().manual_seed(seed)
    return [edges[i] for i in torch.randperm(len(edges), generator=generator).tolist()]
