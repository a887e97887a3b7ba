"""Attention patterns to point at: CircuitsVis drawings that need no network.

The CircuitsVis package asks a search engine whether there is a network each time a figure is
shown, then loads itself from another host or puts 1.3 MB of script into every figure. Here the
figure is data plus the bundle from the installed package: a page of the book carries the data
only and loads the bundle once (book/static/js/cv-loader.js); anywhere else a figure is one
self-contained piece of HTML, which `save` also writes to a file.
"""

import json
import os
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor

from pathsum.files import write_atomically
from pathsum.model import AttentionOnlyTransformer
from pathsum.readings import reading

MAX_TOKENS = 128  # eight heads of 128 tokens are about 0.7 MB of HTML
CARD = "background:#fff;color:#222;color-scheme:light;padding:0.8rem;overflow-x:auto"


@cache
def bundle() -> str:
    """The CircuitsVis script, safe to stand inside an HTML script element."""
    spec = find_spec("circuitsvis")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(
            "views are drawn with the circuitsvis package, which is not installed: "
            'run `pip install "pathsum[viewers]"`'
        )
    path = Path(spec.submodule_search_locations[0], "dist", "cdn", "iife.js")
    return path.read_text(encoding="utf-8").replace("</script", "<\\/script")


@dataclass(frozen=True)
class AttentionView:
    """A drawing of the attention patterns of some heads; shows itself at the end of a cell."""

    component: str
    props: dict[str, object]

    def data(self) -> str:
        """The drawing as JSON in which no token can end the script element around it."""
        text = json.dumps({"component": self.component, "props": self.props}, allow_nan=False)
        return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")

    def placeholder(self) -> str:
        """For a page of the book, whose own script draws it."""
        return (
            '<div class="cv-view"><div class="cv-target">This figure needs JavaScript.</div>'
            f'<script type="application/json">{self.data()}</script></div>'
        )

    def self_contained(self) -> str:
        """For anywhere else: the data, the bundle and the call that draws it."""
        name = f"cv-{uuid.uuid4().hex[:12]}"
        return (
            f'<div class="cv-view" style="{CARD}"><div id="{name}"></div></div>'
            f"<script>if (!window.CircuitsVis) {{ {bundle()}\nwindow.CircuitsVis = CircuitsVis; }}\n"
            f"{{ const view = {self.data()}; CircuitsVis.render("
            f'"{name}", CircuitsVis[view.component], view.props); }}</script>'
        )

    def _repr_html_(self) -> str:
        in_book = os.environ.get("CIRCUITS_BOOK") == "1"
        return self.placeholder() if in_book else self.self_contained()

    def save(self, path: str | Path) -> Path:
        """Write one HTML file that opens in any browser without a network; its path."""
        path = Path(path)
        page = (
            '<!doctype html><html lang="en"><head><meta charset="utf-8">'
            "<title>Attention patterns</title>"
            "<style>body{font-family:system-ui,sans-serif;margin:1rem}</style></head>"
            f"<body>{self.self_contained()}</body></html>\n"
        )
        write_atomically(path, page)
        return path


def attention_view(
    model: object, text: object, layer: int | None = None, weighted: bool = False
) -> AttentionView:
    """Where every head of a model, or of one of its layers, looks in a text.

    With `weighted` the attention is multiplied by the length of the value fetched, and drawn as a
    share of the largest such product among the heads shown. TypeError unless they are an
    `AttentionOnlyTransformer` and a string; ValueError for an empty text, one of more than 128
    tokens, or a model without heads; IndexError for a layer that the model lacks.
    """
    if not isinstance(model, AttentionOnlyTransformer):
        raise TypeError(
            f"the first argument must be a model, got {type(model).__name__}: load_model(name) gives "
            "one; patterns that you have already are drawn by pattern_view(tokens, patterns)"
        )
    n_layers = model.config.n_layers
    if not n_layers:
        raise ValueError(
            "a view needs attention heads, got a model of 0 layers: take one with layers"
        )
    if layer is not None and layer not in range(n_layers):
        raise IndexError(f"layer must lie in 0..{n_layers - 1}, got {layer!r}: L1H4 is of layer 1")
    seen = reading(model, text)
    chosen = list(range(n_layers)) if layer is None else [layer]
    patterns = (seen.moved if weighted else seen.patterns)[chosen].flatten(0, 1)
    if weighted:
        patterns = patterns / patterns.max().clamp_min(1e-9)
    names = [f"L{one}H{head}" for one in chosen for head in range(model.config.n_heads)]
    return pattern_view(seen.words, patterns, names)


def pattern_view(
    tokens: Sequence[str], patterns: Tensor, head_names: Sequence[str] | None = None
) -> AttentionView:
    """The attention patterns of several heads over one text, one small picture per head.

    Args:
        tokens: the text as printable token strings, one per position (`Tokenizer.token_strings`)
        patterns: (n_heads, dest, src), attention weights between 0 and 1
        head_names: one name per head; "H0", "H1", ... when left out

    ValueError when sizes disagree, a weight is not a number or lies outside 0 to 1, or the text
    is longer than 128 tokens.
    """
    values = torch.as_tensor(patterns).detach().to("cpu", torch.float64)
    if values.ndim != 3:
        raise ValueError(
            f"patterns must be (n_heads, dest, src), got {tuple(values.shape)}: "
            "take one text of the batch, and add a head axis with [None] for a single head"
        )
    n_heads, dest, src = values.shape
    if not n_heads:
        raise ValueError(
            "a view needs at least one head, got patterns of none: has the model layers?"
        )
    if not dest == src == len(tokens):
        raise ValueError(
            f"patterns are over {dest} destinations and {src} sources but there are "
            f"{len(tokens)} tokens: all three must be equal"
        )
    if not 0 < len(tokens) <= MAX_TOKENS:
        raise ValueError(
            f"a view holds 1 to {MAX_TOKENS} tokens, got {len(tokens)}: "
            "slice it, for example tokens[:48] and patterns[:, :48, :48]"
        )
    names = [f"H{head}" for head in range(n_heads)] if head_names is None else list(head_names)
    if len(names) != n_heads:
        raise ValueError(f"{n_heads} heads need {n_heads} names, got {len(names)}")
    if not torch.isfinite(values).all():
        raise ValueError("patterns hold a NaN or an infinity: was a row of scores all -inf?")
    low, high = values.min().item(), values.max().item()
    if low < -1e-6 or high > 1 + 1e-6:
        raise ValueError(
            f"attention weights lie between 0 and 1, these between {low:.3g} and {high:.3g}: "
            "take the pattern, after the softmax, not the scores"
        )
    props = {
        "attention": [[[round(x, 4) for x in row] for row in head] for head in values.tolist()],
        "attentionHeadNames": names,
        "tokens": [str(token) for token in tokens],
        "maxValue": 1,
        "minValue": -1,
        "maskUpperTri": True,
    }
    return AttentionView("AttentionHeads", props)
