"""A reading as pieces of HTML: the loss, the likeliest next tokens, the pattern of one head."""

import base64
import html
import io
import warnings

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from pathsum.figures import attention_pattern, pattern_panels, signed_matrix
from pathsum.readings import Reading
from pathsum.tokenizer import load_tokenizer

CARD = "background:#fff;color:#222;color-scheme:light;padding:0.5rem;overflow-x:auto"
LABELS = 64  # tokens; longer texts are drawn by position, since their labels would overlap
SHOWN = (("attention", False), ("attention × length of value", True))


def loss_line(seen: Reading, intact: Reading | None = None) -> str:
    """The mean loss of the text in nats per token, and that of the intact run if there is another."""
    now, before = (f"{float(r.losses.mean()):.3f}" if r else "" for r in (seen, intact))
    less = f"; {before} with every head on" if intact else ""
    return f"<p>Mean loss of the text: {now} nats per token{less}.</p>"


def next_table(seen: Reading, intact: Reading | None = None) -> str:
    """The likeliest next tokens; beside them their probabilities in the intact run, if given."""
    strings = load_tokenizer().token_strings
    columns = ["next token", "probability"] + (["with every head on"] if intact else [])
    head = "".join(f'<th style="padding:0 0.6rem;text-align:left">{c}</th>' for c in columns)
    rows = ""
    for token, p in seen.likeliest():
        cells = [f"<samp>{html.escape(strings([token])[0])}</samp>", f"{p:.3f}"]
        cells += [f"{float(intact.following[token]):.3f}"] if intact else []
        rows += "<tr>" + "".join(f'<td style="padding:0 0.6rem">{c}</td>' for c in cells) + "</tr>"
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
    return f'<div style="{CARD}">{table}</div>'


def pattern_picture(
    seen: Reading, layer: int | None, head: int | None, weighted: bool = False
) -> str:
    """One head's pattern, or with `weighted` what it moves; a sentence for a model without heads."""
    if layer is None:
        return "<p>This model has no heads: it sees one token at a time.</p>"
    name, what, words = f"L{layer}H{head}", SHOWN[weighted][0], seen.words
    weights = (seen.moved if weighted else seen.patterns)[layer, head]
    if len(words) > LABELS:
        fig, _ = pattern_panels({name: weights}, what, top=None if weighted else 1.0)
    elif weighted:
        axes = ("destination: written to", "source: read from", what, name)
        fig, _ = signed_matrix(weights, words, words, *axes)
    else:
        fig, _ = attention_pattern(weights, words, name)
    alt = f"{what} of {name}: {len(words)} destinations down, as many sources across"
    return (
        f'<div style="{CARD}"><img style="max-width:100%" alt="{html.escape(alt)}" '
        f'src="data:image/png;base64,{_png(fig)}"></div>'
    )


def _png(fig: Figure) -> str:
    """The figure as base64 PNG, closed afterwards; letters that the font lacks are boxes."""
    stream = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        fig.savefig(stream, format="png", dpi=110, bbox_inches="tight", facecolor="white")
    plt.close(fig)
    return base64.b64encode(stream.getvalue()).decode()
