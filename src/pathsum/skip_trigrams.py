"""Skip-trigram tables: what a head attends to and what that raises, read from its weights alone.

A head's `[source] ... [destination] [out]` table is two tables: the QK circuit holds which destination
attends to which source, the OV circuit which output a source raises. Both are compared in centred
form, because softmax and the destination-independent part of a head hide behind constants.
Source: Elhage et al. 2021, Interpretation as Skip-Trigrams.
"""

from dataclasses import dataclass
from html import escape

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from pathsum.circuits import Head, check_head, full_ov_circuits, full_qk_circuits
from pathsum.factored import FactoredMatrix
from pathsum.model import AttentionOnlyTransformer
from pathsum.tokenizer import Tokenizer


def centred_ov(model: AttentionOnlyTransformer, head: Head) -> FactoredMatrix:
    """Full OV circuit of one head, (source, output), mean 0 over sources and over outputs; logits.

    The mean over sources is what the head adds wherever it looks, so no skip-trigram; the mean over
    outputs is a constant that softmax ignores. Both come off the factors, so the rank stays d_head.
    IndexError if there is no such head.
    """
    layer, number = check_head(model, head)
    ov = full_ov_circuits(model, layer)[number]
    return FactoredMatrix(ov.A - ov.A.mean(-2, keepdim=True), ov.B - ov.B.mean(-1, keepdim=True))


def centred_qk(model: AttentionOnlyTransformer, head: Head) -> FactoredMatrix:
    """Full QK circuit of one head, (destination, source), each row with mean 0; nats of score.

    Softmax ignores a constant added to a row, so entries of two rows can be compared only after
    something is fixed: here the mean over all sources. Positions are left out. IndexError if there
    is no such head.
    """
    layer, number = check_head(model, head)
    qk = full_qk_circuits(model, layer)[number]
    return FactoredMatrix(qk.A, qk.B - qk.B.mean(-1, keepdim=True))


@dataclass(frozen=True)
class TableRow:
    """One source token of one head, with what looks for it and what it raises, best first."""

    head: Head
    source: int  # token id
    destinations: Int[Tensor, " k"]  # that attend to the source most
    wants: Float[Tensor, " k"]  # their centred scores, nats
    outputs: Int[Tensor, " k"]  # that the source raises most
    raises: Float[Tensor, " k"]  # by how much, logits per unit of attention

    @property
    def triples(self) -> list[tuple[int, int, int]]:
        """Every (source, destination, output) that the row names: k * k of them."""
        outputs = self.outputs.tolist()
        return [(self.source, d, o) for d in self.destinations.tolist() for o in outputs]

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """The different (source, output) pairs behind the triples: k of them."""
        return [(self.source, o) for o in self.outputs.tolist()]


def table_rows(
    model: AttentionOnlyTransformer,
    head: Head,
    sources: Int[Tensor, " sources"],
    k: int = 5,
    among: Bool[Tensor, " d_vocab"] | None = None,
) -> list[TableRow]:
    """The head's table for these sources; `among` limits what may stand in the other two columns.

    IndexError for a head or a token id that is not there, ValueError for k outside the vocabulary.
    """
    ov, qk = centred_ov(model, head), centred_qk(model, head)
    d_vocab = model.config.d_vocab
    allowed = torch.ones(d_vocab, dtype=torch.bool) if among is None else among
    if allowed.shape != (d_vocab,):
        raise ValueError(f"among must be one of {d_vocab} tokens each, got {tuple(allowed.shape)}")
    if not 1 <= k <= int(allowed.sum()):
        raise ValueError(f"k must lie in 1..{int(allowed.sum())} (tokens to choose among), got {k}")
    if len(sources) and not 0 <= int(sources.min()) <= int(sources.max()) < d_vocab:
        raise IndexError(
            f"sources must be token ids in 0..{d_vocab - 1}, got {int(sources.min())}.."
            f"{int(sources.max())}: load_tokenizer().id_of(text) gives the id of a token"
        )
    raised = ov.rows(sources).masked_fill(~allowed, float("-inf")).topk(k)
    wanted = qk.columns(sources).mT.masked_fill(~allowed, float("-inf")).topk(k)
    columns = (sources.tolist(), wanted.indices, wanted.values, raised.indices, raised.values)
    return [TableRow(head, *cells) for cells in zip(*columns)]


def look_up(
    model: AttentionOnlyTransformer, tokenizer: Tokenizer, head: Head, *sources: str, k: int = 5
) -> "SkipTrigramTable":
    """The head's table for source tokens given as text, such as " more"; mind the leading space.

    KeyError, with the nearest ones, for a text that is no single token; IndexError for a head.
    """
    ids = torch.tensor([tokenizer.id_of(text) for text in sources], dtype=torch.long)
    return SkipTrigramTable(table_rows(model, head, ids, k), tokenizer)


def strongest_sources(
    model: AttentionOnlyTransformer, head: Head, among: Bool[Tensor, " d_vocab"], number: int
) -> Int[Tensor, " number"]:
    """The source tokens of `among` with the largest entry in the centred OV table, largest first.

    Nothing else is looked at, so a list of them is not picked by hand. ValueError if there are fewer.
    """
    ids = among.nonzero().flatten()
    if not 1 <= number <= len(ids):
        raise ValueError(f"number must lie in 1..{len(ids)} (tokens to choose among), got {number}")
    ov = centred_ov(model, head)
    outputs = FactoredMatrix(ov.A, ov.B[:, ids])
    largest = torch.cat([outputs.rows(part).amax(-1) for part in ids.split(512)])
    return ids[largest.topk(number).indices]


def split_tokens(tokenizer: Tokenizer) -> list[tuple[int, int, int]]:
    """All (whole, first, rest): a token " ab" with a space, whose "ab" without it is two tokens.

    Names and identifiers come both ways in a text, so a head can copy `rest` when it sees `first`
    and `whole` stood earlier.
    """
    found = []
    for token, raw in enumerate(tokenizer.token_bytes):
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError:
            continue
        if len(text) > 2 and text[0] == " " and text[1].isalpha():
            parts = tokenizer.encode(text[1:], start=False).tolist()
            if len(parts) == 2:
                found.append((token, *parts))
    return found


def split_token_scores(
    model: AttentionOnlyTransformer, head: Head, triples: list[tuple[int, int, int]]
) -> tuple[Float[Tensor, " triples"], Float[Tensor, " triples"]]:
    """How much more than other sources `whole` raises `rest`, and `first` looks for `whole`.

    Both as z-scores of one entry among all sources: in the column `rest` of the OV table, in the row
    `first` of the QK table. ValueError without triples.
    """
    if not triples:
        raise ValueError("there are no split tokens to score: is the vocabulary large enough?")
    whole, first, rest = torch.tensor(triples).mT
    columns = centred_ov(model, head).columns(rest)  # (source, triples)
    rows = centred_qk(model, head).rows(first).mT  # (source, triples)

    def z(values: Tensor) -> Tensor:
        own = values.gather(0, whole[None])[0]
        return (own - values.mean(0)) / values.std(0)

    return z(columns), z(rows)


class SkipTrigramTable:
    """Rows of one or more heads: HTML in a page or notebook, plain text elsewhere."""

    def __init__(self, rows: list[TableRow], tokenizer: Tokenizer) -> None:
        self.rows, self.tokenizer = rows, tokenizer

    def _cells(self, row: TableRow) -> list[list[str]]:
        columns = ([row.source], row.destinations, row.outputs)
        return [self.tokenizer.token_strings(column) for column in columns]

    def _repr_html_(self) -> str:
        names = ("head", "source", "destinations that look for it", "outputs that it raises")
        head = "".join(f'<th scope="col">{name}</th>' for name in names)
        body = ""
        for row in self.rows:
            tokens = [
                "&ensp; ".join(f"<code>{escape(t)}</code>" for t in cell)
                for cell in self._cells(row)
            ]
            cells = [f"L{row.head[0]}H{row.head[1]}", *tokens]
            plain = "".join(f'<td style="font-weight: inherit">{cell}</td>' for cell in cells)
            body += f"<tr>{plain}</tr>"
        start = '<table class="table claims">'  # the class by which pages style what a cell shows
        return f"{start}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"

    def __repr__(self) -> str:
        lines = []
        for row in self.rows:
            source, destinations, outputs = (" ".join(cell) for cell in self._cells(row))
            lines.append(
                f"L{row.head[0]}H{row.head[1]}  {source} ... [{destinations}] -> {outputs}"
            )
        return "\n".join(lines)
