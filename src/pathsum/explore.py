"""A model to play with in a notebook: a text, one head's pattern, and switches for every head.

Only plain controls of ipywidgets are used, and pictures and tables go into HTML widgets, so that
versions 7.7 (Colab) and 8 show the same. Without a kernel, as in a page of the book, nothing could
answer: there the picture stands still and a line says where it moves.
"""

import base64
import html
import io
import os
import warnings

import ipywidgets as widgets
import matplotlib.pyplot as plt
from IPython.display import HTML, display

from pathsum.checkpoints import load_model, model_names
from pathsum.demo import DEMO_TEXT
from pathsum.figures import attention_pattern, pattern_panels, signed_matrix
from pathsum.model import AttentionOnlyTransformer
from pathsum.readings import KINDS, Reading, reading
from pathsum.tokenizer import load_tokenizer

CARD = "background:#fff;color:#222;color-scheme:light;padding:0.5rem;overflow-x:auto"
OWN = "the model given"
LABELS = 64  # tokens; longer texts are drawn by position, since their labels would overlap
STILL = "This picture stands still: open this page as a notebook, and the same cell has the controls."
SHOWN = (("attention", False), ("attention × length of value", True))


class Explorer:
    """The controls and what they show; shows itself at the end of a cell.

    Every control is an attribute and may be set from code: `text`, `model`, `layer`, `head`,
    `weighted`, `kind`, `freeze`, and `switches`, a dictionary from (layer, head) to a button that is
    pressed while the head is off. `intact` and `seen` are the readings on show, None after an error.
    """

    def __init__(self, model: AttentionOnlyTransformer | str, text: str) -> None:
        names = [(name, name) for name in model_names()]
        if isinstance(model, AttentionOnlyTransformer):
            names.insert(0, (OWN, model))
        wide = {"layout": widgets.Layout(width="min(100%, 44rem)")}
        self.text = widgets.Textarea(value=text, description="Text", rows=3, **wide)
        self.model = widgets.Dropdown(options=names, value=model, description="Model")
        self.layer = widgets.Dropdown(description="Layer")
        self.head = widgets.Dropdown(description="Head")
        self.weighted = widgets.RadioButtons(options=SHOWN, value=False, description="Show")
        self.kind = widgets.Dropdown(options=KINDS, description="Off means")
        self.freeze = widgets.Checkbox(value=False, description="patterns as in the intact run")
        self.switches: dict[tuple[int, int], widgets.ToggleButton] = {}
        self.rows, self.says = widgets.VBox(), widgets.HTML()
        self.picture, self.table = widgets.HTML(), widgets.HTML()
        self.intact: Reading | None = None
        self.seen: Reading | None = None
        self._quiet = False
        self._take_model()
        self.model.observe(self._take_model, "value")
        for control in (self.text, self.kind, self.freeze):
            control.observe(self._read, "value")
        for control in (self.layer, self.head, self.weighted):
            control.observe(self._draw, "value")
        self.box = widgets.VBox(
            [
                self.text,
                widgets.HBox([self.model, self.layer, self.head], layout=_wrapping()),
                widgets.HBox([self.weighted, self.kind, self.freeze], layout=_wrapping()),
                widgets.HTML("Heads off (press to switch a head off):"),
                self.rows,
                self.says,
                widgets.HBox([self.picture, self.table], layout=_wrapping()),
            ]
        )

    def _ipython_display_(self) -> None:
        if os.environ.get("CIRCUITS_BOOK") == "1":
            still = f'<p style="margin:0">{STILL}</p>{self.says.value}{self.picture.value}'
            display(HTML(f'<div class="explore-still">{still}{self.table.value}</div>'))
        else:
            display(self.box)

    def _take_model(self, change: object = None) -> None:
        """Load the model chosen and make its layers, heads and switches the ones on offer."""
        chosen = self.model.value
        self._model = load_model(chosen) if isinstance(chosen, str) else chosen
        c = self._model.config
        self._quiet = True
        for control, count in (self.layer, c.n_layers), (self.head, c.n_heads if c.n_layers else 0):
            kept = control.value
            control.options = list(range(count))
            control.value = kept if kept in control.options else (count - 1 if count else None)
            control.disabled = not count
        self.switches = {
            (layer, head): self._switch(layer, head)
            for layer in range(c.n_layers)
            for head in range(c.n_heads)
        }
        self.rows.children = [
            widgets.HBox([self.switches[layer, h] for h in range(c.n_heads)], layout=_wrapping())
            for layer in range(c.n_layers)
        ]
        self._quiet = False
        self._read()

    def _switch(self, layer: int, head: int) -> widgets.ToggleButton:
        name = f"L{layer}H{head}"
        narrow = widgets.Layout(width="4.2rem")
        switch = widgets.ToggleButton(description=name, tooltip=f"{name} off", layout=narrow)
        switch.observe(self._read, "value")
        return switch

    def _read(self, change: object = None) -> None:
        """Run the model on the text, intact and with the heads off; say what went wrong, if so."""
        if self._quiet:
            return
        off = [head for head, switch in self.switches.items() if switch.value]
        try:
            self.intact = reading(self._model, self.text.value)
            self.seen = self.intact
            if off:
                how = {"kind": self.kind.value, "freeze": self.freeze.value}
                self.seen = reading(self._model, self.text.value, off, **how)
        except ValueError as error:
            self.intact = self.seen = None
            self.says.value = f'<p role="alert"><b>{html.escape(str(error))}</b></p>'
            self.picture.value = self.table.value = ""
            return
        now, before = (f"{float(r.losses.mean()):.3f}" for r in (self.seen, self.intact))
        less = f"; {before} with every head on" if off else ""
        self.says.value = f"<p>Mean loss of the text: {now} nats per token{less}.</p>"
        self.table.value = _likeliest(self.seen, self.intact if off else None)
        self._draw()

    def _draw(self, change: object = None) -> None:
        """The pattern of the head chosen, as a picture with a text in its place."""
        if self._quiet or self.seen is None:
            return
        layer, head = self.layer.value, self.head.value
        if layer is None:
            self.picture.value = "<p>This model has no heads: it sees one token at a time.</p>"
            return
        name, words = f"L{layer}H{head}", self.seen.words
        weights = (self.seen.moved if self.weighted.value else self.seen.patterns)[layer, head]
        if len(words) > LABELS:
            top = None if self.weighted.value else 1.0
            fig, _ = pattern_panels({name: weights}, SHOWN[self.weighted.value][0], top=top)
        elif self.weighted.value:
            axes = ("destination: written to", "source: read from", SHOWN[1][0], name)
            fig, _ = signed_matrix(weights, words, words, *axes)
        else:
            fig, _ = attention_pattern(weights, words, name)
        what = SHOWN[self.weighted.value][0]
        alt = f"{what} of {name}: {len(words)} destinations down, as many sources across"
        self.picture.value = (
            f'<div style="{CARD}"><img style="max-width:100%" alt="{html.escape(alt)}" '
            f'src="data:image/png;base64,{_png(fig)}"></div>'
        )


def explore(
    model: AttentionOnlyTransformer | str = "attn-only-2l", text: str = DEMO_TEXT
) -> Explorer:
    """Controls for a text, a model, a head and switches, with what they do to the pattern and the loss.

    `model` is the name of a shipped model, or a model of your own, which then stands beside the
    shipped ones. A text that is empty or too long is answered by a line in the place of the picture.
    CheckpointError for an unknown name.
    """
    if isinstance(model, str) and model not in model_names():
        load_model(model)  # raises, and says which names there are
    return Explorer(model, text)


def _wrapping() -> widgets.Layout:
    return widgets.Layout(flex_flow="row wrap")


def _png(fig: plt.Figure) -> str:
    """The figure as base64 PNG, closed afterwards; letters that the font lacks are boxes."""
    stream = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        fig.savefig(stream, format="png", dpi=110, bbox_inches="tight", facecolor="white")
    plt.close(fig)
    return base64.b64encode(stream.getvalue()).decode()


def _likeliest(seen: Reading, intact: Reading | None) -> str:
    """A table of the likeliest next tokens, with their probabilities in the intact run if given."""
    strings = load_tokenizer().token_strings
    columns = ["next token", "probability"] + (["with every head on"] if intact else [])
    head = "".join(f'<th style="padding:0 0.6rem;text-align:left">{c}</th>' for c in columns)
    rows = ""
    for token, p in seen.likeliest():
        cells = [f"<code>{html.escape(strings([token])[0])}</code>", f"{p:.3f}"]
        cells += [f"{float(intact.following[token]):.3f}"] if intact else []
        cells = [f'<td style="padding:0 0.6rem">{cell}</td>' for cell in cells]
        rows += f"<tr>{''.join(cells)}</tr>"
    return f'<div style="{CARD}"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
