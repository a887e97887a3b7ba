"""One head of the atlas as HTML: labels, scores, drawings and tables, with every token escaped."""

from collections.abc import Callable, Iterable, Sequence
from html import escape

from jaxtyping import Float
from torch import Tensor

from pathsum import atlas_drawings as drawings
from pathsum.atlas_facts import HeadFacts, Pair
from pathsum.atlas_scores import SHARES
from pathsum.circuits import Head
from pathsum.skip_trigrams import TableRow
from pathsum.tokenizer import Tokenizer

FAR = 5  # sd above chance from which a composition score is marked


def name_of(head: Head) -> str:
    """ "L1H4" for (1, 4)."""
    return f"L{head[0]}H{head[1]}"


def signed(value: float, digits: int) -> str:
    """The number with its sign; what rounds to 0 is +0."""
    return f"{round(value, digits) + 0.0:+.{digits}f}"


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
        "copying (eigenvalues)": f"{signed(s['copying'], 2)} ({signed(s['copying, sd'], 0)} sd)",
        "copying (what it raises)": signed(s["raised share"], 2),
        "cost of silencing it": f"{signed(s['cost'], 3)} ± {s['cost, error']:.3f} nats",
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
        f"at {tokens[i]} from {tokens[j]} {float(v):.2f}" for (i, j), v in zip(places, found.values)
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
        cells = [
            f'<td class="{"atlas-marked" if value > FAR else ""}">{signed(value, 0)}</td>'
            for value in z
        ]
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


def trigram_table(rows: list[TableRow], spell: Callable, caption: str) -> str:
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


def pair_table(pairs: list[Pair], spell: Callable, columns: tuple[str, str], caption: str) -> str:
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
