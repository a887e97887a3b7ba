"""Everything that a page of the head atlas says of one head, gathered for a layer at a time."""

from dataclasses import dataclass
from functools import lru_cache

from jaxtyping import Bool, Complex, Float, Int
from torch import Tensor

from pathsum.atlas_scores import SEQUENCES, Rule, attention_shares, labels_of, layer_scores
from pathsum.bigrams import shipped_counts
from pathsum.circuits import Head, check_head, copying_eigenvalues, positional_scores
from pathsum.claims_composition import rotation_null
from pathsum.claims_one_layer import WINDOW, offset_table
from pathsum.claims_skip_trigrams import common_tokens
from pathsum.claims_zero import frequent_tokens
from pathsum.composition import KINDS, composition_scores, reverse_scores
from pathsum.factored import FactoredMatrix
from pathsum.heads import value_weighted
from pathsum.model import AttentionOnlyTransformer, cache
from pathsum.samples import demo_tokens, spread_sample
from pathsum.skip_trigrams import TableRow, centred_ov, centred_qk, strongest_sources, table_rows

SOURCES, OUTPUTS, PAIRS = 6, 4, 10  # rows and columns of the tables

Pair = tuple[int, int, float]  # two token ids and an entry of a circuit


@dataclass(frozen=True)
class HeadFacts:
    """Everything that a page says of one head."""

    head: Head
    scores: dict[str, float]  # as from `layer_scores`
    shares: Float[Tensor, " 5"]  # of attention on held-out text, as SHARES
    eigenvalues: Complex[Tensor, " d_head"]  # of the full OV circuit
    untrained: Complex[Tensor, " d_head"]  # of the same head before training
    attention: Float[Tensor, " offset"]  # mean attention by tokens back, 0 .. WINDOW - 1
    positional: Float[Tensor, " offset"]  # score by offset from positions alone, nats
    tokens: Int[Tensor, " pos"]  # the demo text
    pattern: Float[Tensor, "dest src"]  # on it
    moved: Float[Tensor, "dest src"]  # the same times the length of the value fetched
    partners: dict[str, Float[Tensor, " n_heads"]]  # composition with each head of the other layer
    strongest: list[TableRow]  # the sources with the largest OV entries
    frequent: list[TableRow]  # the sources most frequent in training
    raised: list[Pair]  # largest OV entries (source, output, logits)
    lowered: list[Pair]  # smallest
    wanted: list[Pair]  # largest QK entries (destination, source, nats)

    @property
    def labels(self) -> list[Rule]:
        """The rules that hold for the head's scores, in the order of RULES."""
        return labels_of(self.scores)


class LayerFacts:
    """The facts of all heads of one layer; what they share is computed once.

    ValueError as `layer_scores`, IndexError for a layer or, when indexed, a head that is not there.
    """

    def __init__(self, model: AttentionOnlyTransformer, layer: int) -> None:
        self.scores = layer_scores(model, layer)  # refuses what cannot be drawn
        self.model, self.layer = model, layer
        self._made: dict[int, HeadFacts] = {}
        inputs, _ = spread_sample(SEQUENCES)
        self.shares = attention_shares(cache(model, inputs)[f"L{layer}.pattern"])
        self.attention = offset_table(model, inputs, layer)[1]
        self.positional = positional_scores(model, layer, min(WINDOW, model.config.n_ctx) - 1)
        self.eigenvalues = copying_eigenvalues(model, layer)
        before = AttentionOnlyTransformer(model.config, seed=0)
        self.untrained = copying_eigenvalues(before, layer)
        kinds = KINDS if model.config.n_layers == 2 else ()
        self.composition = {kind: composition_scores(model, kind).float() for kind in kinds}
        self.tokens = demo_tokens()
        values = cache(model, self.tokens)
        self.pattern = values[f"L{layer}.pattern"]
        self.moved = value_weighted(self.pattern, values[f"L{layer}.v"])

    def __getitem__(self, number: int) -> HeadFacts:
        if number not in self._made:
            self._made[number] = self._of(check_head(self.model, (self.layer, number)))
        return self._made[number]

    def _of(self, head: Head) -> HeadFacts:
        number = head[1]
        common, frequent = vocabulary()
        strongest = strongest_sources(self.model, head, common, SOURCES)
        ids = common.nonzero().flatten()
        ov, qk = centred_ov(self.model, head), centred_qk(self.model, head)
        ov = FactoredMatrix(ov.A[ids], ov.B[:, ids])
        qk = FactoredMatrix(qk.A[ids], qk.B[:, ids])
        return HeadFacts(
            head=head,
            scores={name: float(values[number]) for name, values in self.scores.items()},
            shares=self.shares[number],
            eigenvalues=self.eigenvalues[number],
            untrained=self.untrained[number],
            attention=self.attention[number],
            positional=self.positional[number],
            tokens=self.tokens[0],
            pattern=self.pattern[0, number],
            moved=self.moved[0, number],
            partners={
                kind: scores[number] if self.layer == 0 else scores[:, number]
                for kind, scores in self.composition.items()
            },
            strongest=table_rows(self.model, head, strongest, OUTPUTS, common),
            frequent=table_rows(self.model, head, frequent, OUTPUTS, common),
            raised=largest(ov, ids),
            lowered=largest(ov, ids, most=False),
            wanted=largest(qk, ids),
        )


@lru_cache
def vocabulary() -> tuple[Bool[Tensor, " d_vocab"], Int[Tensor, " sources"]]:
    """Which tokens tables are read among (frequent in training), and the most frequent few."""
    counts = shipped_counts()
    common = common_tokens(counts)
    frequent = frequent_tokens(counts, 4 * SOURCES)
    return common, frequent[common[frequent]][:SOURCES]


def largest(circuit: FactoredMatrix, ids: Int[Tensor, " n"], most: bool = True) -> list[Pair]:
    """The PAIRS largest (or smallest) entries, with token ids for rows and columns."""
    values, rows, columns = circuit.topk(PAIRS, largest=most)
    return list(zip(ids[rows].tolist(), ids[columns].tolist(), values.tolist()))


def composition_nulls(model: AttentionOnlyTransformer) -> dict[str, tuple[float, float, float]]:
    """By kind: mean and sd when layer 0's outputs are turned at random, and the largest reverse score.

    The last is that of pairs in the wrong order, between which there is no path.
    """
    if model.config.n_layers != 2:
        return {}
    return {
        kind: (*rotation_null(model, kind), float(reverse_scores(model, kind).max()))
        for kind in KINDS
    }
