"""The head atlas: a page part for every head of a model, none left out, made when it is shown.

`python -m pathsum.atlas MODEL --out FILE.html` writes one page that needs nothing else; MODEL is a
shipped model or the folder of a run of your own.
"""

import argparse
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from importlib import resources
from pathlib import Path

from jaxtyping import Float
from torch import Tensor

from pathsum import atlas_drawings as drawings
from pathsum.atlas_facts import (
    RULES,
    SHARES,
    HeadFacts,
    LayerFacts,
    Pair,
    composition_nulls,
)
from pathsum.checkpoints import load_model, load_run, model_names
from pathsum.circuits import Head
from pathsum.files import write_atomically
from pathsum.model import AttentionOnlyTransformer
from pathsum.skip_trigrams import TableRow
from pathsum.tokenizer import Tokenizer, load_tokenizer

ASSETS = resources.files("pathsum") / "data" / "atlas"
FAR = 5  # sd above chance from which a composition score is marked
PAGES = {
    ("attn-only-1l", 0): "atlas-1l",
    ("attn-only-2l", 0): "atlas-2l-layer-0",
    ("attn-only-2l", 1): "atlas-2l-layer-1",
}  # of the book, by model and layer


@dataclass(frozen=True)
class Part:
    """A piece of HTML that shows itself at the end of a cell, and its text for elsewhere."""

    html: str
    plain: str

    def _repr_html_(self) -> str:
        return self.html

    def __repr__(self) -> str:
        return self.plain


def name_of(head: Head) -> str:
    """ "L1H4" for (1, 4)."""
    return f"L{head[0]}H{head[1]}"


def search_box(what: str = "heads") -> Part:
    """The look of what follows, and a box that hides what does not match; empty without JavaScript."""
    style, script = ((ASSETS / f"atlas.{kind}").read_text("utf-8") for kind in ("css", "js"))
    box = (
        f'<div class="atlas-search" hidden><label>Find {escape(what)} by name, label or token '
        '<input type="search" autocomplete="off" spellcheck="false" placeholder="induction, L0H3, ·the">'
        '</label><p role="status"></p></div>'
    )
    return Part(f"<style>{style}</style>{box}<script>{script}</script>", f"search box for {what}")


def rules() -> Part:
    """The rules by which heads get their labels, as a table."""
    rows = [[f"<b>{escape(r.label)}</b>", escape(r.words)] for r in RULES]
    return Part(
        table(("label", "rule"), rows, "How labels are given"),
        "\n".join(f"{r.label}: {r.words}" for r in RULES),
    )


class LayerAtlas:
    """The heads of one layer: `LayerAtlas(model, 1, tokenizer)[4]` shows L1H4.

    Raises as `LayerFacts`.
    """

    def __init__(self, model: AttentionOnlyTransformer, layer: int, tokenizer: Tokenizer) -> None:
        self.facts, self.tokenizer = LayerFacts(model, layer), tokenizer
        self.nulls = composition_nulls(model)

    def __getitem__(self, head: int) -> Part:
        facts = self.facts[head]
        labels = ", ".join(rule.label for rule in facts.labels) or "no label"
        scores = ", ".join(f"{name} {value:.2f}" for name, value in facts.scores.items())
        return Part(
            head_html(facts, self.tokenizer, self.nulls),
            f"{name_of(facts.head)}: {labels}; {scores}",
        )


def head_html(
    facts: HeadFacts, tokenizer: Tokenizer, nulls: dict[str, tuple[float, float, float]]
) -> str:
    """All that the atlas shows of one head; every token in it is escaped."""
    spell, name = tokenizer.token_strings, name_of(facts.head)
    tokens = spell(facts.tokens)
    moved_top = float(facts.moved.max().clamp_min(1e-9))
    spectrum = (
        "Eigenvalues of the OV circuit in units of the largest (circles: 0.01, 0.1, 1), and of the same "
        "head before training. Filled: real part above 0."
    )
    looks = (
        "Where it looks, by tokens back, on held-out text; and what positions alone add to its scores. "
        f"Offsets explain {facts.scores['offsets']:.0%} of the variance of scores."
    )
    on_text = "Attention on the demo text; each row adds up to 1."
    moves = f"The same times the length of the value fetched: what is moved, 0 to {moved_top:.2f}."
    weighted = "attention × value length"
    figures = [
        (eigenvalue_drawing(facts), spectrum),
        (profile_drawing(facts), looks),
        (pattern_drawing(facts.pattern, tokens, 1.0, "attention", name), on_text),
        (pattern_drawing(facts.moved, tokens, moved_top, weighted, name), moves),
    ]
    drawn = "".join(
        f"<figure>{drawing}<figcaption>{words}</figcaption>"
        + ('<p class="atlas-read" aria-live="polite"></p>' if "atlas-pattern" in drawing else "")
        + "</figure>"
        for drawing, words in figures
    )
    parts = [
        label_chips(facts),
        shares_bar(facts.shares.tolist(), legend=True),
        score_list(facts),
        f'<div class="atlas-grid">{drawn}</div>',
        composition_table(facts, nulls),
        trigram_table(facts.strongest, spell, "Sources with the largest OV entries"),
        trigram_table(facts.frequent, spell, "The most frequent sources"),
        '<div class="atlas-columns">',
        pair_table(facts.raised, spell, ("source", "raises"), "Largest entries of OV, logits"),
        pair_table(facts.lowered, spell, ("source", "lowers"), "Smallest entries of OV, logits"),
        pair_table(facts.wanted, spell, ("at", "looks for"), "Largest entries of QK, nats"),
        "</div>",
    ]
    return f'<div class="atlas-head" data-head="{name}">{"".join(parts)}</div>'


def label_chips(facts: HeadFacts) -> str:
    """The labels with the score behind each, or the words "no label"."""
    chips = "".join(
        f'<span class="atlas-label">{escape(rule.label)} <b>{facts.scores[rule.score]:.2f}</b></span>'
        for rule in facts.labels
    )
    return f'<p class="atlas-labels">{chips or "<span>no label: no rule holds</span>"}</p>'


def shares_bar(shares: Sequence[float], legend: bool) -> str:
    """How attention on held-out text is split, as a bar; the legend says the same in numbers."""
    words = [f"{name} {share:.2f}" for name, share in zip(SHARES, shares)]
    parts = "".join(
        f'<i class="atlas-{number}" style="width:{100 * share:.1f}%"></i>'
        for number, share in enumerate(shares)
        if share >= 0.004
    )
    bar = f'<span class="atlas-bar" role="img" aria-label="attention: {", ".join(words)}">{parts}</span>'
    if not legend:
        return bar
    keys = "".join(f'<span><i class="atlas-{n}"></i>{word}</span>' for n, word in enumerate(words))
    return f'<div class="atlas-shares">{bar}<p><span>Attention on held-out text:</span> {keys}</p></div>'


def score_list(facts: HeadFacts) -> str:
    """The scores that are no share of attention on text, each with its unit."""
    s = facts.scores
    entries = {
        "prefix matching": f"{s['prefix matching']:.2f}",
        "duplicate token": f"{s['duplicate token']:.2f}",
        "copying (eigenvalues)": f"{s['copying']:+.2f} ({s['copying, sd']:+.0f} sd)",
        "copying (what it raises)": f"{s['raised share']:+.2f}",
        "cost of silencing it": f"{s['cost']:+.3f} ± {s['cost, error']:.3f} nats",
    }
    return '<dl class="atlas-scores">' + "".join(
        f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in entries.items()
    ) + "</dl>"  # fmt: skip


def eigenvalue_drawing(facts: HeadFacts) -> str:
    values, name = facts.eigenvalues, name_of(facts.head)
    right = int((values.real > 0).sum())
    before = int((facts.untrained.real > 0).sum())
    words = (
        f"Two complex planes. {name}: {right} of {len(values)} eigenvalues have a real part above 0. "
        f"Before training: {before}."
    )
    return drawings.eigenvalue_planes({name: values, "before training": facts.untrained}, words)


def profile_drawing(facts: HeadFacts) -> str:
    best, where = facts.attention.max(0)
    peak = int(facts.positional.argmax())
    words = (
        f"Bars of mean attention 0 to {len(facts.attention) - 1} tokens back, highest at {int(where)} "
        f"with {float(best):.2f}. Below, the score that positions alone make, highest at {peak} back."
    )
    return drawings.profile(facts.attention, facts.positional, words)


def pattern_drawing(
    values: Float[Tensor, "dest src"], tokens: Sequence[str], top: float, unit: str, name: str
) -> str:
    start = float(values[1:, 0].sum() / values[1:].sum().clamp_min(1e-12))
    elsewhere = values.clone()
    elsewhere[:, 0] = 0
    found = elsewhere.flatten().topk(3)
    places = [divmod(int(place), len(tokens)) for place in found.indices]
    cells = "; ".join(
        f"from {tokens[i]} to {tokens[j]} {float(v):.2f}" for (i, j), v in zip(places, found.values)
    )
    words = f"{name}, {unit} on the demo text, a triangle. On the start token {start:.0%}. Else: {cells}."
    return drawings.pattern(values, tokens, top, unit, words)


def composition_table(facts: HeadFacts, nulls: dict[str, tuple[float, float, float]]) -> str:
    """Composition with every head of the other layer, in sd of the null; empty for one layer."""
    if not facts.partners:
        return ""
    other = 1 - facts.head[0]
    rows, largest = [], []
    for kind, scores in facts.partners.items():
        mean, sd, reverse = nulls[kind]
        z = ((scores - mean) / sd).tolist()
        cells = [f'<td class="{"far" if value > FAR else "none"}">{value:+.0f}</td>' for value in z]
        rows.append(f'<tr><th scope="row">{kind}</th>{"".join(cells)}</tr>')
        best = int(scores.argmax())
        largest.append(
            f"{kind} {float(scores[best]):.3f} with H{best} (chance {mean:.3f} ± {sd:.3f}; in the "
            f"wrong order at most {reverse:.3f})"
        )
    head = "".join(f'<th scope="col"><span>L{other}</span>H{h}</th>' for h in range(len(z)))
    verb = "Read by" if other else "Reads from"
    return (
        f'<table class="atlas-table atlas-composition"><caption>{verb} layer {other}: composition, '
        f"sd above chance</caption><thead><tr><td></td>{head}</tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table><p>Largest scores: {'; '.join(largest)}.</p>"
    )


def trigram_table(rows: list[TableRow], spell, caption: str) -> str:
    """Sources with the destinations that look for them and the outputs they raise, tinted by size."""
    top = [max(float(v.max()) for v in values) for values in
           ([row.wants for row in rows], [row.raises for row in rows])]  # fmt: skip

    def tinted(ids: Tensor, values: Tensor, largest: float) -> str:
        shades = (values / max(largest, 1e-9)).clamp(0, 1).tolist()
        return " ".join(
            f'<code style="--v:{shade:.2f}" title="{value:.1f}">{escape(token)}</code>'
            for token, shade, value in zip(spell(ids), shades, values.tolist())
        )

    body = [
        [f"<code>{escape(spell([row.source])[0])}</code>",
         tinted(row.destinations, row.wants, top[0]), tinted(row.outputs, row.raises, top[1])]
        for row in rows
    ]  # fmt: skip
    columns = ("source", "destinations that look for it", "outputs that it raises")
    return table(columns, body, caption)


def pair_table(pairs: list[Pair], spell, columns: tuple[str, str], caption: str) -> str:
    """The largest entries of a circuit, one a row."""
    body = [
        [f"<code>{escape(a)}</code>", f"<code>{escape(b)}</code>", f"{value:.1f}"]
        for (a, b), value in ((spell([row, column]), value) for row, column, value in pairs)
    ]
    return table((*columns, ""), body, caption)


def table(columns: Iterable[str], rows: list[list[str]], caption: str) -> str:
    """A table of ready HTML cells."""
    head = "".join(f'<th scope="col">{c}</th>' if c else "<td></td>" for c in columns)
    body = "".join("<tr>" + "".join(f"<td>{c}</td>" for c in row) + "</tr>" for row in rows)
    return (
        f'<table class="atlas-table"><caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table>"
    )


def overview(layers: dict[tuple[str, int], LayerFacts], tokenizer: Tokenizer) -> Part:
    """A table of all heads of some layers, by model name and layer, with links to their pages."""
    columns = (
        "head",
        "model",
        "labels",
        "attention",
        "prefix",
        "copying",
        "sd",
        "raises",
        "cost",
    )
    rows, plain = [], []
    for (model, layer), facts in layers.items():
        for number in range(facts.model.config.n_heads):
            head = facts[number]
            rows.append(overview_row(head, model, PAGES.get((model, layer)), tokenizer))
            labels = ", ".join(rule.label for rule in head.labels)
            plain.append(f"{model} {name_of(head.head)}: {labels or 'no label'}")
    legend = "".join(
        f'<span><i class="atlas-{n}"></i>{name}</span>' for n, name in enumerate(SHARES)
    )
    head = "".join(f'<th scope="col">{name}</th>' for name in columns)
    html = (
        f'<p class="atlas-shares atlas-legend">Attention on held-out text: {legend}</p>'
        '<div class="atlas-scroll" role="region" aria-label="All heads" tabindex="0">'
        f'<table class="atlas-table atlas-overview"><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )
    return Part(f'<div class="atlas">{html}</div>', "\n".join(plain))


def overview_row(facts: HeadFacts, model: str, page: str | None, tokenizer: Tokenizer) -> str:
    """One head's row; `data-words` holds the tokens of its tables, for the search box."""
    s, name = facts.scores, name_of(facts.head)
    suffix = "html" if os.environ.get("CIRCUITS_BOOK") == "1" else "ipynb"
    link = f'<a href="{page}.{suffix}#{name.lower()}">{name}</a>' if page else name
    found = {row.source for row in facts.strongest}
    for row in facts.strongest:
        found |= {*row.destinations.tolist(), *row.outputs.tolist()}
    for pairs in (facts.raised, facts.lowered, facts.wanted):
        found |= {token for a, b, _ in pairs for token in (a, b)}
    words = " ".join(tokenizer.token_strings(sorted(found)))
    chips = ", ".join(rule.label for rule in facts.labels) or "–"
    cells = [
        f'<th scope="row">{link}</th>',
        f"<td>{escape(model.removeprefix('attn-only-'))}</td>",
        f"<td>{chips}</td>",
        f"<td>{shares_bar(facts.shares.tolist(), legend=False)}</td>",
    ] + [
        f'<td data-v="{value:.4f}">{value:{form}}</td>'
        for value, form in (
            (s["prefix matching"], ".2f"),
            (s["copying"], "+.2f"),
            (s["copying, sd"], "+.0f"),
            (s["raised share"], "+.2f"),
            (s["cost"], "+.3f"),
        )
    ]
    return f'<tr data-head="{name}" data-words="{escape(words)}">{"".join(cells)}</tr>'


def standalone(model: AttentionOnlyTransformer, name: str, tokenizer: Tokenizer) -> str:
    """One HTML page with every head of a model that asks no other file or host for anything."""
    layers = [LayerAtlas(model, layer, tokenizer) for layer in range(model.config.n_layers)]
    heads = [(layer, head) for layer in range(len(layers)) for head in range(model.config.n_heads)]
    body = "".join(
        f'<section id="{name_of(h).lower()}"><h2>{name_of(h)}</h2>{layers[h[0]][h[1]].html}</section>'
        for h in heads
    )
    title = f"Head atlas of {escape(name)}"
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        '<meta name="viewport" content="width=device-width"></head><body class="atlas-alone"><main>'
        f"<h1>{title}</h1>{search_box().html}{body}<h2>Labels</h2>{rules().html}</main></body></html>\n"
    )


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m pathsum.atlas", description=__doc__)
    parser.add_argument("model", help=f"one of {', '.join(model_names())}, or a run's folder")
    parser.add_argument("--out", type=Path, default=Path("atlas.html"))
    options = parser.parse_args(arguments)
    folder = Path(options.model)
    model = load_run(folder) if folder.is_dir() else load_model(options.model)
    write_atomically(options.out, standalone(model, folder.name, load_tokenizer()))
    print(options.out)


if __name__ == "__main__":
    main()
