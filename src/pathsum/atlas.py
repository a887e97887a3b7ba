"""The head atlas: a page part for every head of a model, none left out, made when it is shown.

`python -m pathsum.atlas MODEL --out FILE.html` writes one page that needs nothing else; MODEL is a
shipped model or the folder of a run of your own.
"""

import argparse
import os
from dataclasses import dataclass
from html import escape
from importlib import resources
from pathlib import Path

from pathsum.atlas_facts import HeadFacts, LayerFacts, composition_nulls
from pathsum.atlas_html import head_html, name_of, shares_bar, signed, table
from pathsum.atlas_scores import RULES, SHARES
from pathsum.checkpoints import load_model, load_run, model_names
from pathsum.files import write_atomically
from pathsum.model import AttentionOnlyTransformer
from pathsum.tokenizer import Tokenizer, load_tokenizer

ASSETS = resources.files("pathsum") / "data" / "atlas"
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


def search_box() -> Part:
    """The look of what follows, and a box that hides what does not match; empty without JavaScript."""
    style, script = ((ASSETS / f"atlas.{kind}").read_text("utf-8") for kind in ("css", "js"))
    box = (
        '<div class="atlas-search" hidden><label>Find heads by name, label or token '
        '<input type="search" autocomplete="off" spellcheck="false" placeholder="induction, L0H3, ·the">'
        '</label><p role="status"></p></div>'
    )
    return Part(
        f"<style>{style}</style>{box}<script>{script}</script>", "the search box of the head atlas"
    )


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


def overview(layers: dict[tuple[str, int], LayerFacts], tokenizer: Tokenizer) -> Part:
    """A table of all heads of some layers, by model name and layer, with links to their pages."""
    columns = ["head", "model", "labels", "attention", "prefix", "copying", "sd", "raises", "cost"]
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
        f'<td data-v="{value:.4f}">{words}</td>'
        for value, words in (
            (s["prefix matching"], f"{s['prefix matching']:.2f}"),
            (s["copying"], signed(s["copying"], 2)),
            (s["copying, sd"], signed(s["copying, sd"], 0)),
            (s["raised share"], signed(s["raised share"], 2)),
            (s["cost"], signed(s["cost"], 3)),
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
