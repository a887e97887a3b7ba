"""A model to play with in a notebook: a text, one head's pattern, and switches for every head.

Only plain controls of ipywidgets are used, and pictures and tables go into HTML widgets, so that
versions 7.7 (Colab) and 8 show the same. Without a kernel, as in a page of the book, nothing could
answer: there the picture stands still and a line says where it moves.
"""

import html
import os

import ipywidgets as widgets
from IPython.display import HTML, display

from pathsum.checkpoints import load_model, model_names
from pathsum.demo import DEMO_TEXT
from pathsum.model import AttentionOnlyTransformer
from pathsum.readings import KINDS, Reading, reading
from pathsum.readouts import SHOWN, loss_line, next_table, pattern_picture

OWN = "the model given"
STILL = (
    "This picture stands still: open this page as a notebook, and the same cell has the controls."
)


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
        intact = self.intact if off else None
        self.says.value = loss_line(self.seen, intact)
        self.table.value = next_table(self.seen, intact)
        self._draw()

    def _draw(self, change: object = None) -> None:
        if not self._quiet and self.seen is not None:
            chosen = (self.layer.value, self.head.value, self.weighted.value)
            self.picture.value = pattern_picture(self.seen, *chosen)


def explore(
    model: AttentionOnlyTransformer | str = "attn-only-2l", text: str = DEMO_TEXT
) -> Explorer | HTML:
    """Controls for a text, a model, a head and switches, with what they do to the pattern and the loss.

    `model` is the name of a shipped model, or a model of your own, which then stands beside the
    shipped ones. A text that is empty or too long is answered by a line in the place of the picture.
    In a page of the book, where nothing could answer, the last head of the model stands still: HTML.
    CheckpointError for an unknown name.
    """
    named = load_model(model) if isinstance(model, str) else model
    if os.environ.get("CIRCUITS_BOOK") != "1":
        return Explorer(model, text)
    # No widget may be made here: the page would then load the widgets' scripts from elsewhere.
    seen, c = reading(named, text), named.config
    layer = c.n_layers - 1 if c.n_layers else None
    parts = loss_line(seen), pattern_picture(seen, layer, c.n_heads - 1), next_table(seen)
    return HTML(f'<div class="explore-still"><p>{STILL}</p>{"".join(parts)}</div>')


def _wrapping() -> widgets.Layout:
    return widgets.Layout(flex_flow="row wrap")
